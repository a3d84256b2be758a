"""The paper's own numbers, beside which a notebook draws its measured ones where it runs on one of the paper's models.

They are rows of ``papermill_runs/reference/paper.yaml``, each with the table or figure that it stands in.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib import paths
from gaussmark_lib.errors import RecordError
from gaussmark_lib.runs import presets

if TYPE_CHECKING:
    import pandas as pd

FILE = paths.RUNS / "reference" / "paper.yaml"
COLUMNS = ["quantity", "scheme", "value", "error", "low", "high", "most", "n", "unit", "where"]


def published(model: str, quantity: str | None = None) -> "pd.DataFrame":
    """What the paper says of a model, by its hub id; no row for another model, so that a notebook asks without looking.

    Returns:
        ``COLUMNS``, one row a quantity × scheme: a ``value`` with its standard ``error``, or an interval ``low, high``, or a bound ``most``; NaN
        for what there is not. ``n`` texts, ``where`` the table or figure.

    Raises:
        RecordError: the file of these numbers is missing or damaged.
    """
    import pandas as pd  # which the command line need not wait for

    rows = pd.DataFrame(_models(FILE).get(model, {}).get("numbers", []), columns=COLUMNS)
    return rows if quantity is None else rows[rows["quantity"] == quantity].reset_index(drop=True)


def setting(model: str, scheme: str = "GaussMark") -> dict[str, Any] | None:
    """``weight, variance, rank_dropped, where`` that the paper chose for a model; None for another model or scheme."""
    return _models(FILE).get(model, {}).get("settings", {}).get(scheme)


@cache
def _models(path: Path) -> dict[str, Any]:
    try:
        return presets.load(path.read_text(encoding="utf-8"))["models"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"cannot read the paper's numbers in {path}: {error}; restore the file from the repository") from None
