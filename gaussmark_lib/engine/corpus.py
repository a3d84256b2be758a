"""Documentation prose of a fixed list of packages: real English that every machine has after
set-up.

``PACKAGES`` and the versions in ``requirements.lock`` decide the corpus: two machines that
installed from the lock file have the same texts, whatever else is installed. Every string constant
of every ``.py`` file of these packages but their tests is cut into paragraphs (docstrings, and also
the strings that torch and numpy attach to compiled functions). A paragraph stays if it reads like
prose; duplicates are removed. The SHA-256 of a paragraph decides its split, so an upgrade never
moves training text into the held-out split. Git ignores this text (``data/cache``).
"""

import ast
import gc
import hashlib
import inspect
import re
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib.engine import text_files
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.files import CACHE, hidden_folder

if TYPE_CHECKING:
    import pandas as pd

# distributions that every environment has; the main sources of the embedded model's training text
# come first
PACKAGES = (
    "torch",
    "transformers",
    "scipy",
    "sympy",
    "scikit-learn",
    "pandas",
    "networkx",
    "numpy",
    "matplotlib",
    "huggingface_hub",
    "nltk",
    "peft",
    "dask",
    "openai",
    "ipython",
    "distributed",
    "accelerate",
    "tornado",
    "datasets",
    "pydantic",
)
VERSION = 2  # raise it when a rule below changes: the name of the cache depends on it
HELDOUT_SHARE = 0.05
MIN_CHARS = 80
MIN_WORD_SHARE = 0.75  # share of plain words among the pieces between white space
DOCUMENT = 6000  # a document of documentation has at least this many characters
C4_PILOT = 32  # one text in 32 of C4's validation split belongs to the pilot
C4_BUFFER = 2000  # texts that the shuffle reads ahead
SHORTEST = 500  # characters; shorter licences and Python files have hardly any text

Documents = dict[str, list[str]]  # name → paragraphs

_WORD = re.compile(r"[\"'(`]*[A-Za-z]+(?:['-][A-Za-z]+)*[`.,;:!?)\"']*$")
_RULE = re.compile(r"^[\s=\-~^*#+_.]*$")  # blank lines and the underlines of headings


def split_of(paragraph: str) -> str:
    """Return ``"heldout"`` for a fixed 5% of all possible paragraphs, by SHA-256, and ``"train"``
    for all other paragraphs.
    """
    first_bytes = hashlib.sha256(paragraph.encode()).digest()[:8]
    fraction = int.from_bytes(first_bytes, "big") / 2**64
    return "heldout" if fraction < HELDOUT_SHARE else "train"


def is_prose(paragraph: str) -> bool:
    """Return whether a reflowed paragraph reads like sentences. Code, tables and parameter lists do
    not.
    """
    if len(paragraph) < MIN_CHARS:
        return False
    if paragraph[-1] not in ".!?" or not paragraph[0].isupper():
        return False
    if ">>>" in paragraph or "\ufffd" in paragraph or text_files.SURROGATE.search(paragraph):
        return False
    pieces = paragraph.split()
    n_words = sum(bool(_WORD.match(piece)) for piece in pieces)
    return n_words >= MIN_WORD_SHARE * len(pieces)


def paragraphs(text: str) -> list[str]:
    """Return the prose paragraphs of a string. It is cut at blank lines, heading rules and changes
    of indentation, and each paragraph becomes one line.
    """
    lines_of_text = inspect.cleandoc(text).expandtabs().splitlines()
    found_paragraphs = []
    for indentation, lines in groupby(lines_of_text, key=_indentation):
        if indentation is None:
            continue
        words = " ".join(lines).split()
        paragraph = " ".join(words)
        if is_prose(paragraph):
            found_paragraphs.append(paragraph)
    return found_paragraphs


def _indentation(line: str) -> int | None:
    return None if _RULE.match(line) else len(line) - len(line.lstrip())


def paragraphs_of_file(path: Path) -> list[str]:
    """Return the prose paragraphs of all string constants of a Python file, in the file's order;
    none if the file does not parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escape sequences in other people's code
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            return []
    strings = sorted(
        (node.lineno, node.col_offset, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return [paragraph for *_, text in strings for paragraph in paragraphs(text)]


def versions() -> dict[str, str]:
    """Return name → version of all ``PACKAGES``, without the suffix of a build: torch 2.13.0 and
    2.13.0+cpu have the same documentation.
    """
    return {name: _distribution(name).version.partition("+")[0] for name in PACKAGES}


def fingerprint() -> str:
    """Return a short hash of everything that the corpus depends on: packages, versions, and the
    rules of this file.
    """
    inputs = (VERSION, HELDOUT_SHARE, versions())
    return hashlib.sha256(repr(inputs).encode()).hexdigest()[:12]


def files_of(package: str, suffix: str = ".py") -> list[tuple[str, Path]]:
    """Return (name, path) of each file of an installed package with this ending, sorted by name.
    Names start at the package's folder.

    InvalidTextError if the package is not installed.
    """
    return sorted(
        (file.as_posix(), Path(file.locate()))
        for file in _distribution(package).files
        if file.name.endswith(suffix) and ".." not in file.parts
    )


def _distribution(package: str) -> Any:
    """Return a ``metadata.Distribution``, or importlib_metadata's if that package is imported."""
    try:
        return metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise InvalidTextError(
            f"the documentation corpus needs the package {package}, which is not installed; run"
            " `make setup`"
        ) from None


def source_files(*packages: str) -> list[tuple[str, Path]]:
    """Return (name, path) of each ``.py`` file of these packages (``PACKAGES`` by default) except
    their tests, package by package.
    """
    return [
        file
        for package in packages or PACKAGES
        for file in files_of(package)
        if "/tests/" not in file[0]
    ]


def documentation(split: str) -> Documents:
    """Return the prose of a split, file by file. Small files are joined to one document until it
    has ``DOCUMENT`` characters, because 5% of a file's paragraphs rarely make a text. A document
    has the name of its first file.
    """
    prose = load().query("split == @split")
    rows_of_files = groupby(zip(prose["source"], prose["text"], strict=True), key=itemgetter(0))
    documents: Documents = {}
    name = ""
    n_chars = DOCUMENT  # so that the first file begins a document
    for file, rows in rows_of_files:
        if n_chars >= DOCUMENT or _package(file) != _package(name):
            name = file
            n_chars = 0
            documents[name] = []
        file_paragraphs = [text for _, text in rows]
        documents[name] += file_paragraphs
        n_chars += sum(len(text) for text in file_paragraphs)
    return documents


def _package(file: str) -> str:
    return file.partition("/")[0]


def licences() -> Documents:
    """Return the licence files of ``PACKAGES``, cut at blank lines."""
    return _of_files(_licence_files())


def source() -> Documents:
    """Return the Python files of two packages, cut at blank lines."""
    return _of_files(source_files("dask", "distributed"))


def _of_files(files: Iterable[tuple[str, Path]]) -> Documents:
    """Files of the same content are one document; files below ``SHORTEST`` are left out."""
    names: dict[str, str] = {}  # content → name
    for name, path in files:
        content = path.read_text(encoding="utf-8", errors="ignore")
        if len(content) >= SHORTEST:
            names.setdefault(content, name)
    return {name: _blocks(content) for content, name in names.items()}


def _blocks(content: str) -> list[str]:
    return [block.strip("\n") for block in content.split("\n\n") if block.strip()]


def joined(paragraphs: Iterable[str], source: str, min_chars: int) -> Iterator[dict]:
    """Join consecutive paragraphs by blank lines, and cut as soon as min_chars is reached. A short
    remainder is left out.
    """
    text = ""
    for paragraph in paragraphs:
        text = f"{text}\n\n{paragraph}" if text else paragraph
        if len(text) >= min_chars:
            yield {"text": text, "source": source}
            text = ""


def _licence_files() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for name, path in files_of(package, suffix=""):
            is_licence = path.name.lower().startswith(("licen", "copying", "notice"))
            if is_licence and path.suffix.lower() in ("", ".txt", ".md", ".rst"):
                yield name, path


def load() -> "pd.DataFrame":
    """Return the whole corpus as columns ``source`` (file), ``text`` (one paragraph), ``split``.

    The corpus is built once per set of package versions, from some 12,000 files in less than a
    minute on two cores, and kept in ``data/cache``.
    """
    import pandas as pd  # 0.3 s, which a run's id need not wait for

    path = CACHE / f"docs-{fingerprint()}.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with hidden_folder(path) as partial:  # before the minute of work, not after it
            complete = Path(partial) / path.name
            build().to_parquet(complete)
            complete.replace(path)  # a reader never sees half a file
    return pd.read_parquet(path)


def build() -> "pd.DataFrame":
    """Read the corpus from the installed packages (see :func:`load`)."""
    import pandas as pd
    from tqdm.auto import tqdm

    files = source_files()
    # a syntax tree is many objects without a cycle
    with ProcessPoolExecutor(initializer=gc.disable) as pool:
        paths = [path for _, path in files]
        of_files = pool.map(paragraphs_of_file, paths, chunksize=64)
        bar = tqdm(of_files, total=len(files), desc="reading documentation", unit="file")
        paragraphs_by_file = list(bar)
    rows = []
    for (name, _), texts in zip(files, paragraphs_by_file, strict=True):
        rows += [(name, text) for text in texts]
    corpus = pd.DataFrame(rows, columns=["source", "text"])
    corpus = corpus.drop_duplicates("text", ignore_index=True)
    corpus["split"] = corpus["text"].map(split_of)
    return corpus


def of_folder(folder: str | Path) -> "pd.DataFrame":
    """Return the paragraphs of each text file below a folder, with the columns of :func:`load`:
    ``source``, ``text``, ``split``.

    ``source`` is the file, and in a file of many texts also the text's number (``mine.csv:12``, see
    ``text_files``). Paragraphs are cut at blank lines and kept once. Hidden files are left out.
    """
    import pandas as pd

    root = Path(folder).expanduser()
    rows = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        for source, text in _of_file(path, name):
            rows += [(source, paragraph) for paragraph in _blocks(text)]
    corpus = pd.DataFrame(rows, columns=["source", "text"]).drop_duplicates("text")
    corpus = corpus.assign(split=corpus["text"].map(split_of)).reset_index(drop=True)
    if corpus["split"].nunique() < 2:
        raise InvalidTextError(
            f"{folder}: expected a folder with files ending in"
            f" {', '.join(text_files.IN_FOLDERS)} and with paragraphs in both splits (5% are held"
            f" out), got {len(corpus)} paragraphs; add text"
        )
    return corpus


def _of_file(path: Path, name: str) -> Iterator[tuple[str, str]]:
    """(source, text) of each text in a file; nothing for a file that is hidden or no text file."""
    if text_files.is_in_folders(name) and "/." not in f"/{name}":
        for text in text_files.items(path):
            number = text.name.removeprefix(str(path))
            yield f"{name}{number}", text.required()


def c4(split: str, n: int | None, min_chars: int, seed: int) -> Iterator[dict]:
    """Yield rows ``text, source`` of ``allenai/c4``, each read from the hub only when it is needed.

    The splits are ``"train"``, and ``"pilot"`` and ``"heldout"`` as parts of C4's validation split.
    The hash of an address decides which part; about one text in ``C4_PILOT`` belongs to the pilot.
    ``seed`` is the seed of the hub's shuffle, which reads ``C4_BUFFER`` texts ahead.
    """
    from datasets import load_dataset  # imported here: a run's id needs no torch

    from gaussmark_lib.engine.checkpoints import first_line, hub_reachable

    if n is None:
        raise InvalidTextError("c4 has 14 million texts: say how many (n=…)")
    part = "train" if split == "train" else "validation"
    try:
        if not hub_reachable():
            raise ConnectionError("the hub cannot be reached")
        stream = load_dataset("allenai/c4", "realnewslike", split=part, streaming=True)
        if split != "pilot":
            stream = stream.shuffle(seed=seed, buffer_size=C4_BUFFER)
        rows = ({"text": row["text"], "source": row["url"]} for row in stream)
        wanted = (
            row
            for row in rows
            if len(row["text"]) >= min_chars
            and (split == "train" or is_c4_pilot(row["source"]) == (split == "pilot"))
        )
        yield from islice(wanted, n)
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidTextError(
            f"cannot read allenai/c4: {first_line(error)}. Without a network,"
            " texts.load('docs') or a file of texts works"
        ) from error


def is_c4_pilot(address: str) -> bool:
    """Return whether the text of this address is reserved for the pilot."""
    first_bytes = hashlib.sha256(address.encode()).digest()[:8]
    return int.from_bytes(first_bytes, "big") % C4_PILOT == 0
