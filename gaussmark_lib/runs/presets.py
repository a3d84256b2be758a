"""Preset files, and YAML 1.2 as people expect it: 1e-3 is a number, ``no`` is a word, and a name
given twice is an error.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent

from gaussmark_lib import files, paths, words
from gaussmark_lib.errors import ParameterError, shown

MOST_CHARACTERS = 100_000  # of a document
# the parser's own error, and those of tags and numbers that do not fit, and of deep nesting
UNREADABLE = (YAMLError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError)


def load(text: str) -> Any:
    """The value of one YAML document; ParameterError, in one line, if it cannot be read."""
    if len(text) > MOST_CHARACTERS:
        raise ParameterError(
            f"expected at most {MOST_CHARACTERS:,} characters of YAML, got {len(text):,}"
        )
    yaml = YAML(typ="safe", pure=True)
    try:
        value = yaml.load(text)
        has_alias = "*" in text and any(isinstance(e, AliasEvent) for e in yaml.parse(text))
    except UNREADABLE as error:
        why = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ParameterError(f"cannot be read as YAML: {why[:200]}") from None
    if has_alias:  # a few characters of them stand for gigabytes
        raise ParameterError("expected YAML without aliases (*name); write the values out")
    return value


def read(name: str | Path, kind: str = "preset") -> dict[str, Any]:
    """The parameter values of a preset: a YAML file of ``name: value`` lines, by path or by its
    name in ``papermill_runs/presets``.

    ``kind`` is what an error calls it; a sweep's grid and cluster are such files too.

    Raises:
        ParameterError: there is none, or it is something else; says which of this kind there are.
    """
    name = files.named(name, f"no such {kind}", ParameterError)
    places = [Path(name), paths.PRESETS / name, paths.PRESETS / f"{name}.yaml"]
    path = next((place for place in places if os.path.isfile(place)), None)
    if path is None:
        raise ParameterError(
            f"no {kind} is called {shown(str(name))};"
            f" {words.nearest(Path(name).stem, known(kind), paths.PRESETS)}"
        )
    try:
        with path.open(encoding="utf-8") as file:
            values = load(file.read(MOST_CHARACTERS + 1))
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
    return [path.stem for path in sorted(paths.PRESETS.glob("*.yaml")) if _kind(path) == kind]


def _kind(path: Path) -> str:
    if path.stem.endswith("grid"):
        return "grid"
    text = path.read_text(encoding="utf-8", errors="replace")
    return "cluster" if re.search(r"^kind:", text, re.MULTILINE) else "preset"


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
    own = values.get("notebooks", {})
    if not isinstance(own, dict) or not isinstance(own.get(number, {}), dict):
        raise ParameterError(
            "notebooks: expected a notebook's number and under it lines of `name: value`, got"
            f" {shown(own)}"
        )
    others = {name: v for name, v in values.items() if name not in ("shared", "notebooks")}
    known = {name: value for name, value in others.items() if name in declared}
    return known | own.get(number, {}), sorted(others.keys() - known)
