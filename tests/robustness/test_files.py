"""Names of files that are something else, or cannot be names: every reader and writer says so at
once, and nothing is waited for or left.
"""

import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import tiny_lm
from small_notebooks import parameters, write

from gaussmark_lib import files, models, perturb
from gaussmark_lib.beyond.joint import State
from gaussmark_lib.beyond.tracing import Codebook
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.keys import Key
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.workbench import cli, runs, sweeps
from gaussmark_lib.workbench.runs import presets

WM, KEY = Watermark(tiny_lm.WEIGHT, 0.2), Key.from_seed(1)
PATIENCE = 10  # seconds
pytestmark = pytest.mark.usefixtures("no_types_checked")
LONG = "n" * 300


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder to be in, with one of everything that can have a name."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkfifo("pipe.jsonl")
    Path("folder").mkdir()
    Path("file").write_text("some text")
    Path("loop").symlink_to("loop")
    Path("endless").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        yield tmp_path


ODD = ["", "pipe", "socket", "loop", "endless", "/dev/full", LONG, "missing/x", "file/x", "\udcff"]


class WaitedError(BaseException):
    """Nobody catches it."""


@contextmanager
def patience() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise WaitedError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(call: Callable[[], object]) -> str:
    """What is wrong with it; "" for one of the library's errors. In a thread, because native code
    does not listen to signals.
    """
    found = ["waits"]

    def work() -> None:
        try:
            found[0] = f"was accepted: {call()!r}"
        except GaussMarkError as error:
            found[0] = (
                ""
                if re.search("expected|cannot|called|should be", str(error))
                and "Errno" not in str(error)
                else f"says too little: {error}"
            )
        except Exception as error:
            found[0] = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return found[0]


READERS: dict[str, Callable] = {
    "Key.load": Key.load,
    "State.load": State.load,
    "Codebook.load": lambda name: Codebook.load(name, KEY),
    "presets.read": presets.read,
    "models.load": lambda name: models.load(name, device="cpu"),
    "runs.run": lambda name: runs.run(name, progress=False),
    "sweep": lambda name: sweeps.sweep(name, {"x": [1]}, progress=False),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_at_once(place, reader):
    names = [*ODD, "folder", "file", *(Path(name) for name in ODD if name)]
    found = {
        repr(name)[:60]: wrong
        for name in names
        if (wrong := outcome(lambda name=name: READERS[reader](name)))
    }
    assert not found


WRITERS: dict[str, Callable] = {
    "Key.save": KEY.save,
    "State.save": lambda name: State().save(name),
    "Codebook.save": lambda name: Codebook(KEY, 9, 3).save(name),
    "perturb.export": lambda name: perturb.export(tiny_lm.build().model, WM, KEY, name),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(place, writer):
    before = sorted(place.rglob("*"))
    names = ["", f"folder/{LONG}", "file/x"]
    found = {
        repr(name)[:60]: wrong
        for name in names
        if (wrong := outcome(lambda name=name: WRITERS[writer](name)))
    }
    assert not found
    assert sorted(place.rglob("*")) == before


def _run(root: object) -> object:
    return runs.run("demo.ipynb", root=root, progress=False)


@pytest.mark.parametrize("door", [*READERS.values(), *WRITERS.values(), _run])
def test_what_is_no_name_is_refused(place, door):
    write(place / "demo.ipynb", parameters())
    names = [5, b"name", ["name"], "", "zero\0byte"]
    outcomes = {repr(name): outcome(partial(door, name)) for name in names}
    assert not {name: wrong for name, wrong in outcomes.items() if wrong}


def test_what_the_shell_has_opened_is_read(place):
    """``--key <(pass show key)``: a pipe, which somebody writes to."""
    reading, writing = os.pipe()
    os.write(writing, KEY.save(place / "key").read_bytes())
    os.close(writing)
    assert Key.load(f"/dev/fd/{reading}") == KEY
    os.close(reading)
    with pytest.raises(OSError, match="expected a file, found something else"):
        files.refuse_others("pipe")


T = ["--text", "Returns the mean."]
DETECT = ["detect", "--key", "KEY"]
COMMANDS = [
    ["run", "demo.ipynb", "-f"],
    ["sweep", "demo.ipynb", "--workers", "0", "--grid"],
    ["detect", *T, "--key"],
    DETECT,
    ["trace", "--key", "KEY", *T, "--codebook"],
    ["stream", "--key", "KEY", "--state", "state", *T, "--given"],
    ["generate", "A text", "--key"],
    ["key", "show"],
    ["export", "new", "--key"],
    ["audit", "card", "--key", "KEY", "--text"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_say_so_in_one_sentence(place, monkeypatch, capfd, command):
    lm, load = tiny_lm.build(), models.load
    monkeypatch.setattr(
        models, "load", lambda name, **more: lm if name == "doclm" else load(name, **more)
    )
    write(place / "demo.ipynb", parameters())
    Path("grid.yaml").write_text("x: [1, 2]")
    perturb.bind(lm.model, WM, KEY).save("key")
    before, found = sorted(place.rglob("*")), {}
    for name in [*ODD, "/dev/null"]:
        words = ["key" if word == "KEY" else word for word in [*command, name]]
        try:
            with patience():
                code = cli.main(words)
        except SystemExit as stopped:
            code = stopped.code
        except WaitedError:
            code = "waits"
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
        out, err = capfd.readouterr()
        if (
            code != cli.REFUSED
            or out
            or "Traceback" in err
            or "Errno" in err
            or not re.search("^(gaussmark|usage): ", err, re.MULTILINE)
        ):
            found[name[:40]] = (code, out, err[-200:])
    assert not found
    assert sorted(place.rglob("*")) == before
