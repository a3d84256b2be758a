"""The library's imports keep the contracts in pyproject.toml, also inside functions, and it raises
its own errors.
"""

import re

import pytest
from importlinter.cli import lint_imports

from gaussmark_lib.files import EXPERIMENTS, ROOT

PLAIN = re.compile(r"\braise (ValueError|TypeError|Exception|AssertionError)\b")


@pytest.fixture(autouse=True)
def _loggers_stay(monkeypatch):
    """import-linter's set-up of logging would silence this library's loggers for later tests."""
    monkeypatch.setattr("importlinter.cli.logging_config.dictConfig", lambda _: None)


def test_the_core_imports_no_room_and_nothing_imports_in_a_circle(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == 0, capsys.readouterr()


def test_the_library_raises_its_own_errors():
    files = [*(ROOT / "gaussmark_lib").rglob("*.py"), *EXPERIMENTS.rglob("*.py")]
    assert [path for path in files if PLAIN.search(path.read_text(encoding="utf-8"))] == []
