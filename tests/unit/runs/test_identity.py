"""What names a run: the code that computes its answer, in a small library, and in the real one
against what Python itself imports.
"""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gaussmark_lib.engine import corpus
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.runs import identity

FILES = {
    "__init__": "",
    "score": "from gaussmark_lib import normal\nfrom gaussmark_lib.keys import Key\npsi = 'x @ g'",
    "normal": "import math",
    "keys": "class Key: pass",
    "unused": "import gaussmark_lib.score",
    "circle": "from gaussmark_lib import score, circle",
    "plots/__init__": "",
    "plots/bars": "from gaussmark_lib import unused\nlabel = 'power'",
    "runs/__init__": "",
    "record": "",
    "rooms/__init__": "",
    "rooms/one": "",
    "rooms/two": "def later():\n    from gaussmark_lib.rooms.one import thing",
}
NOTEBOOK = [
    "%matplotlib inline\nfrom gaussmark_lib import score, runs, record",
    "from gaussmark_lib.plots import bars\nbars.draw(score)",
]


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
    # a file system's clock may be too coarse to see the change
    os.utime(path, ns=(hash(content), hash(content)))


def _names(*sources: str, folder: Path = Path("nowhere")) -> set[str]:
    names = (identity._imported(identity._tree(source), folder) for source in sources)
    closed = identity._closure(set().union(*names), folder)
    return {name.removeprefix("gaussmark_lib").removeprefix(".") for name in closed} - {""}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = 1", set()),
        ("import gaussmark_lib", set()),
        ("import numpy, gaussmark_lib.keys as k", {"keys"}),
        ("from gaussmark_lib import score", {"score", "normal", "keys"}),
        ("def f():\n    from gaussmark_lib import normal", {"normal"}),
        ("from gaussmark_lib import circle", {"circle", "score", "normal", "keys"}),
        ("from gaussmark_lib import plots, runs\nfrom gaussmark_lib.plots import bars", set()),
        ("from gaussmark_lib.rooms import two", {"rooms", "rooms.one", "rooms.two"}),
        ("# from gaussmark_lib import score\n'from gaussmark_lib import score'", set()),
        ("!ls\n%timeit x\nfrom gaussmark_lib import normal", {"normal"}),
        (
            "files = !ls",
            {"score", "normal", "keys", "unused", "circle", "rooms", "rooms.one", "rooms.two"},
        ),
    ],
)
def test_the_modules_that_a_cell_uses(library, source, names):
    assert _names(source) == names


def test_modules_beside_the_notebook_are_followed(library, tmp_path):
    _write(tmp_path / "helper.py", "from inner.deep import x\nimport json")
    _write(tmp_path / "inner/deep.py", "from gaussmark_lib import normal")
    assert _names("import helper", folder=tmp_path) == {"helper", "inner.deep", "normal"}
    before = identity.of_sources(["import helper"], tmp_path)
    _write(tmp_path / "inner/deep.py", "not python")
    assert identity.of_sources(["import helper"], tmp_path) != before


COMMENTED = '''"""Another docstring."""
from gaussmark_lib import normal  # a comment

from gaussmark_lib.keys import (
    Key,
)

psi = "x @ g"
'''


@pytest.mark.parametrize(
    ("file", "content", "changes"),
    [
        ("gaussmark_lib/plots/bars.py", "from gaussmark_lib import unused\nlabel = 'p'", False),
        ("gaussmark_lib/record.py", "x = 1", False),
        ("gaussmark_lib/unused.py", "psi = 1", False),
        ("gaussmark_lib/notes.txt", "not code", False),
        ("gaussmark_lib/score.py", COMMENTED, False),
        ("gaussmark_lib/keys.py", 'class Key:\n    """Said."""\n    pass', False),
        ("data/doclm/README.md", "a model card", False),
        ("data/doclm/.cache/lock", "of a download", False),
        ("gaussmark_lib/score.py", FILES["score"].replace("x @ g", "g @ x"), True),
        ("gaussmark_lib/score.py", FILES["score"].replace("psi", "phi"), True),
        ("gaussmark_lib/score.py", FILES["score"] + "\nimport gaussmark_lib.unused", True),
        ("gaussmark_lib/keys.py", "class Key:\n    def pass_(self): pass", True),
        ("gaussmark_lib/normal.py", "import cmath", True),
        ("gaussmark_lib/__init__.py", "x = 1", True),
        ("data/doclm/model.safetensors", "Weights", True),
        ("data/doclm/nested/model.safetensors", "weights", True),
    ],
)
def test_only_what_computes_the_answer_changes_the_version(library, file, content, changes):
    before = identity.of_sources(NOTEBOOK, library.parent)
    _write(library.parent / file, content)
    assert (identity.of_sources(NOTEBOOK, library.parent) != before) is changes


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("def f(x):\n    'Said.'\n    return x+1", "def f(x):\n\n  return (x + 1)", True),
        ("x = 1", "x = True", False),
        ("x = -1", "x = 1", False),
        ("a + b", "a * b", False),
        ("f(a)(b)", "f(a, b)", False),
        ("f([a], b)", "f([a, b])", False),
        ("f(x=a)", "f(a)", False),
        ("if a:\n    b\nc", "if a:\n    b\n    c", False),
        ("def f(a, *, b): c", "def f(a, b): c", False),
    ],
)
def test_what_changes_no_value_is_left_out_of_a_syntax_tree(one, other, same):
    codes = [list(identity._code(identity._tree(source))) for source in (one, other)]
    assert (codes[0] == codes[1]) is same


def test_a_large_file_is_read_once_for_each_of_its_states(tmp_path, monkeypatch):
    model, read, digest = tmp_path / "mine", [], identity.hashlib.file_digest
    _write(model / "model.safetensors", "weights")
    _write(model / "config.json", "{}")
    keep = lambda file, kind: read.append(Path(file.name).name) or digest(file, kind)  # noqa: E731
    monkeypatch.setattr(identity.hashlib, "file_digest", keep)
    versions = [identity.of_inputs({"model": str(model)}, tmp_path) for _ in range(3)]
    assert versions[0] == versions[1] == versions[2]
    assert len(read) == 2
    _write(model / "config.json", "[]")
    assert identity.of_inputs({"model": "mine"}, tmp_path) != versions[0]
    assert read[2:] == ["config.json"]


def test_another_file_of_the_same_size_and_time_is_another(tmp_path):
    file, other = tmp_path / "mine" / "model.safetensors", tmp_path / "other"
    _write(file, "weights")
    before = identity.of_inputs({"model": "mine"}, tmp_path)
    _write(other, "Weights")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    assert identity.of_inputs({"model": "mine"}, tmp_path) != before


@pytest.mark.parametrize(
    "value", ["doclm", "", "\0", "owner/name", "x" * 5000, "\ud800", "~nobody/x", None, 3]
)
def test_values_that_name_no_file_have_no_digest(tmp_path, value):
    assert identity.of_inputs({"model": value, "text": value}, tmp_path) == {}


def test_the_files_that_parameters_declared_as_paths_name_are_part_of_the_question(tmp_path):
    _write(tmp_path / "notes.txt", "one")
    _write(tmp_path / "state" / "weights.bin", "two")
    given = dict.fromkeys(["checkpoint", "prompt_file", "prompt", "save_folder"], "notes.txt")
    before = identity.of_inputs(given | {"model": str(tmp_path / "state")}, tmp_path)
    assert before.keys() == {"checkpoint", "prompt_file", "model"}
    _write(tmp_path / "state" / "weights.bin", "longer")
    after = identity.of_inputs(given | {"model": "state"}, tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"model"}


def test_the_judge_that_the_environment_names_is_an_input_and_its_secret_is_not(monkeypatch):
    inputs = []
    for name, value in [("URL", "https://a"), ("MODEL", "a"), ("KEY", "secret")]:
        monkeypatch.setenv(f"GAUSSMARK_JUDGE_{name}", value)
        inputs.append(identity.of_inputs({"judge": "endpoint"}, Path()))
    assert inputs[0] != inputs[1] == inputs[2]
    assert "secret" not in str(inputs)
    assert identity.of_inputs({"judge": "itself"}, Path()) == {}


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
    with pytest.raises(ParameterError, match=r"a file that can be read.*Permission denied"):
        identity.of_inputs({"model": "mine"}, tmp_path)


def test_the_closure_has_every_module_that_a_loaded_one_takes_something_from():
    importlib.import_module("gaussmark_lib.schemes.cache")
    package = identity.PACKAGE.parent
    for name, module in list(sys.modules.items()):
        if name.startswith("gaussmark_lib") and not identity._is_outside(name):
            values = [
                value
                for value in vars(module).values()
                if not (isinstance(value, ModuleType) and value.__name__.startswith(f"{name}."))
            ]
            used = {
                str(getattr(value, "__module__", None) or getattr(value, "__name__", None))
                for value in values
            }
            used = {
                n for n in used if n.startswith("gaussmark_lib") and not identity._is_outside(n)
            }
            assert used <= identity._closure({name}, package).keys(), name
    assert "gaussmark_lib.schemes.synthid" in identity._closure({"gaussmark_lib.schemes"}, package)


def test_the_corpus_s_packages_are_part_of_what_reads_it(library, monkeypatch):
    _write(library / "engine/corpus.py", "")
    _write(library / "texts.py", "def load():\n    from gaussmark_lib.engine import corpus")
    versions = []
    for fingerprint in ("as installed", "as installed", "after an upgrade"):
        monkeypatch.setattr(corpus, "fingerprint", lambda fingerprint=fingerprint: fingerprint)
        sources = "from gaussmark_lib import texts", "from gaussmark_lib import score"
        versions.append([identity.of_sources([source], library.parent) for source in sources])
    assert versions[0] == versions[1]
    assert [old == new for old, new in zip(versions[1], versions[2], strict=True)] == [False, True]
