"""Estimates with intervals, and the power that gradient norms predict. No plots, no models.

If the text is watermarked and the model is locally linear in the weight, ψ ≈ N(σ‖G‖, 1): the noise
shifts the text's log-likelihood by ⟨ξ, G⟩, and sampling from p_{θ+ξ} tilts it by the same amount.
So σ‖G‖, measured on *unwatermarked* text alone, predicts the mean of ψ, and Φ(σ‖G‖ − τ_α) predicts
the power at level α (the Gaussian-shift reading of the paper's Prop. on linear softmax power).
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
# with fewer rows or clusters, the bootstrap covers too little: with ten, 90% instead of 95%
FEW = 20
ROUNDING = 1e-12  # a spread below this share of the value is rounding error


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, from n observations.

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
        """Return columns of a table: ``value, low, high, n``, or ``name, name_low, name_high``.

        >>> Estimate(0.75, 0.5, 1.0, 4).row("rate")
        {'rate': 0.75, 'rate_low': 0.5, 'rate_high': 1.0}
        """
        if not name:
            return asdict(self)
        return {
            name: self.value,
            f"{name}_low": self.low,
            f"{name}_high": self.high,
        }


def share(
    hits: ArrayLike, *, cluster: ArrayLike | None = None, confidence: float = 0.95
) -> Estimate:
    """Return the share p̂ of True among n trials, with an interval that suits few trials.

    **Independent trials** have the exact interval of Clopper and Pearson. With X ~ Binomial(n, p)
    and k hits, its ends are the p for which P(X ≥ k) and P(X ≤ k) are (1 − confidence)/2: quantiles
    of beta distributions.

    **Trials in K clusters** (``cluster``: several texts of one document, say) tell less than n
    independent trials. Their interval is that of Korn and Graubard (Survey Methodology 24, 1998,
    193–201): the interval of Clopper and Pearson for an *effective number* of trials

        n' = n / deff · (t_{n−1} / t_{K−1})²

    * deff, the *design effect*, is v / (p̂(1 − p̂)/(n − 1)): the variance v of p̂ over clusters
      (:func:`mean`), divided by that of n independent trials. It is at least 1.
    * t_m is the quantile of Student's distribution with m degrees of freedom at this confidence. v
      is estimated from K clusters and so has only K − 1 degrees of freedom; the quotient, below 1,
      makes the interval wider for it.

    Few hits determine deff badly, and the interval then covered as little as .81 in simulations. So
    we mix in the worst case. With m_c the number of trials in cluster c, D = Σ_c m_c²/n is the deff
    of clusters whose trials all agree. With h the number of hits (or of misses, if they are fewer),
    the deff in use is the weighted mean of the measured deff (weight h/deff) and of D (weight 1),
    and never less than the measured deff.

    A share of 0 or 1 has the interval of one trial per cluster. A share between 0 and 1 in a single
    cluster has no interval (NaN).

    Args:
        hits: one True or False per trial.
        cluster: a label for each trial; by default every trial is independent.

    Returns:
        An :class:`Estimate`; its ``n`` is the number of trials, or of clusters.

    >>> print(share([True, True, False, True]))
    0.75 (0.194 to 0.994), n = 4
    >>> print(share([True, True, False, True], cluster=["a", "a", "b", "c"]))
    0.75 (0.0304 to 1), n = 3
    """
    hits = _checked(hits)
    if not np.isin(hits, (0, 1)).all():
        raise GaussMarkError(f"hits: expected True or False for each trial, got {hits[:5]}")
    hits = hits.astype(bool)
    labels, n_clusters = _clusters(hits, cluster)
    n_rows = len(hits)
    value = float(np.mean(hits))
    if value in (0.0, 1.0) or n_clusters == n_rows:
        return _of_trials(value, n_clusters, confidence)
    if n_clusters == 1:
        return _without_interval(value, n_clusters)
    tail = (1 - confidence) / 2
    quantile_of_rows = stats.t.isf(tail, n_rows - 1)
    quantile_of_clusters = stats.t.isf(tail, n_clusters - 1)
    n_effective = n_rows / _design_effect(hits, labels)
    n_effective *= (quantile_of_rows / quantile_of_clusters) ** 2
    low, high = _clopper_pearson(value, n_effective, confidence)
    return Estimate(value, low, high, n_clusters)


def mean(
    numbers: ArrayLike, *, cluster: ArrayLike | None = None, confidence: float = 0.95
) -> Estimate:
    """Return the mean x̄ of numbers, with Student's interval.

    The standard error is s/√n. For K clusters with residual sums r_c = Σ_{i in c} (x_i − x̄), it is
    √(K/(K−1) · Σ r_c²)/n, with K − 1 degrees of freedom; without ``cluster``, each number is a
    cluster. The interval is NaN for a single number or cluster, or if all numbers are equal.

    >>> print(mean([2.0, 4.0, 6.0]))
    4 (-0.968 to 8.97), n = 3
    """
    numbers = _checked(numbers)
    labels, n_clusters = _clusters(numbers, cluster)
    error = _error_of_mean(numbers, labels) if n_clusters > 1 else 0.0
    return _student(float(np.mean(numbers)), error, n_clusters, confidence)


def median(
    numbers: ArrayLike, *, cluster: ArrayLike | None = None, confidence: float = 0.95
) -> Estimate:
    """Return the median of numbers, with the exact interval between two order statistics.

    The number of rows below the median is Binomial(n, ½), whatever the distribution. So the
    interval from the k-th smallest to the k-th largest number misses the median with a probability
    of at most 2·P(X < k), and k is the largest number for which this is at most 1 − confidence.
    Fewer than 6 numbers have no interval of 95% (NaN).

    For rows in clusters, the ends are the quantiles at the two ends of the interval of
    :func:`share` for the share of numbers up to the median (Woodruff, Journal of the American
    Statistical Association 47, 1952, 635–646).

    >>> print(median(np.arange(40.0)), "|", median([1.0, 2.0, 5.0]))
    19.5 (13 to 26), n = 40 | 2 (no interval), n = 3
    """
    numbers = _checked(numbers)
    _, n_clusters = _clusters(numbers, cluster)
    n_rows = len(numbers)
    value = float(np.median(numbers))
    if n_clusters == n_rows:
        k = int(stats.binom.ppf((1 - confidence) / 2, n_rows, 0.5))
        if k < 1:
            return _without_interval(value, n_rows)
        ordered = np.sort(numbers)
        low = ordered[k - 1]
        high = ordered[n_rows - k]
    elif n_clusters == 1:
        return _without_interval(value, n_clusters)
    else:
        below = share(numbers <= value, cluster=cluster, confidence=confidence)
        low, high = np.quantile(numbers, [below.low, below.high], method="inverted_cdf")
    return Estimate(value, float(low), float(high), n_clusters)


def ratio(
    numerator: ArrayLike, denominator: ArrayLike, cluster: ArrayLike | None = None
) -> Estimate:
    """Divide the mean of one column by the mean of another, x̄/ȳ, with the interval of
    :func:`bootstrap` over rows or clusters. The two numbers of a row stay together.

    >>> print(ratio([2.0, 4.0, 6.0], [1.0, 2.0, 2.0]))
    2.4 (0.676 to 4.12), n = 3
    """
    rows = np.column_stack([numerator, denominator])  # (rows, 2)
    return bootstrap(rows, ratio_of_means, cluster=cluster)


def ratio_of_means(rows: np.ndarray) -> float:
    """Return the quotient of the means of two columns, the statistic of :func:`ratio`."""
    return rows[:, 0].mean() / rows[:, 1].mean()


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
    """Return a statistic t of the rows of an array or a table, with the percentile interval: the
    middle ``confidence`` of t over rows (or clusters) drawn with replacement.

    Fewer than ``FEW`` clusters vary too little when they are redrawn. Their interval is Student's,
    with the jackknife's standard error √((n−1)/n · Σ (t_i − t̄)²), where t_i is the statistic
    without cluster i. The interval is NaN for one or two rows or clusters, or if the statistic does
    not vary. Neither interval is right for the median of few rows, so ``np.median`` of a column has
    the interval of :func:`median`.

    Args:
        cluster: a label for each row.
        is_share: the statistic is a share (an AUC). At 0 or 1 its interval is that of n trials.

    >>> print(bootstrap(np.arange(40.0), np.std))
    11.5 (9.69 to 13), n = 40
    """
    rows = _checked(rows)
    if statistic is np.median and rows.ndim == 1:
        return median(rows, cluster=cluster, confidence=confidence)
    labels, n_clusters = _clusters(rows, cluster)
    value = float(statistic(rows))
    estimate = _without_interval(value, n_clusters)
    if is_share and value in (0.0, 1.0):
        return _as_share(estimate, confidence)
    if 2 < n_clusters < FEW:
        estimate = _jackknife(rows, statistic, value, labels, confidence)
    elif n_clusters >= FEW:
        resamples = _resamples(labels, n_resamples, seed)
        draws = [statistic(rows.take(numbers, axis=0)) for numbers in resamples]
        if np.ptp(draws) > ROUNDING * abs(value):
            tail = (1 - confidence) / 2
            low, high = np.quantile(draws, [tail, 1 - tail])
            estimate = Estimate(value, float(low), float(high), n_clusters)
    return _as_share(estimate, confidence) if is_share else estimate


_share = share  # ``interval`` has an argument of this name, and calls the function by this one


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
    """Estimate what the rows call for: :func:`share` of True and False, :func:`mean` of numbers,
    :func:`bootstrap` of a ``statistic``. n counts independent rows, or clusters of rows.

    Args:
        cluster: a label for each row.
        share: the estimate is a share (an AUC). At 0 or 1 its interval is that of n trials. Numbers
            that are all 0 or 1 count as False and True.

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
    is_yes_or_no = np.asarray(rows).dtype == bool
    if is_yes_or_no or (share and np.isin(rows, (0, 1)).all()):
        return _share(rows, cluster=cluster, confidence=confidence)
    estimate = mean(rows, cluster=cluster, confidence=confidence)
    return _as_share(estimate, confidence) if share else estimate


def _checked(rows: ArrayLike | pd.DataFrame) -> np.ndarray | pd.DataFrame:
    rows = rows if isinstance(rows, pd.DataFrame) else np.asarray(rows)
    if not len(rows) or np.any(pd.isna(rows)):
        raise GaussMarkError(
            f"rows: expected at least one, without NaN; got none, or NaN; {ADVICE}"
        )
    return rows


def _clusters(rows: np.ndarray | pd.DataFrame, cluster: ArrayLike | None) -> tuple[np.ndarray, int]:
    """Return the number of each row's cluster, and how many clusters there are."""
    if cluster is None:
        return np.arange(len(rows)), len(rows)
    labels, names = pd.factorize(np.asarray(cluster))
    if len(labels) != len(rows) or (labels < 0).any():
        raise GaussMarkError(
            f"cluster: expected a label for each of {len(rows)} rows, got {(labels >= 0).sum()}"
        )
    return labels, len(names)


def _error_of_mean(numbers: np.ndarray, labels: np.ndarray) -> float:
    """Return the standard error of a mean over two or more clusters (see :func:`mean`)."""
    residuals = np.bincount(labels, numbers - np.mean(numbers))  # one sum per cluster
    n = len(residuals)
    variance_of_total = n / (n - 1) * (residuals**2).sum()
    return np.sqrt(variance_of_total) / len(numbers)


def _of_trials(value: float, n: int, confidence: float) -> Estimate:
    """Estimate a share of n independent trials."""
    low, high = _clopper_pearson(value, n, confidence)
    return Estimate(value, low, high, n)


def _clopper_pearson(value: float, n: float, confidence: float) -> tuple[float, float]:
    """Return the ends for value · n hits among n trials; neither needs to be a whole number."""
    tail = (1 - confidence) / 2
    n_hits = value * n
    n_misses = n - n_hits
    low = stats.beta.ppf(tail, n_hits, n_misses + 1) if n_hits > 0 else 0.0
    high = stats.beta.isf(tail, n_hits + 1, n_misses) if n_misses > 0 else 1.0
    return float(low), float(high)


def _design_effect(hits: np.ndarray, labels: np.ndarray) -> float:
    """Return the variance of a share over clusters, divided by that of the same number of
    independent trials, with one more independent hit (see :func:`share`).
    """
    n = len(hits)
    n_hits = hits.sum()
    n_rarer = min(n_hits, n - n_hits)
    value = float(np.mean(hits))
    variance_of_trials = value * (1 - value) / (n - 1)
    measured = max(1.0, _error_of_mean(hits, labels) ** 2 / variance_of_trials)
    sizes = np.bincount(labels)  # rows per cluster
    largest = (sizes**2).sum() / n  # if all rows of a cluster agree
    n_independent = n_rarer / measured
    cautious = (n_independent * measured + largest) / (n_independent + 1)
    return max(measured, cautious)


def _as_share(estimate: Estimate, confidence: float) -> Estimate:
    """Return the estimate of a share, with ends within 0 and 1."""
    if estimate.value in (0.0, 1.0):
        return _of_trials(estimate.value, estimate.n, confidence)
    low, high = np.clip([estimate.low, estimate.high], 0, 1)
    return Estimate(estimate.value, float(low), float(high), estimate.n)


def _student(value: float, error: float, n: int, confidence: float) -> Estimate:
    """Return value ± error · t, with n − 1 degrees of freedom."""
    if error <= ROUNDING * abs(value):
        return _without_interval(value, n)
    tail = (1 - confidence) / 2
    low, high = value + error * stats.t.ppf([tail, 1 - tail], n - 1)
    return Estimate(value, float(low), float(high), n)


def _without_interval(value: float, n: int) -> Estimate:
    return Estimate(value, np.nan, np.nan, n)


def _jackknife(
    rows: np.ndarray | pd.DataFrame,
    statistic: Callable,
    value: float,
    labels: np.ndarray,
    confidence: float,
) -> Estimate:
    """Return a statistic's value, with its spread when each cluster in turn is left out."""
    n_clusters = int(labels.max()) + 1
    values_without = []
    for number in range(n_clusters):
        remaining = np.flatnonzero(labels != number)
        values_without.append(statistic(rows.take(remaining, axis=0)))
    error = np.std(values_without) * np.sqrt(n_clusters - 1)
    return _student(value, error, n_clusters, confidence)


def _resamples(labels: np.ndarray, n_resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the row numbers of n clusters drawn with replacement from n clusters, ``n_resamples``
    times.
    """
    rng = np.random.default_rng(seed)
    n_clusters = labels.max() + 1
    by_cluster = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels))
    members = np.split(by_cluster, ends[:-1])  # row numbers of each cluster
    for _ in range(n_resamples):
        drawn = rng.integers(n_clusters, size=n_clusters)
        # without clusters, a row is its own cluster
        is_row = n_clusters == len(labels)
        yield drawn if is_row else np.concatenate([members[number] for number in drawn])


def threshold(level: float) -> float:
    """Return τ_α = Φ⁻¹(1 − α): a text with ψ ≥ τ_α is detected at level α.

    >>> round(threshold(0.05), 3)
    1.645
    """
    return float(stats.norm.isf(require_between(level, "level", high=1)))


def tpr(psi: ArrayLike, level: float, confidence: float = 0.95) -> Estimate:
    """Return the share of ψ at or above τ_α: the true positive rate of watermarked texts, or the
    false-alarm rate of unmarked texts.

    >>> print(tpr([0.3, 1.9, 2.4, 4.0], level=0.05))
    0.75 (0.194 to 0.994), n = 4
    """
    psi = np.ravel(np.asarray(psi, float))
    if np.isnan(psi).any():
        raise GaussMarkError(f"psi: expected numbers, got NaN; {ADVICE}")
    return share(psi >= threshold(level), confidence=confidence)


def predicted_power(grad_norm: ArrayLike, sigma: float, level: float) -> float:
    """Return the mean of Φ(σ‖G‖ − τ_α) over unwatermarked texts: the predicted share of
    watermarked texts that is detected.

    >>> round(predicted_power([20.0, 40.0], sigma=0.1, level=0.05), 3)
    0.815
    """
    shift = sigma * np.asarray(grad_norm, float) - threshold(level)
    return float(stats.norm.cdf(shift).mean())


def predicted_price(psi: float, n_tokens: int) -> float:
    """Return ψ²/(2T) nats per token: the KL from p_θ that a mean ψ over T tokens costs, for any
    weight.

    >>> predicted_price(3.0, 200)
    0.0225
    """
    return float(psi**2 / (2 * n_tokens))


def exponent(plain: pd.DataFrame) -> Estimate:
    """Return the power a with which a gradient grows with the length T of its text, ‖G‖ ∝ T^a.

    Each text is measured at several lengths. On logarithmic axes ‖G‖ ∝ T^a is a straight line of
    slope a. So the estimate is the mean over texts of the slope of log ‖G‖ against log T (least
    squares), with Student's interval over texts. Since ψ ≈ σ‖G‖, a = ½ means that four times as
    many tokens double the mean of ψ.

    Args:
        plain: unwatermarked texts, one row per text and length: ``text`` (its number), ``n_tokens``
            (T) and ``grad_norm`` (‖G‖), as in ``gradients.norms``. Each has two lengths or more.

    >>> norms = {"text": [0, 0, 1, 1], "n_tokens": [25, 100, 25, 100], "grad_norm": [5, 10, 5, 20]}
    >>> print(exponent(pd.DataFrame(norms)))  # slopes of ½ and 1
    0.75 (-2.43 to 3.93), n = 2
    """
    logs = np.log(plain[["n_tokens", "grad_norm"]])
    slopes = []
    for _, rows in logs.groupby(plain["text"]):
        if len(rows) > 1:
            slope, _ = np.polyfit(rows["n_tokens"], rows["grad_norm"], deg=1)
            slopes.append(slope)
    return mean(slopes)


def sigma_for_psi(grad_norm: ArrayLike, psi: float) -> float:
    """Return the σ at which σ · median‖G‖ is the wanted ψ.

    >>> sigma_for_psi([10.0, 20.0, 90.0], psi=3.0)
    0.15
    """
    median_norm = float(np.median(grad_norm)) if np.size(grad_norm) else 0.0
    if not 0 < median_norm < np.inf:
        raise GaussMarkError(f"expected positive gradient norms, got {shown(grad_norm)}")
    return require_between(psi, "psi") / median_norm


def sigma_for_power(grad_norm: ArrayLike, power: float, level: float) -> float:
    """Return the σ at which :func:`predicted_power` is the wanted power. This holds where the model
    is linear in σ; beyond that, a larger σ does not detect more.

    >>> round(sigma_for_power([10.0, 20.0], power=0.9, level=0.05), 3)
    0.249
    """
    require_between(power, "power, above the level", low=level, high=1)
    norms = np.asarray(grad_norm, float)
    if not norms.size or not (np.isfinite(norms) & (norms > 0)).all():
        raise GaussMarkError(f"expected positive, finite norms, got {shown(grad_norm)}")
    # at this σ the power is too large even for the shortest gradient
    largest_sigma = 2 * (threshold(level) + stats.norm.ppf(power)) / np.min(grad_norm)

    def excess_power(sigma: float) -> float:
        return predicted_power(grad_norm, sigma, level) - power

    return optimize.brentq(
        excess_power,
        0.0,
        largest_sigma,
        xtol=1e-12 / np.max(grad_norm),
        rtol=1e-12,
    )


def log_p_of_max(x: ArrayLike, correlation: ArrayLike) -> np.ndarray:
    """Return log P(max_i Z_i ≥ x) for Z ~ N(0, K): the p-value of the largest ψ of a text in
    several directions, whose cosines are K. Deterministic; the relative error of p is below 10⁻³.

    With S = P(Z_1 ≥ x) this is log(S·(1 + Σ_{i>1} P(Z_j < x for all j < i | Z_i ≥ x))). For two,

        P(Z_2 ≥ x | Z_1 ≥ x) = S + ∫_0^{arcsin ρ} exp(−x²/(1 + sin t)) dt / (2πS);

    for more, each term is integrated over 4,096 Sobol points. Parallel directions count once.

    Args:
        x: a number, or an array (...).
        correlation: (k, k), or a matrix for each x, (..., k, k).

    >>> cosines = np.array([0.0, 0.8, 1.0])
    >>> K = np.eye(2) + cosines[:, None, None] * (1 - np.eye(2))
    >>> np.exp(log_p_of_max(2.0, K)).round(5).tolist()
    [0.04498, 0.03568, 0.02275]
    """
    x = np.asarray(x, float)
    K = np.asarray(correlation, float)
    if not _are_cosines(K):
        raise GaussMarkError(f"correlation: expected a matrix of cosines, got {shown(K)}")
    log_p_first = stats.norm.logsf(x)
    if K.shape[-1] == 2:
        rho = K[..., 0, 1].clip(-1, 1)
        p_second = _second_given_first(x, rho, log_p_first)
        return log_p_first + np.log1p(1 - p_second)
    log_sum = np.vectorize(_log_sum_of_new, signature="(),(k,k)->()")
    return log_p_first + log_sum(x, K)


def _are_cosines(K: np.ndarray) -> bool:
    if K.ndim < 2:
        return False
    has_unit_diagonal = np.allclose(np.diagonal(K, axis1=-2, axis2=-1), 1, atol=1e-5)
    if not has_unit_diagonal or np.abs(K).max() >= 1 + 1e-5:
        return False
    return np.allclose(K, np.swapaxes(K, -1, -2))


def _second_given_first(x: np.ndarray, rho: np.ndarray, log_p_first: np.ndarray) -> np.ndarray:
    """Return P(Z_2 ≥ x | Z_1 ≥ x), by Gauss-Legendre quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(64)  # on the interval −1 to 1
    half = np.arcsin(rho)[..., None] / 2  # half the length of the interval 0 to arcsin ρ
    t = half * (1 + nodes)  # (..., nodes)
    exponents = -(x[..., None] ** 2) / (1 + np.sin(t))
    # divided by S inside the exponent, where neither underflows
    integrand = np.exp(exponents - log_p_first[..., None])
    integral = (integrand * weights * half).sum(-1)
    return np.exp(log_p_first) + integral / (2 * np.pi)


def _log_sum_of_new(x: float, K: np.ndarray) -> float:
    """Return log Σ_i P(Z_j < x for all j < i | Z_i ≥ x). Each Z_j is drawn given earlier ones."""
    total = 0.0
    earlier: list[int] = []  # numbers of the directions so far
    for i in range(len(K)):
        is_parallel = earlier and K[i, earlier].max() > 1 - 1e-9
        if is_parallel:
            continue
        order = [i, *earlier]
        jitter = 1e-12 * np.eye(len(order))
        L = np.linalg.cholesky(K[np.ix_(order, order)] + jitter)
        u = qmc.Sobol(len(order), rng=0).random(4096)  # (points, directions)
        z = -special.ndtri_exp(np.log(u[:, :1]) + stats.norm.logsf(x))  # Z_i ≥ x
        p_inside = np.ones(len(u))
        for j in range(1, len(order)):
            limit = (x - z @ L[j, :j]) / L[j, j]
            p_below = special.ndtr(limit).clip(1e-300)  # P(Z_j < x | z)
            p_inside *= p_below
            z_j = special.ndtri(u[:, j] * p_below)
            z = np.column_stack([z, z_j])
        total += p_inside.mean()
        earlier.append(i)
    return np.log(total)


def psi_of_log_p(log_p: ArrayLike) -> np.ndarray:
    """Return Φ̄⁻¹(p), the ψ that has this p-value, also where p underflows.

    >>> psi_of_log_p([np.log(0.05), -1000.0]).round(3).tolist()
    [1.645, 44.616]
    """
    return -special.ndtri_exp(np.asarray(log_p, float))
