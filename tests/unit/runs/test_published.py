"""The paper's numbers: complete, each with its place, and what is drawn beside a measured one."""

import math
import re

import pytest
from scipy.stats import norm

from gaussmark_lib.runs import published
from gaussmark_lib.runs.published import COLUMNS, Z_95, comparable

MODELS = ["meta-llama/Llama-3.1-8B", "mistralai/Mistral-7B-v0.1", "microsoft/Phi-3.5-mini-instruct"]


@pytest.mark.parametrize("model", MODELS)
def test_every_row_is_a_number_with_its_place(model):
    rows = published(model)
    assert list(rows) == COLUMNS
    assert set(rows["scheme"]) == {"base", "GaussMark", "rank-reduced", "KGW-1", "KGW-2"}
    assert set(rows["quantity"]) == set(published(MODELS[0])["quantity"])
    assert not rows.duplicated(["quantity", "scheme"]).any()
    assert all(re.fullmatch(r"(Table|Figure) \d+", place) for place in rows["where"])
    assert rows["unit"].notna().all()
    for row in rows.itertuples():
        kinds = [row.value == row.value, row.low < row.high, row.most == row.most]
        assert sum(kinds) == 1, row
        assert math.isnan(row.error) or 0 < row.error < row.value


def test_another_model_has_no_numbers():
    assert comparable("doclm", "beauty").empty
    assert comparable("doclm", "win rate", "KGW-1", less="x").empty
    assert published("doclm").empty
    assert list(published("doclm", "cross-entropy")) == COLUMNS


def test_a_rise_is_the_difference_of_two_numbers_and_its_error_that_of_both():
    (row,) = comparable(MODELS[0], "cross-entropy", "GaussMark", less="base").to_dict("records")
    half = norm.ppf(0.975) * math.sqrt(0.0145**2 + 0.0149**2)
    assert row["model"] == "Llama-3.1-8B"
    assert row["value"] == pytest.approx(2.2331 - 2.1709)
    assert (row["low"], row["high"]) == pytest.approx((row["value"] - half, row["value"] + half))
    assert abs(Z_95 - norm.ppf(0.975)) < 1e-15


def test_another_model_stands_beside_all_of_the_papers():
    rows = comparable("doclm", "win rate")
    assert list(rows["model"]) == [name.split("/")[1] for name in MODELS]
    assert list(rows["value"]) == [0.45, 0.50, 0.49]
    assert rows[["low", "high"]].isna().all(axis=None), "the paper gives no error"


def test_an_interval_without_a_value_is_drawn_at_its_middle_and_a_bound_stays_one():
    (base,) = comparable(MODELS[2], "win rate", "base").to_dict("records")
    assert (base["value"], base["low"], base["high"]) == (0.5, 0.46, 0.54)
    (bound,) = comparable(MODELS[2], "max/min of ‖G‖", "base").to_dict("records")
    assert math.isnan(bound["value"])
    assert bound["most"] == 40
