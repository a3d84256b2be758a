"""``make mutants`` runs on its own; here only that each fault still fits the library, and that the
script can tell what it finds.
"""

import mutants
import pytest
from mutants import ROOT, Mutant

TABLE = mutants.read()
FAULTS_BEFORE = 294  # in the Python table that this one replaced


@pytest.mark.parametrize("mutant", TABLE, ids=lambda mutant: f"{mutant.file}, {mutant.why}")
def test_it_fits_the_library(mutant):
    path = ROOT / mutant.file
    source = path.read_text(encoding="utf-8") if path.exists() else ""
    if mutant.gone:
        assert mutant.old not in source, "it has a place again: delete its `gone`"
    else:
        assert mutant.applied(source) != source
    assert mutant.why
    assert len(set(mutant.tests)) == len(mutant.tests) > 0
    assert [name for name in mutant.tests if not (ROOT / "tests" / name).is_file()] == []


def test_no_fault_is_lost_and_each_is_another():
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in TABLE}) == len(TABLE)
    assert len(TABLE) >= FAULTS_BEFORE


def test_words_choose_files_and_what_is_gone_does_not_run():
    names = [
        "gaussmark_lib/kgw.py",
        "gaussmark_lib/score.py",
        "gaussmark_lib/keys.py",
        "notebooks/gaussmark_experiments/kgw_baseline.py",
    ]
    table = [Mutant(name, "a", "b", ("test_x.py",)) for name in names]
    gone = Mutant("gaussmark_lib/score.py", "c", "d", ("test_x.py",), gone="its line left")
    assert mutants.chosen([*table, gone], []) == table
    assert mutants.chosen([*table, gone], ["kgw", "score"]) == [table[0], table[1], table[3]]
    assert mutants.chosen(table, ["notebooks", "gaussmark_lib"]) == []


@pytest.mark.parametrize("source", ["x = 2", "x = 1\ny = 1"])
def test_a_mutant_that_does_not_fit_is_an_error(source):
    with pytest.raises(LookupError, match=r"expected exactly one ' = 1', found [02]"):
        Mutant("kgw.py", " = 1", " = 2", ()).applied(source)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one function; ``tests/test_one.py`` is the caller's."""
    for name, text in {
        "notebooks/x.ipynb": "{}",
        "gaussmark_lib/__init__.py": "",
        "gaussmark_lib/one.py": "def f(): return 1",
        "tests/test_one.py": "",
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "LINKED", [])
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # seconds a process, for nothing here
    (tmp_path / "copies").mkdir()
    return tmp_path


FAULT = Mutant("gaussmark_lib/one.py", "return 1", "return 2", ("test_one.py",), "two for one")


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("from gaussmark_lib.nothing import f", "broke"),
        ("import time; time.sleep(60)", "timed out"),
    ],
)
def test_a_test_file_that_gives_no_answer_is_no_catch(checkout, monkeypatch, test, outcome):
    head = "from gaussmark_lib.one import f\n"
    (checkout / "tests" / "test_one.py").write_text(head + test)
    if outcome == "timed out":
        monkeypatch.setattr(mutants, "TIMEOUT", 3)
    assert mutants.outcome(FAULT, checkout / "copies") == outcome


@pytest.mark.parametrize(
    ("test", "status", "printed"),
    [
        ("assert f() == 1", 0, "1 of 1 caught; survivors: none"),
        ("f()", 1, "0 of 1 caught; survivors: gaussmark_lib/one.py, two for one (survived)"),
        ("assert f() == 3", 1, "without any mutant, the tests should pass: test_one.py"),
    ],
)
def test_the_exit_status_tells_whether_the_tests_notice(
    checkout, monkeypatch, capsys, test, status, printed
):
    text = f"from gaussmark_lib.one import f\ndef test(): {test}"
    (checkout / "tests" / "test_one.py").write_text(text)
    monkeypatch.setattr(mutants, "read", lambda: [FAULT])
    assert mutants.main(["one"]) == status
    assert capsys.readouterr().out.splitlines()[-1] == printed
