"""Rates with intervals, tests of a test's level, and the power that gradient norms predict. No
plots, no models.

Where ψ comes from watermarked text and the model is locally linear in the weight, ψ ≈ N(σ‖G‖, 1):
the noise shifts the text's log-likelihood by ⟨ξ, G⟩ and sampling from p_{θ+ξ} tilts it by as much.
So σ‖G‖, known from *unwatermarked* text alone, predicts the mean of ψ, and Φ(σ‖G‖ − τ_α) the power
at level α (the Gaussian-shift reading of the paper's Prop. on linear softmax power).
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import optimize, stats
from sklearn.metrics import roc_curve

from gaussmark_lib import checks
from gaussmark_lib.errors import StatisticsError

BATCH = 4_000_000  # numbers that a resampling holds at a time
N_RESAMPLES = 1000  # bootstrap samples behind an interval, where nothing else is said


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, and of how many observations it is made.

    >>> print(Estimate(0.75, 0.194, 0.994, 4))
    0.75 (0.194 to 0.994), n = 4
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return (
            f"{self.value:.3g}"
            f" ({'no interval' if np.isnan(self.low) else f'{self.low:.3g} to {self.high:.3g}'}), n"
            f" = {self.n:,}"
        )

    def row(self, name: str = "") -> dict[str, float]:
        """As columns of a table: ``value, low, high, n``, or with a name ``name, name_low,
        name_high``.

        >>> Estimate(2.0, 1.0, 3.0, 9).row("psi")
        {'psi': 2.0, 'psi_low': 1.0, 'psi_high': 3.0}
        """
        return (
            {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}
            if name
            else asdict(self)
        )


class Paired(NamedTuple):
    """Two measurements of the same items: the change with its interval, its p-value, and on how
    many items both are equal.
    """

    change: Estimate
    p_value: float
    n_equal: int


def threshold(level: float) -> float:
    """τ_α = Φ⁻¹(1 − α): ψ at or above it is detected at this level.

    >>> round(threshold(0.05), 3)
    1.645
    """
    return float(stats.norm.isf(checks.share(level, "level")))


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
    """An estimate from rows that are independent, or whose clusters are; n counts those.

    * True and False: their share, with the exact interval of Clopper and Pearson.
    * numbers: their mean, with Student's interval. Of K clusters with residual sums
      r_c = Σ_{i in c} (x_i − x̄), the standard error is √(K/(K−1)·Σ r_c²)/n and K − 1 are the
      degrees of freedom; rows on their own are clusters of one, and this is s/√n.
    * with a ``statistic`` of the rows: the percentile bootstrap. It resamples rows (of an array or
      a table), or clusters; rough for fewer than about twenty.

    There is no interval (NaN) from one row or cluster, or where all of them agree.

    Args:
        cluster: a label for each row. Rows with the same label may be alike.
        share: the estimate is a share (of hits, an AUC): at 0 or 1 its interval is the exact one
            of n trials.

    >>> print(interval([2.0, 4.0, 6.0]), "|", interval([True, True, False, True]))
    4 (-0.968 to 8.97), n = 3 | 0.75 (0.194 to 0.994), n = 4
    """
    rows = rows if isinstance(rows, pd.DataFrame) else np.asarray(rows)
    if not len(rows) or np.any(pd.isna(rows)):
        raise StatisticsError(
            "rows: expected one or more without NaN, got none, or NaN; leave out"
            " texts without a score, and say so"
        )
    labels = np.arange(len(rows)) if cluster is None else pd.factorize(np.asarray(cluster))[0]
    n, tail = int(labels.max()) + 1, (1 - confidence) / 2
    hits = statistic is None and rows.dtype == bool
    value, low, high = float((statistic or np.mean)(rows)), np.nan, np.nan
    if (hits and cluster is None) or ((hits or share) and value in (0.0, 1.0)):
        low, high = stats.binomtest(round(value * n), n).proportion_ci(confidence, method="exact")
    elif n > 1 and statistic is None:
        residuals = np.bincount(labels, rows - value)  # one sum per cluster
        error = np.sqrt(n / (n - 1) * (residuals**2).sum()) / len(rows)
        if error > 1e-12 * abs(value):
            low, high = value + error * stats.t.ppf([tail, 1 - tail], n - 1)
    elif n > 1:
        draws = [
            statistic(rows.take(chosen, axis=0)) for chosen in _resamples(labels, n_resamples, seed)
        ]
        if np.ptp(draws) > 1e-12 * abs(value):
            low, high = np.quantile(draws, [tail, 1 - tail])
    return Estimate(value, float(low), float(high), n)


def _resamples(labels: np.ndarray, n_resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Row numbers of as many clusters as there are, drawn with replacement."""
    rng, n = np.random.default_rng(seed), labels.max() + 1
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
    for _ in range(n_resamples):
        drawn = rng.integers(n, size=n)
        yield drawn if n == len(labels) else np.concatenate([members[c] for c in drawn])


def rate(hits: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Share of True with its exact (Clopper–Pearson) interval."""
    hits, confidence = (
        checks.numbers(hits, "hits", empty=True),
        checks.share(confidence, "confidence"),
    )
    if hits.size == 0:
        raise StatisticsError("a rate needs at least one trial, got none")
    if not np.isin(hits, (0, 1)).all():
        raise StatisticsError(
            "hits: expected True or False (1 or 0) of each trial, got"
            f" {hits[~np.isin(hits, (0, 1))][:3].tolist()}"
        )
    low, high = stats.binomtest(int(hits.sum()), hits.size).proportion_ci(
        confidence, method="exact"
    )
    return Estimate(float(hits.mean()), float(low), float(high), hits.size)


def tpr(psi: ArrayLike, level: float, confidence: float = 0.95) -> Estimate:
    """True positive rate: share of ψ at or above τ_α, with its exact interval. On unwatermarked
    text or wrong keys, the realised level.
    """
    return rate(checks.numbers(psi, "psi", empty=True) >= threshold(level), confidence)


def levels(
    psi: ArrayLike, at: tuple[float, ...] = (0.05, 0.01, 0.001), confidence: float = 0.95
) -> pd.DataFrame:
    """Realised level at each nominal level: one row each with ``level, value, low, high, n`` and
    ``holds`` (nominal inside the interval).
    """
    realised = pd.DataFrame(
        [
            {"level": level} | tpr(psi, level, confidence).row()
            for level in checks.numbers(np.atleast_1d(at), "at")
        ]
    )
    return realised.assign(holds=realised["level"].between(realised["low"], realised["high"]))


def uniformity(p: ArrayLike) -> dict[str, float]:
    """Kolmogorov–Smirnov test of independent p-values against the uniform distribution:
    ``distance``, ``p_value``, ``n``.
    """
    p = _p_values(p)
    distance, p_value = stats.kstest(p, "uniform")
    return {"distance": float(distance), "p_value": float(p_value), "n": p.size}


def qq(p: ArrayLike, confidence: float = 0.95) -> pd.DataFrame:
    """Sorted p-values beside what a uniform sample would give: ``expected``, ``observed``, and the
    pointwise band ``low``–``high``.

    The i-th smallest of n uniform numbers is Beta(i, n + 1 − i), with mean i/(n + 1).
    """
    observed, confidence = np.sort(_p_values(p)), checks.share(confidence, "confidence")
    i = np.arange(1, observed.size + 1)
    order = stats.beta(i, i[::-1])
    low, high = order.interval(confidence)
    return pd.DataFrame({"expected": order.mean(), "observed": observed, "low": low, "high": high})


def _p_values(p: ArrayLike) -> np.ndarray:
    p = checks.numbers(p, "p").ravel()
    if ((p < 0) | (p > 1)).any():
        raise StatisticsError(f"p: expected p-values from 0 to 1, got {p.min():g} to {p.max():g}")
    return p


def mean(x: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Mean with Student's interval, NaN where all values are equal: its width would be 0."""
    x, confidence = (
        checks.numbers(x, "x", finite=True, empty=True).ravel(),
        checks.share(confidence, "confidence"),
    )
    if x.size < 2:
        raise StatisticsError(f"an interval for a mean needs at least two values, got {x.size}")
    half = (
        stats.sem(x) * stats.t.isf((1 - confidence) / 2, x.size - 1)
        if np.ptp(x) > 1e-12 * np.abs(x).max()
        else np.nan
    )
    return Estimate(float(x.mean()), float(x.mean() - half), float(x.mean() + half), x.size)


def paired(
    base: ArrayLike,
    other: ArrayLike,
    *,
    confidence: float = 0.95,
    n_resamples: int = 9_999,
    seed: int = 0,
) -> Paired:
    """The mean of other − base over items that both were measured on, without assuming a
    distribution.

    The interval is SciPy's percentile bootstrap (NaN where all change alike), too narrow for few
    items: of 3, 5, 10, 20 it covered .78, .82, .88, .93 (400 simulations). The p-value is
    two-sided, by signs flipped at random: exact where swapping the two in an item changes nothing
    under the null.
    """
    checks.share(confidence, "confidence")
    checks.whole(n_resamples, "n_resamples", StatisticsError)
    checks.whole(seed, "seed", StatisticsError, least=0)
    base, other = (
        checks.numbers(values, name, finite=True, empty=True)
        for name, values in (("base", base), ("other", other))
    )
    if base.shape != other.shape or base.ndim != 1 or base.size < 2:
        raise StatisticsError(
            "expected two rows of the same length, at least 2, one number an item; got shapes"
            f" {base.shape} and {other.shape}"
        )
    change = other - base
    options = {"n_resamples": n_resamples, "batch": BATCH // change.size + 1, "rng": seed}
    low = high = np.nan
    if np.ptp(change) > 1e-12 * np.abs(change).max():  # resamples of a constant say nothing
        low, high = stats.bootstrap(
            (change,), np.mean, confidence_level=confidence, method="percentile", **options
        ).confidence_interval
    test = stats.permutation_test(
        (change,), np.mean, permutation_type="samples", vectorized=True, **options
    )
    return Paired(
        Estimate(float(change.mean()), float(low), float(high), change.size),
        float(test.pvalue),
        int((change == 0).sum()),
    )


def matrix(
    table: pd.DataFrame, column: str, index: str = "prompt", columns: str = "key_id"
) -> np.ndarray:
    """A column of a table as prompts (sorted) × keys (in the order of their first appearance) for
    :func:`crossed_interval`.
    """
    if missing := {column, index, columns} - set(table.columns):
        raise StatisticsError(
            f"expected a table with the columns {column}, {index} and {columns}, got one without"
            f" {', '.join(map(str, missing))}"
        )
    if n := table.duplicated([index, columns]).sum():
        raise StatisticsError(
            f"expected one text of each {index} and {columns}, got {n} more; group the table by"
            " what else varies"
        )
    return table.pivot(index=index, columns=columns, values=column)[
        table[columns].unique()
    ].to_numpy(float)


def crossed_interval(
    statistic: Callable,
    *matrices: ArrayLike,
    share: bool = False,
    confidence: float = 0.95,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """A statistic of texts that are prompts × keys, with an interval over both; n counts texts.

    Texts of one prompt are alike, and so are those of one key. So both are resampled, independently
    and alike in all matrices (Owen, "The pigeonhole bootstrap", Ann. Appl. Stat. 2007). Of few keys
    it is a rough guide: of ψ's mean over 100 prompts with a spread of 1 and gradients of cosine .1,
    95% intervals covered .79, .87, .92 and .95 of the time with 2, 3, 5 and 10 keys (2,000
    simulations), far less with one. NaN where all resamples agree, or one has no value. With
    ``share``, the statistic is one of hits (a rate, an AUC); at 0 or 1 it has the prompts' exact
    binomial interval.
    """
    checks.share(confidence, "confidence")
    checks.whole(n_resamples, "n_resamples", StatisticsError)
    checks.whole(seed, "seed", StatisticsError, least=0)
    matrices = [checks.numbers(values, "matrices") for values in matrices]
    shapes = [values.shape for values in matrices]
    if len(set(shapes)) != 1 or len(shapes[0]) != 2 or shapes[0][0] < 2:
        raise StatisticsError(
            f"expected matrices of one shape, two or more prompts × keys, got {shapes}"
        )
    (n_prompts, n_keys), rng, draws, value = (
        shapes[0],
        np.random.default_rng(seed),
        [],
        float(statistic(*matrices)),
    )
    if share and value in (0.0, 1.0):
        return replace(rate(np.full(n_prompts, value), confidence), n=n_prompts * n_keys)
    for _ in range(n_resamples):
        chosen = np.ix_(rng.integers(n_prompts, size=n_prompts), rng.integers(n_keys, size=n_keys))
        draws.append(statistic(*(values[chosen] for values in matrices)))
    low, high = (
        np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
        if np.ptp(draws) > 1e-12 * abs(value)
        else (np.nan, np.nan)
    )
    return Estimate(value, float(low), float(high), n_prompts * n_keys)


def roc(null: ArrayLike, watermarked: ArrayLike) -> pd.DataFrame:
    """ROC of ψ: ``fpr``, ``tpr``, ``threshold``; scikit-learn's, higher ψ meaning watermarked."""
    null, watermarked = (
        checks.numbers(values, "psi", finite=True) for values in _two_samples(null, watermarked)
    )
    points = roc_curve(
        np.repeat([0, 1], [null.size, watermarked.size]), np.append(null, watermarked)
    )
    return pd.DataFrame(dict(zip(("fpr", "tpr", "threshold"), points, strict=True)))


def auc(null: ArrayLike, watermarked: ArrayLike) -> float:
    """Area under the ROC: the chance that a watermarked text's ψ exceeds an unwatermarked one's."""
    null, watermarked = _two_samples(null, watermarked)
    ranks = stats.rankdata(np.append(watermarked, null))[
        : watermarked.size
    ]  # ties share theirs, and so count half
    return float((ranks.mean() - (watermarked.size + 1) / 2) / null.size)


def _two_samples(null: ArrayLike, watermarked: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    null, watermarked = (
        checks.numbers(null, "null", empty=True).ravel(),
        checks.numbers(watermarked, "watermarked", empty=True).ravel(),
    )
    if not null.size or not watermarked.size:
        raise StatisticsError(
            f"expected values of both kinds, got {null.size} without and {watermarked.size} with a"
            " watermark"
        )
    return null, watermarked


def predicted_psi(grad_norm: ArrayLike, sigma: float) -> np.ndarray:
    """σ‖G‖ of each unwatermarked text: the mean of ψ that it promises in the linear regime."""
    return checks.positive(sigma, "sigma", or_zero=True) * checks.numbers(
        grad_norm, "grad_norm", finite=True, least=0
    )


def predicted_power(grad_norm: ArrayLike, sigma: float, level: float) -> float:
    """Mean over texts of Φ(σ‖G‖ − τ_α): the share that will be detected at this level, from
    unwatermarked texts alone.
    """
    return float(stats.norm.cdf(predicted_psi(grad_norm, sigma) - threshold(level)).mean())


def sigma_for_psi(grad_norm: ArrayLike, psi: float) -> float:
    """The σ at which σ · median‖G‖ is a wanted ψ.

    >>> sigma_for_psi([10.0, 20.0, 90.0], psi=3.0)
    0.15
    """
    norms = predicted_psi(grad_norm, 1.0)
    if (median := float(np.median(norms))) <= 0:
        raise StatisticsError(f"expected positive gradient norms, got median ‖G‖ = {median}")
    return checks.positive(psi, "psi") / median


def sigma_for_power(grad_norm: ArrayLike, power: float, level: float) -> float:
    """The σ at which :func:`predicted_power` for these texts is the wanted power. Beyond the linear
    regime, a larger σ does not detect more.

    >>> sigma_for_power([10.0, 10.0], power=0.5, level=0.05) * 10 == threshold(0.05)
    True
    """
    norms = checks.numbers(grad_norm, "grad_norm", finite=True).ravel()
    checks.share(power, "power")
    checks.share(level, "level")
    if (norms <= 0).any():
        raise StatisticsError(
            f"expected positive gradient norms, got {norms.size} of which {(norms > 0).sum()} are"
            " positive"
        )
    if not level < power < 1:
        raise StatisticsError(
            f"power: expected a number between the level, {level}, which no watermark at all has,"
            f" and 1; got {power}"
        )
    high = unit = 1 / norms.max()  # at σ = unit, no text has a ψ above 1
    while predicted_power(norms, high, level) < power:
        high *= 2
    return float(
        optimize.brentq(
            lambda sigma: predicted_power(norms, sigma, level) - power,
            0.0,
            high,
            xtol=1e-12 * unit,
            rtol=1e-12,
        )
    )


def predicted_price(psi: float, n_tokens: int) -> float:
    """ψ²/(2T) nats a token: the divergence of p_{θ+ξ} from p_θ that a mean ψ over T tokens costs,
    whatever the weight.

    >>> predicted_price(3.0, 200)
    0.0225
    """
    [psi] = checks.numbers([psi], "psi")
    return float(psi**2 / (2 * checks.positive(n_tokens, "n_tokens")))
