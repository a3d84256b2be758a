"""Why ψ falls under edits: the signal that is lost, and the norm that is gained.

    ψ = ⟨ξ, G⟩ / (σ‖G‖):   signal  = ⟨ξ, G⟩/σ = ψ‖G‖,   norm = ‖G‖

A token that is deleted takes its part of both with it: were tokens alike and context of no account, a share f of them gone would leave the signal
1 − f, the norm √(1 − f) and ψ √(1 − f) of what they were. A random token put in knows nothing of ξ and adds nothing to the signal; but it is a
great surprise, its gradient is large, and it adds to the norm. It also stands before the tokens behind it, which the model then reads otherwise.
"""

import numpy as np
import pandas as pd

from gaussmark_lib import stats
from gaussmark_lib.experiments.written_and_scored import OWN

FIGURES = {"signal": "signal ⟨ξ, G⟩/σ", "norm": "norm ‖G‖", "psi": "ψ"}


def parts(table: pd.DataFrame, *, n_resamples: int = stats.N_RESAMPLES, seed: int = 0) -> pd.DataFrame:
    """Mean signal, norm and ψ of each scheme's own texts after each corruption, as shares of what they are without one.

    Args:
        table: from ``robustness.measure``, with fraction 0 for every corruption; schemes without a ``grad_norm`` are left out.

    Returns:
        One row a scheme × corruption × fraction × figure: ``scheme, corruption, fraction, figure, value, low, high, n``; the
        interval is over prompts and keys, the same ones above and below the line.
    """
    own = table[(table["kind"] == OWN) & table["grad_norm"].notna()]
    own = own.assign(psi=own["statistic"], norm=own["grad_norm"], signal=own["statistic"] * own["grad_norm"])
    rows = []
    for (scheme, name), edits in own.groupby(["scheme", "corruption"], sort=False):
        before = edits[edits["fraction"] == 0]
        for fraction, after in edits.groupby("fraction", sort=False):
            for figure in FIGURES:
                both = (stats.matrix(texts, figure) for texts in (before, after))
                share = stats.crossed_interval(_share, *both, n_resamples=n_resamples, seed=seed)
                rows.append({"scheme": scheme, "corruption": name, "fraction": fraction, "figure": figure} | share.row())
    return pd.DataFrame(rows)


def _share(before: np.ndarray, after: np.ndarray) -> float:
    return float(after.mean() / before.mean())
