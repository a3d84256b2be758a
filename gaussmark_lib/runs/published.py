"""The paper's own numbers, beside which a notebook draws its measured ones where it runs on one of
the paper's models.

They are rows of ``papermill_runs/reference/paper.yaml``, each with the table or figure that it
stands in.
"""

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib import paths
from gaussmark_lib.errors import RecordError
from gaussmark_lib.runs import presets

if TYPE_CHECKING:
    import pandas as pd

FILE = paths.RUNS / "reference" / "paper.yaml"
Z_95 = 1.959963984540054  # Φ⁻¹(.975); scipy takes a second to import
COLUMNS = ["quantity", "scheme", "value", "error", "low", "high", "most", "n", "unit", "where"]


def published(model: str, quantity: str | None = None) -> "pd.DataFrame":
    """What the paper says of a model, by its hub id; no row for another model, so that a notebook
    asks without looking.

    Returns:
        ``COLUMNS``, one row a quantity × scheme: a ``value`` with its standard ``error``, or an
        interval ``low, high``, or a bound ``most``; NaN for what there is not. ``n`` texts,
        ``where`` the table or figure.

    Raises:
        RecordError: the file of these numbers is missing or damaged.
    """
    import pandas as pd  # which the command line need not wait for

    rows = pd.DataFrame(_models(FILE).get(model, {}).get("numbers", []), columns=COLUMNS)
    return rows if quantity is None else rows[rows["quantity"] == quantity].reset_index(drop=True)


def comparable(
    model: str, quantity: str, scheme: str = "GaussMark", *, less: str | None = None
) -> "pd.DataFrame":
    """What to draw beside a quantity measured on ``model``: the paper's number for it, or those for
    all of the paper's models if it is another one.

    Args:
        less: a scheme whose number is subtracted. The paper gives no paired error, so the two
            standard errors are added as if independent.

    Returns:
        One row a model: ``model`` (its name without the owner), ``value, low, high`` (95%, NaN
        where the paper gives no error), ``most`` for a bound, ``where``, ``less`` (what was
        subtracted, or None).
    """
    import pandas as pd

    rows = []
    for name in [model] if model in _models(FILE) else _models(FILE):
        found = published(name, quantity).set_index("scheme")
        if scheme not in found.index or (less is not None and less not in found.index):
            continue
        row, from_it = found.loc[scheme], found.loc[less] if less else None
        value = row["value"] - (from_it["value"] if less else 0.0)
        half = Z_95 * math.hypot(row["error"], from_it["error"] if less else 0.0)
        low, high = (row["low"], row["high"]) if math.isnan(value) else (value - half, value + half)
        value = (low + high) / 2 if math.isnan(value) else value
        rows.append(
            {
                "model": name.split("/")[-1],
                "value": value,
                "low": low,
                "high": high,
                "most": row["most"],
                "where": row["where"],
                "less": less,
            }
        )
    return pd.DataFrame(rows, columns=["model", "value", "low", "high", "most", "where", "less"])


@cache
def _models(path: Path) -> dict[str, Any]:
    try:
        return presets.load(path.read_text(encoding="utf-8"))["models"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordError(
            f"cannot read the paper's numbers in {path}: {error}; restore the file from the"
            " repository"
        ) from None
