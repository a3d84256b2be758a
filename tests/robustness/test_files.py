"""Names of files that are something else, or cannot be names: every reader and writer says so at
once, and nothing is waited for or left.
"""

import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
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


@pytest.fixture
def patience() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    yield
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
            says_why = re.search("expected|cannot|called|should be", str(error))
            is_clear = says_why and "Errno" not in str(error)
            found[0] = "" if is_clear else f"says too little: {error}"
        except Exception as error:
            found[0] = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return found[0]


def faults(door: Callable, names: list) -> dict[str, str]:
    """What is wrong with the answers to these names."""
    outcomes = {repr(name)[:60]: outcome(partial(door, name)) for name in names}
    return {name: wrong for name, wrong in outcomes.items() if wrong}


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
    assert faults(READERS[reader], names) == {}


WRITERS: dict[str, Callable] = {
    "Key.save": KEY.save,
    "State.save": lambda name: State().save(name),
    "Codebook.save": lambda name: Codebook(KEY, 9, 3).save(name),
    "perturb.export": lambda name: perturb.export(tiny_lm.build().model, WM, KEY, name),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(place, writer):
    before = sorted(place.rglob("*"))
    assert faults(WRITERS[writer], ["", f"folder/{LONG}", "file/x"]) == {}
    assert sorted(place.rglob("*")) == before


def _run(root: object) -> object:
    return runs.run("demo.ipynb", root=root, progress=False)


@pytest.mark.parametrize("door", [*READERS.values(), *WRITERS.values(), _run])
def test_what_is_no_name_is_refused(place, door):
    write(place / "demo.ipynb", parameters())
    assert faults(door, [5, b"name", ["name"], "", "zero\0byte"]) == {}


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
PLAIN = "run demo.ipynb -f", "sweep demo.ipynb --workers 0 --grid", "key show", "export new --key"
COMMANDS = [
    *map(str.split, PLAIN),
    ["detect", *T, "--key"],
    DETECT,
    ["trace", "--key", "KEY", *T, "--codebook"],
    ["stream", "--key", "KEY", "--state", "state", *T, "--given"],
    ["generate", "A text", "--key"],
    ["audit", "card", "--key", "KEY", "--text"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_say_so_in_one_sentence(place, monkeypatch, capfd, patience, command):
    lm, load = tiny_lm.build(), models.load
    monkeypatch.setattr(
        models, "load", lambda name, **more: lm if name == "doclm" else load(name, **more)
    )
    write(place / "demo.ipynb", parameters())
    Path("grid.yaml").write_text("x: [1, 2]")
    perturb.bind(lm.model, WM, KEY).save("key")
    before = sorted(place.rglob("*"))
    for name in [*ODD, "/dev/null"]:
        signal.alarm(PATIENCE)
        code = cli.main(["key" if word == "KEY" else word for word in [*command, name]])
        out, err = capfd.readouterr()
        assert (code, out) == (cli.REFUSED, ""), name
        assert re.search("^(gaussmark|usage): ", err, re.MULTILINE), name
        assert not re.search("Traceback|Errno", err), (name, err)
    assert sorted(place.rglob("*")) == before
