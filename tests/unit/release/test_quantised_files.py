"""A GGUF file in other quantisations: its types, its numbers, what is left of a mark; and the
marked files that are served, without an engine that serves them.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pandas as pd
import pytest
import tiny_gguf
import torch
from scipy.stats import binom

from gaussmark_lib import models, perturb
from gaussmark_lib.beyond.release import provenance, requantised, served
from gaussmark_lib.engine import gguf_files, llama_cpp
from gaussmark_lib.errors import DegenerateScoreError, GaussMarkError, InvalidModelError
from gaussmark_lib.perturb import Key, Watermark

pytestmark = pytest.mark.filterwarnings("ignore:.*plain English paragraph:UserWarning")
needs_engine = pytest.mark.skipif(not find_spec("xllamacpp"), reason="without the extra engine")
DOWN = "model.layers.1.mlp.down_proj.weight"  # rows of 512 numbers; others have 64
WM = Watermark(DOWN, 0.01)
KEYS = [Key.from_seed(seed) for seed in range(3)]
PLAIN_TYPES = ("Q8_0", "Q4_0")  # which need no engine
ALL = [
    pytest.param(kind, marks=[needs_engine] if kind.endswith("K") else [])
    for kind in requantised.TYPES
]
# ‖θ′ − θ‖/‖θ‖ of numbers that are normal
COARSE = {"Q8_0": 0.01, "Q6_K": 0.03, "Q5_K": 0.06, "Q4_K": 0.12, "Q4_0": 0.15}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    _, tokenizer = tiny_gguf.model_and_tokenizer()
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    return tiny_gguf.write(path, tiny_gguf.grouped(tokenizer), tokenizer)


def types(path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


def theta(path):
    return gguf_files.matrix(gguf.GGUFReader(path), DOWN)


@needs_engine
def test_rows_that_have_no_k_quant_fall_back(base, tmp_path):
    before = types(base)
    for kind, fallback in (("Q6_K", "Q8_0"), ("Q5_K", "Q5_1"), ("Q4_K", "Q5_0")):
        fell_back = requantised.write(base, tmp_path / f"{kind}.gguf", kind)
        found = types(tmp_path / f"{kind}.gguf")
        assert found["blk.1.ffn_down.weight"] == kind
        assert found["blk.1.ffn_up.weight"] == fallback
        assert found["token_embd.weight"] == fallback
        assert fell_back == dict.fromkeys(fell_back, fallback)
        wide = {f"blk.{block}.ffn_down.weight" for block in (0, 1)}
        matrices = {name for name in before if "norm" not in name}
        assert set(fell_back) == matrices - wide
        assert all(found[name] == "F32" for name in set(before) - matrices)


def test_rows_that_fit_no_block_stay_float16():
    tensor = gguf.gguf_reader.ReaderTensor("x.weight", 0, np.array([40, 2]), 80, 0, 0, None, None)
    for kind in requantised.TYPES:
        assert requantised.fitting(tensor, gguf.GGMLQuantizationType[kind]).name == "F16"


@pytest.mark.parametrize("kind", ALL)
def test_its_numbers_are_those_of_the_source_up_to_rounding(base, tmp_path, kind):
    requantised.write(base, tmp_path / "q.gguf", kind)
    apart = float((theta(tmp_path / "q.gguf") - theta(base)).norm() / theta(base).norm())
    assert COARSE[kind] / 4 < apart < COARSE[kind]
    found = dict(models.load(tmp_path / "q.gguf").model.named_parameters())
    for name, known in models.load(base).model.named_parameters():  # q and k are permuted too
        most = 6 * COARSE[kind] * float(known.detach().square().mean().sqrt())
        assert torch.allclose(found[name], known, atol=most), name


@needs_engine
@pytest.mark.parametrize("kind", sorted(requantised.EITHER))
def test_the_engine_and_the_package_write_the_same_bytes(kind, monkeypatch):
    numbers = np.random.default_rng(0).standard_normal((7, 576), np.float32)
    by_engine = requantised._quantised(numbers, kind)
    monkeypatch.setattr(requantised, "_library", lambda: None)
    assert by_engine.tobytes() == requantised._quantised(numbers, kind).tobytes()


@pytest.mark.parametrize("kind", ALL)
def test_a_mark_is_known_in_a_requantised_file(base, tmp_path, kind):
    """Its ψ is √d·σ/√(σ² + the rounding's variance); the control has the same quantisation."""
    marked = perturb.export_gguf(base, WM, KEYS[0], tmp_path / "marked.gguf")
    requantised.write(marked, tmp_path / "marked_q.gguf", kind)
    requantised.write(base, tmp_path / "base_q.gguf", kind)
    delta = theta(tmp_path / "marked_q.gguf") - theta(base)
    xi = perturb.noise(models.load(base).model, WM, KEYS[0])
    rounding = float((delta - xi).square().mean())
    d = xi.numel()
    expected = d**0.5 * WM.sigma / (WM.sigma**2 + rounding) ** 0.5
    for file in (base, tmp_path / "base_q.gguf"):
        table = provenance.weights(models.load(file), tmp_path / "marked_q.gguf", WM, KEYS)
        psi = table["psi"].to_numpy()
        assert psi[0] == pytest.approx(expected, rel=0.05)
        assert np.abs(psi[1:]).max() < 4


@pytest.mark.parametrize("kind", [ALL[0], ALL[3]])
def test_an_unmarked_file_holds_the_level(base, tmp_path, kind):
    """Over 2,000 keys, inside the exact 99% interval of a binomial."""
    requantised.write(base, tmp_path / "q.gguf", kind)
    keys = [Key.from_seed(seed) for seed in range(2000)]
    table = provenance.weights(models.load(base), tmp_path / "q.gguf", WM, keys)
    for p_value in ("p_value", "p_rows"):
        for level in (0.05, 0.01):
            low, high = binom.interval(0.99, len(keys), level)
            assert low <= (table[p_value] <= level).sum() <= high


def test_the_base_itself_is_no_suspect(base, tmp_path):
    requantised.write(base, tmp_path / "q.gguf", "Q8_0")
    requantised.write(tmp_path / "q.gguf", tmp_path / "again.gguf", "Q8_0")
    assert types(tmp_path / "again.gguf") == types(tmp_path / "q.gguf")
    with pytest.raises(DegenerateScoreError):
        provenance.weights(models.load(tmp_path / "q.gguf"), tmp_path / "again.gguf", WM, KEYS)


def test_what_cannot_be_requantised(base, tmp_path, monkeypatch):
    target = tmp_path / "q.gguf"
    with pytest.raises(InvalidModelError, match="expected 'Q8_0' or"):
        requantised.write(base, target, "IQ1_S")
    with pytest.raises(InvalidModelError, match=r"base\.gguf exists"):
        requantised.write(base, base, "Q8_0")
    _, tokenizer = tiny_gguf.model_and_tokenizer()
    odd = tmp_path / "odd.gguf"
    model = tiny_gguf.grouped(tokenizer)
    tiny_gguf.write(odd, model, tokenizer, unreadable="blk.1.ffn_down.weight")
    with pytest.raises(InvalidModelError, match=r"blk\.1\.ffn_down.*Q8_K"):
        requantised.write(odd, target, "Q8_0")
    monkeypatch.setattr(requantised, "_library", lambda: None)
    with pytest.raises(InvalidModelError, match=r"gaussmark\[engine\]"):
        requantised.write(base, target, "Q4_K")
    assert os.listdir(tmp_path) == ["odd.gguf"]


# --- files that are served ---


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


def test_files_of_a_key_go_and_those_of_the_base_stay(files, few):
    files.marked(KEYS[0], "Q8_0")
    served.weights(files, KEYS[:1])
    assert [path.name for path in files.folder.iterdir()] == ["base.Q8_0.gguf"]
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
    both = pd.concat([table, table.assign(way="b", psi=100.0)], ignore_index=True)
    found = served.measured_by_forecast(both, ["a"])
    assert found.value == pytest.approx(table["psi"][:60].mean() / table["forecast"][60:].mean())
    error = table["psi"][:60].std() / 60**0.5 / 2
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.2)
    assert found.n == 60


def test_questions_differ_and_are_the_seeds():
    assert len(set(served.questions(80, 1))) == 80
    assert served.questions(5, 1) == served.questions(80, 1)[:5]
    assert served.questions(5, 1) != served.questions(5, 2)


def test_what_cannot_be_served_is_said(base, monkeypatch):
    monkeypatch.setattr(llama_cpp, "find_spec", lambda name: None)
    assert "make .venv/.extra-engine" in served.missing("doclm")
    with pytest.raises(GaussMarkError, match=r"expected llama\.cpp"):
        llama_cpp.serve(Path("any.gguf"))
    monkeypatch.setattr(llama_cpp, "find_spec", lambda name: "here")
    assert "doclm is not a GGUF file" in served.missing("doclm")
    assert served.missing(str(base)) == ""
