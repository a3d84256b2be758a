"""Why ψ falls under edits: the signal that is lost, and the norm that is gained.

    ψ = ⟨ξ, G⟩ / (σ‖G‖):   signal  = ⟨ξ, G⟩/σ = ψ‖G‖,   norm = ‖G‖

A deleted token takes its part of both with it. If all tokens were alike and context did not matter,
deleting a share f of them would leave 1 − f of the signal and √(1 − f) of the norm and of ψ. An
inserted random token is independent of ξ and adds nothing to the signal; but it is very unlikely,
so its gradient is large and adds to the norm. It also changes the context of every token after it.
"""

from itertools import product

import numpy as np
import pandas as pd

from gaussmark_lib import stats
from gaussmark_lib.experiments.written_and_scored import OWN

FIGURES = {"signal": "signal ⟨ξ, G⟩/σ", "norm": "norm ‖G‖", "psi": "ψ"}


def parts(table: pd.DataFrame, *, n_resamples: int = stats.N_RESAMPLES) -> pd.DataFrame:
    """Mean signal, norm and ψ of each scheme's own texts after each corruption, as shares of what
    they are without one.

    Args:
        table: from ``robustness.measure``, with fraction 0 for every corruption; schemes without a
            ``grad_norm`` are left out.

    Returns:
        ``scheme, corruption, fraction, figure, value, low, high, n``; intervals over prompts and
        keys, the same ones above and below the line.
    """
    own, rows = _with_parts(table), []
    for (scheme, name), edits in own.groupby(["scheme", "corruption"], sort=False):
        before = edits[edits["fraction"] == 0]
        for (fraction, after), figure in product(edits.groupby("fraction", sort=False), FIGURES):
            both = (stats.matrix(texts, figure) for texts in (before, after))
            share = stats.crossed_interval(_share, *both, n_resamples=n_resamples)
            rows.append(
                {"scheme": scheme, "corruption": name, "fraction": fraction, "figure": figure}
                | share.row()
            )
    return pd.DataFrame(rows)


def toy(
    lost: float,
    added: float,
    surprise: float,
    *,
    n_tokens: int = 100,
    dimension: int = 20_000,
    seed: int = 0,
) -> float:
    """ψ after over ψ before, of a toy text: each token's gradient is a random vector, the key's
    noise leans as much towards each of them.

    A share ``lost`` of the tokens is taken away, and ``added`` · n_tokens others are put in, which
    the noise does not know, with squared norms ``surprise`` times as large. Contexts do not exist.
    """
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(n_tokens, dimension)) / dimension**0.5
    others = rng.normal(size=(round(added * n_tokens), dimension)) * (surprise / dimension) ** 0.5
    xi, before = own.sum(0), own.sum(0)
    after = own[round(lost * n_tokens) :].sum(0) + others.sum(0)
    return float((xi @ after) / np.linalg.norm(after) / (xi @ before) * np.linalg.norm(before))


def between(
    table: pd.DataFrame, figure: str, name: str, base: str, *, n_resamples: int = stats.N_RESAMPLES
) -> stats.Estimate:
    """The mean signal, norm or ψ of the own texts after one corruption over that after another;
    ``table`` has one scheme and one strength.
    """
    own = _with_parts(table)
    ours, theirs = (stats.matrix(own[own["corruption"] == which], figure) for which in (base, name))
    return stats.crossed_interval(_share, ours, theirs, n_resamples=n_resamples)


def difference(
    table: pd.DataFrame,
    figure: str,
    name: str,
    base: str,
    unit: str,
    *,
    n_resamples: int = stats.N_RESAMPLES,
) -> stats.Estimate:
    """The mean signal, norm or ψ after one corruption less that after another, in units of its mean
    after a third, such as ``nothing``.
    """
    own = _with_parts(table)
    arrays = (stats.matrix(own[own["corruption"] == which], figure) for which in (name, base, unit))
    return stats.crossed_interval(
        lambda a, b, c: float((a.mean() - b.mean()) / c.mean()), *arrays, n_resamples=n_resamples
    )


def _with_parts(table: pd.DataFrame) -> pd.DataFrame:
    own = table[(table["kind"] == OWN) & table["grad_norm"].notna()]
    return own.assign(
        psi=own["statistic"], norm=own["grad_norm"], signal=own["statistic"] * own["grad_norm"]
    )


def _share(before: np.ndarray, after: np.ndarray) -> float:
    return float(after.mean() / before.mean())
