"""Prefixes, several weights and reduced precision, against one text, one length and one weight at a
time.
"""

from itertools import cycle

import closeness
import numpy as np
import pandas as pd
import pytest
import tiny_models
import torch
from transformers import FalconConfig, FalconForCausalLM

from gaussmark_lib import gradients, score
from gaussmark_lib.engine import arithmetic
from gaussmark_lib.engine.terms import Factors, norm
from gaussmark_lib.errors import InvalidModelError
from gaussmark_lib.perturb import Key, Watermark

RNG = np.random.default_rng(5)
PROMPTS = tiny_models.random_ids(RNG, 4, 11, 1, 7)
RESPONSES = tiny_models.random_ids(RNG, 20, 6, 33, 12)
KEYS = [Key.from_seed(i) for i in range(3)]
VALUES = ["psi", "grad_norm", "log_lik"]


@pytest.mark.parametrize(
    ("architecture", "batch_size"), list(zip(tiny_models.ARCHITECTURES, cycle([1, 3, 10])))
)
def test_a_prefix_of_a_shared_pass_is_scored_as_if_it_were_the_whole_text(architecture, batch_size):
    model, wm = tiny_models.marked(architecture, torch.float64)
    lengths = [12, 1, 6, 20, 12]  # in any order, one twice
    found = score.score(model, PROMPTS, RESPONSES, wm, KEYS, lengths=lengths, batch_size=batch_size)
    expected = []
    for n in sorted(set(lengths)):
        long_enough = [i for i, y in enumerate(RESPONSES) if len(y) >= n]
        prompts = [PROMPTS[i] for i in long_enough]
        beginnings = [RESPONSES[i][:n] for i in long_enough]
        alone = score.score(model, prompts, beginnings, wm, KEYS)
        expected.append(alone.assign(text=alone["text"].map(dict(enumerate(long_enough)))))
    expected = pd.concat(expected).sort_values(
        ["text", "n_tokens"], kind="stable", ignore_index=True
    )
    pd.testing.assert_frame_equal(found, expected, rtol=1e-9)
    of_texts = found.groupby("text")["n_tokens"].unique().map(list).tolist()
    assert of_texts == [[1, 6, 12, 20], [1, 6], [1, 6, 12, 20], [1, 6, 12]]


def test_a_model_may_write_into_what_its_layer_gave():
    config = FalconConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    model = FalconForCausalLM(config).double().eval()
    weight = "transformer.h.0.mlp.dense_4h_to_h.weight"
    for found in gradients.gradients(model, PROMPTS, RESPONSES, Watermark(weight, 0.05)):
        log_p = tiny_models.log_p(model, PROMPTS[found.text], RESPONSES[found.text]).sum()
        [G] = torch.autograd.grad(log_p, model.get_parameter(weight))
        torch.testing.assert_close(found.G, G)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_norms_of_several_weights_are_those_of_each_alone(architecture):
    model = tiny_models.build(architecture, torch.float64)
    weights = tiny_models.WEIGHTS[architecture][::-1]
    found = gradients.norms(model, PROMPTS, RESPONSES, weights, lengths=[5, 12], batch_size=3)
    for weight in weights:
        wm = Watermark(weight, 1.0)
        each = gradients.gradients(model, PROMPTS, RESPONSES, wm, lengths=[5, 12])
        alone = sorted((text.text, text.n_tokens, text.norm, text.log_lik) for text in each)
        of_weight = found[found["weight"] == weight]
        columns = ["text", "n_tokens", "grad_norm", "log_lik"]
        np.testing.assert_allclose(of_weight[columns], alone, rtol=1e-9)
    means = found.groupby("weight")["grad_norm"].mean()
    assert means.nunique() == len(weights), "no weight is taken for another"


# by its terms twice, then by G
@pytest.mark.parametrize(("n", "d_out", "d_in"), [(3, 40, 60), (1, 2, 2), (30, 40, 60)])
def test_a_norm_is_that_of_the_matrix(n, d_out, d_in):
    rng = torch.Generator().manual_seed(0)
    terms = Factors(torch.randn(n, d_out, generator=rng), torch.randn(n, d_in, generator=rng))
    rows = zip(terms.g.double(), terms.a.double(), strict=True)
    expected = sum(torch.outer(g, a) for g, a in rows)
    rounding = closeness.of_sum(torch.float32, n + 1)
    torch.testing.assert_close(terms.matrix().double(), expected, rtol=0, atol=n * rounding)
    assert terms.norm() == pytest.approx(expected.norm().item(), rel=rounding)


@pytest.mark.parametrize("shape", [(1 << 9, 1 << 9), (1 << 11, 1 << 12)])
def test_a_norm_keeps_its_digits(shape):
    G = torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 1
    expected = np.linalg.norm(G.double().numpy())
    assert norm(G) == pytest.approx(expected, rel=1e-12)
    assert G.norm().item() != pytest.approx(expected, rel=1e-6), "else there is nothing to mend"


def test_a_norm_of_terms_that_cancel():
    """Large activations that all texts share: ‖G‖ is a thousandth of the sum of its terms' norms.
    In float32 its square would be rounding; in float64 it has half of the digits left.
    """
    rng = torch.Generator().manual_seed(0)
    g = torch.randn(8, 200, generator=rng)
    terms = Factors(g - g.mean(0), 1e3 + torch.randn(8, 300, generator=rng))
    expected = (terms.g.double().T @ terms.a.double()).norm().item()
    cancelled = (terms.g.norm(dim=1) * terms.a.norm(dim=1)).sum().item() / expected
    rounding = closeness.of_sum(torch.float64, 200 + 300) * cancelled**2
    assert cancelled > 1000
    assert rounding < 1e-5
    assert terms.norm() == pytest.approx(expected, rel=rounding)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_bfloat16_moves_psi_a_little_and_the_model_not_at_all(monkeypatch, architecture):
    monkeypatch.setattr(arithmetic, "native_bfloat16", lambda device: True)
    model, wm = tiny_models.marked(architecture)
    before = {name: (p.data_ptr(), p.detach().clone()) for name, p in model.named_parameters()}
    exact = score.score(model, PROMPTS, RESPONSES, wm, KEYS)
    rounded = score.score(model, PROMPTS, RESPONSES, wm, KEYS, dtype="bfloat16")
    difference = (exact["psi"] - rounded["psi"]).abs()
    # it was rounded, and not by much (these models are random and tiny)
    assert 1e-6 < difference.max() < 0.25
    for name, p in model.named_parameters():
        assert p.data_ptr() == before[name][0]
        assert torch.equal(p, before[name][1])
        assert p.dtype == torch.float32


def test_without_the_hardware_float32_takes_the_place_of_bfloat16(monkeypatch, model, wm):
    monkeypatch.setattr(arithmetic, "native_bfloat16", lambda device: False)
    pd.testing.assert_frame_equal(
        score.score(model, PROMPTS, RESPONSES, wm, KEYS, dtype="bfloat16"),
        score.score(model, PROMPTS, RESPONSES, wm, KEYS),
    )


def test_float64_is_computed_in_float64(model, wm):
    exact = score.score(tiny_models.build("llama", torch.float64), PROMPTS, RESPONSES, wm, KEYS)
    widened = score.score(model, PROMPTS, RESPONSES, wm, KEYS, dtype=torch.float64)
    # transformers' norms stay in float32
    np.testing.assert_allclose(widened[VALUES], exact[VALUES], rtol=1e-4, atol=1e-4)
    assert model.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float16", "int8", 16])
@pytest.mark.usefixtures("wrong_types")
def test_an_unknown_dtype_is_named(model, wm, dtype):
    with pytest.raises(InvalidModelError, match="expected one of bfloat16, float32, float64"):
        score.score(model, PROMPTS, RESPONSES, wm, KEYS, dtype=dtype)
