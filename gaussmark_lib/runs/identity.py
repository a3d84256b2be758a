"""What computes a notebook's answer, as short hashes: the code that it uses, and the model and text
files that it reads.

    of_sources(cells)  = SHA-256 over the files of all library modules that the cells import,
    directly or not, without ``OUTSIDE``,
                         and over the files of the embedded model;
                         where they read the corpus, over the versions of its packages too
    of_inputs(values)  = SHA-256 of each local file and folder that a parameter names: a model,
    texts, a checkpoint

A changed formula therefore discards the records of the notebooks that use it, and of no others; a
changed figure discards none. Each file is read once a process for each of its states (size, times
of change, place on the disk), because a model may have many gigabytes.
"""

import ast
import hashlib
import os
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from gaussmark_lib import paths
from gaussmark_lib.errors import ParameterError

PACKAGE = paths.ROOT / "gaussmark_lib"
MODEL = paths.DATA / "doclm"
OUTSIDE = (
    "plots",
    "widgets",
    "cli",
    "runs",
    "sweeps",
)  # they show, call or keep an answer, and compute nothing of it
JUDGE = "GAUSSMARK_JUDGE_URL", "GAUSSMARK_JUDGE_MODEL"  # of quality.judge; its key is a secret
WRITTEN = "save_"  # begins the names of parameters that say where a notebook writes
CORPUS = "gaussmark_lib.docs"  # what it reads is installed with other packages
MOST_FILES = 10_000  # in a folder that a parameter names


def of_sources(sources: Iterable[str]) -> str:
    """The version of the code that these pieces of Python import from the library, and of the
    embedded model; 12 hexadecimal digits.
    """
    return _of_modules(set().union(*(_imported(source) for source in sources)))


def of_module(name: str) -> str:
    """The same of one module of the library and what it imports."""
    return _of_modules({name})


def of_inputs(values: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Parameter name → hash of the files and folders that its value, or a value in its list, names
    relative to ``folder``.

    Others are left out, and so are parameters called ``save_…``: what a run writes is not what it
    reads.
    """
    named = {
        name: _named(value, folder)
        for name, value in values.items()
        if not name.startswith(WRITTEN)
    }
    try:
        return {name: " ".join(map(_of_path, found)) for name, found in named.items() if found}
    except OSError as error:
        raise ParameterError(
            f"{error.filename}: expected a file that can be read, because its content is part of"
            f" the run's id: {error.strerror}"
        ) from None


def elsewhere(sources: Iterable[str], values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What else an answer comes from, where it does: modules that lie beside the notebook, and the
    judge that the environment names.
    """
    beside, waiting = {}, set().union(*map(_top, sources))
    while waiting:
        name = waiting.pop()
        files = (
            sorted((folder / name).rglob("*.py"))
            if (folder / name).is_dir()
            else [folder / f"{name}.py"]
        )
        for file in (file for file in files if file.is_file() and str(file) not in beside):
            beside[str(file)] = _digest(*_state(file))
            waiting |= _top(file.read_text(encoding="utf-8", errors="replace"))
    found = {"beside": sorted(beside.values())} if beside else {}
    return found | (
        {"judge": [os.environ.get(name) for name in JUDGE]}
        if values.get("judge") == "endpoint"
        else {}
    )


def _top(source: str) -> set[str]:
    """The packages that a piece of Python imports, but the library."""
    return {name.split(".")[0] for name in _names(source) or ()} - {PACKAGE.name}


def _named(value: Any, folder: Path) -> list[Path]:
    """The files and folders that a value names. A dot, a slash or a tilde alone is a text: nobody
    means all that lies there.
    """
    texts = [
        item
        for item in (value if isinstance(value, list) else [value])
        if isinstance(item, str) and "\0" not in item
    ]
    found = [folder / os.path.expanduser(text) for text in texts if text.strip("./~")]
    return [path for path in found if os.path.isfile(path) or os.path.isdir(path)]


def _of_path(path: Path) -> str:
    if path.is_file():
        return _digest(*_state(path))
    if len(list(islice(path.rglob("*"), MOST_FILES + 1))) > MOST_FILES:
        raise ParameterError(
            f"{path}: expected a folder of at most {MOST_FILES:,} files, because they are part of"
            " the run's id; name a smaller one"
        )
    return _of_folder(path)


def _of_modules(names: set[str]) -> str:
    digest, modules = hashlib.sha256(_of_folder(MODEL).encode()), _closure(names)
    for name in sorted(modules):
        digest.update(f"{name}\0{_digest(*_state(_file(name)))}\0".encode())
    if CORPUS in modules:
        from gaussmark_lib import docs  # it imports pandas

        digest.update(docs.fingerprint().encode())
    return digest.hexdigest()[:12]


def _of_folder(folder: Path) -> str:
    """Of all files in a model's folder, without model cards and hidden files (a download leaves its
    own there).
    """
    files = {
        path.relative_to(folder): path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".md"
    }
    shown = sorted(name for name in files if not any(part.startswith(".") for part in name.parts))
    return hashlib.sha256(
        "".join(f"{name.as_posix()}\0{_digest(*_state(files[name]))}\0" for name in shown).encode()
    ).hexdigest()


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
            waiting |= _imports(*state) | {
                f"{name}.{path.stem}" for path in beside if path.stem != "__init__"
            }
            waiting -= closed
    return closed


def _is_outside(name: str) -> bool:
    return name.split(".")[1:2] in [[place] for place in OUTSIDE]


def _imported(source: str) -> set[str]:
    """The library's modules that a piece of Python imports, each with the packages that it lies in.

    A cell that is not plain Python, for instance because of IPython's ``!``, counts as importing
    the whole library.
    """
    if (found := _names(source)) is None:
        return {
            ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
                ".__init__"
            )
            for path in PACKAGE.rglob("*.py")
        }
    parts = [name.split(".") for name in found if name.split(".")[0] == PACKAGE.name]
    with_packages = {".".join(words[:n]) for words in parts for n in range(1, len(words) + 1)}
    return {name for name in with_packages if _file(name).exists()}


def _names(source: str) -> set[str] | None:
    """All that a piece of Python imports, by its full name; None where it is not plain Python."""
    lines = ("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())
    try:
        tree = ast.parse("\n".join(lines))
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ):  # the last three: zero bytes, and expressions that are nested too deeply
        return None
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _file(name: str) -> Path:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _state(path: Path) -> tuple[Path, tuple[int, ...]]:
    """A copy with the old file's size and time still has a time of change (ctime) and a place
    (inode) of its own.
    """
    status = path.stat()
    return path, (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@cache
def _digest(path: Path, state: tuple[int, ...]) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _imports(path: Path, state: tuple[int, ...]) -> frozenset[str]:
    return frozenset(_imported(path.read_text(encoding="utf-8")))


@cache
def _loads_its_folder(path: Path, state: tuple[int, ...]) -> bool:
    """Whether a package imports all files beside it, as ``schemes`` does, so that adding a file
    registers a scheme.
    """
    return path.name == "__init__.py" and "iter_modules(__path__)" in path.read_text(
        encoding="utf-8"
    )
