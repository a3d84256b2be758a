"""Preset files, and YAML as people expect it: 1e-3 is a number, ``no`` is a word, and a name given
twice is an error.

PyYAML speaks YAML 1.1, where 1e-3 is a string, ``no`` is False, 12:30 is 750 and the last of two
equal names wins silently. It also reads what a few characters blow up to gigabytes or to a crash,
so there are limits here, no aliases, and no types but those of JSON.
"""

import os
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from gaussmark_lib import files, paths, words
from gaussmark_lib.errors import ParameterError, shown

MOST_CHARACTERS, MOST_LEVELS, MOST_DIGITS = (
    500_000,
    50,
    100,
)  # of a document, of what is nested in it, of a number
TAG = "tag:yaml.org,2002:"
SCALARS = {  # tag → how it is written, the characters that it begins with, and its value
    "null": (r"|~|null|Null|NULL|None", ["", *"~nN"], lambda text: None),
    "bool": (
        r"true|True|TRUE|false|False|FALSE",
        list("tTfF"),
        lambda text: text.lower() == "true",
    ),
    "int": (r"[-+]?[0-9]+", list("-+0123456789"), int),  # 010 is ten, not eight
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
        lambda text: float(re.sub(r"\.(?=[iInN])", "", text)),
    ),
}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema of YAML 1.2, and None as Python writes it."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 – the base class's own protocol
    yaml_constructors = {
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in (f"{TAG}str", f"{TAG}seq", f"{TAG}map", None)
    }
    level = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            raise _refused(
                f"*{self.peek_event().anchor} stands for another place; write the value out",
                self.peek_event(),
            )
        if self.level >= MOST_LEVELS:
            raise _refused(
                f"expected at most {MOST_LEVELS} lists and mappings inside each other",
                self.peek_event(),
            )
        self.level += 1
        node = super().compose_node(parent, index)
        self.level -= 1
        return node

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            names = Counter(self.construct_object(key, deep=True) for key, _ in node.value)
            raise _refused(f"{names.most_common(1)[0][0]!r} is given twice", node)
        return found

    def scalar(self, node: yaml.Node) -> Any:
        text, kind = self.construct_scalar(node), node.tag.removeprefix(TAG)
        pattern, _, value = SCALARS[kind]
        if len(text) > MOST_DIGITS or not re.fullmatch(pattern, text):
            raise _refused(
                f"expected {kind} of at most {MOST_DIGITS} characters, got {text[:40]!r}", node
            )
        return value(text)


for _kind, (_pattern, _first, _) in SCALARS.items():
    _Loader.add_implicit_resolver(f"{TAG}{_kind}", re.compile(rf"^(?:{_pattern})$"), _first)
    _Loader.add_constructor(f"{TAG}{_kind}", _Loader.scalar)


def _refused(what: str, where: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=where.start_mark)


def load(text: str) -> Any:
    """The value of one YAML document; ParameterError, in one line, if it cannot be read."""
    if len(text) > MOST_CHARACTERS:
        raise ParameterError(
            f"expected at most {MOST_CHARACTERS:,} characters of YAML, got {len(text):,}"
        )
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ParameterError(" ".join(str(error).split())) from None
    except (
        ValueError,
        OverflowError,
    ) as error:  # "\\UFFFFFFFF", or %YAML with a version of thousands of digits
        raise ParameterError(f"cannot be read as YAML: {error}") from None


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
            f" {repr(values)[:60]}"
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
    return (
        "cluster"
        if re.search(r"^kind:", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        else "preset"
    )


def taken(
    values: dict[str, Any], number: str, declared: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """What the notebook of this number takes of a preset's values, and the names that it skips.

    A preset that says ``shared: true`` serves every notebook: names that are not among ``declared``
    are skipped, and under ``notebooks`` stands, by number, what one of them takes in place of the
    shared values or besides. In any other preset nothing is skipped, so that a wrong name is
    reported where parameters are checked.
    """
    values = dict(values)
    shared = values.pop("shared", False)
    if not isinstance(shared, bool):
        raise ParameterError(f"shared: expected true or false, got {shown(shared)}")
    if not shared:
        return values, []
    own = values.pop("notebooks", {})
    if not isinstance(own, dict) or not all(isinstance(one, dict) for one in own.values()):
        raise ParameterError(
            "notebooks: expected a notebook's number and under it lines of `name: value`, got"
            f" {shown(own)}"
        )
    known = {name: value for name, value in values.items() if name in declared}
    return known | own.get(number, {}), sorted(values.keys() - known)
