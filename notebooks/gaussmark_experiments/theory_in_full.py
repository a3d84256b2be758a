"""Tables of 16_theory_in_full, for ``panels``: one row per point, with the columns ``curve`` (which
curve it belongs to), ``value``, and for simulations ``low, high``, a 95% interval.

The models are those of ``toys``.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import binomtest

from gaussmark_experiments.toys import bounds, closed_forms, softmax
from gaussmark_experiments.toys.softmax import Keys, LinearSoftmax
from gaussmark_lib import stats
from gaussmark_lib.workbench import record
from gaussmark_lib.workbench.plots import style
from gaussmark_lib.workbench.plots.panels import panels

# Parts of the names of curves: simulated curves end with theirs.
SIMULATED = "simulated"
EXACT = "exact"
FIGURES = {  # arguments of ``panels``
    "gaussian_rate": {
        "title": "Does mean ψ of the Gaussian example grow as σ or as σ²?",
        "ylabel": "mean ψ / √d",
        "yscale": "log",
    },
    "gaussian_power": {
        "title": "How many dimensions does the Gaussian example need?",
        "x": "dim",
        "xlabel": "dimension d",
        "ylabel": "power",
    },
    "chain_errors": {
        "title": "What is the order of the error of each step?",
        "y": "rms",
        "by": "step",
        "ylabel": "root mean square, nats",
        "yscale": "log",
    },
    "chain_powers": {
        "title": "How much less power does ψ have than the best test?",
        "y": "power",
        "by": "test",
        "panel": "null",
    },
    "softmax_power": {
        "title": "Is the proposition's sum the power, and what is its limit?",
        "ylabel": "power",
    },
    "corollary": {
        "title": "Which σ does the corollary require?",
        "ylabel": "miss rate β",
        "yscale": "log",
        "ylim": (1e-4, 1.5),
    },
}


def exact(value: float, curve: str = EXACT, **point: float | str) -> dict[str, float | str]:
    """Return a point without an interval."""
    return {"curve": curve, "value": value} | point


def draw(
    name: str,
    table: pd.DataFrame,
    caption: str,
    at: Mapping[str, float] | None = None,
) -> Figure:
    """Draw the figure of a table, and save it in the record."""
    settings = {
        "x": "sigma",
        "by": "curve",
        "xscale": "log",
        "xlabel": "σ",
        **FIGURES[name],  # a figure may have an axis of its own
    }
    # figures without simulations keep the usual lines
    if table[settings["by"]].str.contains(SIMULATED).any():
        settings["looks"] = looks(table)
    return record.save_figure(panels(table, caption=caption, at=at, **settings), name)


def looks(table: pd.DataFrame) -> dict[str, dict]:
    """Return lines for exact curves, and points for simulated curves, in the colour of the line
    that they belong to.
    """
    line = {"marker": ""}
    points = {"marker": "o", "markersize": 4, "linestyle": "none"}
    styles = {}
    places = {}  # exact curve → the number of its colour
    for name in table["curve"].unique():
        exact_name = name.removesuffix(f", {SIMULATED}")
        place = places.setdefault(exact_name, len(places))
        shape = points if SIMULATED in name else line
        styles[name] = {"color": style.OTHERS[place], **shape}
    return styles


def gaussian_mean(dims: Sequence[int], sigmas: Sequence[float], n: int, seed: int) -> pd.DataFrame:
    """Return mean ψ/√d of the Gaussian example: simulated, its large-d rate, and the rate as
    printed. ``off`` is the distance of the simulated mean from the exact mean in standard errors.
    """
    rows = []
    for sigma in sigmas:
        rate = sigma / np.sqrt(1 + sigma**2)
        rows.append(exact(rate, "the proof: σ/√(1+σ²)", sigma=sigma))
    for sigma in sigmas:
        rate = sigma**2 / np.sqrt(1 + sigma**2)
        rows.append(exact(rate, "as printed: σ²/√(1+σ²)", sigma=sigma))
    for i, (dim, sigma) in enumerate(product(dims, sigmas)):
        psi = closed_forms.simulate_psi(dim, sigma, n, seed + i)
        error = psi.std(ddof=1) / np.sqrt(n)  # standard error of the mean
        off = (psi.mean() - closed_forms.expected_psi(dim, sigma)) / error  # in standard errors
        simulated = stats.interval(psi / np.sqrt(dim))
        point = {
            "curve": f"{SIMULATED}, d = {dim}",
            "sigma": sigma,
            "off": off,
        }
        rows.append(simulated.row() | point)
    return pd.DataFrame(rows)


def gaussian_power(
    dims: Sequence[int],
    sigmas: Sequence[float],
    n: int,
    level: float,
    seed: int,
) -> pd.DataFrame:
    """Return the power of the Gaussian example against ``dim``, one curve per σ, exact and
    simulated.
    """
    tables = []
    for i, sigma in enumerate(sigmas):
        # one for each dimension
        powers = [closed_forms.gaussian_power(dim, sigma, level) for dim in dims]
        first_seed = seed + 100 * i  # of this σ
        psi = [closed_forms.simulate_psi(dim, sigma, n, first_seed + dim) for dim in dims]
        tables.append(_beside(f"σ = {sigma:g}", "dim", dims, powers, psi, level))
    return pd.concat(tables, ignore_index=True)


def softmax_power(
    models: Mapping[str, tuple[LinearSoftmax, Keys]],
    sigmas: Sequence[float],
    n: int,
    level: float,
    seed: int,
) -> pd.DataFrame:
    """Return the power of softmax models against ``sigma``: summed over outcomes and averaged over
    a net of keys, and simulated.
    """
    tables = []
    for name, (model, keys) in models.items():
        powers = [softmax.power(model, sigma, level, keys) for sigma in sigmas]  # one for each σ
        psi = [softmax.simulate_psi(model, sigma, n, seed + i) for i, sigma in enumerate(sigmas)]
        tables.append(_beside(name, "sigma", sigmas, powers, psi, level))
    return pd.concat(tables, ignore_index=True)


def _beside(
    name: str,
    x: str,
    at: Sequence[float],
    powers: Sequence[float],
    simulations: Sequence[np.ndarray],
    level: float,
) -> pd.DataFrame:
    """Exact powers, and how many of n simulated ψ are detected: ``hits, n``, and ``p_value``, an
    exact test of the simulation against the power.
    """
    rows = []
    for place, power, psi in zip(at, powers, simulations, strict=True):
        hits = psi >= stats.threshold(level)  # one for each simulated ψ
        # of so many hits, if the power is exact
        p = binomtest(int(hits.sum()), len(hits), power).pvalue
        simulated = {
            x: place,
            "curve": f"{name}, {SIMULATED}",
            "p_value": p,
        }
        rows.append(exact(power, name, **{x: place}))
        rows.append(stats.interval(hits).row() | simulated)
    return pd.DataFrame(rows)


def dimensions(sigmas: Sequence[float], level: float, beta: float) -> pd.DataFrame:
    """Return the dimension that gives power 1 − β in the Gaussian example, and the dimension at
    which the theorem promises this power: ``sigma, exact, theorem, factor``.
    """
    table = pd.DataFrame({"sigma": sigmas})
    table["exact"] = [closed_forms.dimension_needed(sigma, level, beta) for sigma in sigmas]
    table["theorem"] = [_promised_dimension(sigma, level, beta) for sigma in sigmas]
    return table.assign(factor=table["theorem"] / table["exact"])


def _promised_dimension(sigma: float, level: float, beta: float) -> int:
    """The smallest dimension at which the theorem's bound on the miss rate is at most β."""

    def is_promised(dim: int) -> bool:
        return bounds.strongly_log_concave(dim, sigma, level) <= beta

    return closed_forms.first_dimension(is_promised)
