"""``gaussmark playground`` before a server runs: what it serves, and what it says where voila is
missing.
"""

import json
import sys

import pytest
from command_lines import answer

from gaussmark_lib import cli
from gaussmark_lib.cli import playground


@pytest.fixture
def served(tmp_path, monkeypatch) -> list[str]:
    """The words of the command that would run in place of this process."""
    words: list[str] = []
    monkeypatch.setattr(playground, "APP", tmp_path / "cache" / "app.ipynb")
    monkeypatch.setattr(playground.os, "execv", lambda program, command: words.extend(command))
    return words


def test_only_the_panel_is_served_and_to_this_machine_alone(served, monkeypatch, capsys):
    monkeypatch.setattr(playground.importlib.util, "find_spec", lambda name: name)
    assert answer(capsys, "playground", "--no-browser", "--port", "9000")[0] == 0
    assert served[:4] == [sys.executable, "-m", "voila", str(playground.APP)]
    assert {
        "--Voila.ip=127.0.0.1",
        "--Voila.auto_token=True",
        "--port=9000",
        "--no-browser",
    } <= set(served)
    cells = json.loads(playground.APP.read_text(encoding="utf-8"))["cells"]
    assert [cell["cell_type"] for cell in cells].count("markdown") == 1
    assert all(cell["source"][0] == "%%capture\n" for cell in cells[2:-1]), "nothing is shown"
    assert "Panel(" in "".join(cells[-1]["source"])


@pytest.mark.parametrize(("asked", "theme"), [([], "light"), (["--theme", "dark"], "dark")])
def test_the_page_has_the_theme_that_is_asked_for(
    served, monkeypatch, capsys, asked: list[str], theme: str
):
    monkeypatch.setattr(playground.importlib.util, "find_spec", lambda name: name)
    assert answer(capsys, "playground", *asked)[0] == 0
    assert f"--VoilaConfiguration.theme={theme}" in served


def test_where_voila_is_missing_one_sentence_says_what_to_do(served, monkeypatch, capsys):
    monkeypatch.setattr(playground.importlib.util, "find_spec", lambda name: None)
    code, _, err = answer(capsys, "playground")
    assert code == cli.REFUSED
    assert "make playground" in err
    assert not served
