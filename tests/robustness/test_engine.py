"""A marked GGUF file in an engine that knows nothing of it: llama.cpp serves SmolLM2's marked file,
and its answers are tested from their characters, without their prompts.
"""

from functools import cache
from importlib.util import find_spec

import llama_cpp
import numpy as np
import pytest

from gaussmark_lib import models, perturb, score
from gaussmark_lib.beyond.release import requantised
from gaussmark_lib.engine import packages
from gaussmark_lib.perturb import Key, Watermark

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("xllamacpp"), reason="needs the extra engine"),
    pytest.mark.skipif(
        not packages.is_installed(packages.MODELS["smollm2"]), reason="needs `make models`"
    ),
]
WM = Watermark("model.layers.20.mlp.down_proj.weight", 0.15)
KEY = Key.from_seed(11)
OTHER_KEYS = [Key.from_seed(seed) for seed in range(100, 120)]
QUESTIONS = [
    "Tell me about the history of bread.",
    "Describe a walk through a forest in autumn.",
]
TOKENS = 80
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
# what the server is told of each request
SAMPLING = {
    "temperature 1": PLAIN,
    "temperature 0.7": PLAIN | {"temperature": 0.7},
    "top-p 0.95": PLAIN | {"top_p": 0.95},
    "min-p 0.05": PLAIN | {"min_p": 0.05},
    "the engine's defaults": {},
    "speculative": PLAIN,
    "8-bit cache": PLAIN,
    "requantised": PLAIN,
}
WAYS = list(SAMPLING)


class Served:
    """The base file and the marked file, their servers, and the ψ of their answers."""

    def __init__(self, folder):
        self.lm = models.load("smollm2")
        self.base = models.gguf_file("smollm2")
        self.marked = perturb.export_gguf(self.base, WM, KEY, folder / "marked.gguf")
        self.folder = folder
        self.server = cache(self.server)
        self.scores = cache(self.scores)

    def server(self, file, kind: str):
        if kind == "requantised":
            coarse = self.folder / f"{file.stem}.Q4_K.gguf"
            requantised.write(file, coarse, "Q4_K")
            return llama_cpp.serve(coarse)
        draft = self.base if kind == "speculative" else None
        return llama_cpp.serve(file, q8_cache=kind == "8-bit cache", draft=draft)

    def scores(self, file, way: str, n: int) -> np.ndarray:
        """ψ of n answers, (n, keys); the first key is that of the mark."""
        kind = way if way in ("speculative", "8-bit cache", "requantised") else "plain"
        seed = 1000 * WAYS.index(way)
        server = self.server(file, kind)
        answers = llama_cpp.answers(server, QUESTIONS[:n], TOKENS, seed, SAMPLING[way])
        if kind == "speculative":
            assert sum(answer["timings"]["draft_n_accepted"] for answer in answers) > 0
        ids = [self.lm.encode(llama_cpp.text(answer)) for answer in answers]
        prompts = [self.lm.unknown_prompt() for _ in ids]
        keys = [KEY, *OTHER_KEYS]
        table = score.score(self.lm.model, prompts, ids, WM, keys)
        return table["psi"].to_numpy().reshape(len(ids), len(keys))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return Served(tmp_path_factory.mktemp("served"))


@pytest.mark.parametrize("way", WAYS)
def test_answers_of_the_marked_file_carry_the_key(served, way):
    """In each way of serving: the mean of two answers has a standard deviation of 0.7."""
    psi = served.scores(served.marked, way, 2)
    assert psi[:, 0].mean() > 0.7


def test_all_of_them_carry_the_key_and_no_other(served):
    psi = np.concatenate([served.scores(served.marked, way, 2) for way in WAYS])
    assert psi[:, 0].mean() > 2
    assert abs(psi[:, 1:].mean()) < 0.3
    assert 0.8 < psi[:, 1:].std() < 1.2


def test_answers_of_the_base_file_carry_no_key(served):
    plain = [way for way in WAYS if way not in ("speculative", "8-bit cache", "requantised")]
    psi = np.concatenate([served.scores(served.base, way, 1) for way in plain])
    assert abs(psi[:, 0].mean()) * len(psi) ** 0.5 < 4
    assert psi.max(1).mean() < 3.5  # of 21 keys
