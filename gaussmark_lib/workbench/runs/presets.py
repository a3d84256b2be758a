"""What YAML files say: presets of one or of all notebooks, a sweep's grids and clusters, and the
paper's own numbers (``papermill_runs/reference/paper.yaml``), beside which a notebook puts its own.
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
    """The values in a YAML file of ``name: value`` lines, by path or by its name in
    ``papermill_runs/presets``; ``kind`` is what an error calls it.

    ParameterError: there is none, or it is something else; says which of this kind there are.
    """
    name = files.as_path(name, f"no such {kind}", ParameterError)
    places = [name, files.PRESETS / name, files.PRESETS / f"{name}.yaml"]
    path = next((place for place in places if os.path.isfile(place)), None)
    if path is None:
        near = words.nearest(name.stem, known(kind), files.PRESETS)
        raise ParameterError(f"no {kind} is called {shown(str(name))}; {near}")
    try:
        with path.open(encoding="utf-8") as file:
            values = yaml(file.read(MOST_CHARACTERS + 1))
    except (OSError, ValueError) as error:
        raise ParameterError(f"the {kind} {path} cannot be read: {error}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ParameterError(
            f"the {kind} {path} should be lines of `name: value`, and is {type(values).__name__}"
            f" {shown(values)}"
        )
    return values


def known(kind: str = "preset") -> list[str]:
    """The names in ``papermill_runs/presets`` of this kind. A grid's ends in ``grid``, a cluster
    has a line ``kind:``, all others are presets.
    """
    return [path.stem for path in sorted(files.PRESETS.glob("*.yaml")) if _kind(path) == kind]


def _kind(path: Path) -> str:
    if path.stem.endswith("grid"):
        return "grid"
    is_cluster = re.search(r"^kind:", path.read_text("utf-8", "replace"), re.MULTILINE)
    return "cluster" if is_cluster else "preset"


def taken(
    values: dict[str, Any], number: str, declared: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """What the notebook of this number takes of a preset's values, and the names that it skips.

    A preset that says ``shared: true`` serves every notebook: names that are not among ``declared``
    are skipped, and ``notebooks`` has, by number, what one of them takes besides. In any other
    preset nothing is skipped, so that a wrong name is reported where parameters are checked.
    """
    if not values.get("shared"):
        return values, []
    by_number = values.get("notebooks", {})
    others = {name: v for name, v in values.items() if name not in ("shared", "notebooks")}
    common = {name: value for name, value in others.items() if name in declared}
    return common | by_number.get(number, {}), sorted(others.keys() - common)


def comparable(model: str, quantity: str, scheme: str) -> "pd.DataFrame":
    """What to put beside a quantity measured on ``model``: the paper's number for it, or those for
    all of the paper's models if it is another one.

    Returns:
        One row per model: ``model`` (its name without the owner), ``value`` with its standard
        ``error``, or the bound ``most``; NaN for what the paper does not give.
    """
    import pandas as pd  # which the command line need not wait for

    models = yaml(PAPER.read_text(encoding="utf-8"))["models"]  # by hub id
    rows = [
        {"model": name.split("/")[-1], **row}
        for name in ([model] if model in models else models)
        for row in models[name]["numbers"]
        if (row["quantity"], row["scheme"]) == (quantity, scheme)
    ]
    return pd.DataFrame(rows, columns=["model", "value", "error", "most"])
