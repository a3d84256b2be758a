"""Commands with input that they cannot use: one sentence and an exit code, in whatever encoding,
and never a traceback.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_lm
from command_lines import answer
from small_notebooks import parameters, write

from gaussmark_lib import files, models, perturb
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


NOTEBOOK, GRID, KEY = "NOTEBOOK", "GRID", "KEY"  # stand for files
NONE = "KEYS/none.jsonl"  # has empty lines alone
NEW = ["key", "new", "KEYS/new", "--weight", tiny_lm.WEIGHT, "--sigma"]
DETECT = ["detect", "--key", KEY, "--text", TEXT]
STREAM = ["stream", "--key", KEY, "--text", TEXT, "--state"]
ANSWER = ["answer", "--key", KEY, "--text", TEXT, "--state"]
TRACE = ["trace", "--key", KEY, "--text", TEXT, "--codebook"]
GENERATE = ["generate", "--key", KEY, TEXT]
AUDIT = ["audit", "KEYS/new", "--key", KEY]
MANY = "9" * 30  # digits of a number
REFUSED = [
    (["run"], "Missing argument"),
    (["run", NOTEBOOK, "-p", "x"], "takes a name and a value"),
    (["run", NOTEBOOK, "-p", "x", "9"], "expected int in [0, 5]"),
    (["run", NOTEBOOK, "--param", "x", "[1"], "cannot read"),
    (["run", NOTEBOOK, "-p", "y", "1"], "no such parameter"),
    (["run", NOTEBOOK, "-p", "x", "1", "-p", "x", "2"], "given twice"),
    (["run", NOTEBOOK, "-f", "no_such"], "no preset"),
    (["run", NOTEBOOK, "--parameters", "-p", "x", "1"], "--parameters: expected no --param"),
    (["run", NOTEBOOK, "--check", "--force"], "--check: expected no --force"),
    (["run", NOTEBOOK, "--records", ""], "expected the name of a file or folder"),
    (["run", NOTEBOOK, "--records", NOTEBOOK], "no record can be kept in"),
    (["sweep", NOTEBOOK], "Missing option '--grid'"),
    (["sweep", NOTEBOOK, "--grid", "no_such"], "no grid"),
    (["sweep", NOTEBOOK, "--grid", GRID, "-p", "x", "1"], "give it once"),
    (["sweep", NOTEBOOK, "--grid", "KEYS/number.yaml"], "runs: expected a list of runs"),
    (["sweep", NOTEBOOK, "--grid", GRID, "--workers", "two"], "'--workers'"),
    (["sweep", NOTEBOOK, "--grid", GRID, "--gpus-per-run", "65"], "'--gpus-per-run'"),
    (["playground", "--theme", "grey"], "'--theme'"),
    (["key", "new", KEY, "--weight", tiny_lm.WEIGHT, "--sigma", "1"], "overwrit"),
    (["key", "new", "KEYS/new", "--weight", "w", "--sigma", "1"], "lists all"),
    ([*NEW, "one"], "'--sigma'"),
    ([*NEW, "-1"], "'--sigma'"),
    ([*NEW, "11"], "'--sigma'"),
    ([*NEW, "1", "--rank-dropped", "-1"], "expected a whole number"),
    ([*NEW, "1", "--rank-dropped", "99"], "leaves nothing"),
    (["key", "show", NOTEBOOK], "not a key file"),
    (["key", "users", "KEYS/new", "--key", KEY, "--users", MANY], "expected at most"),
    (["export", "KEYS/new", "--key", KEY, "--user", "1"], "--user and --codebook together"),
    (["export", "KEYS", "--key", KEY], "expected a new folder"),
    (["export", "K", "--key", KEY, "--user", "1", "--codebook", "9" * 5000], "expected at most"),
    (["detect", "--text", TEXT], "Missing option '--key'"),
    (["detect", "--key", KEY], "expected a text"),
    ([*DETECT, "also.txt"], "cannot read"),
    (["detect", "--key", KEY, "KEYS/empty"], "expected a folder with texts"),
    (["detect", "--key", KEY, "KEYS/latin.txt"], "expected UTF-8 text"),
    (["detect", "--key", KEY, "--text", ""], "at least one token"),
    (["detect", "--key", KEY, "--text", "half \ud83d"], "expected whole Unicode characters"),
    (["detect", "--key", KEY, "KEYS", "--out", "KEYS/out.jsonl"], "--out: expected a file that"),
    (["detect", "--key", KEY, NONE, "--out", NONE], "--out: expected a file that is not among"),
    (["detect", "--key", KEY, NONE, "--out", "KEYS/new"], "at least one text"),
    ([*DETECT, "--prompt", "\udce9"], "prompt: expected whole Unicode characters"),
    ([*DETECT, "--prompt", "a", "--prompt-file", ""], "expected one prompt"),
    ([*DETECT, "--prompt-file", "KEYS/none"], "cannot read"),
    ([*DETECT, "--prompt", "long " * 50], "expected at most 64 tokens"),
    ([*DETECT, "--format", "csv"], "--format: expected - (standard input) among the files"),
    ([*DETECT, "--column", "body"], "--column: expected a file of several texts"),
    (["detect", "--key", KEY, "-", "--column", "body"], "--column: expected a file of several"),
    (["detect", "--key", KEY, "-", "--format", "xml"], "'--format'"),
    ([*DETECT, "--share", "0.2"], "No such option: --share"),
    ([*DETECT, "--given", NONE], "No such option: --given"),
    ([*STREAM, "KEYS/s", "--given", NONE], "expected at least one text"),
    ([*STREAM, ""], "expected the name of a file"),
    ([*STREAM, "KEYS/no/such"], "cannot write"),
    ([*STREAM, "KEYS/s", "--share", "2"], "'--share'"),
    ([*STREAM[:-1], "--share", "0.2"], "Missing option '--state'"),
    ([*ANSWER, ""], "expected the name of a file"),
    ([*ANSWER, "KEYS/no/such"], "cannot write"),
    ([*ANSWER, "KEYS"], "cannot write"),
    ([*ANSWER[:-1]], "Missing option '--state'"),
    ([*ANSWER, "KEYS/s", "--normalise"], "No such option: --normalise"),
    ([*TRACE, MANY], "expected at most"),
    ([*TRACE[:-1]], "Missing option '--codebook'"),
    ([*DETECT, "--batch", MANY], "'--batch'"),
    ([*DETECT, "--out", ""], "cannot write"),
    ([*DETECT, "--level", "nan"], "'--level'"),
    (["generate", "--key", KEY], "expected a prompt"),
    (["generate", "--key", KEY, NOTEBOOK], "expected a prompt, got the name of a file"),
    (["generate", "--key", KEY, "--file", ""], "cannot read"),
    (["generate", "--key", KEY, "--file", NONE], "at least one text"),
    (["generate", "--key", KEY, "caf\udce9"], "whole Unicode characters"),
    (["generate", "--key", KEY, "long " * 30, "--tokens", "9"], "expected at most"),
    ([*GENERATE, "--tokens", MANY], "'--tokens'"),
    ([*GENERATE, "--format", "csv"], "--format: expected - (standard input) among the files"),
    ([*GENERATE, "--column", "body"], "--column: expected a file of several texts"),
    (["list", "presets", "--model", "doclm"], "--model: expected `list weights`"),
    (["list", "models", "--records", "KEYS"], "--records: expected `list` or `list records`"),
    ([*GENERATE, "--temperature", "nan"], "finite temperature"),
    ([*GENERATE, "--seed", "-1"], "'--seed'"),
    ([*AUDIT, "--texts", MANY], "'--texts'"),
    ([*AUDIT, "--keys", "2"], "'--keys'"),
    ([*AUDIT, "--keys", "9", "--scheme", "KGW-2"], "--keys: expected --scheme GaussMark"),
    (["audit", "KEYS/key", "--key", KEY], "expected a new name"),
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
    files = {
        NOTEBOOK: str(tmp_path / "demo.ipynb"),
        GRID: str(tmp_path / "grid.yaml"),
        KEY: key_file,
    }
    for path in filter(Path.is_file, tmp_path.iterdir()):
        path.chmod(0o600)  # a key that others can read is another fault
    before = sorted(tmp_path.iterdir())
    code, out, err = answer(
        capsys, *[files.get(word, word.replace("KEYS", str(tmp_path))) for word in words]
    )
    assert (code, out) == (cli.REFUSED, "")
    assert err.startswith(("gaussmark: ", "Usage: gaussmark"))
    assert complaint in err
    assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before, "nothing is left half done"


LINES = [
    b"[1]\n",
    b"null\n",
    b'"error"\n',
    b"[" * 100_000 + b"\n",
    b"\xff\n",
    b"my own notes",
    b"{}",
]
LINES += [b'{"text": "my own"}', b'{"digest": 5}\n', b'{"digest": "a", "text": "x", "error": []}\n']


@pytest.mark.parametrize("content", LINES, ids=range(len(LINES)))
def test_results_are_not_written_into_another_file(tmp_path, key_file, capsys, content):
    """Nor is what has no line's end cut off, unless it is the beginning of a result's line."""
    (tmp_path / "mine").write_bytes(content)
    words = ["detect", "--key", key_file, "--text", TEXT, "--out", str(tmp_path / "mine")]
    code, out, err = answer(capsys, *words)
    assert (code, out, "name another file" in err) == (cli.REFUSED, "", True)
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
    code, out, err = answer(capsys, "detect", "--key", key_file, "-")
    assert (code, out) == (cli.REFUSED, "")
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
    environment = os.environ | {"PYTHONPATH": str(files.ROOT)}
    command = [sys.executable, "-m", "gaussmark_lib.workbench.cli", *words]
    return subprocess.run(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        timeout=180,
        check=False,
        **options,
    )


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
        done = subprocess.run(
            [*words, str(tmp_path / name)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(files.ROOT)},
            check=False,
        )
        assert (done.returncode, done.stdout != b"") == (code, name == "key.json")
