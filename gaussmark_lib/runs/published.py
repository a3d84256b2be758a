"""The paper's own numbers, beside which a notebook draws its measured ones where it runs on one of
the paper's models.

They are rows of ``papermill_runs/reference/paper.yaml``, each with the table or figure that it
stands in.
"""

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from gaussmark_lib import files
from gaussmark_lib.runs.parameters import yaml

if TYPE_CHECKING:
    import pandas as pd

FILE = files.RUNS / "reference" / "paper.yaml"
Z_95 = 1.959963984540054  # Φ⁻¹(.975); scipy takes a second to import
COLUMNS = ["quantity", "scheme", "value", "error", "low", "high", "most", "n", "unit", "where"]


def published(model: str, quantity: str | None = None) -> "pd.DataFrame":
    """What the paper says of a model, by its hub id; no row for another model, so that a notebook
    asks without looking.

    Returns:
        ``COLUMNS``, one row per quantity and scheme: a ``value`` with its standard ``error``, or an
        interval ``low, high``, or a bound ``most``; NaN for what there is not. ``n`` texts,
        ``where`` the table or figure.
    """
    import pandas as pd  # which the command line need not wait for

    rows = pd.DataFrame(_models().get(model, {}).get("numbers", []), columns=COLUMNS)
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
        One row per model: ``model`` (its name without the owner), ``value, low, high`` (95%, NaN
        where the paper gives no error), ``most`` for a bound, ``where``, ``less`` (what was
        subtracted, or None).
    """
    import pandas as pd

    rows = []
    for name in [model] if model in _models() else _models():
        numbers = published(name, quantity).set_index("scheme")
        if not {scheme, less or scheme} <= {*numbers.index}:
            continue
        row = numbers.loc[scheme]
        value, error, low, high = row["value"], row["error"], row["low"], row["high"]
        if less:
            value -= numbers.loc[less, "value"]
            error = math.hypot(error, numbers.loc[less, "error"])
        if math.isnan(value):  # the paper gives the interval alone
            value = (low + high) / 2
        else:
            low, high = value - Z_95 * error, value + Z_95 * error
        rows.append((name.split("/")[-1], value, low, high, row["most"], row["where"], less))
    columns = ["model", "value", "low", "high", "most", "where", "less"]
    return pd.DataFrame(rows, columns=columns)


@cache
def _models() -> dict[str, Any]:
    return yaml(FILE.read_text(encoding="utf-8"))["models"]
