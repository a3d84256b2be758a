"""What computes a notebook's answer, as a short hash: the code that it uses, and the files of its model. A label, a figure or a widget is no part.

    code(sources)  = SHA-256 over the import closure of the notebook inside ``gaussmark_lib``, without ``OUTSIDE``

A changed formula therefore discards the records of the notebooks that use it, and of no others; a changed figure discards none.
"""

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from gaussmark_lib import paths

PACKAGE = paths.ROOT / "gaussmark_lib"
OUTSIDE = ("gaussmark_lib.plots", "gaussmark_lib.widgets", "gaussmark_lib.cli", "gaussmark_lib.runs", "gaussmark_lib.sweeps")


def of_sources(sources: Iterable[str]) -> str:
    """Of the code that these pieces of Python import from the library, and of the embedded model; 12 hexadecimal digits."""
    found: set[str] = set()
    for source in sources:
        found |= _imported(source)
    return _digest(_closure(frozenset(found)))


def of_module(name: str) -> str:
    """Of one module of the library and what it imports."""
    return _digest(_closure(frozenset([name])))


def _digest(modules: Iterable[str]) -> str:
    digest = hashlib.sha256(_model_files().encode())
    for name in sorted(modules):
        digest.update(f"{name}\0{_file_digest(_file(name))}\0".encode())
    return digest.hexdigest()[:12]


def _closure(names: frozenset[str]) -> set[str]:
    """These modules and all that they import, directly or not."""
    closed: set[str] = set()
    waiting = {name for name in names if not _is_outside(name)}
    while waiting:
        name = waiting.pop()
        closed.add(name)
        imported = _imported(_file(name).read_text(encoding="utf-8")) | _registered(name)
        waiting |= {other for other in imported if not _is_outside(other)} - closed
    return closed


def _is_outside(name: str) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in OUTSIDE)


def _registered(name: str) -> set[str]:
    """The files of a package that loads all files in its folder, as ``schemes`` does."""
    file = _file(name)
    if file.name != "__init__.py" or "iter_modules(__path__)" not in file.read_text(encoding="utf-8"):
        return set()
    return {f"{name}.{path.stem}" for path in file.parent.glob("*.py")} - {f"{name}.__init__"}


def _imported(source: str) -> set[str]:
    """The library's modules that a piece of Python imports, each with the packages that it lies in. Lines of IPython magic are passed over."""
    lines = ("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())
    found: set[str] = set()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    names = {name for name in found if name.split(".")[0] == PACKAGE.name}
    with_packages = {".".join(name.split(".")[:n]) for name in names for n in range(1, name.count(".") + 2)}
    return {name for name in with_packages if _file(name).exists()}


def _file(name: str) -> Path:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _file_digest(path: Path) -> str:
    status = path.stat()
    return _digest_of_state(path, status.st_size, status.st_mtime_ns)


@cache
def _digest_of_state(path: Path, size: int, modified: int) -> str:
    """A file's SHA-256, computed once a process for each state of the file: a model may have many gigabytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _model_files(folder: Path = paths.DATA / "doclm") -> str:
    return " ".join(f"{path.name} {_file_digest(path)}" for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".md")
