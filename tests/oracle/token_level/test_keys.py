"""Token-level keys against the slow obvious way: a gradient a token by autograd, a model a token,
and simulation of the level.
"""

import closeness
import numpy as np
import pytest
import tiny_models
import torch
from scipy import stats as distributions

from gaussmark_lib import corrupt, generate, models, perturb, stats
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.token_level import gradients as token_gradients
from gaussmark_lib.token_level import keys as token_keys
from gaussmark_lib.token_level import quantile_test

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
PROMPTS = tiny_models.random_ids(
    np.random.default_rng(0), 4, 2, 7
)  # over a single token, attention does not depend on its query
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), 6, 9, 3)


def gradient_by_autograd(
    model, weight: str, prompt: list[int], response: list[int], k: int
) -> torch.Tensor:
    """Of one token, by differentiating the parameter itself over a text that ends with the
    token.
    """
    parameter = tiny_models.parameter(model, weight)
    logits = model(input_ids=torch.tensor([prompt + response[:k]])).logits[0, -1]
    [gradient] = torch.autograd.grad(logits.log_softmax(-1)[response[k]], parameter)
    return models.linear(model, weight).oriented(gradient)


@pytest.mark.parametrize(("architecture", "weight"), LOCAL)
def test_weights_behind_the_last_attention_are_local(architecture, weight):
    model = tiny_models.build(architecture)
    assert token_gradients.is_local(model, models.linear(model, weight))


@pytest.mark.parametrize(("architecture", "weight"), ELSEWHERE)
def test_weights_before_it_are_not(architecture, weight):
    model = tiny_models.build(architecture)
    assert not token_gradients.is_local(model, models.linear(model, weight))


@pytest.mark.parametrize("case", range(len(LOCAL)))
def test_every_gamma_is_that_of_autograd(case):
    architecture, weight = LOCAL[case]
    rank = [(0, "left"), (3, "left"), (3, "both")][case % 3]
    model, wm, key = (
        tiny_models.build(architecture, torch.float64),
        Watermark(weight, 0.3, *rank),
        Key.from_seed(3),
    )
    project = wm.on(model).project
    table = token_keys.per_token(model, PROMPTS, RESPONSES, wm, key)
    assert len(table) == sum(map(len, RESPONSES))
    for _, row in table.iterrows():
        text, k = int(row["text"]), int(row["position"])
        gradient = project(gradient_by_autograd(model, weight, PROMPTS[text], RESPONSES[text], k))
        xi = perturb.noise(model, wm, token_keys.key_of(key, k)).double()
        assert row["grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-7)
        leaning = (
            ((xi * gradient).sum() / (wm.sigma * gradient.norm())).item()
            if gradient.any()
            else -np.inf
        )
        rounding = closeness.of_sum(torch.float32, gradient.numel())
        assert row["gamma"] == pytest.approx(leaning, abs=rounding)
        assert row["token_id"] == RESPONSES[text][k]


@pytest.mark.parametrize("case", range(len(LOCAL)))
def test_token_k_is_sampled_from_the_model_with_noise_k(case):
    """Each token from a fresh model with θ + ξ_k in place and no cache, by the row's own uniform
    numbers.
    """
    (architecture, weight), rank = LOCAL[case], [0, 4][case % 2]
    model, wm, key = tiny_models.build(architecture), Watermark(weight, 0.3, rank), Key.from_seed(2)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    responses = token_keys.sample(model, PROMPTS, 7, wm, key, seed=4)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
    for row, (prompt, response) in enumerate(zip(PROMPTS, responses, strict=True)):
        luck = np.random.default_rng([4, row]).random(7)
        for k in range(7):
            with perturb.watermarked(model, wm, token_keys.key_of(key, k)), torch.no_grad():
                logits = (
                    model(input_ids=torch.tensor([prompt + response[:k]])).logits[:, -1].double()
                )
            cumulative = logits.softmax(-1).cumsum(-1)[0]
            assert cumulative[response[k]] > luck[k] - 1e-5
            assert response[k] == 0 or cumulative[response[k] - 1] < luck[k] + 1e-5
    assert responses != generate.sample(model, PROMPTS, 7, seed=4)


def nulls(weight: str, n_keys: int) -> list:
    model, wm = tiny_models.build("llama"), Watermark(weight, 0.2)
    [prompt, response] = tiny_models.random_ids(np.random.default_rng(7), 3, 12)
    keys = [Key.from_seed(90_000 + i) for i in range(n_keys)]
    return [
        token_keys.from_gammas(table, 0.3)
        for table in token_keys.per_token_of_keys(model, [prompt], [response], wm, keys)
    ]


def test_under_the_null_hits_are_binomial_and_the_sum_is_normal():
    tables = nulls(LOCAL[0][1], 250)
    hits, psi = (np.array([table[column][0] for table in tables]) for column in ("hits", "psi"))
    expected = distributions.binom.pmf(np.arange(13), 12, 0.3) * len(hits)
    rare = expected < 5
    counts = np.bincount(hits, minlength=13)
    assert (
        distributions.chisquare(
            np.append(counts[~rare], counts[rare].sum()),
            np.append(expected[~rare], expected[rare].sum()),
        ).pvalue
        > 1e-3
    )
    assert distributions.kstest(psi, "norm").pvalue > 1e-3
    assert stats.levels(psi, at=(0.05, 0.01), confidence=0.999)["holds"].all()
    p = np.array([table["p_hits"][0] for table in tables])
    for level in (0.05, 0.01):
        lam = quantile_test.quantile_for(12, level, 0.3)
        exact = quantile_test.exact_level(12, lam, 0.3)
        assert distributions.binomtest(int((p <= level).sum()), len(p), exact).pvalue > 1e-3


def test_gammas_of_different_tokens_are_independent_under_the_null():
    model, wm = tiny_models.build("llama"), Watermark(LOCAL[0][1], 0.2)
    tables = token_keys.per_token_of_keys(
        model, [[1, 2]], [[5] * 6], wm, [Key.from_seed(i) for i in range(400)]
    )
    correlation = np.corrcoef(np.array([table["gamma"] for table in tables]).T)
    off = correlation[~np.eye(6, dtype=bool)]
    assert (
        np.abs(off).max() < 4.5 / 400**0.5
    )  # 15 pairs; one shared noise would give correlations near 1, the tokens being equal


class Marked:
    def __init__(self):
        self.model = tiny_models.build("llama", seed=3)
        self.prompts = tiny_models.random_ids(np.random.default_rng(1), *[4] * 40)
        self.wm, self.key = Watermark(LOCAL[0][1], 0.3), Key.from_seed(77)
        self.responses = token_keys.sample(self.model, self.prompts, 60, self.wm, self.key, seed=2)

    def mean_psi(self, responses, key=None) -> float:
        return self.score(responses, key)["psi"].mean()

    def score(self, responses, key=None):
        key = key or self.key
        return token_keys.from_gammas(
            token_keys.per_token(self.model, self.prompts, responses, self.wm, key)
        )


@pytest.fixture(scope="module")
def marked() -> Marked:
    return Marked()


def test_watermarked_text_leans_to_its_keys_and_only_to_them(marked):
    table = marked.score(marked.responses)
    assert stats.mean(table["psi"], confidence=0.999).low > 1
    assert table["hits"].mean() > 30 + 3.3 * (60 / 4 / 40) ** 0.5
    assert (table["p_hits"] <= 0.05).mean() > 0.2
    plain = generate.sample(marked.model, marked.prompts, 60, seed=2)
    for null in (marked.mean_psi(plain), marked.mean_psi(marked.responses, Key.from_seed(5))):
        assert abs(null) < 4 / 40**0.5


def test_substitution_costs_more_than_the_substituted_tokens_and_a_shift_costs_everything(marked):
    """A kept token was written after another prefix than it is now tested after, so its Γ fades
    too: the proposition's assumption, not met.
    """
    half = [
        corrupt.substitute(ids, 0.5, corrupt.generator(0, i), range(97))
        for i, ids in enumerate(marked.responses)
    ]
    shifted = [[5, *response[:-1]] for response in marked.responses]
    gain, of_half, of_shifted = (
        marked.score(responses)["hits"].mean() - 30
        for responses in (marked.responses, half, shifted)
    )
    error = 3.3 * (60 / 4 / 40) ** 0.5  # of a mean number of hits, 99.9%
    assert gain > 3 * error
    assert -error < of_half < gain / 2 + error
    assert abs(of_shifted) < error * 1.2
