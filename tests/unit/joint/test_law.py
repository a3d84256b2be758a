"""The joint law, against a Cholesky factor made at once in float64, and against keys: 10,000 draws
of the noise on a tiny model; and the chance of any false alarm in a batch.
"""

import closeness
import numpy as np
import pytest
import tiny_models
import torch
from scipy.stats import binom, chi2, multivariate_normal, norm

from gaussmark_lib import score
from gaussmark_lib.beyond import joint
from gaussmark_lib.beyond.joint import directions, law
from gaussmark_lib.keys import Key
from gaussmark_lib.perturb import Watermark

WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.05)
N_KEYS = 10_000


def texts(n: int, *, alike: bool) -> tuple[list, list]:
    """n texts; ``alike``: each an edit of one, so that their gradients have large cosines."""
    rng = np.random.default_rng(0)
    prompts = tiny_models.random_ids(rng, *[4] * n)
    responses = tiny_models.random_ids(rng, *[24] * n)
    if alike:
        kept = rng.permuted(np.tile(np.arange(24) >= 4, (n, 1)), axis=1)  # all but four tokens
        responses = np.where(kept, responses[0], np.array(responses)).tolist()
        prompts = [prompts[0]] * n
    return prompts, responses


def directions_of(model, pairs, wm=WM) -> torch.Tensor:
    gradients = sorted(score.gradients(model, *pairs, wm), key=lambda gradient: gradient.text)
    return torch.stack([directions.kept(gradient) for gradient in gradients])


def columns(table, name: str) -> np.ndarray:
    """(texts, keys)"""
    return table[name].to_numpy().reshape(-1, table["key_id"].nunique())


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_innovations_are_those_of_one_cholesky_factor(architecture, alike):
    model, keys = tiny_models.build(architecture), [Key.from_seed(i) for i in range(4)]
    wm, pairs = Watermark(tiny_models.ONE_WEIGHT[architecture], 0.05), texts(30, alike=alike)
    table = joint.sequence(model, *pairs, wm, keys)
    units = directions_of(model, pairs, wm)
    L, psi = np.linalg.cholesky(directions.inner(units, units)), columns(table, "psi")
    np.testing.assert_allclose(columns(table, "innovation"), np.linalg.solve(L, psi), atol=1e-4)
    np.testing.assert_allclose(columns(table, "residual")[:, 0], np.diag(L), atol=1e-5)
    alone = columns(score.score(model, *pairs, wm, keys, batch_size=1), "psi")
    d = wm.on(model).linear.value().numel()
    np.testing.assert_allclose(psi, alone, atol=closeness.of_sum(torch.float32, d))
    assert np.diag(L)[5:].mean() < 0.9 or not alike, "otherwise this tests nothing"


def test_nearly_dependent_directions_keep_their_digits():
    """Residuals down to 0.002 are right to 1e-6, relative: vectors that differ in their last
    digits.
    """
    generator = torch.Generator().manual_seed(0)
    base, *others = torch.randn(13, 3000, generator=generator)
    shares = np.geomspace(0.5, 0.002, 12)
    rows = [base + share * other for share, other in zip(shares, others, strict=True)]
    units = torch.nn.functional.normalize(torch.stack(rows), dim=1)
    _, residuals = law.innovations(np.zeros((1, 12)), directions.inner(units, units))
    exact = np.abs(np.diag(np.linalg.qr(units.double().numpy().T).R))
    np.testing.assert_allclose(residuals, exact, rtol=1e-6)
    assert min(residuals) < 0.01


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray]:
    """ψ of six alike texts under 10,000 noises, and their K. The noises are torch's, since Philox's
    are slower and as good here.
    """
    units = directions_of(tiny_models.build(), texts(6, alike=True))
    z = torch.randn(N_KEYS, units.shape[1], generator=torch.Generator().manual_seed(0))
    return directions.inner(z, units), directions.inner(units, units)


def test_psi_has_the_covariance_k_over_keys(drawn):
    psi, K = drawn
    assert K[np.triu_indices(6, 1)].mean() > 0.2
    whitened = np.linalg.solve(np.linalg.cholesky(K), psi.T)
    squares = np.square(whitened).sum()  # χ² with 60,000 degrees of freedom
    assert chi2.cdf(squares, psi.size) == pytest.approx(0.5, abs=0.4995)
    assert np.abs(np.cov(psi.T) - K).max() < 4.5 * np.sqrt(2 / N_KEYS)
    best = multivariate_normal(cov=K).logpdf(psi).mean()
    assert best > multivariate_normal(cov=np.eye(6)).logpdf(psi).mean() + 0.1


def test_false_alarms_of_innovations_are_binomial_and_those_of_psi_are_not(drawn):
    psi, K = drawn
    innovations, level = np.linalg.solve(np.linalg.cholesky(K), psi.T), 0.2
    expected = binom.pmf(range(7), 6, level) * N_KEYS

    def p_of_fit(values: np.ndarray) -> float:
        counts = np.bincount((values >= norm.isf(level)).sum(0), minlength=7)
        return chi2.sf(((counts - expected) ** 2 / expected).sum(), 6)

    assert p_of_fit(innovations) > 1e-3
    assert p_of_fit(psi.T) < 1e-12


def test_family_counts_simulations_one_by_one():
    rng, K = np.random.default_rng(3), 0.5 + 0.5 * np.eye(20)
    psi = np.random.default_rng(0).standard_normal(20)
    values, vectors = np.linalg.eigh(K)
    x = rng.standard_normal((400, 20)) @ (np.sqrt(values)[:, None] * vectors.T)
    slow = [(1 + sum(max(row) >= value for row in x)) / 401 for value in psi]
    assert joint.family(psi, K, n=400, seed=3).tolist() == pytest.approx(slow)


def test_a_singular_covariance_is_one_text():
    K = np.ones((2, 2))
    assert joint.family(np.array([9.0, -9.0]), K, n=99).tolist() == [0.01, 1.0]


def test_a_tie_counts_as_an_alarm():
    p_values = joint.family(law.greatest(np.eye(4), 9, 0), np.eye(4), n=9)
    assert p_values.tolist() == pytest.approx([1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
