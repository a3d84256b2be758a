"""What names a run: the code that computes its answer, in a small library, and in the real one
against what Python itself imports.
"""

import hashlib
import importlib
import os
import sys
from pathlib import Path

import pytest
from small_notebooks import parameters, write

from gaussmark_lib.engine import corpus, packages
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.workbench.runs import notebook as notebooks

PACKAGES = ["__init__", "workbench/__init__", "workbench/plots/__init__", "rooms/__init__"]
FILES = dict.fromkeys([*PACKAGES, "workbench/record", "rooms/one"], "") | {
    "score": "from gaussmark_lib import normal\nfrom gaussmark_lib.keys import Key\npsi = 'x @ g'",
    "normal": "import math",
    "keys": "class Key: pass",
    "unused": "import gaussmark_lib.score",
    "circle": "from gaussmark_lib import score, circle",
    "workbench/plots/bars": "from gaussmark_lib import unused\nlabel = 'power'",
    "rooms/two": "def later():\n    from gaussmark_lib.rooms.one import thing",
}
EXPERIMENTS = {
    "__init__": "",
    "robustness": "from gaussmark_experiments.quality import x",
    "quality": "from gaussmark_lib import normal",
}
OURS = ("gaussmark_lib", "gaussmark_experiments")
TRIED = {f"gaussmark_experiments{name}" for name in ("", ".robustness", ".quality")}
MODULES = {"score", "normal", "keys", "unused", "circle", "rooms", "rooms.one", "rooms.two"}
ALL = MODULES | {"workbench"} | TRIED
NOTEBOOK = [
    "%matplotlib inline\nfrom gaussmark_lib import score",
    "from gaussmark_lib.workbench import record\nimport helper",
]


@pytest.fixture
def library(tmp_path, monkeypatch) -> Path:
    """A library of a few modules, the embedded model's folder, and a module beside the notebook."""
    for name, source in FILES.items():
        _write(tmp_path / "gaussmark_lib" / f"{name}.py", source)
    tried = tmp_path / "notebooks" / "gaussmark_experiments"
    for name, source in EXPERIMENTS.items():
        _write(tried / f"{name}.py", source)
    _write(tmp_path / "data/doclm/model.safetensors", "weights")
    _write(tmp_path / "helper.py", "from inner.deep import x\nimport json")
    _write(tmp_path / "inner/deep.py", "from gaussmark_lib.workbench.plots import bars")
    monkeypatch.setattr(notebooks, "PACKAGE", tmp_path / "gaussmark_lib")
    monkeypatch.setattr(notebooks, "EXPERIMENTS", tried)
    monkeypatch.setattr(notebooks, "MODEL", tmp_path / "data" / "doclm")
    return tmp_path


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    # a file system's clock may be too coarse to see the change
    os.utime(path, ns=(hash(content), hash(content)))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = 1", set()),
        ("import numpy, gaussmark_lib.keys as k", {"keys"}),
        ("def f():\n    from gaussmark_lib import normal", {"normal"}),
        ("from gaussmark_lib import circle", {"circle", "score", "normal", "keys"}),
        ("from gaussmark_lib.workbench.plots import bars", {"workbench"}),
        ("from gaussmark_lib.rooms import two", {"rooms", "rooms.one", "rooms.two"}),
        ("from gaussmark_lib import Key, score", {"score", "normal", "keys"}),
        ("from gaussmark_lib import Key as K", {"keys"}),
        ("import gaussmark_lib as gm", {"keys"}),
        ("from gaussmark_experiments import robustness", TRIED | {"normal"}),
        ("# from gaussmark_lib import score\n'from gaussmark_lib import score'", set()),
        ("!ls\n%timeit x\nfrom gaussmark_lib import normal", {"normal"}),
        ("files = !ls", ALL),
        ("import helper", {"helper", "inner.deep", "workbench"}),
    ],
)
def test_the_modules_that_a_cell_uses(library, source, names):
    closed = notebooks._closure(notebooks._imported(notebooks._tree(source), library), library)
    assert {name.removeprefix("gaussmark_lib").removeprefix(".") for name in closed} - {""} == names


COMMENTED = '''"""Another docstring."""
from gaussmark_lib import normal

from gaussmark_lib.keys import (
    Key,
)

psi = "x @ g"
'''


@pytest.mark.parametrize(
    ("file", "content", "changes"),
    [
        ("gaussmark_lib/workbench/plots/bars.py", "label = 'p'", False),
        ("gaussmark_lib/workbench/record.py", "x = 1", False),
        ("gaussmark_lib/unused.py", "psi = 1", False),
        ("gaussmark_lib/score.py", COMMENTED, False),
        ("gaussmark_lib/keys.py", 'class Key:\n    """Said."""\n    pass', False),
        ("data/doclm/README.md", "a model card", False),
        ("data/doclm/.cache/lock", "of a download", False),
        ("gaussmark_lib/score.py", FILES["score"].replace("x @ g", "g @ x"), True),
        ("gaussmark_lib/score.py", FILES["score"] + "\nimport gaussmark_lib.unused", True),
        ("gaussmark_lib/normal.py", "import cmath", True),
        ("inner/deep.py", "not python", True),
        ("data/doclm/nested/model.safetensors", "weights", True),
    ],
)
def test_only_what_computes_the_answer_changes_the_version(library, file, content, changes):
    before = notebooks.code_of(NOTEBOOK, library)
    _write(library / file, content)
    assert (notebooks.code_of(NOTEBOOK, library) != before) is changes


def test_a_large_file_is_read_once_per_state_and_a_copy_is_another(tmp_path, monkeypatch):
    model, read, digest = tmp_path / "mine", [], notebooks.hashlib.file_digest
    _write(model / "model.safetensors", "weights")
    _write(model / "config.json", "{}")
    keep = lambda file, kind: read.append(Path(file.name).name) or digest(file, kind)  # noqa: E731
    monkeypatch.setattr(notebooks.hashlib, "file_digest", keep)
    versions = [notebooks.inputs_of({"model": str(model)}, tmp_path) for _ in range(3)]
    assert versions[0] == versions[1] == versions[2]
    assert len(read) == 2
    other, file = tmp_path / "other", model / "model.safetensors"
    other.write_text("Weights")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    assert notebooks.inputs_of({"model": "mine"}, tmp_path) != versions[0]
    assert read[2:] == ["model.safetensors"], "of the same size and time"


@pytest.mark.parametrize("value", ["doclm", "", "\0", "x" * 5000, "\ud800", "~nobody/x", None, 3])
def test_values_that_name_no_file_have_no_digest(tmp_path, value):
    assert notebooks.inputs_of({"model": value, "text": value}, tmp_path) == {}


def test_files_that_parameters_name_as_paths_and_the_judge_are_part_of_the_question(
    tmp_path, monkeypatch
):
    _write(tmp_path / "notes.txt", "one")
    names = ["checkpoint", "prompt_file", "prompt", "save_folder", "model"]
    given = dict.fromkeys(names, "notes.txt") | {"judge": "endpoint"}
    inputs = []
    for name, value in [("URL", "https://a"), ("MODEL", "a"), ("KEY", "secret")]:
        monkeypatch.setenv(f"GAUSSMARK_JUDGE_{name}", value)
        inputs.append(notebooks.inputs_of(given, tmp_path))
    assert inputs[0].keys() == {"checkpoint", "prompt_file", "model", "judge"}
    assert inputs[0] != inputs[1] == inputs[2]


def test_what_cannot_be_read_is_refused(tmp_path, monkeypatch):
    _write(tmp_path / "mine" / "model.safetensors", "weights")
    _write(tmp_path / "mine" / "config.json", "{}")

    def fail(path, *rest):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(ParameterError, match=r"a file that can be read.*Permission denied"):
        notebooks.inputs_of({"model": "mine"}, tmp_path)


def test_the_closure_has_every_module_that_a_loaded_one_takes_something_from():
    importlib.import_module("gaussmark_experiments.kgw_baseline")
    folder = notebooks.PACKAGE.parent
    for name, module in list(sys.modules.items()):
        if not name.startswith(OURS) or notebooks.OUTSIDE.match(name):
            continue
        homes = {str(getattr(value, "__module__", None)) for value in vars(module).values()}
        used = {n for n in homes if n.startswith(OURS) and not notebooks.OUTSIDE.match(n)}
        assert used <= notebooks._closure({name}, folder).keys(), name
    assert notebooks.CORPUS in notebooks._closure({"gaussmark_lib.texts"}, folder)


def test_the_corpus_s_packages_are_part_of_what_reads_it(library, monkeypatch):
    _write(library / "gaussmark_lib/engine/corpus.py", "")
    _write(library / "gaussmark_lib/texts.py", "from gaussmark_lib.engine import corpus")
    versions = []
    for fingerprint in ("as installed", "as installed", "after an upgrade"):
        monkeypatch.setattr(corpus, "fingerprint", lambda fingerprint=fingerprint: fingerprint)
        sources = "from gaussmark_lib import texts", "from gaussmark_lib import score"
        versions.append([notebooks.code_of([source], library) for source in sources])
    assert versions[0] == versions[1]
    assert [old == new for old, new in zip(versions[1], versions[2], strict=True)] == [False, True]


def test_a_packaged_model_and_text_are_inputs_by_their_files(tmp_path, monkeypatch):
    file = tmp_path / "x.gguf"
    file.write_bytes(b"weights")
    monkeypatch.setattr(packages, "model_file", lambda model: file)
    monkeypatch.setattr(packages, "text_path", lambda text: file)
    known = hashlib.sha256(b"weights").hexdigest()
    asked = notebooks.inputs_of({"model": "smollm2", "text": "news", "prompt": "news"}, tmp_path)
    assert asked == {"model": known, "text": known}
    assert notebooks.inputs_of({"model": "doclm", "text": "docs"}, tmp_path) == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "docs"),
        ({"model": "other"}, "speeches"),
        ({"model": "other", "text": "docs"}, "docs"),
        ({"model": "other", "text": "news"}, "news"),
    ],
)
def test_another_model_reads_speeches_unless_one_is_named(given, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "is_installed", lambda entry: True)
    lines = 'model: str = "doclm"\ntext: str = "docs"'
    notebook = notebooks.load(write(tmp_path / "x.ipynb", parameters(lines)))
    assert notebook.check(given)["text"] == expected
