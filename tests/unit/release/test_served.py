"""Marked files in every quantisation, without an engine: their bytes, and what is in them."""

from pathlib import Path

import gguf
import numpy as np
import pandas as pd
import pytest
import tiny_gguf

from gaussmark_lib import models, perturb
from gaussmark_lib.beyond.release import provenance, requantised, served
from gaussmark_lib.engine import llama_cpp
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.perturb import Key, Watermark

pytestmark = pytest.mark.filterwarnings("ignore:.*plain English paragraph:UserWarning")
DOWN = "model.layers.1.mlp.down_proj.weight"
WM = Watermark(DOWN, 0.01)
KEYS = [Key.from_seed(seed) for seed in range(3)]
PLAIN_TYPES = ("Q8_0", "Q4_0")  # which need no engine


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    _, tokenizer = tiny_gguf.model_and_tokenizer()
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    return tiny_gguf.write(path, tiny_gguf.grouped(tokenizer), tokenizer)


@pytest.fixture
def files(base):
    with served.files(base, WM) as files:
        yield files


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(requantised, "TYPES", PLAIN_TYPES)
    ways = {served.EXPORTED: served.Way()} | {kind: served.Way(kind) for kind in PLAIN_TYPES}
    monkeypatch.setattr(served, "FILES", ways)


def contents(path) -> dict[str, bytes]:
    return {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("kind", PLAIN_TYPES)
def test_a_marked_file_is_what_requantising_the_exported_one_gives(files, tmp_path, kind):
    key = KEYS[0]
    whole = tmp_path / "whole.gguf"
    requantised.write(files.marked(key, None), whole, kind)
    assert contents(files.marked(key, kind)) == contents(whole)
    assert contents(whole) != contents(files.unmarked(kind))


@pytest.mark.parametrize("kind", [None, *PLAIN_TYPES])
def test_shares_are_those_of_the_files(files, few, kind):
    """The oracle reads both files as whole models."""
    name = kind or served.EXPORTED
    found = served.weights(files, KEYS[:1]).set_index("file").loc[name]
    base = models.load(files.unmarked(kind))
    marked = files.marked(KEYS[0], kind)
    psi_w = provenance.weights(base, marked, WM, KEYS[:1])["psi"].item()
    assert found["psi_w"] == pytest.approx(psi_w, rel=1e-4)
    xi = perturb.noise(base.model, WM, KEYS[0]).double().numpy()
    moved = models.load(marked).model.get_parameter(DOWN) - base.model.get_parameter(DOWN)
    moved = moved.detach().double().numpy()
    assert found["share"] == pytest.approx((xi * moved).sum() / (xi**2).sum(), rel=1e-4)
    change = np.linalg.norm(moved - xi) / np.linalg.norm(xi)
    assert found["change"] == pytest.approx(change, rel=1e-3, abs=1e-4)
    assert 0.9 < found["share"] < 1.1


def test_a_coarser_file_has_a_larger_change(files, few):
    change = served.weights(files, KEYS).groupby("file")["change"].mean()
    assert change[served.EXPORTED] < change["Q8_0"] < change["Q4_0"]


def test_files_of_a_key_go_and_those_of_the_base_stay(files, few):
    served.weights(files, KEYS[:1])
    left = sorted(path.name for path in files.folder.iterdir())
    assert left == ["base.Q4_0.gguf", "base.Q8_0.gguf"]
    with served.files(files.base, WM) as other:
        folder = other.folder
        other.marked(KEYS[0], None)
    assert not folder.exists()


def test_unmarked_files_are_tested_with_every_key(files, few):
    lm = models.load(files.base)
    keys = [Key.from_seed(seed) for seed in range(10, 210)]
    found = served.alarms(lm, files, keys, 0.1)
    assert found["file"].tolist() == list(PLAIN_TYPES)
    assert (found["n_keys"] == 200).all()
    assert found["n_hits"].between(5, 40).all()  # of 200 at level .1: 4.2 standard deviations


def test_a_forecast_is_a_promise_times_the_share_of_the_file():
    weights = pd.DataFrame(
        {"file": [served.EXPORTED] * 2 + ["Q8_0"] * 2, "share": [1.0, 1.0, 0.4, 0.6]}
    )
    answers = pd.DataFrame({"way": ["Q8_0", served.EXPORTED, "speculative"], "promised": 3.0})
    assert served.forecasts(answers, weights)["forecast"].tolist() == [1.5, 3.0, 3.0]


def test_measured_divided_by_forecast_is_a_quotient_of_means():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "way": "a",
            "key": [*range(60), *range(20)],
            "is_marked": [True] * 60 + [False] * 20,
            "psi": rng.normal(3, 1, 80),
            "forecast": [np.nan] * 60 + [*rng.normal(2, 0.1, 20)],
        }
    )
    elsewhere = table.assign(way="b", psi=100.0)
    both = pd.concat([table, elsewhere], ignore_index=True)
    found = served.measured_by_forecast(both, ["a"])
    assert found.value == pytest.approx(table["psi"][:60].mean() / table["forecast"][60:].mean())
    error = table["psi"][:60].std() / 60**0.5 / 2
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.2)
    assert found.n == 60


def test_questions_differ_and_are_the_seeds():
    assert len(set(served.questions(80, 1))) == 80
    assert served.questions(5, 1) == served.questions(80, 1)[:5]
    assert served.questions(5, 1) != served.questions(5, 2)


def test_what_cannot_be_served_is_said(monkeypatch):
    monkeypatch.setattr(llama_cpp, "find_spec", lambda name: None)
    assert "make .venv/.extra-engine" in served.missing("doclm")
    with pytest.raises(GaussMarkError, match=r"expected llama\.cpp"):
        llama_cpp.serve(Path("any.gguf"))
    monkeypatch.setattr(llama_cpp, "find_spec", lambda name: "here")
    assert "doclm is not a GGUF file" in served.missing("doclm")


def test_a_file_in_this_format_can_be_served(base, monkeypatch):
    monkeypatch.setattr(llama_cpp, "find_spec", lambda name: "here")
    assert served.missing(str(base)) == ""
