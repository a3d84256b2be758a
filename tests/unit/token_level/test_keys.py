"""Token-level keys against the slow obvious way: a gradient a token by autograd, a model a token,
simulation of the level, and the price as a sum over the vocabulary.
"""

from contextlib import contextmanager

import closeness
import numpy as np
import pytest
import tiny_models
import torch
from scipy import stats as distributions

from gaussmark_lib import generate, perturb, weights
from gaussmark_lib.beyond.token_level import divergence as token_divergence
from gaussmark_lib.beyond.token_level import gradients as token_gradients
from gaussmark_lib.beyond.token_level import keys as token_keys
from gaussmark_lib.beyond.token_level import quantiles
from gaussmark_lib.errors import (
    DegenerateScoreError,
    InvalidTextError,
    InvalidWatermarkError,
    PerturbedModelError,
)
from gaussmark_lib.perturb import Key, Watermark

LOCAL = [
    ("llama", "model.layers.2.mlp.down_proj.weight"),
    ("llama", "model.layers.2.mlp.up_proj.weight"),
    ("llama", "model.layers.2.self_attn.o_proj.weight"),
    ("llama", "model.layers.2.self_attn.q_proj.weight"),
    ("llama", "lm_head.weight"),
    ("phi3", "model.layers.1.mlp.gate_up_proj.weight"),
    ("gpt2", "transformer.h.1.mlp.c_fc.weight"),
    ("gemma", "model.layers.1.mlp.gate_proj.weight"),
    ("qwen2_moe", "model.layers.1.mlp.shared_expert.down_proj.weight"),
]
ELSEWHERE = [
    ("llama", "model.layers.2.self_attn.k_proj.weight"),
    ("llama", "model.layers.2.self_attn.v_proj.weight"),
    ("llama", "model.layers.1.mlp.down_proj.weight"),
    ("mistral", "model.layers.0.self_attn.v_proj.weight"),
    ("phi3", "model.layers.1.self_attn.qkv_proj.weight"),
    ("gpt2", "transformer.h.1.attn.c_attn.weight"),
    ("qwen2_moe", "model.layers.0.mlp.shared_expert.up_proj.weight"),
]
# over a single token, attention does not depend on its query
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 2, 7)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), 6, 9, 3)
KEYS = [Key.from_seed(3), Key.from_seed(2), Key.from_seed(3)]  # one per text


def log_p_of_next(model, prompt: list[int], response: list[int], k: int) -> torch.Tensor:
    """log p of each token at place k, from a forward pass over all tokens before it."""
    return model(torch.tensor([prompt + response[:k]])).logits[0, -1].log_softmax(-1)


def gradient_by_autograd(model, weight: str, prompt, response, k: int) -> torch.Tensor:
    """Of one token, by differentiating the parameter itself over a text that ends with the
    token.
    """
    parameter = tiny_models.parameter(model, weight)
    log_p = log_p_of_next(model, prompt, response, k)
    [gradient] = torch.autograd.grad(log_p[response[k]], parameter)
    return weights.Weight(model, weight).oriented(gradient)


@pytest.mark.parametrize(("architecture", "weight"), LOCAL + ELSEWHERE)
def test_weights_behind_the_last_attention_are_local(architecture, weight):
    model = tiny_models.build(architecture)
    is_local = token_gradients.is_local(model, weights.Weight(model, weight))
    assert is_local == ((architecture, weight) in LOCAL)


@pytest.mark.parametrize("case", range(len(LOCAL)))
def test_every_gamma_is_that_of_autograd(case):
    architecture, weight = LOCAL[case]
    rank = [(0, "left"), (3, "left"), (3, "both")][case % 3]
    model, wm = tiny_models.build(architecture, torch.float64), Watermark(weight, 0.3, *rank)
    project = wm.on(model).projectors[0]
    table = token_keys.per_token(model, PROMPTS, RESPONSES, wm, KEYS)
    assert len(table) == sum(map(len, RESPONSES))
    for _, row in table.iterrows():
        text, k = int(row["text"]), int(row["position"])
        gradient = project(gradient_by_autograd(model, weight, PROMPTS[text], RESPONSES[text], k))
        xi = perturb.noise(model, wm, token_keys.key_of(KEYS[text], k)).double()
        assert row["grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-7)
        leaning = -np.inf
        if gradient.any():
            leaning = ((xi * gradient).sum() / (wm.sigma * gradient.norm())).item()
        rounding = closeness.of_sum(torch.float32, gradient.numel())
        assert row["gamma"] == pytest.approx(leaning, abs=rounding)
        assert row["token_id"] == RESPONSES[text][k]


@contextmanager
def unchanged(model):
    """What runs inside leaves the parameters as they were, and no hook."""
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    yield
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("case", range(len(LOCAL)))
def test_token_k_is_sampled_from_the_model_with_noise_k(case):
    """Each token from a fresh model with θ + ξ_k in place and no cache, by the row's own uniform
    numbers.
    """
    (architecture, weight), rank = LOCAL[case], [0, 4][case % 2]
    model, wm = tiny_models.build(architecture), Watermark(weight, 0.3, rank)
    with unchanged(model):
        responses = token_keys.sample(model, PROMPTS, 7, wm, KEYS, seed=4)
    for row, (prompt, response) in enumerate(zip(PROMPTS, responses, strict=True)):
        luck = np.random.default_rng([4, row]).random(7)
        for k in range(7):
            of_token = token_keys.key_of(KEYS[row], k)
            with perturb.watermarked(model, wm, of_token), torch.no_grad():
                log_p = log_p_of_next(model, prompt, response, k)
            cumulative = log_p.double().exp().cumsum(-1)
            assert cumulative[response[k]] > luck[k] - 1e-5
            assert response[k] == 0 or cumulative[response[k] - 1] < luck[k] + 1e-5
    assert responses != generate.sample(model, PROMPTS, 7, seed=4)


def test_under_the_null_gammas_are_independent_hits_binomial_and_the_sum_normal():
    """One text of equal tokens under 200 keys. One shared noise would make its Γ_k nearly equal."""
    model, wm = tiny_models.build("llama"), Watermark(LOCAL[0][1], 0.2)
    keys = [Key.from_seed(90_000 + i) for i in range(200)]
    gammas = token_keys.per_token(model, [[1, 2]] * 200, [[5] * 8] * 200, wm, keys)
    correlation = np.corrcoef(gammas["gamma"].to_numpy().reshape(200, 8).T)
    assert np.abs(correlation[~np.eye(8, dtype=bool)]).max() < 4.5 / 200**0.5  # 28 pairs
    hits, total = (token_keys.from_gammas(gammas, test, 0.3) for test in ("hits", "sum"))
    counts = np.bincount(hits["statistic"], minlength=9)
    expected = distributions.binom.pmf(np.arange(9), 8, 0.3) * 200
    merged = [np.append(x[:5], x[5:].sum()) for x in (counts, expected)]
    assert distributions.chisquare(*merged).pvalue > 1e-3
    assert distributions.kstest(total["statistic"], "norm").pvalue > 1e-3
    assert np.allclose(10 ** total["log10_p"], distributions.norm.sf(total["statistic"]))
    for level in (0.05, 0.01):
        exact = quantiles.exact_level(8, quantiles.quantile_for(8, level, 0.3), 0.3)
        detected = int((hits["p_value"] <= level).sum())
        assert distributions.binomtest(detected, 200, exact).pvalue > 1e-3


def test_a_row_does_not_depend_on_its_batch_or_on_what_follows(model, wm):
    prompts = [[1, 2], [3, 4, 5, 6, 7], [8]]
    together = token_keys.sample(model, prompts, 8, wm, KEYS)
    assert together[:1] == token_keys.sample(model, prompts[:1], 8, wm, KEYS[:1])
    assert [row[:5] for row in together] == token_keys.sample(model, prompts, 5, wm, KEYS)
    responses = [[5, 6, 7], [8, 9], [10] * 9]
    gammas = token_keys.per_token(model, prompts, responses, wm, KEYS)
    for i in range(3):
        alone = token_keys.per_token(model, [prompts[i]], [responses[i]], wm, [KEYS[i]])
        of_text = gammas.loc[gammas["text"] == i, "gamma"]
        np.testing.assert_allclose(of_text, alone["gamma"], rtol=1e-3, atol=1e-4)


def test_a_certain_token_is_no_hit_and_tokens_that_are_all_certain_say_nothing(
    model, wm, key, monkeypatch
):
    a, g = torch.ones(3, 48), torch.ones(3, 32)
    g[1] = 0
    monkeypatch.setattr(token_gradients, "factors", lambda *_: token_gradients.Factors(g, a))
    table = token_keys.per_token(model, [[1]], [[5, 6, 7]], wm, [key])
    assert table["gamma"][1] == -np.inf
    others = table["gamma"][[0, 2]]
    hits, total = (token_keys.from_gammas(table, test).iloc[0] for test in ("hits", "sum"))
    assert (hits["n_tokens"], hits["statistic"]) == (3, (others >= 0).sum())
    assert total["statistic"] == pytest.approx(others.sum() / 2**0.5)
    certain = table.assign(gamma=-np.inf, grad_norm=0.0)
    for test in ("hits", "sum"):
        row = token_keys.from_gammas(certain, test).iloc[0]
        assert (row["p_value"], row["log10_p"]) == (1.0, 0.0)
    g[:] = 0
    with pytest.raises(DegenerateScoreError, match="text 0: expected finite gradients that are no"):
        token_keys.per_token(model, [[1]], [[5, 6, 7]], wm, [key])


@pytest.mark.parametrize(
    "call",
    [
        lambda model, wm, keys: token_keys.sample(model, [[1]], 5, wm, keys),
        lambda model, wm, keys: token_keys.per_token(model, [[1]], [[5]], wm, keys),
        lambda model, wm, keys: token_divergence.per_text(model, [[1]], [[5]], wm, keys),
    ],
)
def test_a_weight_before_the_last_attention_a_perturbed_model_and_too_few_keys_are_refused(
    model, wm, key, call
):
    with pytest.raises(InvalidWatermarkError, match="expected a weight that changes only the pred"):
        call(model, Watermark("model.layers.1.mlp.down_proj.weight", 0.2), [key])
    with pytest.raises(InvalidTextError, match="keys: expected one key per text, 1, got 2"):
        call(model, wm, [key] * 2)
    with perturb.watermarked(model, wm, key), pytest.raises(PerturbedModelError):
        call(model, wm, [key])


@torch.no_grad()
def slow_price(model, prompt, response, wm, key) -> float:
    total = 0.0
    for k in range(len(response)):
        with perturb.watermarked(model, wm, token_keys.key_of(key, k)):
            log_p = log_p_of_next(model, prompt, response, k)
        log_q = log_p_of_next(model, prompt, response, k)
        total += (log_p.exp() * (log_p - log_q)).sum().item()
    return total


@pytest.mark.parametrize("rank", [(0, "left"), (4, "both")])
@pytest.mark.parametrize(("architecture", "weight"), [LOCAL[0], LOCAL[2], LOCAL[6]])
def test_the_price_is_the_slow_sum(architecture, weight, rank):
    model, wm = tiny_models.build(architecture, torch.float64), Watermark(weight, 0.3, *rank)
    texts = zip(PROMPTS, RESPONSES, KEYS, strict=True)
    expected = [slow_price(model, x, y, wm, key) for x, y, key in texts]
    with unchanged(model):
        prices = token_divergence.per_text(model, PROMPTS, RESPONSES, wm, KEYS)
    assert prices == pytest.approx(np.array(expected), rel=1e-7)
