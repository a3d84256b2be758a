"""Estimates with intervals, and the power that gradient norms predict. No plots, no models.

Where ψ comes from watermarked text and the model is locally linear in the weight, ψ ≈ N(σ‖G‖, 1):
the noise shifts the text's log-likelihood by ⟨ξ, G⟩ and sampling from p_{θ+ξ} tilts it by as much.
So σ‖G‖, known from *unwatermarked* text alone, predicts the mean of ψ, and Φ(σ‖G‖ − τ_α) the power
at level α (the Gaussian-shift reading of the paper's Prop. on linear softmax power).
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import optimize, special, stats
from scipy.stats import qmc

from gaussmark_lib.errors import GaussMarkError, require_between, shown

ADVICE = "leave out texts without a score, and say so"
FEW = 20  # rows or clusters whose bootstrap covers too little: 90% for 95% with ten of them
ROUNDING = 1e-12  # a spread below this share of the value is none


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, made of n observations.

    >>> print(Estimate(0.75, 0.194, 0.994, 4))
    0.75 (0.194 to 0.994), n = 4
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        interval = "no interval" if np.isnan(self.low) else f"{self.low:.3g} to {self.high:.3g}"
        return f"{self.value:.3g} ({interval}), n = {self.n:,}"

    def row(self, name: str = "") -> dict[str, float]:
        """As columns of a table: ``value, low, high, n``, or ``name, name_low, name_high``."""
        if not name:
            return asdict(self)
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def share(
    hits: ArrayLike, *, cluster: ArrayLike | None = None, confidence: float = 0.95
) -> Estimate:
    """The share p̂ of True among n independent trials, with the exact interval of Clopper and
    Pearson.

    With X ~ Binomial(n, p) and k hits, its ends are the p for which P(X ≥ k) and P(X ≤ k) are
    (1 − confidence)/2: quantiles of beta distributions.

    Trials in K clusters are worth fewer independent ones. Their interval is that of Korn and
    Graubard (Survey Methodology 24, 1998, 193–201): the same quantiles at

        n' = n/deff · (t_{n−1}/t_{K−1})²,   deff = v/(p̂(1 − p̂)/(n − 1))

    trials, where v is the variance of p̂ over clusters (:func:`mean`) and t_m is Student's quantile
    with m degrees of freedom. deff is at least 1. Few hits say little about it, and the interval
    then covered as little as .81 in simulations. So deff counts one independent hit more, in a
    cluster whose rows all agree: with h the number of hits (or of misses, if they are fewer) and
    D = Σm_c²/n the deff of clusters whose rows all agree, it is the mean of deff, with the weight
    h/deff, and of D, with the weight 1. A share of 0 or 1 has the interval of one trial per
    cluster. A share between 0 and 1 in a single cluster has no interval (NaN).

    >>> print(share([True, True, False, True]))
    0.75 (0.194 to 0.994), n = 4
    >>> print(share([True, True, False, True], cluster=["a", "a", "b", "c"]))
    0.75 (0.0304 to 1), n = 3
    """
    hits = _checked(hits).astype(bool)
    labels, n = _clusters(hits, cluster)
    value = float(np.mean(hits))
    if value in (0.0, 1.0) or n == len(hits):
        return _of_trials(value, n, confidence)
    if n == 1:
        return Estimate(value, np.nan, np.nan, n)
    n_effective = len(hits) / _design_effect(hits, labels)
    quantile, of_clusters = stats.t.isf((1 - confidence) / 2, [len(hits) - 1, n - 1])
    n_effective *= (quantile / of_clusters) ** 2
    low, high = _clopper_pearson(value, n_effective, confidence)
    return Estimate(value, low, high, n)


def mean(
    numbers: ArrayLike, *, cluster: ArrayLike | None = None, confidence: float = 0.95
) -> Estimate:
    """The mean x̄ of numbers, with Student's interval.

    The standard error is s/√n. For K clusters with residual sums r_c = Σ_{i in c} (x_i − x̄), it is
    √(K/(K−1) · Σ r_c²)/n, with K − 1 degrees of freedom; numbers on their own are clusters of one.
    A single number or cluster has no interval (NaN), nor have numbers that are all equal.

    >>> print(mean([2.0, 4.0, 6.0]))
    4 (-0.968 to 8.97), n = 3
    """
    numbers = _checked(numbers)
    labels, n = _clusters(numbers, cluster)
    error = _error_of_mean(numbers, labels) if n > 1 else 0.0
    return _student(float(np.mean(numbers)), error, n, confidence)


def median(
    numbers: ArrayLike, *, cluster: ArrayLike | None = None, confidence: float = 0.95
) -> Estimate:
    """The median of numbers, with the exact interval between two order statistics.

    The number of rows below the median is Binomial(n, ½), whatever the distribution. So the
    interval from the k-th smallest to the k-th largest number misses the median with a probability
    of 2·P(X < k) at most, and k is the largest with which this is 1 − confidence or less. Fewer
    than 6 numbers have no interval of 95% (NaN).

    For rows in clusters, the ends are the quantiles at the two ends of the interval of
    :func:`share` for the share of numbers up to the median (Woodruff, Journal of the American
    Statistical Association 47, 1952, 635–646).

    >>> print(median(np.arange(40.0)), "|", median([1.0, 2.0, 5.0]))
    19.5 (13 to 26), n = 40 | 2 (no interval), n = 3
    """
    numbers = _checked(numbers)
    n = _clusters(numbers, cluster)[1]
    value = float(np.median(numbers))
    low = high = np.nan
    if n == len(numbers):
        k = int(stats.binom.ppf((1 - confidence) / 2, n, 0.5))
        if k > 0:
            low, high = np.sort(numbers)[[k - 1, n - k]]
    elif n > 1:
        below = share(numbers <= value, cluster=cluster, confidence=confidence)
        low, high = np.quantile(numbers, [below.low, below.high], method="inverted_cdf")
    return Estimate(value, float(low), float(high), n)


def ratio(
    numerator: ArrayLike, denominator: ArrayLike, cluster: ArrayLike | None = None
) -> Estimate:
    """Mean of one column divided by the mean of another, x̄/ȳ, with the interval of
    :func:`bootstrap` over rows or clusters: the two numbers of a row stay together.

    >>> print(ratio([2.0, 4.0, 6.0], [1.0, 2.0, 2.0]))
    2.4 (0.676 to 4.12), n = 3
    """
    rows = np.column_stack([numerator, denominator])
    return bootstrap(rows, lambda both: both[:, 0].mean() / both[:, 1].mean(), cluster=cluster)


def bootstrap(
    rows: ArrayLike | pd.DataFrame,
    statistic: Callable,
    *,
    cluster: ArrayLike | None = None,
    is_share: bool = False,
    confidence: float = 0.95,
    n_resamples: int = 2_000,
    seed: int = 0,
) -> Estimate:
    """A statistic t of the rows of an array or a table, with the percentile interval: the middle
    ``confidence`` of t over rows (or clusters) drawn with replacement.

    Fewer than ``FEW`` clusters vary too little when they are redrawn. Their interval is Student's,
    with the jackknife's standard error √((n−1)/n · Σ (t_i − t̄)²), t_i being the statistic without
    cluster i. One or two rows or clusters have no interval (NaN), nor has a statistic that does
    not vary. Neither interval is right for a median of few rows: ``np.median`` of a column has that
    of :func:`median`.

    Args:
        cluster: a label for each row.
        is_share: the statistic is a share (an AUC); at 0 or 1 its interval is that of n trials.

    >>> print(bootstrap(np.arange(40.0), np.std))
    11.5 (9.69 to 13), n = 40
    """
    rows = _checked(rows)
    if statistic is np.median and rows.ndim == 1:
        return median(rows, cluster=cluster, confidence=confidence)
    labels, n = _clusters(rows, cluster)
    value = float(statistic(rows))
    estimate = Estimate(value, np.nan, np.nan, n)
    if is_share and value in (0.0, 1.0):
        return _as_share(estimate, confidence)
    if 2 < n < FEW:
        estimate = _jackknife(rows, statistic, value, labels, confidence)
    elif n >= FEW:
        draws = [statistic(rows.take(i, axis=0)) for i in _resamples(labels, n_resamples, seed)]
        if np.ptp(draws) > ROUNDING * abs(value):
            tail = (1 - confidence) / 2
            low, high = np.quantile(draws, [tail, 1 - tail])
            estimate = Estimate(value, float(low), float(high), n)
    return _as_share(estimate, confidence) if is_share else estimate


_share = share  # which ``interval`` can call: it has an argument of this name


def interval(
    rows: ArrayLike | pd.DataFrame,
    statistic: Callable | None = None,
    *,
    cluster: ArrayLike | None = None,
    share: bool = False,
    confidence: float = 0.95,
    n_resamples: int = 2_000,
    seed: int = 0,
) -> Estimate:
    """The estimate that fits the rows: :func:`share` of True and False, :func:`mean` of numbers,
    :func:`bootstrap` of a ``statistic``. n counts independent rows, or clusters of them.

    Args:
        cluster: a label for each row.
        share: the estimate is a share (an AUC): at 0 or 1 its interval is that of n trials. Numbers
            that are all 0 or 1 are taken for False and True.

    >>> print(interval([2.0, 4.0, 6.0]), "|", interval([True, True, False, True]))
    4 (-0.968 to 8.97), n = 3 | 0.75 (0.194 to 0.994), n = 4
    """
    if statistic is not None:
        return bootstrap(
            rows,
            statistic,
            cluster=cluster,
            is_share=share,
            confidence=confidence,
            n_resamples=n_resamples,
            seed=seed,
        )
    if np.asarray(rows).dtype == bool or (share and np.isin(rows, (0, 1)).all()):
        return _share(rows, cluster=cluster, confidence=confidence)
    estimate = mean(rows, cluster=cluster, confidence=confidence)
    return _as_share(estimate, confidence) if share else estimate


def _checked(rows: ArrayLike | pd.DataFrame) -> np.ndarray | pd.DataFrame:
    rows = rows if isinstance(rows, pd.DataFrame) else np.asarray(rows)
    if not len(rows) or np.any(pd.isna(rows)):
        raise GaussMarkError(f"rows: expected one or more without NaN, got none, or NaN; {ADVICE}")
    return rows


def _clusters(rows: np.ndarray | pd.DataFrame, cluster: ArrayLike | None) -> tuple[np.ndarray, int]:
    """The number of each row's cluster, and how many clusters there are."""
    if cluster is None:
        return np.arange(len(rows)), len(rows)
    labels, names = pd.factorize(np.asarray(cluster))
    return labels, len(names)


def _error_of_mean(numbers: np.ndarray, labels: np.ndarray) -> float:
    """The standard error of a mean over two or more clusters (see :func:`mean`)."""
    residuals = np.bincount(labels, numbers - np.mean(numbers))  # one sum per cluster
    n = len(residuals)
    return np.sqrt(n / (n - 1) * (residuals**2).sum()) / len(numbers)


def _of_trials(value: float, n: int, confidence: float) -> Estimate:
    """A share of n independent trials."""
    low, high = _clopper_pearson(value, n, confidence)
    return Estimate(value, low, high, n)


def _clopper_pearson(value: float, n: float, confidence: float) -> tuple[float, float]:
    """The ends for value · n hits among n trials, which need not be whole numbers."""
    tail = (1 - confidence) / 2
    n_hits = value * n
    n_misses = n - n_hits
    low = stats.beta.ppf(tail, n_hits, n_misses + 1) if n_hits > 0 else 0.0
    high = stats.beta.isf(tail, n_hits + 1, n_misses) if n_misses > 0 else 1.0
    return float(low), float(high)


def _design_effect(hits: np.ndarray, labels: np.ndarray) -> float:
    """The variance of a share over clusters, divided by that of as many independent trials, with one
    independent hit more (see :func:`share`).
    """
    n = len(hits)
    value = float(np.mean(hits))
    sizes = np.bincount(labels)
    error = _error_of_mean(hits, labels)
    measured = max(1.0, error**2 / (value * (1 - value) / (n - 1)))
    largest = (sizes**2).sum() / n  # if all rows of a cluster agree
    n_independent = min(hits.sum(), n - hits.sum()) / measured
    return max(measured, (n_independent * measured + largest) / (n_independent + 1))


def _as_share(estimate: Estimate, confidence: float) -> Estimate:
    """An estimate of a share: its ends lie within 0 and 1."""
    if estimate.value in (0.0, 1.0):
        return _of_trials(estimate.value, estimate.n, confidence)
    low, high = np.clip([estimate.low, estimate.high], 0, 1)
    return Estimate(estimate.value, float(low), float(high), estimate.n)


def _student(value: float, error: float, n: int, confidence: float) -> Estimate:
    """value ± error · t, with n − 1 degrees of freedom."""
    if error <= ROUNDING * abs(value):
        return Estimate(value, np.nan, np.nan, n)
    tail = (1 - confidence) / 2
    low, high = value + error * stats.t.ppf([tail, 1 - tail], n - 1)
    return Estimate(value, float(low), float(high), n)


def _jackknife(
    rows: np.ndarray | pd.DataFrame,
    statistic: Callable,
    value: float,
    labels: np.ndarray,
    confidence: float,
) -> Estimate:
    """A statistic's value, with its spread when one cluster after the other is left out."""
    n = labels.max() + 1
    without = [statistic(rows.take(np.flatnonzero(labels != i), axis=0)) for i in range(n)]
    return _student(value, np.std(without) * np.sqrt(n - 1), int(n), confidence)


def _resamples(labels: np.ndarray, n_resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Row numbers of as many clusters as there are, drawn with replacement."""
    rng = np.random.default_rng(seed)
    n = labels.max() + 1
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
    for _ in range(n_resamples):
        drawn = rng.integers(n, size=n)
        yield drawn if n == len(labels) else np.concatenate([members[c] for c in drawn])


def threshold(level: float) -> float:
    """τ_α = Φ⁻¹(1 − α): ψ at or above it is detected at this level.

    >>> round(threshold(0.05), 3)
    1.645
    """
    return float(stats.norm.isf(require_between(level, "level", high=1)))


def tpr(psi: ArrayLike, level: float, confidence: float = 0.95) -> Estimate:
    """Share of ψ at or above τ_α: the true positive rate, or of unmarked texts the level."""
    psi = np.ravel(np.asarray(psi, float))
    if np.isnan(psi).any():
        raise GaussMarkError(f"psi: expected numbers, got NaN; {ADVICE}")
    return share(psi >= threshold(level), confidence=confidence)


def predicted_power(grad_norm: ArrayLike, sigma: float, level: float) -> float:
    """Mean over unwatermarked texts of Φ(σ‖G‖ − τ_α): the share that will be detected."""
    shift = sigma * np.asarray(grad_norm, float) - threshold(level)
    return float(stats.norm.cdf(shift).mean())


def predicted_price(psi: float, n_tokens: int) -> float:
    """ψ²/(2T) nats per token: the KL from p_θ that a mean ψ over T tokens costs in any weight.

    >>> predicted_price(3.0, 200)
    0.0225
    """
    return float(psi**2 / (2 * n_tokens))


def exponent(plain: pd.DataFrame) -> Estimate:
    """The power a of the length T in ‖G‖ ∝ T^a: mean over texts of the slope of log ‖G‖ against
    log T.
    """
    logs = np.log(plain[["n_tokens", "grad_norm"]]).groupby(plain["text"])
    return mean([np.polyfit(*rows.to_numpy().T, 1)[0] for _, rows in logs if len(rows) > 1])


def sigma_for_psi(grad_norm: ArrayLike, psi: float) -> float:
    """The σ at which σ · median‖G‖ is a wanted ψ.

    >>> sigma_for_psi([10.0, 20.0, 90.0], psi=3.0)
    0.15
    """
    if not np.size(grad_norm) or not 0 < (median := float(np.median(grad_norm))) < np.inf:
        raise GaussMarkError(f"expected positive gradient norms, got {shown(grad_norm)}")
    return require_between(psi, "psi") / median


def sigma_for_power(grad_norm: ArrayLike, power: float, level: float) -> float:
    """The σ at which :func:`predicted_power` is the wanted power, where the model is linear in it:
    beyond that, a larger σ does not detect more.
    """
    require_between(power, "power, above the level", low=level, high=1)
    if not np.size(grad_norm) or not np.min(grad_norm) > 0:
        raise GaussMarkError(f"expected positive gradient norms, got {shown(grad_norm)}")
    beyond = 2 * (threshold(level) + stats.norm.ppf(power)) / np.min(grad_norm)

    def missing(sigma: float) -> float:
        return predicted_power(grad_norm, sigma, level) - power

    return optimize.brentq(missing, 0.0, beyond, xtol=1e-12 / np.max(grad_norm), rtol=1e-12)


def log_p_of_max(x: ArrayLike, correlation: ArrayLike) -> np.ndarray:
    """log P(max_i Z_i ≥ x) for Z ~ N(0, K): the p-value of the largest ψ of one text in several
    directions, whose cosines are K. Deterministic; the relative error of p is below 10⁻³.

    With S = P(Z_1 ≥ x) this is log(S·(1 + Σ_{i>1} P(Z_j < x for all j < i | Z_i ≥ x))). For two,

        P(Z_2 ≥ x | Z_1 ≥ x) = S + ∫_0^{arcsin ρ} exp(−x²/(1 + sin t)) dt / (2πS);

    for more, each term is integrated over 4,096 points of Sobol. Parallel directions count once.

    Args:
        x: one, or an array (...). correlation: (k, k), or one for each x, (..., k, k).

    >>> cosines = np.array([0.0, 0.8, 1.0])
    >>> K = np.eye(2) + cosines[:, None, None] * (1 - np.eye(2))
    >>> np.exp(log_p_of_max(2.0, K)).round(5).tolist()
    [0.04498, 0.03568, 0.02275]
    """
    x, K = np.asarray(x, float), np.asarray(correlation, float)
    unit = K.ndim > 1 and np.allclose(np.diagonal(K, axis1=-2, axis2=-1), 1, atol=1e-5)
    if not (unit and np.allclose(K, np.swapaxes(K, -1, -2)) and np.abs(K).max() < 1 + 1e-5):
        raise GaussMarkError(f"correlation: expected a matrix of cosines, got {shown(K)}")
    one = stats.norm.logsf(x)
    if K.shape[-1] == 2:
        return one + np.log1p(1 - _both(x, K[..., 0, 1].clip(-1, 1), one))
    return one + np.vectorize(_more, signature="(),(k,k)->()")(x, K)


def _both(x: np.ndarray, rho: np.ndarray, one: np.ndarray) -> np.ndarray:
    """P(Z_2 ≥ x | Z_1 ≥ x), by Gauss and Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    half = np.arcsin(rho)[..., None] / 2  # of the interval
    slope = np.exp(-(x[..., None] ** 2) / (1 + np.sin(half * (1 + nodes))) - one[..., None])
    return np.exp(one) + (slope * weights * half).sum(-1) / (2 * np.pi)


def _more(x: float, K: np.ndarray) -> float:
    """log Σ_i P(Z_j < x for all j < i | Z_i ≥ x), each Z_j drawn given those before it."""
    total, earlier = 0.0, []  # the sum; numbers of the directions so far
    for i in range(len(K)):
        if earlier and K[i, earlier].max() > 1 - 1e-9:
            continue
        order = [i, *earlier]
        L = np.linalg.cholesky(K[np.ix_(order, order)] + 1e-12 * np.eye(len(order)))
        u = qmc.Sobol(len(order), rng=0).random(4096)
        z = -special.ndtri_exp(np.log(u[:, :1]) + stats.norm.logsf(x))  # Z_i ≥ x
        inside = np.ones(len(u))
        for j in range(1, len(order)):
            share = special.ndtr((x - z @ L[j, :j]) / L[j, j]).clip(1e-300)  # P(Z_j < x | z)
            inside, z = inside * share, np.column_stack([z, special.ndtri(u[:, j] * share)])
        total += inside.mean()
        earlier.append(i)
    return np.log(total)


def psi_of_log_p(log_p: ArrayLike) -> np.ndarray:
    """Φ̄⁻¹(p), the ψ that has this p-value, also where p underflows."""
    return -special.ndtri_exp(np.asarray(log_p, float))
