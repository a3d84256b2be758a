"""What is learnt of ξ, against sums by hand and against simulated texts whose law is exact."""

from itertools import permutations

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import generate, gradients, likelihood, perturb
from gaussmark_lib.beyond.attacks import learning
from gaussmark_lib.errors import GaussMarkError, KeyMismatchError
from gaussmark_lib.keys import Key

KEYS = [Key.from_seed(i) for i in range(4)]
RNG = np.random.default_rng(3)
X, Y = tiny_models.random_ids(RNG, *[4] * 5), tiny_models.random_ids(RNG, *[9] * 5)


def test_estimates_are_running_sums_of_gradients(model, wm):
    matrices = {gradient.text: gradient.G for gradient in gradients.gradients(model, X, Y, wm)}
    for n, total in zip([1, 3, 5], learning.estimates(model, X, Y, wm, [1, 3, 5]), strict=True):
        wanted = sum(matrices[i] for i in range(n))
        torch.testing.assert_close(total, wanted, rtol=1e-4, atol=1e-6)
    for ends in ([], [0, 2], [6]):
        with pytest.raises(GaussMarkError, match="ends: expected numbers of texts from 1 to 5"):
            list(learning.estimates(model, X, Y, wm, ends))


def test_unevenness_is_that_of_all_pairs_of_texts(model, wm):
    plain = list(gradients.gradients(model, X, Y, wm))
    pairs = permutations([gradient.G.double() for gradient in plain], 2)
    square_of_products = np.mean([float((G * H).sum()) ** 2 for G, H in pairs])
    square_of_norms = np.mean([gradient.norm**2 for gradient in plain])
    wanted = plain[0].G.numel() * square_of_products / square_of_norms**2
    assert learning.unevenness(plain) == pytest.approx(wanted, rel=1e-4)


SPECTRA = {"even": np.ones(4_000), "uneven": np.repeat([9.0, 1.0, 0.1], [200, 800, 3_000])}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("n", [50, 500])
def test_the_laws_of_learning_and_of_forging(name, n):
    """Texts with G ~ N(Fξ, F), for a diagonal F."""
    F, rng = SPECTRA[name], np.random.default_rng(n)
    d, kappa, sigma = len(F), len(F) * (F**2).sum() / F.sum() ** 2, 3 / np.sqrt(F.sum())
    cosines, forged = [], []
    for _ in range(20):
        xi = sigma * rng.standard_normal(d)
        total = torch.from_numpy(n * F * xi + np.sqrt(n * F) * rng.standard_normal(d))
        cosines.append(learning.cosine(total, torch.from_numpy(xi)))
        copy = total.numpy() * np.linalg.norm(xi) / np.linalg.norm(total.numpy())
        G = 2 * F * copy + np.sqrt(F) * rng.standard_normal(d)
        forged.append(xi @ G / sigma / np.sqrt(F.sum()))  # ‖G‖ of a plain text: to first order
        better = learning.shrunk(total, n, torch.from_numpy(F), sigma)
        assert learning.cosine(better, torch.from_numpy(xi)) > cosines[-1] - 1e-3
    law = learning.law(n, 3.0, d, kappa)
    assert np.mean(cosines) == pytest.approx(law, rel=0.05)
    assert np.mean(forged) == pytest.approx(2 * kappa * law * 3, rel=0.12, abs=0.5)


def test_how_many_texts_a_cosine_takes():
    for kappa in (1.0, 5.0):
        n = learning.texts_needed(0.3, 4.0, 10**6, kappa)
        assert learning.law(round(n), 4.0, 10**6, kappa) == pytest.approx(0.3, rel=1e-3)
    assert learning.texts_needed(0.5, 4.0, 10**6, 4.0) == float("inf")


def test_an_average_has_a_share_of_each_key(model, wm):
    noises = perturb.noises(model, wm, KEYS)
    mean = learning.averaged(model, wm, KEYS)
    torch.testing.assert_close(mean, sum(noises) / 4)
    for xi in noises:
        assert learning.cosine(mean, xi) == pytest.approx(0.5, abs=0.06)
    for keys in ([], [KEYS[0], KEYS[0]]):
        with pytest.raises(KeyMismatchError, match="copies: expected one or more"):
            learning.averaged(model, wm, keys)


def test_text_of_a_given_noise_is_that_of_its_key(model, wm):
    xi = perturb.noise(model, wm, KEYS[0])
    with perturb.watermarked(model, wm, KEYS[0]):
        wanted = generate.sample(model, X, 12, seed=2)
        of_q = likelihood.cross_entropy(model, wanted, prompts=X)
    texts, nats = learning.sample_with_noise(model, X, wm, xi, 12, seed=2)
    assert texts == wanted
    of_p = likelihood.cross_entropy(model, wanted, prompts=X)
    assert nats == pytest.approx(12 * (of_p - of_q), abs=1e-3)
    assert np.abs(nats).min() > 1e-2
    longer = learning.of_length(7 * xi, wm)
    assert float(longer.norm()) == pytest.approx(wm.sigma * xi.numel() ** 0.5, rel=1e-5)
