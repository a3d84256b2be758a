"""What computes a notebook's answer, as short hashes: the code that it uses, and the model and text files that it reads.

    of_sources(cells)  = SHA-256 over the files of all library modules that the cells import, directly or not, without ``OUTSIDE``,
                         and over the files of the embedded model
    of_inputs(values)  = SHA-256 of each local model folder and text file that a parameter names

A changed formula therefore discards the records of the notebooks that use it, and of no others; a changed figure discards none.
Each file is read once a process for each of its states (size and time of change), because a model may have many gigabytes.
"""

import ast
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gaussmark_lib import paths

PACKAGE = paths.ROOT / "gaussmark_lib"
MODEL = paths.DATA / "doclm"
OUTSIDE = ("plots", "widgets", "cli", "runs", "sweeps")  # they show, call or keep an answer, and compute nothing of it
TEXTS = (".jsonl", ".jsonl.gz")


def of_sources(sources: Iterable[str]) -> str:
    """The version of the code that these pieces of Python import from the library, and of the embedded model; 12 hexadecimal digits."""
    return _of_modules(set().union(*(_imported(source) for source in sources)))


def of_module(name: str) -> str:
    """The same of one module of the library and what it imports."""
    return _of_modules({name})


def of_inputs(values: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Parameter name → hash of the model's folder or text file that its value names, relative to ``folder``. Others are left out."""
    found = {}
    for name, value in values.items():
        path = folder / Path(value).expanduser() if value and isinstance(value, str) else None
        if path and name == "model" and path.is_dir():
            found[name] = _of_folder(path)
        elif path and path.name.endswith(TEXTS) and path.is_file():
            found[name] = _digest(*_state(path))
    return found


def _of_modules(names: set[str]) -> str:
    digest = hashlib.sha256(_of_folder(MODEL).encode())
    for name in sorted(_closure(names)):
        digest.update(f"{name}\0{_digest(*_state(_file(name)))}\0".encode())
    return digest.hexdigest()[:12]


def _of_folder(folder: Path) -> str:
    """Of all files in a model's folder, without model cards and hidden files (a download leaves its own there)."""
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md"}
    shown = sorted(name for name in files if not any(part.startswith(".") for part in name.parts))
    return hashlib.sha256("".join(f"{name.as_posix()}\0{_digest(*_state(files[name]))}\0" for name in shown).encode()).hexdigest()


def _closure(names: set[str]) -> set[str]:
    """These modules and all that they import, directly or not, without ``OUTSIDE``."""
    closed: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        if not _is_outside(name):
            closed.add(name)
            state = _state(_file(name))
            beside = state[0].parent.glob("*.py") if _loads_its_folder(*state) else ()
            waiting |= _imports(*state) | {f"{name}.{path.stem}" for path in beside if path.stem != "__init__"}
            waiting -= closed
    return closed


def _is_outside(name: str) -> bool:
    return name.split(".")[1:2] in [[place] for place in OUTSIDE]


def _imported(source: str) -> set[str]:
    """The library's modules that a piece of Python imports, each with the packages that it lies in.

    A cell that is not plain Python, for instance because of IPython's ``!``, counts as importing the whole library.
    """
    lines = ("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for path in PACKAGE.rglob("*.py")}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in found if name.split(".")[0] == PACKAGE.name]
    with_packages = {".".join(words[:n]) for words in parts for n in range(1, len(words) + 1)}
    return {name for name in with_packages if _file(name).exists()}


def _file(name: str) -> Path:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _state(path: Path) -> tuple[Path, int, int]:
    status = path.stat()
    return path, status.st_size, status.st_mtime_ns


@cache
def _digest(path: Path, size: int, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _imports(path: Path, size: int, modified: int) -> frozenset[str]:
    return frozenset(_imported(path.read_text(encoding="utf-8")))


@cache
def _loads_its_folder(path: Path, size: int, modified: int) -> bool:
    """Whether a package imports all files beside it, as ``schemes`` does, so that adding a file registers a scheme."""
    return path.name == "__init__.py" and "iter_modules(__path__)" in path.read_text(encoding="utf-8")
