"""Marked GGUF files in an engine that knows nothing of them: llama.cpp serves SmolLM2's, and their
answers are tested from their characters, without their prompts.
"""

import numpy as np
import pandas as pd
import pytest

from gaussmark_lib import models
from gaussmark_lib.beyond.release import served
from gaussmark_lib.engine import llama_cpp, packages
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.perturb import Key, Watermark

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not llama_cpp.is_installed(), reason="needs the extra engine"),
    pytest.mark.skipif(
        not packages.is_installed(packages.MODELS["smollm2"]), reason="needs `make models`"
    ),
]
WM = Watermark("model.layers.20.mlp.down_proj.weight", 0.15)
KEYS = [Key.from_seed(seed) for seed in range(11, 14)]
TOKENS = 48
SQRT_D = (576 * 1536) ** 0.5
# ψ of weights over √d, of what a mark and the rounding errors of its file leave
LEAST = {
    "as exported": 0.999,
    "Q8_0": 0.999,
    "Q6_K": 0.99,
    "Q5_K": 0.99,
    "Q4_K": 0.98,
    "Q4_0": 0.95,
}


@pytest.fixture(scope="module")
def files():
    with served.files(models.gguf_file("smollm2"), WM, keep=True) as files:
        yield files


@pytest.fixture(scope="module")
def answers(files):
    """Of three keys' files in each quantisation, and of one key's in each other way."""
    lm = models.load("smollm2")
    questions = served.questions(len(KEYS))
    by_file = served.answers(lm, files, KEYS, served.FILES, questions, TOKENS, n_base=0)
    by_way = served.answers(lm, files, KEYS[:1], served.SERVING, questions, TOKENS, n_base=1)
    return by_file, by_way


def test_every_quantisation_keeps_the_noise(files):
    found = served.weights(files, KEYS)
    for name, rows in found.groupby("file"):
        assert (rows["share"] - 1).abs().max() < 0.01
        assert rows["psi_w"].min() > LEAST[name] * SQRT_D


@pytest.mark.parametrize("name", served.FILES)
def test_answers_of_a_marked_file_carry_its_key(answers, name):
    """The mean of three has a standard deviation of 0.6 about 2.6."""
    by_file, _ = answers
    is_own = (by_file["way"] == name) & by_file["is_marked"]
    psi = by_file.loc[is_own, "psi"]
    assert len(psi) == 3
    assert psi.mean() > 0.7


def test_other_ways_of_serving_keep_it_too(answers):
    """One answer each: the mean of six has a standard deviation of 0.45 about 2.6."""
    _, by_way = answers
    marked = by_way[by_way["is_marked"]]
    assert marked["way"].tolist() == [*served.SERVING]
    assert marked["psi"].mean() > 1.2
    assert marked["psi"].min() > -1.5


def test_no_other_key_is_found_and_none_in_the_unmarked_file(answers):
    every = pd.concat(answers)
    others = np.concatenate([every["wrong"], every.loc[~every["is_marked"], "psi"]])
    assert abs(others.mean()) < 4 / len(others) ** 0.5
    assert 0.6 < others.std() < 1.4


def test_answers_are_whole_and_a_promise_belongs_to_the_unmarked_ones(answers):
    _, by_way = answers
    assert by_way["n_tokens"].between(TOKENS - 3, TOKENS).all()
    assert (by_way["promised"].notna() == ~by_way["is_marked"]).all()
    assert by_way["promised"].dropna().between(1, 5).all()


def test_a_base_model_goes_on_from_its_prompt_and_a_draft_is_used(files):
    server = llama_cpp.serve(files.base, draft=files.base)
    start = ["The history of bread begins"]
    sampling = {**llama_cpp.PLAIN, "ignore_eos": True}
    [response] = llama_cpp.answers(server, start, 20, 1, sampling, is_chat=False)
    assert len(llama_cpp.text(response)) > 20
    assert response["timings"]["draft_n_accepted"] > 0


def test_what_llama_cpp_cannot_serve_is_named(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF no more")
    with pytest.raises(GaussMarkError, match="cannot serve"):
        llama_cpp.serve(broken)
    with pytest.raises(GaussMarkError, match="no answer: too long"):
        llama_cpp.text({"error": "too long"})
