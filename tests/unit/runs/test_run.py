"""A run ends in a complete record or in one that says it failed; the same question is computed
once.
"""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import tiny_lm
from small_notebooks import code, parameters, write

from gaussmark_lib import files
from gaussmark_lib.engine import checkpoints
from gaussmark_lib.errors import GaussMarkError, ParameterError
from gaussmark_lib.workbench import record, runs
from gaussmark_lib.workbench.runs import folder as records
from gaussmark_lib.workbench.runs import forks, kernel
from gaussmark_lib.workbench.runs import notebook as notebooks

pytestmark = pytest.mark.usefixtures("same_library")
RECORDING = """
from gaussmark_lib.workbench import record
import os, sys
record.record({"x": x, "python": sys.executable, "folder": os.getcwd(), "pid": os.getpid()})
"""
FORKED = """
import os, sys
from gaussmark_lib.workbench import record
torch = sys.modules.get("torch")
record.record({"threads": torch and torch.get_num_threads(), "pid": os.getpid()})
record.record({"group": os.getpgid(0)})
record.record({"folder": os.getcwd(), "named": os.environ.get("NAMED"), "main": __name__})
"""


@pytest.fixture
def cells(monkeypatch):
    """What runs in place of a notebook's cells: ``cells(action)``, which gets the folder."""

    def put(action):
        monkeypatch.setattr(kernel, "execute", lambda path, *_, **__: action(path.parent))

    put(lambda folder: pytest.fail("a kernel was started"))
    return put


@pytest.fixture
def demo(tmp_path) -> Path:
    return write(tmp_path / "demo.ipynb", parameters())


def _run(notebook, root: Path, params=None, **options):
    return runs.run(notebook, params, progress=False, root=root / "runs", **options)


def _folders(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "runs" / "demo").iterdir())


def _recording(value):
    return lambda folder: (folder / "results.json").write_text(json.dumps({"is": value}))


def test_a_complete_record_and_its_reuse(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSWORD", "hunter2")
    before = os.getcwd(), dict(os.environ)
    source = [parameters(), code(RECORDING), code("1 / 0", "nbval-skip")]
    notebook = write(tmp_path / "demo {a}" / "demo.ipynb", *source)
    first = _run(notebook, tmp_path, {"x": 2})
    assert (os.getcwd(), dict(os.environ)) == before
    assert not first.cached
    assert first.params == {"x": 2}
    pid = first.results.pop("pid")
    assert first.results == {"x": 2, "python": sys.executable, "folder": str(notebook.parent)}
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert first.status["versions"].keys() == {"python", *records.PACKAGES}
    about = "status code inputs weights started finished seconds versions platform commit"
    assert first.status.keys() == set(about.split())
    executed = nbformat.read(first.dir / "notebook.ipynb", as_version=4)
    assert [cell.execution_count for cell in executed.cells] == [1, 2, 3, None]
    written = "".join(path.read_text() for path in first.dir.iterdir())
    assert "hunter2" not in written
    assert ".partial" not in written

    monkeypatch.setattr(kernel, "execute", lambda *a, **k: pytest.fail("a kernel was started"))
    again = _run(notebook, tmp_path, {"x": 2})
    assert (again.cached, again.dir, again.status) == (True, first.dir, first.status)
    assert _folders(tmp_path) == [first.id]


def test_a_record_names_the_commit_at_its_start(tmp_path, cells, demo, monkeypatch):
    checkout = tmp_path / "checkout"
    monkeypatch.setattr(files, "ROOT", checkout)
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]

    def git(*words):
        subprocess.run(["git", "-C", str(checkout), *who, *words], check=True, capture_output=True)

    checkout.mkdir()
    git("init")
    (checkout / "file").write_text("old")
    git("add", "file")
    git("commit", "-m", "before the run")
    at_start = records.commit()

    def changed(folder):
        (checkout / "file").write_text("new")
        git("commit", "-am", "while it ran")

    cells(changed)
    assert _run(demo, tmp_path, {"x": 2}).status["commit"] == at_start != records.commit()
    (checkout / "file").write_text("not committed")
    cells(lambda folder: git("checkout", "file"))
    dirty = _run(demo, tmp_path, {"x": 3})
    assert dirty.status["commit"] == f"{records.commit()}-dirty"


def test_a_copy_without_git_is_told_its_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ROOT", tmp_path)
    monkeypatch.delenv("GAUSSMARK_COMMIT", raising=False)
    assert records.commit() is None
    monkeypatch.setenv("GAUSSMARK_COMMIT", "0123abc")
    assert records.commit() == "0123abc"


@pytest.mark.parametrize("fails", [False, True])
def test_a_record_names_the_weights_by_their_hash(tmp_path, cells, demo, monkeypatch, fails):
    lm = replace(tiny_lm.build(), file_sha256="of the file")

    def loading(folder):
        monkeypatch.setenv(record.RUN_DIR, str(folder))
        record.weights(lm)
        record.weights(replace(lm, name="other", file_sha256=None))
        assert not fails, "the notebook stops"

    cells(loading)
    try:
        kept = _run(demo, tmp_path, {"x": 2}).dir
    except records.RunFailedError as error:
        kept = error.dir
    digest = checkpoints.digest(lm.model)
    status = json.loads((kept / "status.json").read_text())
    assert status["weights"] == {
        lm.name: {"parameters": digest, "file": "of the file"},
        "other": {"parameters": digest, "file": None},
    }
    assert not (kept / record.WEIGHTS).exists()


def test_parameters_that_do_not_fit_start_no_kernel_and_leave_no_trace(tmp_path, cells, demo):
    for params in ({"y": 1}, {"x": "1"}, {"x": True}, {"x": 1.0}, {"x": 6}):
        with pytest.raises(ParameterError):
            _run(demo, tmp_path, params)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("x = 2\n1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(0)", "RuntimeError: a cell left the notebook before its end"),
    ],
)
def test_a_failing_cell_leaves_a_record_marked_failed(tmp_path, cell, reason):
    source = [parameters(), code("print(1)"), code(cell)]
    with pytest.raises(runs.RunFailedError) as caught:
        _run(write(tmp_path / "demo.ipynb", *source), tmp_path)
    first_line, folder = cell.partition("\n")[0], caught.value.dir
    where = f"in cell `{first_line}`: {reason}"
    assert str(caught.value) == f"demo failed: {where}\nits record is {folder}"
    files = ["notebook.ipynb", "params.json", "results.json", "status.json"]
    assert sorted(os.listdir(folder)) == files
    status = json.loads((folder / "status.json").read_text())
    assert (status["status"], status["error"], status["cell"]) == ("failed", reason, first_line)
    if "1 / 0" in cell:
        assert caught.value.traceback.splitlines()[-1] == status["error"], "without colours"
    assert _folders(tmp_path) == [folder.name]


def test_force_runs_again_and_replaces_only_by_a_complete_record(tmp_path, cells, demo):
    cells(_recording(1))
    first = _run(demo, tmp_path)
    cells(_recording(2))
    assert _run(demo, tmp_path).results == {"is": 1}
    assert _run(demo, tmp_path, force=True).results == {"is": 2}
    cells(lambda folder: 1 / 0)
    with pytest.raises(runs.RunFailedError):
        _run(demo, tmp_path, force=True)
    assert _run(demo, tmp_path).results == {"is": 2}
    assert _folders(tmp_path) == [first.id, f"{first.id}.failed"]
    cells(_recording(3))
    _run(demo, tmp_path, force=True)
    assert _folders(tmp_path) == [first.id], "the failure has been answered"


def test_of_two_that_ask_the_same_at_once_the_first_record_stays(tmp_path, cells, demo):
    def slower(folder):
        cells(_recording("faster"))
        _run(demo, tmp_path)
        _recording("slower")(folder)

    cells(slower)
    assert _run(demo, tmp_path).results == {"is": "faster"}


def test_a_damaged_record_is_run_again(tmp_path, cells, demo):
    cells(lambda folder: None)
    first = _run(demo, tmp_path)
    assert first.results == {}, "a run that records nothing is complete too"
    (first.dir / "status.json").write_text("{")
    assert not _run(demo, tmp_path).cached
    assert _run(demo, tmp_path).cached
    assert _folders(tmp_path) == [first.id]


@pytest.mark.parametrize("place", ["runs", "runs/demo"])
def test_records_that_cannot_be_kept_are_noticed_before_any_work(tmp_path, cells, demo, place):
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(GaussMarkError, match="no record can be kept in"):
        _run(demo, tmp_path)
    assert [path for path in (tmp_path / "runs").rglob("*") if path != file] == []


def test_a_disk_that_fills_up_leaves_no_files(tmp_path, monkeypatch, cells, demo):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill(folder):
        monkeypatch.setattr(Path, "write_text", full)
        full()

    cells(fill)
    with pytest.raises(GaussMarkError, match=r"no record can be kept in .*: No space left"):
        _run(demo, tmp_path)
    assert _folders(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are forks on Linux only")
def test_every_numbered_notebook_may_be_a_fork():
    assert all(forks.may_fork(path.read_text()) for path in notebooks.numbered())


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are forks on Linux only")
def test_a_forked_kernel_is_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(forks, "_of_server", None)  # whatever variables another test began with
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = write(tmp_path / "demo.ipynb", parameters(), code(FORKED))
    env, plain = {"NAMED": "yes"}, {"PYTHONUTF8": "1"}  # which only a new process reads
    for x, more, threads in ((1, {}, 1), (2, {"OMP_NUM_THREADS": "3"}, 3), (3, plain, None)):
        result = _run(notebook, tmp_path, {"x": x}, env=env | more).results
        assert result.pop("pid") == result.pop("group") != os.getpgid(0)
        expected = {"folder": str(tmp_path), "named": "yes", "main": "__main__"}
        assert result == expected | {"threads": threads}
