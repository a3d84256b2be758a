"""Commands with input that they cannot use: one sentence and an exit code, in whatever encoding,
and never a traceback.
"""

import io
import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_lm
from command_lines import answer, refusal
from small_notebooks import parameters, write

from gaussmark_lib import models, perturb
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import cli

WM = Watermark(tiny_lm.WEIGHT, 0.2)
TEXT = "Returns the mean of the values."


@pytest.fixture
def key_file(tmp_path, monkeypatch) -> str:
    """A key of the tiny model, which stands for whatever ``--model`` names."""
    lm = tiny_lm.build()
    monkeypatch.setattr(models, "load", lambda name: lm)
    return str(perturb.bind(lm.model, WM, Key.from_seed(1)).save(tmp_path / "key.json"))


TABLE = tomllib.loads(Path(__file__).with_name("refused_commands.toml").read_text(encoding="utf-8"))
REFUSED = [(shlex.split(command), complaint) for command, complaint in TABLE["refused"]]
DETECT = ["detect", "--key", "KEY", "--text"]
REFUSED += [  # what no file of UTF-8 can hold, or should
    ([*DETECT, "half \ud83d"], "expected whole Unicode characters"),
    ([*DETECT, TEXT, "--prompt", "\udce9"], "prompt: expected whole Unicode characters"),
    (["generate", "--key", "KEY", "caf\udce9"], "whole Unicode characters"),
    (["export", "K", "--key", "KEY", "--user", "1", "--codebook", "9" * 5000], "expected at most"),
]


@pytest.mark.parametrize(
    ("words", "complaint"),
    REFUSED,
    ids=[" ".join(words).encode("ascii", "replace").decode()[:70] for words, _ in REFUSED],
)
def test_what_cannot_be_done_is_said_in_one_sentence(tmp_path, key_file, capsys, words, complaint):
    write(tmp_path / "demo.ipynb", parameters())
    (tmp_path / "grid.yaml").write_text("x: [1, 2]")
    (tmp_path / "number.yaml").write_text("runs: 5")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.jsonl").write_text("\n\n")
    meant = {
        "NOTEBOOK": str(tmp_path / "demo.ipynb"),
        "GRID": str(tmp_path / "grid.yaml"),
        "KEY": key_file,
        "WEIGHT": tiny_lm.WEIGHT,
        "TEXT": TEXT,
        "MANY": "9" * 30,
        "LONG": "long " * 50,
    }
    for path in filter(Path.is_file, tmp_path.iterdir()):
        path.chmod(0o600)  # a key that others can read is another fault
    before = sorted(tmp_path.iterdir())
    typed = [meant.get(word, word.replace("KEYS", str(tmp_path))) for word in words]
    err = refusal(capsys, *typed)
    assert err.startswith(("gaussmark: ", "Usage: gaussmark"))
    assert complaint in err
    assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before, "nothing is left half done"


LINES = [b"[1]\n", b"null\n", b'"error"\n', b"[" * 100_000 + b"\n", b"\xff\n", b"my notes", b"{}"]
LINES += [b'{"text": "my own"}', b'{"digest": 5}\n', b'{"digest": "a", "text": "x", "error": []}\n']


@pytest.mark.parametrize("content", LINES, ids=range(len(LINES)))
def test_results_are_not_written_into_another_file(tmp_path, key_file, capsys, content):
    """Nor is what has no line's end cut off, unless it is the beginning of a result's line."""
    (tmp_path / "mine").write_bytes(content)
    words = ["detect", "--key", key_file, "--text", TEXT, "--out", str(tmp_path / "mine")]
    assert "name another file" in refusal(capsys, *words)
    assert (tmp_path / "mine").read_bytes() == content


def test_names_and_messages_cannot_control_the_terminal(tmp_path, key_file, capsys):
    """Nor can a name begin a line, which would look like an answer."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "\x1b[2Ja\nb.txt").write_text(TEXT)
    (tmp_path / "texts" / "\u202eempty\r.txt").touch()
    code, out, err = answer(capsys, "detect", "--key", key_file, str(tmp_path / "texts"))
    assert (code, len(out.splitlines()), len(err.splitlines())) == (cli.answers.PARTLY, 1, 2)
    assert r"\x1b[2Ja\nb.txt: " in out
    assert r"\u202eempty\r.txt: " in err
    for words in (
        ["generate", "--key", key_file, "--tokens", "3", "--file", str(tmp_path / "texts")],
        ["key", "show", "\x1b[31m"],
        ["\x1b[31m"],
    ):
        _, out, err = answer(capsys, *words)
        assert not {"\x1b", "\r", "\u202e"} & set(out + err)


@pytest.mark.parametrize(
    "content",
    [b"caf\xe9", b"T\x00e\x00", b"\xff\xfeT\x00e", b"\xed\xa0\x80"],
    ids=["latin-1", "UTF-16 without its mark", "half of UTF-16", "a surrogate"],
)
def test_standard_input_that_is_no_utf_8(key_file, capsys, typed, content):
    typed(content)
    err = refusal(capsys, "detect", "--key", key_file, "-")
    assert "standard input: cannot read the file: expected UTF-8 text" in err


def test_standard_input_is_utf_8_whatever_the_terminal_is(key_file, capsys, typed, monkeypatch):
    lm = models.load("tiny")
    monkeypatch.setattr(
        type(lm), "encode", lambda self, text: [3 + ord(letter) % 90 for letter in text]
    )
    typed("naïve\r\nψ".encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b""), encoding="ascii"))
    code, out, _ = answer(capsys, "detect", "--key", key_file, "-", "--json")
    assert (code, json.loads(out)["n_tokens"]) == (0, 7)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_without_the_letter_psi(key_file, monkeypatch, encoding):
    screen = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(screen, encoding=encoding))
    assert cli.main(["detect", "--key", key_file, "--text", TEXT]) == 0
    assert ("ψ = " if encoding == "utf-8" else r"\u03c8 = ") in screen.getvalue().decode(encoding)


def _command(words: list[str], **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "gaussmark_lib.workbench.cli", *words]
    options |= {"stderr": subprocess.PIPE, "text": True, "timeout": 180}
    return subprocess.run(command, check=False, **options)


def _closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def _full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize(
    ("opened", "words", "said"),
    [(_closed_pipe, ["key", "show", "key"], 0), (_full_disk, ["--help"], 1)],
)
def test_an_answer_that_cannot_be_written(tmp_path, opened: Callable[[], int], words, said):
    """A reader who has seen enough, as ``head``, is told nothing."""
    Key.from_seed(1).save(tmp_path / "key")
    handle = opened()
    done = _command(words, stdout=handle, cwd=tmp_path)
    os.close(handle)
    assert done.returncode == cli.FAILED
    lines = done.stderr.splitlines()
    assert len(lines) == said
    assert all(line.startswith("gaussmark: ") for line in lines)


@pytest.mark.slow
def test_a_shell_may_have_closed_the_standard_streams(tmp_path):
    """No file gets their numbers, and what is said is said to nobody."""
    Key.from_seed(1).save(tmp_path / "key.json")
    script = (
        "import os, sys; from gaussmark_lib.workbench import cli;"
        " code = cli.main(sys.argv[1:]); os.fstat(2); sys.exit(code)"
    )
    words = ["bash", "-c", '"$@" 0<&- 2>&-', "bash", sys.executable, "-c", script, "key", "show"]
    for name, code in (("key.json", 0), ("none.json", cli.REFUSED)):
        command = [*words, str(tmp_path / name)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        assert (done.returncode, done.stdout != b"") == (code, name == "key.json")
