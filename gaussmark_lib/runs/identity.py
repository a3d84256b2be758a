"""What computes a notebook's answer, as short hashes: the code that it uses, and the model and text
files that it reads.

    of_sources(cells)  = SHA-256 over the code of all modules that the cells import, directly or
                         not, of the library (but those in ``OUTSIDE``) and beside the notebook;
                         over the files of the embedded model; and, where the corpus is read, over
                         its packages' versions
    of_inputs(values)  = SHA-256 of each file and folder that a parameter in ``PATHS`` names

So a changed formula discards the records of the notebooks that use it, and of no others; a changed
figure, comment, docstring or line break discards none. A file is read once per process and state
(size, times of change, inode), because a model may have many gigabytes.
"""

import ast
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

from gaussmark_lib import files
from gaussmark_lib.engine import corpus
from gaussmark_lib.errors import ParameterError

PACKAGE = files.ROOT / "gaussmark_lib"
MODEL = files.DATA / "doclm"
# rooms and modules that show, call or keep an answer, and compute nothing of it
OUTSIDE = re.compile(r"gaussmark_lib\.(plots|widgets|cli|runs|record|sweeps)\b")
# parameters that may name a file or folder, relative to the notebook's, which the notebook reads
PATHS = ("model", "text", "folder", "checkpoint")
PATH_ENDINGS = ("_file", "_folder", "_path")  # of other such parameters
JUDGE = "GAUSSMARK_JUDGE_URL", "GAUSSMARK_JUDGE_MODEL"  # of quality.judge; its key is a secret
CORPUS = "gaussmark_lib.engine.corpus"
MOST_FILES = 10_000  # in a folder that a parameter names

State = tuple[int, ...]  # of a file: size, times of change, inode


def is_path(name: str) -> bool:
    """Whether the parameter of this name may name a file or folder that a notebook reads."""
    return name in PATHS or (name.endswith(PATH_ENDINGS) and not name.startswith("save_"))


def of_sources(sources: Iterable[str], folder: Path) -> str:
    """The version of the code that these pieces of Python import from the library and from
    ``folder``, and of the embedded model; 12 hexadecimal digits.
    """
    names = set().union(*(_imported(_tree(source), folder) for source in sources))
    modules = _closure(names, folder)
    parts = [_of_path(MODEL), *(f"{name}\0{modules[name]}" for name in sorted(modules))]
    return _hash(parts + [corpus.fingerprint()] * (CORPUS in modules))[:12]


def of_inputs(values: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Parameter name → hash of the file or folder that its value names relative to ``folder``; and
    the judge, where it is one that the environment names.
    """
    named = {
        name: folder / os.path.expanduser(value)
        for name, value in values.items()
        if is_path(name) and isinstance(value, str) and value and "\0" not in value
    }
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
    if len(inside := list(islice(path.rglob("*"), MOST_FILES + 1))) > MOST_FILES:
        raise ParameterError(
            f"{path}: expected a folder of at most {MOST_FILES:,} files, because they are part of"
            " the run's id; name a smaller one"
        )
    names = {file.relative_to(path): file for file in inside if file.is_file()}
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
    """The modules of the library, and of ``folder``, that a piece of Python imports, each with the
    packages that it lies in. Without a syntax tree, the whole library.
    """
    names = set()
    if tree is None:
        paths = (path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py"))
        names = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths}
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
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
    path = (PACKAGE if first == PACKAGE.name else folder / first).joinpath(*rest)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _state(path: Path) -> tuple[Path, State]:
    """A copy with the old file's size and time still has its own ctime and inode."""
    status = path.stat()
    return path, (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@cache
def _digest(path: Path, state: State) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
