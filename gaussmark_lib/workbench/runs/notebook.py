"""A notebook as a question: its source, its parameters, and the id that a question and its answer
share.

    id    = SHA-256 over (cells' sources, all parameter values, the code that the cells use, the
            files and folders that parameters in ``parameters.PATHS`` name, the files of modules
            that lists name, as in ``["my_module:my scheme"]``), 12 digits
    code  = SHA-256 over the code of all modules that the cells import, directly or not: of the
            library (except ``OUTSIDE``), of the experiments and next to the notebook; over the
            files of the embedded model; and, if the corpus is read, over its packages' versions

The id covers everything that could change the answer. Outputs, the machine and the time are part of
the answer. A changed formula discards only the records of the notebooks that use it. A changed
figure, comment, docstring or line break discards none. A file is read once per process and state
(size, times of change, inode), because a model may have many gigabytes.
"""

import ast
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import gaussmark_lib
from gaussmark_lib import files
from gaussmark_lib.engine import corpus, packages
from gaussmark_lib.engine.registry import module_of
from gaussmark_lib.errors import GaussMarkError, ParameterError, shown
from gaussmark_lib.workbench import words
from gaussmark_lib.workbench.runs import parameters
from gaussmark_lib.workbench.runs.parameters import Parameter

INJECTED = "injected-parameters"  # papermill's tag of what it puts into the notebook that it runs

PACKAGE = files.ROOT / "gaussmark_lib"
EXPERIMENTS = files.EXPERIMENTS
MODEL = files.DATA / "doclm"
# packages and modules that show, request or keep an answer, but do not compute it
OUTSIDE = re.compile(r"gaussmark_lib\.workbench\.(answers|plots|cli|runs|record|sweeps)\b")
# of measures.judge, without its key, which is a secret
JUDGE = ("GAUSSMARK_JUDGE_URL", "GAUSSMARK_JUDGE_MODEL")
CORPUS = "gaussmark_lib.engine.corpus"

State = tuple[int, ...]  # of a file: size, times of change, inode


@dataclass(frozen=True)
class Cell:
    kind: str
    source: str
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Notebook:
    """A notebook file, read once. The same content is checked, hashed and run, even if the file
    changes in the meantime.
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
        """The first cell of text, which has the title and the claim."""
        texts = (cell.source.strip() for cell in self.cells if cell.kind == "markdown")
        return next(texts, "")

    @property
    def title(self) -> str:
        """The heading of the first cell of text, or the notebook's name if it has none."""
        first_line, _, _ = self.opening.partition("\n")
        if not first_line.startswith("# "):
            return self.name
        return first_line.removeprefix("# ").strip()

    @property
    def claim(self) -> str:
        """The first paragraph under the title, as Markdown."""
        below_title = self.opening.removeprefix(f"# {self.title}").strip()
        paragraph, _, _ = below_title.partition("\n\n")
        return paragraph

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters that the code cell tagged ``parameters`` declares. ParameterError if the
        notebook does not have exactly one such cell.
        """
        code_cells = [cell for cell in self.cells if cell.kind == "code"]
        tagged = [cell.source for cell in code_cells if "parameters" in cell.tags]
        if len(tagged) != 1:
            raise ParameterError(
                f"{self.name}: expected exactly one code cell tagged 'parameters', found"
                f" {len(tagged)}; tag the cell that declares them"
            )
        return parameters.read(tagged[0], self.name)

    @property
    def code(self) -> str:
        """The version of the code that computes this notebook's answer. It is not cached, because
        a worker must compute it itself.
        """
        sources = (cell.source for cell in self.cells if cell.kind == "code")
        return code_of(sources, self.path.parent)

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check parameters (``parameters.check``) and return the value of each. A notebook that
        reads documentation by default reads speeches if you give another model than doclm and no
        kind of text.
        """
        values = parameters.check(self.parameters, given, self.name)
        is_default = "text" not in given and values.get("text") == "docs"
        if is_default and isinstance(values.get("model"), str):
            values["text"] = packages.default_text(values["model"])
        return values

    def run_id(self, values: Mapping[str, Any], code: str) -> str:
        """Return the id of the run with these values, which are complete and checked."""
        identity = {
            "cells": [[cell.kind, cell.source, cell.tags] for cell in self.cells],
            "parameters": dict(values),
            "code": code,
            "inputs": inputs_of(values, self.path.parent),
        }
        as_json = json.dumps(identity, sort_keys=True)
        return hashlib.sha256(as_json.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Question:
    """A notebook with values for all its parameters, checked, and the id of both."""

    notebook: Notebook
    values: dict[str, Any]
    id: str
    code: str

    @property
    def inputs(self) -> dict[str, str]:
        """The hashes of the files that the values name (:func:`inputs_of`)."""
        return inputs_of(self.values, self.notebook.path.parent)

    @property
    def changed(self) -> dict[str, Any]:
        """The values that are not the notebook's defaults."""
        declared = self.notebook.parameters
        return {
            name: value for name, value in self.values.items() if value != declared[name].default
        }

    def target(self, root: str | Path | None) -> Path:
        """Return the folder of the record."""
        return files.records(root) / self.notebook.name / self.id


def question(
    notebook: str | Path | Notebook | Question, params: Mapping[str, Any] | None = None
) -> Question:
    """Make a question of a notebook and these parameters. A question is returned as it is.

    GaussMarkError if there is no such notebook, or if parameters cannot be used.
    """
    if isinstance(notebook, Question):
        return notebook
    source = load(notebook)
    values = source.check(params or {})
    code = source.code
    return Question(
        notebook=source,
        values=values,
        id=source.run_id(values, code),
        code=code,
    )


def load(name: str | Path | Notebook) -> Notebook:
    """Load a notebook by path, by name (``00_first_watermark``) or by number (``00``). A loaded
    notebook is returned as it is.

    GaussMarkError if there is none, with the names that there are, or if it cannot be read.
    """
    if isinstance(name, Notebook):
        return name
    path = _find(str(files.as_path(name, "no notebook", GaussMarkError)))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        cells = tuple(_cell(cell) for cell in content["cells"])
        for cell in content["cells"]:
            cell.get("outputs", []).clear()  # megabytes of figures
        hints = content["metadata"].get("gaussmark", {})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise GaussMarkError(
            f"{path} cannot be read as a notebook: {error}; save it again in JupyterLab"
        ) from None
    if any(INJECTED in cell.tags for cell in cells):
        raise GaussMarkError(
            f"{path} is the record of a run: its cell tagged {INJECTED!r} would overwrite your"
            " parameters; run the original notebook, or remove this cell"
        )
    return Notebook(path.resolve(), json.dumps(content), cells, hints)


def _cell(cell: dict[str, Any]) -> Cell:
    return Cell(
        kind=cell["cell_type"],
        source="".join(cell["source"]),
        tags=tuple(cell["metadata"].get("tags", ())),
    )


def numbered() -> list[Path]:
    """Return the notebooks of the reading path, in order."""
    return sorted(files.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def _find(name: str) -> Path:
    for path in (Path(name), Path(f"{name}.ipynb")):
        if path.suffix == ".ipynb" and os.path.isfile(path):
            return path
    paths = {path.stem: path for path in sorted(files.NOTEBOOKS.glob("*.ipynb"))}
    wanted = name.removesuffix(".ipynb")
    if wanted.isdecimal():
        wanted = wanted.zfill(2)  # 3 is 03
    if wanted in paths:
        return paths[wanted]
    matches = [stem for stem in paths if stem.startswith(f"{wanted}_")]
    if len(matches) == 1:
        return paths[matches[0]]
    how_many = "several notebooks are" if matches else "no notebook is"
    raise GaussMarkError(f"{how_many} called {shown(name)}; {words.nearest(wanted, paths)}")


def code_of(sources: Iterable[str], folder: Path) -> str:
    """Return the version of the embedded model, and of the code that these pieces of Python import
    from the library and from ``folder``: 12 hexadecimal digits.
    """
    names = set()
    for source in sources:
        names |= _imported(_tree(source), folder)
    hash_by_module = _closure(names, folder)
    parts = [_of_path(MODEL)]
    parts += [f"{name}\0{hash_by_module[name]}" for name in sorted(hash_by_module)]
    if CORPUS in hash_by_module:
        parts.append(corpus.fingerprint())
    return _hash(parts)[:12]


def inputs_of(values: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return parameter name → hash of the file or folder that its value names.

    A value names a path relative to ``folder``, or the model or text of an installed package. The
    hash of a file is its SHA-256. If the judge is an endpoint, its address and model are added. So
    are the files of the modules that register a scheme or an edit in a list
    (``engine.registry``), without the modules that these import.
    """
    paths = {}
    for name, value in values.items():
        if isinstance(value, list):
            paths |= _files_of_modules(value, folder)
        if not parameters.is_path(name):
            continue
        if value in packages.MODELS:
            paths[name] = packages.model_file(packages.MODELS[value])
        elif value in packages.TEXTS:
            paths[name] = packages.text_path(packages.TEXTS[value])
        elif isinstance(value, str) and value and "\0" not in value:
            paths[name] = folder / os.path.expanduser(value)
    try:
        inputs = {name: _of_path(path) for name, path in paths.items() if os.path.exists(path)}
    except OSError as error:
        raise ParameterError(
            f"{error.filename}: expected a file that can be read, because its content is part of"
            f" the run's id: {error.strerror}"
        ) from None
    if values.get("judge") == "endpoint":
        inputs["judge"] = str([os.environ.get(name) for name in JUDGE])
    return inputs


def _files_of_modules(names: list[Any], folder: Path) -> dict[str, Path]:
    """Module → file, of the modules that these names ask for, as a notebook in ``folder`` finds
    them.
    """
    paths = {}
    for module in map(module_of, names):
        if module is None:
            continue
        beside = _file(module, folder)  # the kernel works in the notebook's folder
        if beside.is_file():
            paths[module] = beside
            continue
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):  # its package is missing; the run will say so
            continue
        if spec is not None and spec.has_location:
            paths[module] = Path(spec.origin)
    return paths


def _of_path(path: Path) -> str:
    """The hash of a file, or of all files in a folder except hidden files (which downloads leave)
    and model cards.
    """
    if path.is_file():
        return _digest(*_state(path))
    parts = []
    names = sorted(file.relative_to(path) for file in path.rglob("*") if file.is_file())
    for name in names:
        is_hidden = any(part.startswith(".") for part in name.parts)
        if name.suffix != ".md" and not is_hidden:
            parts.append(f"{name.as_posix()}\0{_digest(*_state(path / name))}")
    return _hash(parts)


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _closure(names: set[str], folder: Path) -> dict[str, str]:
    """Name → hash of these modules and of all modules that they import, without ``OUTSIDE``."""
    hash_by_module: dict[str, str] = {}
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        if name in hash_by_module or OUTSIDE.match(name):
            continue
        path, state = _state(_file(name, folder))
        hash_by_module[name], imports = _module(path, state, folder)
        waiting |= imports
    return hash_by_module


@cache
def _module(path: Path, state: State, folder: Path) -> tuple[str, set[str]]:
    """The hash of a module's code, and the modules that it imports."""
    tree = _tree(path.read_text(encoding="utf-8", errors="replace"))
    imports = _imported(tree, folder)
    # without comments, docstrings and layout; a file that does not parse counts as it is
    content = ast.unparse(_Bare().visit(tree)) if tree else _digest(path, state)
    return _hash([content]), imports


class _Bare(ast.NodeTransformer):
    """A syntax tree without docstrings and other lone constants, which change no value."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def _imported(tree: ast.Module | None, folder: Path) -> set[str]:
    """The modules of the library, of the experiments and of ``folder`` that a piece of Python
    imports, and the packages that contain them. Without a syntax tree, all modules of the library
    and of the experiments.
    """
    names = _all_modules() if tree is None else _names_imported(tree)
    for name, home in gaussmark_lib.HOMES.items():
        if names & {PACKAGE.name, f"{PACKAGE.name}.{name}"}:  # gaussmark_lib.load is models.load
            names.add(f"{PACKAGE.name}.{home}")
    with_packages = set()
    for name in names:
        with_packages.update(accumulate(name.split("."), "{}.{}".format))  # a, a.b, a.b.c
    return {name for name in with_packages if _file(name, folder).is_file()}


def _all_modules() -> set[str]:
    names = set()
    for top in (PACKAGE, EXPERIMENTS):
        for path in top.rglob("*.py"):
            parts = path.relative_to(top.parent).with_suffix("").parts
            names.add(".".join(parts).removesuffix(".__init__"))
    return names


def _names_imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # the name may be a module, or something in the module
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _tree(source: str) -> ast.Module | None:
    """The syntax tree of Python with IPython's lines of ``%`` and ``!``; None if the source does
    not parse.
    """
    lines = []
    for line in source.splitlines():
        is_ipython = line.lstrip().startswith(("%", "!"))
        lines.append("" if is_ipython else line)
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # zero bytes; deep nesting
        return None


def _file(name: str, folder: Path) -> Path:
    top_name, *inner_names = name.split(".")
    tops = {PACKAGE.name: PACKAGE, EXPERIMENTS.name: EXPERIMENTS}
    top = tops.get(top_name, folder / top_name)
    path = top.joinpath(*inner_names)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _state(path: Path) -> tuple[Path, State]:
    """The path and its state. A copy with the old file's size and time has another ctime and
    inode.
    """
    status = path.stat()
    return path, (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@cache
def _digest(path: Path, state: State) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
