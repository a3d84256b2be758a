"""Per-token evidence against what it abbreviates: one backward pass per token, finite differences,
and the ψ it adds up to.
"""

import closeness
import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BloomConfig, BloomForCausalLM

from gaussmark_lib import errors, evidence, perturb, score
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench.plots import show

PROMPT, RESPONSE = [5, 17, 60], [8, 44, 2, 90, 31, 31, 12, 77, 3]
WM, KEY = Watermark("model.layers.1.mlp.up_proj.weight", 0.1), Key.from_seed(3)
ROUNDING = closeness.of_sum(torch.float64, 100_000)  # numbers of the weight × tokens


def by_backward_passes(model, wm: Watermark) -> np.ndarray:
    """⟨ξ, ∇ log p(v_t)⟩/(σ‖Σ_t ∇ log p(v_t)‖), one gradient per token."""
    linear = wm.on(model).linear
    gradients = [
        linear.oriented(torch.autograd.grad(one, linear.parameter, retain_graph=True)[0])
        for one in tiny_models.log_p(model, PROMPT, RESPONSE)
    ]
    xi = perturb.noise(model, wm, KEY).to(gradients[0])
    norm = wm.sigma * torch.stack(gradients).sum(0).norm()
    return np.array([((xi * g).sum() / norm).item() for g in gradients])


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_is_one_backward_pass_per_token(architecture: str):
    model, wm = tiny_models.marked(architecture, torch.float64)
    table = evidence.per_token(model, PROMPT, RESPONSE, wm, KEY)
    assert list(table.columns) == evidence.COLUMNS
    assert table["token_id"].tolist() == RESPONSE
    assert table["position"].tolist() == list(range(len(RESPONSE)))
    expected = by_backward_passes(model, wm)
    np.testing.assert_allclose(table["evidence"], expected, rtol=1e-9, atol=ROUNDING)
    log_p = tiny_models.log_p(model, PROMPT, RESPONSE).detach()
    np.testing.assert_allclose(table["log_p"], log_p, rtol=1e-12)


def test_a_model_with_a_derivative_of_its_own_making():
    """Bloom's activation, of which torch knows no forward-mode derivative."""
    config = BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4)
    model = BloomForCausalLM(config).double().train()
    wm = Watermark("transformer.h.0.mlp.dense_4h_to_h.weight", 0.1)
    found = evidence.per_token(model, PROMPT, RESPONSE, wm, KEY)["evidence"]
    expected = by_backward_passes(model.eval(), wm)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=ROUNDING)


@pytest.mark.parametrize(("architecture", "weight", "rank_dropped"), tiny_models.alternating(0, 3))
def test_adds_up_to_psi(architecture: str, weight: str, rank_dropped: int):
    model, wm = tiny_models.build(architecture), Watermark(weight, 0.1, rank_dropped)
    keys = [KEY, Key.from_seed(4)]
    for response in (RESPONSE, [7]):
        psi = score.score(model, [PROMPT], [response], wm, keys)
        tables = [evidence.per_token(model, PROMPT, response, wm, key) for key in keys]
        for table, wanted in zip(tables, psi["psi"], strict=True):
            assert abs(table["evidence"].sum() - wanted) < 1e-4 * table["evidence"].abs().sum()
        assert tables[0]["log_p"].sum() == pytest.approx(psi["log_lik"][0], rel=1e-4)
        assert abs(tables[0]["evidence"].sum() - psi["psi"][1]) > 1e-3, "not the other key's"


def test_no_prompt_is_the_start_token():
    model = tiny_models.build()
    started = evidence.per_token(model, [model.config.bos_token_id], RESPONSE, WM, KEY)
    assert evidence.per_token(model, [], RESPONSE, WM, KEY).equals(started)


def test_leaves_the_model_as_it_was_and_uses_no_dropout():
    model, wm = tiny_models.build("gpt2"), Watermark(tiny_models.ONE_WEIGHT["gpt2"], 0.1)
    quiet = evidence.per_token(model, PROMPT, RESPONSE, wm, KEY)
    before = {name: value.clone() for name, value in model.train().state_dict().items()}
    assert evidence.per_token(model, PROMPT, RESPONSE, wm, KEY).equals(quiet)
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("response", [[], [tiny_models.VOCAB], [1] * tiny_models.CONTEXT])
def test_refuses_what_cannot_be_scored(response):
    with pytest.raises(errors.InvalidTextError):
        evidence.per_token(tiny_models.build(), PROMPT, response, WM, KEY)


def test_refuses_a_watermarked_model_and_a_zero_gradient():
    model = tiny_models.build()
    with perturb.watermarked(model, WM, KEY), pytest.raises(errors.PerturbedModelError):
        evidence.per_token(model, PROMPT, RESPONSE, WM, KEY)
    with torch.no_grad():
        model.lm_head.weight.zero_()  # every token is equally likely, whatever happens below
    with pytest.raises(errors.DegenerateScoreError):
        evidence.per_token(model, PROMPT, RESPONSE, WM, KEY)


def of_bytes(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


def of_words(ids: list[int]) -> str:
    """Drops the space before the first word, as tokenizers of the sentencepiece kind do."""
    return "".join(f" {chr(97 + i % 26)}" for i in ids).removeprefix(" ")


@pytest.mark.parametrize("decode", [of_bytes, of_words])
@given(text=st.text(min_size=1, max_size=30), cut=st.integers(0, 2), seed=st.integers(0, 99))
def test_pieces_are_the_text_and_its_evidence(decode, text: str, cut: int, seed: int):
    """Also where the text ends within a character."""
    ids = list(text.encode())
    ids = ids[: max(1, len(ids) - cut)]
    numbers = np.random.default_rng(seed).normal(size=(2, len(ids)))
    table = pd.DataFrame({"token_id": ids, "evidence": numbers[0], "log_p": numbers[1]})
    pieces = show.pieces(table, decode)
    assert "".join(pieces["text"]) == decode(ids)
    assert pieces["n_tokens"].sum() == len(ids)
    for column in ("evidence", "log_p"):
        assert pieces[column].sum() == pytest.approx(table[column].sum(), abs=1e-12)
    if decode is of_bytes:
        assert pieces["text"].str.len().eq(1).all() or "\ufffd" in decode(ids), "one character each"
