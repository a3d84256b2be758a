"""Why ψ falls under edits: the signal that is lost, and the norm that is gained.

    ψ = ⟨ξ, G⟩ / (σ‖G‖):   signal  = ⟨ξ, G⟩/σ = ψ‖G‖,   norm = ‖G‖

A deleted token takes its part of both with it. If all tokens were alike and context did not matter, deleting a share f of them would leave
1 − f of the signal and √(1 − f) of the norm and of ψ. An inserted random token is independent of ξ and adds nothing to the signal; but it is very
unlikely, so its gradient is large and adds to the norm. It also changes the context of every token after it.
"""

from itertools import product

import numpy as np
import pandas as pd

from gaussmark_lib import stats
from gaussmark_lib.experiments.written_and_scored import OWN

FIGURES = {"signal": "signal ⟨ξ, G⟩/σ", "norm": "norm ‖G‖", "psi": "ψ"}


def parts(table: pd.DataFrame, *, n_resamples: int = stats.N_RESAMPLES) -> pd.DataFrame:
    """Mean signal, norm and ψ of each scheme's own texts after each corruption, as shares of what they are without one.

    Args:
        table: from ``robustness.measure``, with fraction 0 for every corruption; schemes without a ``grad_norm`` are left out.

    Returns:
        ``scheme, corruption, fraction, figure, value, low, high, n``; intervals over prompts and keys, the same ones above and below the line.
    """
    own = table[(table["kind"] == OWN) & table["grad_norm"].notna()]
    own = own.assign(psi=own["statistic"], norm=own["grad_norm"], signal=own["statistic"] * own["grad_norm"])
    rows = []
    for (scheme, name), edits in own.groupby(["scheme", "corruption"], sort=False):
        before = edits[edits["fraction"] == 0]
        for (fraction, after), figure in product(edits.groupby("fraction", sort=False), FIGURES):
            both = (stats.matrix(texts, figure) for texts in (before, after))
            share = stats.crossed_interval(_share, *both, n_resamples=n_resamples)
            rows.append({"scheme": scheme, "corruption": name, "fraction": fraction, "figure": figure} | share.row())
    return pd.DataFrame(rows)


def _share(before: np.ndarray, after: np.ndarray) -> float:
    return float(after.mean() / before.mean())
