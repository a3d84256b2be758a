"""The scan against every span one by one, and its p-value against simulation and against its own
law.
"""

import math

import closeness
import numpy as np
import pytest
import tiny_models
import torch
from scipy import stats

from gaussmark_lib import perturb, score
from gaussmark_lib.beyond import tracing
from gaussmark_lib.beyond.tracing import spans as scan
from gaussmark_lib.beyond.tracing.spans import of_blocks
from gaussmark_lib.errors import DegenerateScoreError, InvalidTextError
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.05)
KEYS = [Key.from_seed(i) for i in range(3)]
RNG = np.random.default_rng(0)
X, Y = tiny_models.random_ids(RNG, 3, 1), tiny_models.random_ids(RNG, 12, 20)


def gradient_of(
    model, prompt: list[int], response: list[int], start: int, end: int, weight: str
) -> torch.Tensor:
    """∇ Σ log p of the tokens from start to end, by the whole model's autograd."""
    model.zero_grad()
    log_p = model(input_ids=torch.tensor([prompt + response])).logits[0].log_softmax(-1)
    sum(log_p[len(prompt) - 1 + t, response[t]] for t in range(start, end)).backward()
    gradient = tiny_models.parameter(model, weight).grad.double()
    model.zero_grad()
    return gradient


def psi_by_hand(model, prompt, response, wm: Watermark, start: int, end: int) -> list[float]:
    """ψ of a span under each of KEYS, by the formula for several weights."""
    gradients = [gradient_of(model, prompt, response, start, end, name) for name in wm.weights]
    if wm.rank_dropped:
        gradients = [P(G) for P, G in zip(wm.on(model).projectors, gradients, strict=True)]
    lengths = [sigma * G.norm() for sigma, G in zip(wm.sigmas, gradients, strict=True)]
    psi = []
    for key in KEYS:
        xis = perturb.noise(model, wm, key)
        xis = xis if isinstance(xis, list) else [xis]
        products = [(xi.double() * G).sum() for xi, G in zip(xis, gradients, strict=True)]
        psi.append((sum(products) / math.hypot(*lengths)).item())
    return psi


SEVERAL = ["model.layers.1.self_attn.q_proj.weight", WM.weight]


@pytest.mark.parametrize(
    ("n_tokens", "shortest", "longest", "wm"),
    [
        (12, None, None, WM),
        (13, 4, None, WM),
        (12, 6, 9, WM),
        (11, 3, 3, WM),
        (3, None, None, WM),
        (9, None, None, Watermark(SEVERAL, [0.02, 0.3])),
        (9, None, None, Watermark(SEVERAL, [0.02, 0.3], 2)),
    ],
)
def test_it_finds_what_trying_every_span_finds(model, n_tokens, shortest, longest, wm):
    block = 3
    rng = np.random.default_rng(n_tokens)
    [prompt], [response] = tiny_models.random_ids(rng, 4), tiny_models.random_ids(rng, n_tokens)
    table = tracing.scan(
        model, [prompt], [response], wm, KEYS, block=block, shortest=shortest, longest=longest
    )
    ends = [*range(block, n_tokens, block), n_tokens]
    starts = [0, *ends[:-1]]
    least, most = math.ceil((shortest or block) / block), math.ceil((longest or n_tokens) / block)
    psi = {
        (starts[i], ends[j]): psi_by_hand(model, prompt, response, wm, starts[i], ends[j])
        for i in range(len(starts))
        for j in range(len(ends))
        if least <= j - i + 1 <= most
    }
    for k, row in enumerate(table.itertuples()):
        span = max(psi, key=lambda span, k=k: psi[span][k])
        assert (row.start, row.end) == span
        assert row.psi == pytest.approx(psi[span][k], rel=1e-4)
        assert row.bonferroni == pytest.approx(min(1, len(psi) * stats.norm.sf(row.psi)))
        assert row.p_value <= row.bonferroni * (1 + 1e-9)
    whole = score.score(model, [prompt], [response], wm, KEYS)
    rounding = closeness.of_sum(torch.float32, wm.on(model).linears[-1].parameter.numel())
    assert table["whole_psi"].tolist() == pytest.approx(whole["psi"].tolist(), abs=rounding)
    assert table["whole_p"].tolist() == pytest.approx(whole["p_value"].tolist(), rel=1e-3)


@pytest.mark.parametrize(
    ("architecture", "weight", "dtype"), tiny_models.alternating(torch.float32, torch.float64)
)
def test_the_blocks_gradients_by_autograd_of_their_own_tokens(architecture, weight, dtype):
    model, rng = tiny_models.build(architecture, dtype), np.random.default_rng(0)
    [prompt], [response] = tiny_models.random_ids(rng, 4), tiny_models.random_ids(rng, 10)
    found = of_blocks((prompt, response), Watermark(weight, 0.05).on(model), [3, 6, 10])
    rounding = {torch.float32: 1e-4, torch.float64: 1e-9}[dtype]
    for G, (start, end) in zip(found, [(0, 3), (3, 6), (6, 10)], strict=True):
        by_hand = gradient_of(model, prompt, response, start, end, weight)
        by_hand = by_hand.T if architecture == "gpt2" else by_hand
        assert (G.double() - by_hand.flatten()).norm() < rounding * by_hand.norm()


@pytest.mark.parametrize("rank_dropped", [0, 2])
def test_the_law_is_that_of_the_blocks_own_gradients(model, rank_dropped):
    """The correlations that ``loadings`` says are the cosines of the spans' gradients; together the
    blocks are the text.
    """
    wm = Watermark(WM.weight, WM.sigma, rank_dropped)
    [prompt], [response] = (tiny_models.random_ids(np.random.default_rng(0), n) for n in (4, 9))
    G = of_blocks((prompt, response), wm.on(model), [3, 6, 9]).double().numpy()
    [whole] = score.gradients(model, [prompt], [response], wm)
    assert np.allclose(G.sum(0), whole.G.flatten().numpy(), atol=1e-4 * whole.norm)
    spans = scan.intervals(3)
    A, kept = scan.loadings(G @ G.T, spans)
    assert len(kept) == len(spans) == 6
    sums = np.stack([G[i:j].sum(0) for i, j in spans])
    units = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    assert np.allclose(A @ A.T, units @ units.T, atol=1e-8)


def uneven(rng: np.random.Generator, n: int, d: int, common: float = 0.0) -> np.ndarray:
    """Gradients of n blocks, of uneven sizes, with a part in common."""
    alike = rng.standard_normal((n, d)) + common * rng.standard_normal(d)
    return alike * rng.uniform(0.3, 3, (n, 1))


@pytest.mark.parametrize("common", [0.0, 1.0])
@pytest.mark.parametrize("t", [0.5, 2.0, 3.0])
def test_the_p_value_against_plain_simulation(common, t):
    rng, draws = np.random.default_rng(0), 40_000
    G = uneven(rng, 12, 40, common)
    A, _ = scan.loadings(G @ G.T, scan.intervals(12))
    largest = (A @ rng.standard_normal((A.shape[1], draws))).max(0)
    expected, found = (largest >= t).mean(), scan.maximum_p(t, A, rng, 20_000)
    spread = expected * math.sqrt((len(A) * stats.norm.sf(t) / expected - 1) / 20_000)
    assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / draws) + 4 * spread


@pytest.mark.parametrize("name", ["block", "n_draws", "shortest", "longest"])
def test_lengths_that_no_span_has_are_refused(model, wm, key, name):
    how = {"shortest": 3} | {name: 2 if name == "longest" else 0}
    with pytest.raises(InvalidTextError, match=f"{name}: expected a whole number ≥"):
        tracing.scan(model, [[1]], [[2, 3, 4]], wm, [key], **how)


def test_blocks_without_a_gradient_have_no_psi(model, wm, key):
    """Of three blocks the middle one says nothing: every span but that one alone is left."""
    G = np.array([[1.0, 0, 0], [0, 0, 0], [0, 2, 0]])
    A, kept = scan.loadings(G @ G.T, scan.intervals(3))
    assert [1, 2] not in kept.tolist()
    assert len(kept) == 5
    assert np.linalg.norm(A, axis=1) == pytest.approx(1)
    with pytest.raises(DegenerateScoreError, match="not zero in some span"):
        list(scan._rows(0, torch.zeros(2, 3), scan.intervals(2), [1, 2], wm.on(model), [key], 0, 1))


def test_far_in_the_tail_it_lies_between_one_spans_chance_and_bonferronis_bound():
    G = uneven(np.random.default_rng(0), 8, 30)
    A, spans = scan.loadings(G @ G.T, scan.intervals(8))
    p = scan.maximum_p(9.0, A, np.random.default_rng(1))
    assert stats.norm.sf(9.0) < p <= len(spans) * stats.norm.sf(9.0)
    spread = math.sqrt((len(spans) * stats.norm.sf(9.0) / p - 1) / scan.N_DRAWS)
    again = scan.maximum_p(9.0, A, np.random.default_rng(2))
    assert p == pytest.approx(again, rel=6 * spread, abs=0)
