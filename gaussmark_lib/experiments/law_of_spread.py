"""Is the spread of one key's rate of false alarms the predicted one? Their ratio by kind of text,
with the interval that the law itself gives it.
"""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from gaussmark_lib import stats
from gaussmark_lib.experiments import one_key_in_production as production

N_DRAWS, N_RESAMPLES = 20_000, 2_000  # simulated keys, and samples of them
AT_A_TIME = 1 << 22  # simulated numbers


def over_predicted(
    psi: Float[np.ndarray, "keys n"],
    K: Float[np.ndarray, "n n"],
    level: float = 0.05,
    confidence: float = 0.95,
    *,
    seed: int = 0,
) -> stats.Estimate:
    """The standard deviation over keys of their rates of false alarms, over
    ``production.predicted_spread``; n counts keys.

    By the law a key's ψ is a draw of N(0, K). So keys are simulated, and the measured ratio is
    divided by the quantiles of the ratio that as many simulated keys have: where the law holds, the
    interval misses 1 with probability 1 − confidence, whether few keys are extreme or many. No
    interval where so few keys could all have one rate.
    """
    ratio = production.false_alarms(psi, level).std() / production.predicted_spread(K, level)
    rates, rng = simulated(K, level, seed=seed), np.random.default_rng(seed)
    spreads = [rates[rng.integers(len(rates), size=len(psi))].std() for _ in range(N_RESAMPLES)]
    low, high = np.quantile(spreads, [(1 - confidence) / 2, (1 + confidence) / 2]) / rates.std()
    ends = (ratio / high, ratio / low) if low > 0 else (np.nan, np.nan)
    return stats.Estimate(float(ratio), *map(float, ends), len(psi))


def simulated(
    K: Float[np.ndarray, "n n"], level: float = 0.05, *, seed: int = 0
) -> Float[np.ndarray, " draws"]:
    """Rates of false alarms of ``N_DRAWS`` keys whose ψ is N(0, K)."""
    values, vectors = np.linalg.eigh(K)
    root, rng = (vectors * np.sqrt(values.clip(min=0))).T, np.random.default_rng(seed)
    sizes = np.diff([*range(0, N_DRAWS, max(1, AT_A_TIME // len(K))), N_DRAWS])
    return np.concatenate(
        [
            production.false_alarms(rng.standard_normal((size, len(K))) @ root, level)
            for size in sizes
        ]
    )


def farthest(ratios: Iterable[stats.Estimate]) -> stats.Estimate:
    """The ratio whose interval reaches farthest from 1; one without an interval reaches farther
    than all.
    """
    return max(ratios, key=lambda one: max(one.high, 1 / one.low) if one.low > 0 else np.inf)
