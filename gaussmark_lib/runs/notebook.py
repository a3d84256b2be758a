"""A notebook as a question: its source, its parameters, and the id that a question and its answer
share.

    id = SHA-256 over (cells' sources, all parameter values, the code that the cells use, the files
    that the values name), 12 digits

Everything that could change the answer is in the id; outputs, the machine and the time are part of
the answer.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gaussmark_lib import files, words
from gaussmark_lib.errors import GaussMarkError, ParameterError, shown
from gaussmark_lib.runs import identity, parameters
from gaussmark_lib.runs.parameters import Parameter

INJECTED = "injected-parameters"  # papermill's tag of what it puts into the notebook that it runs


@dataclass(frozen=True)
class Cell:
    kind: str
    source: str
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Notebook:
    """A notebook file, read once: what is checked is what is hashed and what runs, even if the file
    changes meanwhile.
    """

    path: Path
    text: str  # JSON without outputs; nbformat takes two seconds to import
    cells: tuple[Cell, ...]
    tour: dict[str, Any]  # its metadata ``gaussmark``, which the tour reads

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def opening(self) -> str:
        """Its first cell of text, which has its title and its claim."""
        return next((cell.source.strip() for cell in self.cells if cell.kind == "markdown"), "")

    @property
    def title(self) -> str:
        """Of the heading that it opens with; else its name."""
        first = self.opening.partition("\n")[0]
        return first.removeprefix("# ").strip() if first.startswith("# ") else self.name

    @property
    def sources(self) -> list[str]:
        """Of its code cells."""
        return [cell.source for cell in self.cells if cell.kind == "code"]

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """What its one code cell tagged ``parameters`` declares; or ParameterError."""
        tagged = [c.source for c in self.cells if c.kind == "code" and "parameters" in c.tags]
        if len(tagged) != 1:
            raise ParameterError(
                f"{self.name}: expected exactly one code cell tagged 'parameters', found"
                f" {len(tagged)}; tag the cell that declares them"
            )
        return parameters.read(tagged[0], self.name)

    @property
    def code(self) -> str:
        """The version of the code that computes this notebook's answer, see ``runs.identity``. Not
        kept here: a worker must compute its own.
        """
        return identity.of_sources(self.sources, self.path.parent)

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """See ``parameters.check``."""
        return parameters.check(self.parameters, given, self.name)

    def run_id(self, values: Mapping[str, Any], code: str) -> str:
        """The id of the run with these values, which are complete and checked."""
        asked = {
            "cells": [[cell.kind, cell.source, cell.tags] for cell in self.cells],
            "parameters": dict(values),
            "code": code,
            "inputs": identity.of_inputs(values, self.path.parent),
        }
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Question:
    """A notebook with values for all its parameters, checked, and the id of both."""

    notebook: Notebook
    values: dict[str, Any]
    id: str
    code: str

    @property
    def changed(self) -> dict[str, Any]:
        """The values that are not the notebook's defaults."""
        declared = self.notebook.parameters
        return {name: v for name, v in self.values.items() if v != declared[name].default}

    def target(self, root: str | Path | None) -> Path:
        """The folder of its record."""
        return files.records(root) / self.notebook.name / self.id


def question(
    notebook: str | Path | Notebook | Question, params: Mapping[str, Any] | None = None
) -> Question:
    """A notebook asked with these parameters; a question is returned as it is.

    GaussMarkError: there is no such notebook, or parameters cannot be used.
    """
    if isinstance(notebook, Question):
        return notebook
    source = load(notebook)
    values, code = source.check(params or {}), source.code
    return Question(source, values, source.run_id(values, code), code)


def load(name: str | Path | Notebook) -> Notebook:
    """A notebook by path, by name (``00_first_watermark``) or by number (``00``); one that is
    loaded already is returned as it is.

    GaussMarkError: there is none, or it cannot be read; says which there are.
    """
    if isinstance(name, Notebook):
        return name
    path = _find(str(name))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["nbformat"] != 4:
            raise GaussMarkError(f"its format is {content['nbformat']}, expected 4")
        cells = tuple(
            Cell(c["cell_type"], "".join(c["source"]), tuple(c["metadata"].get("tags", ())))
            for c in content["cells"]
        )
        for cell in content["cells"]:
            cell.get("outputs", []).clear()  # megabytes of figures
        hints = content["metadata"].get("gaussmark", {})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise GaussMarkError(
            f"{path} cannot be read as a notebook: {error}; save it again in JupyterLab"
        ) from None
    if any(INJECTED in cell.tags for cell in cells):
        raise GaussMarkError(
            f"{path} is the record of a run: its cell tagged {INJECTED!r} would set parameters once"
            " more; run the notebook that it was made from, or take that cell out"
        )
    return Notebook(path.resolve(), json.dumps(content), cells, hints)


def numbered() -> list[Path]:
    """The notebooks of the reading path, in order."""
    return sorted(files.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def _find(name: str) -> Path:
    for path in (Path(name), Path(f"{name}.ipynb")):
        if path.suffix == ".ipynb" and os.path.isfile(path):
            return path
    known = {path.stem: path for path in sorted(files.NOTEBOOKS.glob("*.ipynb"))}
    wanted = name.removesuffix(".ipynb")
    matches = [wanted] if wanted in known else [s for s in known if s.startswith(f"{wanted}_")]
    if len(matches) == 1:
        return known[matches[0]]
    raise GaussMarkError(
        f"{'several notebooks are' if matches else 'no notebook is'} called {shown(name)};"
        f" {words.nearest(wanted, known)}"
    )
