"""Marked GGUF files in an engine that knows nothing of them: llama.cpp serves them, and the answers
are tested from their characters, without their prompts.

doclm is served in every quantisation and every way: its answers are long and cheap. SmolLM2, a chat
model, is served as its file is exported and in the quantisation that most people use.
"""

import numpy as np
import pytest
import tiny_gguf

from gaussmark_lib import models, texts
from gaussmark_lib.beyond.release import served
from gaussmark_lib.engine import gguf_files, llama_cpp, packages
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.perturb import Key, Watermark

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not llama_cpp.is_installed(), reason="needs the extra engine"),
    pytest.mark.filterwarnings("ignore:.*plain English paragraph:UserWarning"),
]
HAS_SMOLLM2 = packages.is_installed(packages.MODELS["smollm2"])
needs_smollm2 = pytest.mark.skipif(not HAS_SMOLLM2, reason="needs `make models`")
KEYS = [Key.from_seed(seed) for seed in range(11, 14)]
DOCLM = Watermark("model.layers.4.mlp.down_proj.weight", 0.15)
SMOLLM2 = Watermark("model.layers.20.mlp.down_proj.weight", 0.15)
TOKENS = 110
CHAT_TOKENS = 48
CHAT_FILES = (served.EXPORTED, "Q4_K")
EVERY_WAY = served.FILES | served.SERVING
# ψ of weights over √d, of what a mark and the rounding errors of its file leave
LEAST = dict(zip(served.FILES, (0.999, 0.999, 0.99, 0.99, 0.98, 0.95), strict=True))


@pytest.fixture(scope="module")
def doclm(tmp_path_factory):
    lm = models.load()
    path = tmp_path_factory.mktemp("doclm") / "doclm.gguf"
    tiny_gguf.write(path, lm.model, lm.tokenizer, tensor_type="F16")
    with served.files(path, DOCLM, keep=True) as files:
        yield files


@pytest.fixture(scope="module")
def smollm2():
    with served.files(models.gguf_file("smollm2"), SMOLLM2, keep=True) as files:
        yield files


@pytest.fixture(scope="module")
def continuations(doclm):
    """doclm's: of three keys' files in every way, and of the base file in every way."""
    lm = models.load(doclm.base)
    starts = [lm.decode(ids) for ids in texts.prompts(lm, "docs", len(KEYS), 8, seed=0)]
    return served.answers(lm, doclm, KEYS, EVERY_WAY, starts, TOKENS, n_base=1)


@pytest.fixture(scope="module")
def chats(smollm2):
    """SmolLM2's answers, of three keys' files."""
    lm = models.load("smollm2")
    ways = {name: served.FILES[name] for name in CHAT_FILES}
    questions = served.questions(len(KEYS))
    return served.answers(lm, smollm2, KEYS, ways, questions, CHAT_TOKENS, n_base=0)


def check_weights(files):
    found = served.weights(files, KEYS)
    sqrt_d = gguf_files.matrix(files.reader(files.base), files.wm.weight).numel() ** 0.5
    assert [*found["file"].unique()] == [*served.FILES]
    for name, rows in found.groupby("file"):
        assert (rows["share"] - 1).abs().max() < 0.01
        assert rows["psi_w"].min() > LEAST[name] * sqrt_d - 1  # ‖ξ‖/σ is √d ± 0.7


def test_every_quantisation_keeps_the_noise(doclm):
    check_weights(doclm)


@needs_smollm2
def test_every_quantisation_of_smollm2_keeps_the_noise(smollm2):
    check_weights(smollm2)


@pytest.mark.parametrize("name", EVERY_WAY)
def test_texts_of_a_marked_file_carry_its_key(continuations, name):
    """The mean of three has a standard deviation of 0.6 about 2.9."""
    psi = continuations.query("is_marked and way == @name")["psi"]
    assert len(psi) == 3
    assert psi.mean() > 0.9


@needs_smollm2
@pytest.mark.parametrize("name", CHAT_FILES)
def test_answers_of_a_chat_model_carry_its_key(chats, name):
    """The mean of three has a standard deviation of 0.6 about 2.6."""
    rows = chats[chats["way"] == name]
    assert len(rows) == 3
    assert rows["psi"].mean() > 0.7
    assert abs(rows["wrong"].mean()) < 4 / 3**0.5


def test_no_other_key_is_found_and_none_in_the_unmarked_file(continuations):
    others = [*continuations["wrong"], *continuations.query("not is_marked")["psi"]]
    assert abs(np.mean(others)) < 4 / len(others) ** 0.5
    assert 0.7 < np.std(others) < 1.3


def test_texts_are_whole_and_a_promise_belongs_to_the_unmarked_ones(continuations):
    assert continuations["n_tokens"].between(TOKENS - 5, TOKENS).all()
    assert (continuations["promised"].notna() == ~continuations["is_marked"]).all()
    assert continuations["promised"].dropna().between(1, 7).all()


def test_a_single_key_has_no_other_one(doclm):
    with pytest.raises(GaussMarkError, match="expected at least two keys"):
        served.answers(models.load(), doclm, KEYS[:1], EVERY_WAY, [""], TOKENS, n_base=0)


def test_a_base_model_goes_on_from_its_prompt_and_a_draft_is_used(doclm):
    server = llama_cpp.serve(doclm.base, draft=doclm.base)
    sampling = {**llama_cpp.PLAIN, "ignore_eos": True}
    [response] = llama_cpp.answers(server, ["The mean of"], 20, 1, sampling, is_chat=False)
    assert len(llama_cpp.text(response)) > 20
    assert response["timings"]["draft_n_accepted"] > 0


def test_what_llama_cpp_cannot_serve_is_named(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF no more")
    with pytest.raises(GaussMarkError, match="cannot serve"):
        llama_cpp.serve(broken)
    with pytest.raises(GaussMarkError, match="no answer: too long"):
        llama_cpp.text({"error": "too long"})
