"""YAML files: presets of one notebook or of all notebooks, a sweep's grids and clusters, and the
paper's numbers (``papermill_runs/reference/paper.yaml``), which a notebook shows next to its own.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib import files
from gaussmark_lib.errors import ParameterError, shown
from gaussmark_lib.workbench import words
from gaussmark_lib.workbench.runs.parameters import MOST_CHARACTERS, yaml

if TYPE_CHECKING:
    import pandas as pd

PAPER = files.RUNS / "reference" / "paper.yaml"


def read(name: str | Path, kind: str = "preset") -> dict[str, Any]:
    """Read a YAML file of ``name: value`` lines, by path or by its name in
    ``papermill_runs/presets``. An error calls the file a ``kind``.

    ParameterError if there is no such file, with the names that there are, or if it has other
    content.
    """
    name = files.as_path(name, f"no such {kind}", ParameterError)
    places = [name, files.PRESETS / name, files.PRESETS / f"{name}.yaml"]
    path = next((place for place in places if os.path.isfile(place)), None)
    if path is None:
        near = words.nearest(name.stem, known(kind), files.PRESETS)
        raise ParameterError(f"no {kind} is called {shown(str(name))}; {near}")
    try:
        with path.open(encoding="utf-8") as file:
            # one character more than is allowed, so that ``yaml`` refuses a longer file
            values = yaml(file.read(MOST_CHARACTERS + 1))
    except (OSError, ValueError) as error:
        raise ParameterError(f"the {kind} {path} cannot be read: {error}") from None
    has_names = isinstance(values, dict) and all(isinstance(key, str) for key in values)
    if not has_names:
        raise ParameterError(
            f"expected lines of `name: value` in the {kind} {path}, got"
            f" {type(values).__name__} {shown(values)}"
        )
    return values


def known(kind: str = "preset") -> list[str]:
    """Return the names of the files of this kind in ``papermill_runs/presets``. The name of a grid
    ends in ``grid``, a cluster has a line ``kind:``, and all other files are presets.
    """
    paths = sorted(files.PRESETS.glob("*.yaml"))
    return [path.stem for path in paths if _kind(path) == kind]


def _kind(path: Path) -> str:
    if path.stem.endswith("grid"):
        return "grid"
    content = path.read_text(encoding="utf-8", errors="replace")
    is_cluster = re.search(r"^kind:", content, re.MULTILINE)
    return "cluster" if is_cluster else "preset"


def taken(
    values: dict[str, Any], number: str, declared: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the preset's values for the notebook of this number, and the names that it skips.

    A preset with ``shared: true`` serves all notebooks: names that are not among ``declared`` are
    skipped, and ``notebooks`` holds further values of single notebooks, by number. In any other
    preset nothing is skipped, so that a wrong name is reported where parameters are checked.
    """
    if not values.get("shared"):
        return values, []
    shared = {name: value for name, value in values.items() if name not in ("shared", "notebooks")}
    taken_values = {name: value for name, value in shared.items() if name in declared}
    skipped = sorted(shared.keys() - taken_values.keys())
    by_number = values.get("notebooks") or {}
    for key, of_notebook in by_number.items():
        if str(key).zfill(2) == number:  # YAML reads an unquoted 03 as the number 3
            taken_values |= of_notebook or {}
    return taken_values, skipped


def comparable(model: str, quantity: str, scheme: str) -> "pd.DataFrame":
    """Return the paper's number to compare with a quantity measured on ``model``. If the paper does
    not use this model, return the numbers of all its models.

    Returns:
        One row per model: ``model`` (its name without the owner), ``value`` with its standard
        ``error``, or the bound ``most``; NaN for numbers that the paper does not give.
    """
    import pandas as pd  # which the command line need not wait for

    models = yaml(PAPER.read_text(encoding="utf-8"))["models"]  # by hub id
    hub_ids = [model] if model in models else list(models)  # all, if the paper has another model
    rows = []
    for hub_id in hub_ids:
        name = hub_id.split("/")[-1]
        for row in models[hub_id]["numbers"]:
            if row["quantity"] == quantity and row["scheme"] == scheme:
                rows.append({"model": name, **row})
    return pd.DataFrame(rows, columns=["model", "value", "error", "most"])


def rivals(quantity: str) -> list[dict[str, Any]]:
    """Return what other papers report of a quantity, each with its ``source``: the rows of the
    section ``rivals`` in ``papermill_runs/reference/paper.yaml``.
    """
    rows = yaml(PAPER.read_text(encoding="utf-8"))["rivals"]
    return [row for row in rows if row["quantity"] == quantity]
