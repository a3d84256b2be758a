"""Preset files, and YAML as people expect it: 1e-3 is a number, ``no`` is a word, and a name given twice is an error.

PyYAML speaks YAML 1.1, where 1e-3 is a string, ``no`` is False, 12:30 is 750 and the last of two equal names wins silently.
"""

import difflib
import re
from pathlib import Path
from typing import Any

import yaml

from gaussmark_lib import paths
from gaussmark_lib.errors import ParameterError


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema of YAML 1.2, and None as Python writes it."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 – the base class's own protocol

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in [
    ("null", r"|~|null|Null|NULL|None", ["", *"~nN"]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+\.?[0-9]*)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.0123456789")),
]:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))  # 010 is ten, not eight


def load(text: str) -> Any:
    """The value of one YAML document; ParameterError, in one line, if it cannot be read."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ParameterError(" ".join(str(error).split())) from None


def read(name: str | Path, kind: str = "preset") -> dict[str, Any]:
    """The parameter values of a preset: a YAML file of ``name: value`` lines, by path or by its name in ``papermill_runs/presets``.

    ``kind`` is what an error calls it; a sweep's grid and cluster are such files too.

    Raises:
        ParameterError: there is none, or it is something else; says which presets there are.
    """
    places = [Path(name), paths.PRESETS / name, paths.PRESETS / f"{name}.yaml"]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        known = sorted(place.stem for place in paths.PRESETS.glob("*.yaml"))
        near = difflib.get_close_matches(Path(name).stem, known, n=3) or known
        raise ParameterError(f"no {kind} is called {str(name)!r}; there are {', '.join(near) or 'none'} in {paths.PRESETS}")
    try:
        values = load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ParameterError(f"the {kind} {path} cannot be read: {error}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ParameterError(f"the {kind} {path} should be lines of `name: value`, and is {type(values).__name__} {values!r}")
    return values
