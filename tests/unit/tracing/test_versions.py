"""The test of one text in several versions, against its formula and over keys."""

import numpy as np
import pytest
import tiny_models
from scipy.stats import binom, norm

from gaussmark_lib import gradients, score, stats
from gaussmark_lib.beyond import tracing
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.perturb import Key, Watermark

RNG = np.random.default_rng(3)
X, Y = tiny_models.random_ids(RNG, 2), tiny_models.random_ids(RNG, 20, 12)
KEYS = [Key.from_seed(i) for i in range(3)]
VERSIONS = [([x], [y]) for x, y in zip(X[:1] * 2, Y, strict=True)]


@pytest.mark.parametrize("rank_dropped", [0, 3])
def test_p_is_that_of_the_largest_under_the_joint_law(model, wm, rank_dropped):
    wm = Watermark(wm.weight, wm.sigma, rank_dropped)
    found = tracing.any_version(model, VERSIONS, wm, KEYS)
    alone = [score.score(model, *version, wm, KEYS) for version in VERSIONS]
    psi = np.array([table["psi"] for table in alone])
    G, H = (next(gradients.gradients(model, *version, wm)).G.double() for version in VERSIONS)
    cosine = ((G * H).sum() / (G.norm() * H.norm())).item()
    log_p = stats.log_p_of_max(psi.max(axis=0), [[1, cosine], [cosine, 1]])
    assert found["p_value"].to_numpy() == pytest.approx(np.exp(log_p), rel=1e-3)
    assert found["psi"].to_numpy() == pytest.approx(norm.isf(np.exp(log_p)), abs=1e-3)
    assert np.array(found["psi_of_each"].tolist()) == pytest.approx(psi.T, abs=1e-4)
    for name in ("grad_norm", "log_lik", "n_tokens"):
        assert found[name].to_numpy() == pytest.approx(alone[0][name].to_numpy(), rel=1e-5)


def test_the_same_version_twice_is_one(model, wm):
    [row, *_] = tracing.any_version(model, VERSIONS[:1] * 2, wm, KEYS)["psi"]
    [alone, *_] = score.score(model, *VERSIONS[0], wm, KEYS)["psi"]
    assert row == pytest.approx(alone, abs=1e-2)


def test_the_level_is_exact_over_fresh_keys_and_that_of_the_larger_alone_is_not(model, wm):
    """Over 4,000 keys, by the exact 99% interval."""
    n = 4_000
    keys = [Key.from_seed(10_000 + i) for i in range(n)]
    found = tracing.any_version(model, VERSIONS, wm, keys)
    low, high = binom.ppf([0.005, 0.995], n, 0.05)
    assert low <= (found["p_value"] <= 0.05).sum() <= high
    larger = np.array(found["psi_of_each"].tolist()).max(axis=1)
    assert (norm.sf(larger) <= 0.05).sum() > high


def test_a_version_without_a_gradient_is_refused(model, wm):
    model.lm_head.weight.data.zero_()
    with pytest.raises(DegenerateScoreError, match="non-zero gradient"):
        tracing.any_version(model, VERSIONS, wm, KEYS)
