"""The row of a model on the page that compares doclm with real models."""

import json
import math

import pytest

from gaussmark_experiments import likeness
from gaussmark_lib import files, models

SMALL = likeness.Design(
    n_pairs=3, n_tokens=8, n_spread_prompts=2, n_spread=2, n_kind=3, kinds=("docs",)
)


def test_a_row_is_of_its_model_and_other_rows_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(likeness, "REPLACED", 0.0)  # no edit: all of ψ is left
    path = tmp_path / "likeness.json"
    files.write_json(path, {"another": {"sigma": 1.0}})
    likeness.write("doclm", SMALL, path)
    rows = json.loads(path.read_text(encoding="utf-8"))
    row = rows["doclm"]
    assert rows["another"] == {"sigma": 1.0}
    theta = models.load("doclm").model.get_parameter(row["weight"])
    assert row["sd of the weight"] == pytest.approx(float(theta.detach().std()))
    assert row["kept after substitution"]["value"] == 1
    assert row["kept at a low temperature"]["value"] != 1
    assert row["largest over smallest norm"]["value"] > 1
    assert 0 < row["entropy"]["value"] < math.log(4096)
    assert -1 < row["cosine"]["docs"]["value"] < 1
