"""What names a run: the code that computes its answer, in a small library, and in the real one
against what Python itself imports.
"""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gaussmark_lib import docs
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.runs import identity

FILES = {
    "__init__": "",
    "score": (
        "from gaussmark_lib import normal\nfrom gaussmark_lib.keys import Key, nothing\npsi = 'x"
        " @ g'"
    ),
    "normal": "import math",
    "keys": "class Key: pass",
    "unused": "import gaussmark_lib.score",
    "circle": "from gaussmark_lib import score, circle",
    "plots/__init__": "",
    "plots/bars": "from gaussmark_lib import unused\nlabel = 'power'",
    "runs/__init__": "",
    "schemes/__init__": "for module in iter_modules(__path__): import_module(module)",
    "schemes/first": "from gaussmark_lib import normal",
    "rooms/__init__": "",
    "rooms/one": "",
    "rooms/two": "def later():\n    from gaussmark_lib.rooms.one import thing",
}


@pytest.fixture
def library(tmp_path, monkeypatch) -> Path:
    """A library of a few modules, and the embedded model's folder."""
    package, model = tmp_path / "gaussmark_lib", tmp_path / "data" / "doclm"
    for name, source in FILES.items():
        _write(package / f"{name}.py", source)
    _write(model / "model.safetensors", "weights")
    monkeypatch.setattr(identity, "PACKAGE", package)
    monkeypatch.setattr(identity, "MODEL", model)
    return package


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def _names(*sources: str) -> set[str]:
    found = identity._closure(set().union(*map(identity._imported, sources)))
    return {name.removeprefix("gaussmark_lib").removeprefix(".") for name in found} - {""}


NOTEBOOK = [
    "%matplotlib inline\nfrom gaussmark_lib import score, runs",
    "from gaussmark_lib.plots import bars\nbars.draw(score)",
]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = 1", set()),
        ("import gaussmark_lib", set()),
        ("import numpy, gaussmark_lib.keys as k", {"keys"}),
        ("from gaussmark_lib import score", {"score", "normal", "keys"}),
        ("from gaussmark_lib.keys import Key", {"keys"}),
        ("def f():\n    from gaussmark_lib import normal", {"normal"}),
        ("from gaussmark_lib import circle", {"circle", "score", "normal", "keys"}),
        ("from gaussmark_lib.plots import bars", set()),
        ("from gaussmark_lib import plots, runs", set()),
        ("from gaussmark_lib import schemes", {"schemes", "schemes.first", "normal"}),
        ("from gaussmark_lib.rooms import two", {"rooms", "rooms.one", "rooms.two"}),
        ("# from gaussmark_lib import score\n'from gaussmark_lib import score'", set()),
        ("!ls\n%timeit x\nfrom gaussmark_lib import normal", {"normal"}),
    ],
)
def test_the_modules_that_a_cell_uses(library, source, names):
    assert _names(source) == names


def test_a_cell_that_is_not_python_uses_the_whole_library(library):
    everything = {name.removesuffix("/__init__").replace("/", ".") for name in FILES} - {
        "__init__",
        "plots",
        "plots.bars",
        "runs",
    }
    assert _names("files = !ls\nfrom gaussmark_lib import normal") == everything


@pytest.mark.parametrize(
    ("file", "content", "changes"),
    [
        (
            "gaussmark_lib/plots/bars.py",
            "from gaussmark_lib import unused\nlabel = 'power at level 0.05'",
            False,
        ),
        ("gaussmark_lib/runs/__init__.py", "# another", False),
        ("gaussmark_lib/unused.py", "psi = 1", False),
        ("gaussmark_lib/notes.txt", "not code", False),
        ("data/doclm/README.md", "a model card", False),
        ("data/doclm/.cache/lock", "of a download", False),
        ("gaussmark_lib/score.py", FILES["score"].replace("x @ g", "g @ x"), True),
        ("gaussmark_lib/normal.py", "import cmath", True),
        ("gaussmark_lib/__init__.py", "x = 1", True),
        ("data/doclm/model.safetensors", "Weights", True),
        ("data/doclm/nested/model.safetensors", "weights", True),
    ],
)
def test_only_what_computes_the_answer_changes_the_version(library, file, content, changes):
    before = identity.of_sources(NOTEBOOK)
    _write(library.parent / file, content)
    os.utime(
        library.parent / file, ns=(1, 1)
    )  # a file system's clock may be too coarse to see the change
    assert (identity.of_sources(NOTEBOOK) != before) is changes


def test_a_new_import_or_a_renamed_file_changes_the_version(library):
    versions = [
        identity.of_sources(NOTEBOOK),
        identity.of_sources([*NOTEBOOK, "import gaussmark_lib.unused"]),
    ]
    _write(library / "score.py", FILES["score"] + "\nimport gaussmark_lib.unused")
    versions.append(identity.of_sources(NOTEBOOK))
    assert len(set(versions)) == 3
    schemes = identity.of_module("gaussmark_lib.schemes")
    (library / "schemes" / "first.py").rename(library / "schemes" / "second.py")
    assert identity.of_module("gaussmark_lib.schemes") != schemes


def test_a_large_file_is_read_once_for_each_of_its_states(tmp_path, monkeypatch):
    model, read = tmp_path / "mine", []
    _write(model / "model.safetensors", "weights")
    _write(model / "config.json", "{}")
    monkeypatch.setattr(
        identity.hashlib,
        "file_digest",
        lambda file, kind, digest=identity.hashlib.file_digest: (
            read.append(file.name) or digest(file, kind)
        ),
    )
    versions = [identity.of_inputs({"model": str(model)}, tmp_path) for _ in range(3)]
    assert versions[0] == versions[1] == versions[2]
    assert versions[0].keys() == {"model"}
    assert len(read) == 2
    _write(model / "config.json", "[]")
    os.utime(model / "config.json", ns=(1, 1))
    assert identity.of_inputs({"model": "mine"}, tmp_path) != versions[0]
    assert [Path(name).name for name in read[2:]] == ["config.json"]


@pytest.mark.parametrize(
    "value", ["doclm", "", "organisation/name", None, 3, ["a.jsonl"], "missing.jsonl", "docs"]
)
def test_values_that_name_no_local_file_have_no_digest(tmp_path, value):
    assert identity.of_inputs({"model": value, "text": value, "other": value}, tmp_path) == {}


@pytest.mark.parametrize(
    "value", [".", "..", "./", "/", "~", "", "\0", "x" * 5000, "\ud800", "~nobody/x"]
)
def test_texts_that_are_no_names_of_files(tmp_path, value):
    assert identity.of_inputs({"prompt": value, "prompts": [value]}, tmp_path) == {}


def test_whatever_a_parameter_names_is_part_of_the_question_but_what_it_writes(tmp_path):
    _write(tmp_path / "notes.txt", "one")
    _write(tmp_path / "state" / "weights.bin", "two")
    asked = {
        "prompt_file": "notes.txt",
        "checkpoint": str(tmp_path / "state"),
        "texts": ["notes.txt", "docs", "state"],
        "save_to": "state",
        "n": 3,
    }
    before = identity.of_inputs(asked, tmp_path)
    assert before.keys() == {"prompt_file", "checkpoint", "texts"}
    _write(tmp_path / "state" / "weights.bin", "longer")
    after = identity.of_inputs(asked, tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"checkpoint", "texts"}


def test_another_file_of_the_same_size_and_time_is_another(tmp_path):
    file, other = tmp_path / "mine" / "model.safetensors", tmp_path / "other"
    _write(file, "weights")
    before = identity.of_inputs({"model": "mine"}, tmp_path)
    _write(other, "Weights")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    assert identity.of_inputs({"model": "mine"}, tmp_path) != before


def test_what_cannot_be_read_or_is_too_much_is_refused(tmp_path, monkeypatch):
    _write(tmp_path / "mine" / "model.safetensors", "weights")
    _write(tmp_path / "mine" / "config.json", "{}")
    with monkeypatch.context() as patch:
        patch.setattr(identity, "MOST_FILES", 1)
        with pytest.raises(ParameterError, match="at most 1 files"):
            identity.of_inputs({"model": "mine"}, tmp_path)

    def fail(path, *rest):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(
        ParameterError, match=r"config\.json: expected a file that can be read.*Permission denied"
    ):
        identity.of_inputs({"model": "mine"}, tmp_path)


def test_the_closure_has_every_module_that_a_loaded_one_takes_something_from():
    importlib.import_module("gaussmark_lib.schemes.cache")
    for name, module in list(sys.modules.items()):
        if (
            name.startswith("gaussmark_lib")
            and not identity._is_outside(name)
            and hasattr(module, "__file__")
        ):
            values = [
                value
                for value in vars(module).values()
                if not (isinstance(value, ModuleType) and value.__name__.startswith(f"{name}."))
            ]
            used = {
                getattr(value, "__module__", None) or getattr(value, "__name__", None)
                for value in values
            }
            used = {
                other
                for other in used
                if str(other).startswith("gaussmark_lib") and not identity._is_outside(other)
            }
            assert used <= identity._closure({name}), name
    assert "gaussmark_lib.schemes.synthid" in identity._closure({"gaussmark_lib.schemes"})


def test_what_reads_the_corpus_is_of_its_packages_versions_and_nothing_else_is(
    library, monkeypatch
):
    _write(library / "docs.py", "")
    _write(library / "texts.py", "def load():\n    from gaussmark_lib import docs")
    reads, computes = ["from gaussmark_lib import texts"], ["from gaussmark_lib import score"]
    versions = []
    for fingerprint in ("as installed", "as installed", "after an upgrade"):
        monkeypatch.setattr(docs, "fingerprint", lambda fingerprint=fingerprint: fingerprint)
        versions.append((identity.of_sources(reads), identity.of_sources(computes)))
    assert versions[0] == versions[1]
    assert versions[2][0] != versions[0][0], "its corpus is another one"
    assert versions[2][1] == versions[0][1]
