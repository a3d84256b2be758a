"""A notebook as a question: its source, its parameters, and the id that a question and its answer
share.

    id    = SHA-256 over (cells' sources, all parameter values, the code that the cells use, the
            files and folders that parameters in ``parameters.PATHS`` name), 12 digits
    code  = SHA-256 over the code of all modules that the cells import, directly or not, of the
            library (but those in ``OUTSIDE``), of the experiments and beside the notebook; over the
            files of the embedded model; and, where the corpus is read, over its packages' versions

Everything that could change the answer is in the id; outputs, the machine and the time are part of
the answer. A changed formula discards the records of the notebooks that use it, and of no others; a
changed figure, comment, docstring or line break discards none. A file is read once per process and
state (size, times of change, inode), because a model may have many gigabytes.
"""

import ast
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import gaussmark_lib
from gaussmark_lib import files
from gaussmark_lib.engine import corpus, packages
from gaussmark_lib.errors import GaussMarkError, ParameterError, shown
from gaussmark_lib.workbench import words
from gaussmark_lib.workbench.runs import parameters
from gaussmark_lib.workbench.runs.parameters import Parameter

INJECTED = "injected-parameters"  # papermill's tag of what it puts into the notebook that it runs

PACKAGE = files.ROOT / "gaussmark_lib"
EXPERIMENTS = files.EXPERIMENTS
MODEL = files.DATA / "doclm"
# packages and modules that show, call or keep an answer, and compute nothing of it
OUTSIDE = re.compile(
    r"gaussmark_lib\.workbench\.(plots|widgets(?!\.playground)|cli|runs|record|sweeps)\b"
)
JUDGE = "GAUSSMARK_JUDGE_URL", "GAUSSMARK_JUDGE_MODEL"  # of quality.judge; its key is a secret
CORPUS = "gaussmark_lib.engine.corpus"

State = tuple[int, ...]  # of a file: size, times of change, inode


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
    def claim(self) -> str:
        """The first paragraph under its title, as Markdown."""
        return self.opening.removeprefix(f"# {self.title}").strip().partition("\n\n")[0]

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
        """The version of the code that computes this notebook's answer. Not kept here: a
        worker must compute its own.
        """
        sources = (cell.source for cell in self.cells if cell.kind == "code")
        return code_of(sources, self.path.parent)

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """See ``parameters.check``. A notebook that reads documentation by default reads speeches
        where another model than doclm is given, and no kind of text.
        """
        values = parameters.check(self.parameters, given, self.name)
        is_default = "text" not in given and values.get("text") == "docs"
        if is_default and isinstance(values.get("model"), str):
            values["text"] = packages.default_text(values["model"])
        return values

    def run_id(self, values: Mapping[str, Any], code: str) -> str:
        """The id of the run with these values, which are complete and checked."""
        asked = {
            "cells": [[cell.kind, cell.source, cell.tags] for cell in self.cells],
            "parameters": dict(values),
            "code": code,
            "inputs": inputs_of(values, self.path.parent),
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
    def inputs(self) -> dict[str, str]:
        """The hashes of what the values name (:func:`inputs_of`)."""
        return inputs_of(self.values, self.notebook.path.parent)

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
    path = _find(str(files.as_path(name, "no notebook", GaussMarkError)))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
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
    wanted = wanted.zfill(2) if wanted.isdecimal() else wanted  # 3 is 03
    matches = [wanted] if wanted in known else [s for s in known if s.startswith(f"{wanted}_")]
    if len(matches) == 1:
        return known[matches[0]]
    raise GaussMarkError(
        f"{'several notebooks are' if matches else 'no notebook is'} called {shown(name)};"
        f" {words.nearest(wanted, known)}"
    )


def code_of(sources: Iterable[str], folder: Path) -> str:
    """The version of the code that these pieces of Python import from the library and from
    ``folder``, and of the embedded model; 12 hexadecimal digits.
    """
    names = set().union(*(_imported(_tree(source), folder) for source in sources))
    modules = _closure(names, folder)
    parts = [_of_path(MODEL), *(f"{name}\0{modules[name]}" for name in sorted(modules))]
    return _hash(parts + [corpus.fingerprint()] * (CORPUS in modules))[:12]


def inputs_of(values: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Parameter name → hash of the file or folder that its value names relative to ``folder``, or
    that an installed package holds under this name; and the judge, where it is one that the
    environment names. The hash of a file is its SHA-256.
    """
    named = {
        name: folder / os.path.expanduser(value)
        for name, value in values.items()
        if parameters.is_path(name) and isinstance(value, str) and value and "\0" not in value
    }
    for name, value in values.items():
        if parameters.is_path(name) and value in packages.MODELS:
            named[name] = packages.model_file(packages.MODELS[value])
        elif parameters.is_path(name) and value in packages.TEXTS:
            named[name] = packages.text_path(packages.TEXTS[value])
    try:
        inputs = {name: _of_path(path) for name, path in named.items() if os.path.exists(path)}
    except OSError as error:
        raise ParameterError(
            f"{error.filename}: expected a file that can be read, because its content is part of"
            f" the run's id: {error.strerror}"
        ) from None
    if values.get("judge") == "endpoint":
        inputs["judge"] = str([os.environ.get(name) for name in JUDGE])
    return inputs


def _of_path(path: Path) -> str:
    """Of a file, or of all files in a folder but hidden ones (a download leaves such) and model
    cards.
    """
    if path.is_file():
        return _digest(*_state(path))
    names = {file.relative_to(path): file for file in path.rglob("*") if file.is_file()}
    return _hash(
        f"{name.as_posix()}\0{_digest(*_state(names[name]))}"
        for name in sorted(names)
        if name.suffix != ".md" and not any(part.startswith(".") for part in name.parts)
    )


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _closure(names: set[str], folder: Path) -> dict[str, str]:
    """Name → hash of these modules and of all that they import, without ``OUTSIDE``."""
    closed: dict[str, str] = {}
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        if name not in closed and not OUTSIDE.match(name):
            closed[name], imports = _module(*_state(_file(name, folder)), folder)
            waiting |= imports
    return closed


@cache
def _module(path: Path, state: State, folder: Path) -> tuple[str, set[str]]:
    """The hash of a module's code, and the modules that it imports."""
    tree = _tree(path.read_text(encoding="utf-8", errors="replace"))
    imports = _imported(tree, folder)
    return _hash([ast.unparse(_Bare().visit(tree)) if tree else _digest(path, state)]), imports


class _Bare(ast.NodeTransformer):
    """A syntax tree without docstrings and other lone constants, which change no value."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def _imported(tree: ast.Module | None, folder: Path) -> set[str]:
    """The modules of the library, of the experiments and of ``folder`` that a piece of Python
    imports, each with the packages that it lies in. Without a syntax tree, all of both.
    """
    names = set()
    if tree is None:
        tops = (PACKAGE, EXPERIMENTS)
        paths = (path.relative_to(top.parent) for top in tops for path in top.rglob("*.py"))
        names = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths}
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    for name, home in gaussmark_lib.HOMES.items():
        if names & {PACKAGE.name, f"{PACKAGE.name}.{name}"}:  # gaussmark_lib.load is models.load
            names.add(f"{PACKAGE.name}.{home}")
    packages = (accumulate(name.split("."), "{}.{}".format) for name in names)
    return {name for name in chain(*packages) if _file(name, folder).is_file()}


def _tree(source: str) -> ast.Module | None:
    """Of Python with IPython's lines of ``%`` and ``!``; None where it is something else."""
    lines = ("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # zero bytes; deep nesting
        return None


def _file(name: str, folder: Path) -> Path:
    first, *rest = name.split(".")
    tops = {PACKAGE.name: PACKAGE, EXPERIMENTS.name: EXPERIMENTS}
    path = tops.get(first, folder / first).joinpath(*rest)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _state(path: Path) -> tuple[Path, State]:
    """A copy with the old file's size and time still has its own ctime and inode."""
    status = path.stat()
    return path, (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@cache
def _digest(path: Path, state: State) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
