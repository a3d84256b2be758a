"""The joint law, against a Cholesky factor made at once in float64, and against keys: 10,000 draws
of the noise on a tiny model.
"""

from collections.abc import Callable

import closeness
import numpy as np
import pytest
import tiny_models
import torch
from scipy.stats import binom, chi2, kstest, multivariate_normal

from gaussmark_lib import joint, score
from gaussmark_lib.joint import law, repeats
from gaussmark_lib.joint.directions import Direction
from gaussmark_lib.joint.memory import Memory
from gaussmark_lib.keys import Key
from gaussmark_lib.perturb import Watermark, noises
from gaussmark_lib.rank_reduce import Factors

WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.05)
KEYS = [Key.from_seed(i) for i in range(4)]
N_KEYS = 10_000


def texts(n: int, *, alike: bool, seed: int = 0) -> tuple[list, list]:
    """n texts; ``alike``: each an edit of one, so that their gradients have large cosines."""
    rng = np.random.default_rng(seed)
    prompts, responses = (
        tiny_models.random_ids(rng, *[4] * n),
        tiny_models.random_ids(rng, *[24] * n),
    )
    if alike:
        kept = rng.permuted(np.tile(np.arange(24) >= 4, (n, 1)), axis=1)  # all but four tokens
        responses = np.where(kept, responses[0], np.array(responses)).tolist()
        prompts = [prompts[0]] * n
    return prompts, responses


def columns(table, name: str) -> np.ndarray:
    """(texts, keys)"""
    return table[name].to_numpy().reshape(-1, table["key_id"].nunique())


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_innovations_are_those_of_one_cholesky_factor(architecture, alike):
    model, wm = (
        tiny_models.build(architecture),
        Watermark(tiny_models.ONE_WEIGHT[architecture], 0.05),
    )
    pairs = texts(30, alike=alike)
    table = joint.sequence(model, *pairs, wm, KEYS)
    K, psi = joint.gram(model, *pairs, wm, batch_size=1), columns(table, "psi")
    L = np.linalg.cholesky(K)
    np.testing.assert_allclose(columns(table, "innovation"), np.linalg.solve(L, psi), atol=1e-9)
    np.testing.assert_allclose(columns(table, "residual")[:, 0], np.diag(L), atol=1e-9)
    np.testing.assert_allclose(
        psi,
        columns(score.score(model, *pairs, wm, KEYS, batch_size=1), "psi"),
        atol=closeness.of_sum(torch.float32, wm.on(model).linear.value().numel()),
    )
    if alike:
        assert np.diag(L)[5:].mean() < 0.9, "otherwise this tests nothing"


def test_the_gram_matrix_is_that_of_gradients_in_float64():
    model, pairs = tiny_models.build(dtype=torch.float64), texts(6, alike=True)
    found = sorted(score.gradients(model, *pairs, WM), key=lambda one: one.text)
    slow = [[float((a.G * b.G).sum() / (a.G.norm() * b.G.norm())) for b in found] for a in found]
    np.testing.assert_allclose(joint.gram(model, *pairs, WM), slow, atol=1e-6)


def test_nearly_dependent_directions_keep_their_digits():
    """Residuals down to 0.002 are right to 1e-6, relative: vectors that differ in their last
    digits.
    """
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(3000, generator=generator)
    units = [
        torch.nn.functional.normalize(base + share * torch.randn(3000, generator=generator), dim=0)
        for share in np.geomspace(0.5, 0.002, 12)
    ]
    factor, residuals = law.Factor(), []
    for i, u in enumerate(units):
        k = law.inner(torch.stack(units[:i]), u[None])[:, 0] if i else np.zeros(0)
        coordinates = factor.coordinates(k)
        residuals.append(np.sqrt(law.inner(u[None], u[None])[0, 0] - coordinates @ coordinates))
        factor.append(coordinates, residuals[-1])
    exact = np.abs(np.diag(np.linalg.qr(torch.stack(units).double().numpy().T).R))
    np.testing.assert_allclose(residuals, exact, rtol=1e-6)
    assert min(residuals) < 0.01


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray]:
    """ψ of six alike texts under 10,000 noises, and their K. The noises are torch's, since Philox's
    are slower and as good here.
    """
    model, pairs = tiny_models.build(), texts(6, alike=True)
    units = torch.stack(
        [
            law.unit(found)
            for found in sorted(score.gradients(model, *pairs, WM), key=lambda one: one.text)
        ]
    )
    z = torch.randn(N_KEYS, units.shape[1], generator=torch.Generator().manual_seed(0))
    return law.inner(z, units), joint.gram(model, *pairs, WM)


def test_psi_has_the_covariance_k_over_keys(drawn):
    psi, K = drawn
    assert K[np.triu_indices(6, 1)].mean() > 0.2
    whitened = np.linalg.solve(np.linalg.cholesky(K), psi.T)
    squares = np.square(whitened).sum()  # χ² with 60,000 degrees of freedom
    assert chi2.cdf(squares, psi.size) == pytest.approx(0.5, abs=0.4995)
    error = np.cov(psi.T) - K
    assert np.abs(error).max() < 4.5 * np.sqrt(2 / N_KEYS)
    best = multivariate_normal(cov=K).logpdf(psi).mean()
    assert best > multivariate_normal(cov=np.eye(6)).logpdf(psi).mean() + 0.1, (
        "a wrong law would be seen"
    )


def test_false_alarms_of_innovations_are_binomial_and_those_of_psi_are_not(drawn):
    psi, K = drawn
    innovations = np.linalg.solve(np.linalg.cholesky(K), psi.T)
    level = 0.2
    expected = binom.pmf(range(7), 6, level) * N_KEYS

    def distance(values: np.ndarray) -> float:
        counts = np.bincount((values >= -np.sqrt(2) * _erfinv(2 * level - 1)).sum(0), minlength=7)
        return chi2.sf(((counts - expected) ** 2 / expected).sum(), 6)

    assert distance(innovations) > 1e-3
    assert distance(psi.T) < 1e-12


def _erfinv(x: float) -> float:
    return torch.erfinv(torch.tensor(x, dtype=torch.float64)).item()


def test_of_real_keys_too():
    """The library's own noise: all innovations of 40 keys and 30 alike texts are one sample of N(0,
    1); ψ of one key is none.
    """
    model, pairs = tiny_models.build(), texts(30, alike=True)
    keys = [Key.from_seed(i) for i in range(40)]
    table = joint.sequence(model, *pairs, WM, keys, xis=noises(model, WM, keys))
    assert kstest(table["innovation"], "norm").pvalue > 1e-3
    between = np.corrcoef(columns(table, "innovation"))[np.triu_indices(30, 1)]
    assert abs(between.mean()) < 5 / np.sqrt(40 * len(between))
    assert 0.7 < between.std() * np.sqrt(40) < 1.3
    means = columns(table, "psi").mean(0)
    assert means.std() > 3 / np.sqrt(30), "ψ of one key leans as a whole"
    assert columns(table, "innovation").mean(0).std() < 1.5 / np.sqrt(30)


def forged(
    units: torch.Tensor, z: torch.Tensor, rng: np.random.Generator, n_steps: int
) -> tuple[float, float]:
    """An attacker who asks for ψ of eight edits of a direction and keeps the best: ψ and r of the
    last one, which he has not asked about.
    """
    memory, u, last = Memory(units.shape[1], 1, 1 << 30), units[0], 0.0
    ways = iter(rng.permutation(len(units) - 1) + 1)
    for step in range(n_steps + 1):
        tries = [
            torch.nn.functional.normalize(u + 0.3 * units[next(ways)], dim=0)
            for _ in range(8 if step < n_steps else 1)
        ]
        psi = [float(each.double() @ z) for each in tries]
        r = [
            memory.ask(each, np.array([value]), repeats.runs([]), 0).innovation.item()
            for each, value in zip(tries, psi, strict=True)
        ]
        u, last = tries[int(np.argmax(psi))], psi[-1]
    return last, r[-1]


def test_an_attacker_who_may_ask_moves_psi_and_not_the_innovation():
    d, rng, found = 400, np.random.default_rng(0), []
    generator = torch.Generator().manual_seed(1)
    for _ in range(100):
        units = torch.nn.functional.normalize(torch.randn(300, d, generator=generator), dim=1)
        z = torch.randn(d, generator=generator, dtype=torch.float64)
        found.append(forged(units, z, rng, 10))
    psi, r = np.array(found).T
    assert psi.mean() > 2.5
    assert kstest(psi, "norm").pvalue < 1e-12
    assert kstest(r, "norm").pvalue > 1e-3


def in_terms(u: torch.Tensor) -> Factors:
    """The same direction, by the rows of a matrix."""
    return Factors(torch.eye(6), u.unflatten(0, (6, -1)))


def amplified(
    n_asked: int,
    z: torch.Tensor,
    generator: torch.Generator,
    form: Callable[[torch.Tensor], Direction],
) -> float:
    """An attacker who asks for texts a hair beside one that was answered, solves for what lies
    between, and sums it: r of his last text.
    """
    d, aside = len(z), 8e-4
    memory = Memory(d, 1, 1 << 30)

    def ask(u: torch.Tensor) -> tuple[float, float]:
        answer = memory.ask(form(u), np.array([float(u.double() @ z)]), repeats.runs([]), 0)
        return answer.psi.item(), answer.innovation.item()

    u, *others = torch.linalg.qr(torch.randn(d, 1 + n_asked, generator=generator))[0].T
    first, _ = ask(u)
    forged = torch.zeros(d)
    for v in others:
        beside = torch.nn.functional.normalize(u + aside * v, dim=0)
        along = (ask(beside)[0] - first * float(beside @ u)) / float(beside @ v)
        forged += along * v
    return ask(torch.nn.functional.normalize(forged, dim=0) if forged.norm() > 0 else others[0])[1]


@pytest.mark.parametrize("form", [torch.clone, in_terms])
def test_texts_that_add_a_hair_to_earlier_ones_do_not_give_the_key_away(form):
    generator = torch.Generator().manual_seed(0)
    r = [
        amplified(12, torch.randn(60, generator=generator, dtype=torch.float64), generator, form)
        for _ in range(150)
    ]
    assert kstest(r, "norm").pvalue > 1e-3
