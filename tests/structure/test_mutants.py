"""``make mutants`` runs on its own; here only that each mutant still fits the library, and that the
script can tell what it finds.
"""

import mutants
import pytest
from mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}, {mutant.fault}")
def test_it_fits_the_library(mutant):
    source = (ROOT / mutant.path).read_text(encoding="utf-8")
    assert mutant.applied(source) != source
    assert mutant.tests
    assert all((ROOT / name).exists() for name in mutant.tests)


def test_there_are_enough_and_each_is_another():
    assert len(set(MUTANTS)) == len(MUTANTS) >= 120
    assert mutants.ELSEWHERE.keys() <= {mutant.file for mutant in MUTANTS}


@pytest.mark.parametrize("source", ["x = 2", "x = 1\ny = 1"])
def test_a_mutant_that_does_not_fit_is_an_error(source):
    with pytest.raises(LookupError, match=r"expected exactly one ' = 1', found [02]"):
        Mutant("kgw.py", "a fault", " = 1", " = 2").applied(source)


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("def test(): assert f() == 1", "caught"),
        ("def test(): f()", "survived"),
        ("from gaussmark_lib.nothing import f", "broke"),
        ("import time; time.sleep(60)", "timed out"),
    ],
)
def test_outcomes(tmp_path, monkeypatch, test, outcome):
    head = "from gaussmark_lib.one import f\n"
    for name, text in {
        "notebooks/x.ipynb": "{}",
        "gaussmark_lib/__init__.py": "",
        "gaussmark_lib/one.py": "def f(): return 1",
        "tests/test_one.py": head + test,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'"
    )
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "LINKED", [])
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # seconds a process, for nothing here
    if outcome == "timed out":
        monkeypatch.setattr(mutants, "TIMEOUT", 3)
    monkeypatch.setitem(mutants.ELSEWHERE, "one.py", "test_one.py")
    (tmp_path / "copies").mkdir()
    assert (
        mutants._outcome(
            Mutant("one.py", "two for one", "return 1", "return 2"), tmp_path / "copies"
        )
        == outcome
    )
