"""Files of parameter values, YAML: presets of one or of all notebooks, a sweep's grids and
clusters.
"""

import os
import re
from pathlib import Path
from typing import Any

from gaussmark_lib import files, words
from gaussmark_lib.errors import ParameterError, shown
from gaussmark_lib.runs.parameters import MOST_CHARACTERS, yaml


def read(name: str | Path, kind: str = "preset") -> dict[str, Any]:
    """The values in a YAML file of ``name: value`` lines, by path or by its name in
    ``papermill_runs/presets``; ``kind`` is what an error calls it.

    ParameterError: there is none, or it is something else; says which of this kind there are.
    """
    name = files.named(name, f"no such {kind}", ParameterError)
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
    text = path.read_text(encoding="utf-8", errors="replace")
    return "cluster" if re.search(r"^kind:", text, re.MULTILINE) else "preset"
