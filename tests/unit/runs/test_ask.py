"""A run ends in a complete record or in one that says it failed; the same question is computed
once.
"""

import errno
import json
import os
import sys
from pathlib import Path

import nbformat
import pytest
from small_notebooks import code, parameters, write

from gaussmark_lib import runs
from gaussmark_lib.errors import ParameterError, RecordError
from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs import kernel
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs.notebook import Notebook

RECORDING = """
from gaussmark_lib import runs
import os, sys
runs.record({"x": x, "python": sys.executable, "folder": os.getcwd(), "pid": os.getpid(), "secret": "PASSWORD" in os.environ})
"""


@pytest.fixture(autouse=True)
def _same_library(monkeypatch):
    """The id of a question stays, whoever edits the library meanwhile."""
    monkeypatch.setattr(Notebook, "code", "tested")


@pytest.fixture
def no_kernel(monkeypatch):
    def start(*arguments, **options):
        pytest.fail("a kernel was started")

    monkeypatch.setattr(kernel, "execute", start)


def _run(notebook: Path, root: Path, **options):
    return runs.run(notebook, progress=False, root=root, **options)


def _fail(notebook: Path, root: Path) -> runs.RunFailedError:
    with pytest.raises(runs.RunFailedError) as error:
        _run(notebook, root)
    return error.value


def _folders(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.glob("*/*"))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return (
        Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True
    )


def test_a_complete_record_and_its_reuse(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSWORD", "hunter2")
    before = os.getcwd(), dict(os.environ)
    notebook = write(
        tmp_path / "demo {a}" / "demo.ipynb",
        parameters(),
        code(RECORDING),
        code("1 / 0", "nbval-skip"),
    )
    first = _run(notebook, tmp_path / "runs", params={"x": 2})
    assert (os.getcwd(), dict(os.environ)) == before
    assert not first.cached
    assert first.dir == tmp_path / "runs" / "demo" / first.id
    assert first.params == {"x": 2}
    assert first.results["x"] == 2
    assert first.results["python"] == sys.executable
    assert first.results["folder"] == str(notebook.parent)
    assert not _alive(first.results["pid"])
    assert first.status.keys() == {
        "status",
        "code",
        "started",
        "finished",
        "seconds",
        "versions",
        "platform",
        "commit",
    }
    assert first.status["code"] == "tested"
    assert first.status["versions"]["torch"].startswith("2.13.0")
    executed = nbformat.read(first.dir / "notebook.ipynb", as_version=4)
    assert [cell.metadata.tags for cell in executed.cells] == [
        ["parameters"],
        ["injected-parameters"],
        [],
        ["nbval-skip"],
    ]
    assert [cell.execution_count for cell in executed.cells] == [1, 2, 3, None]
    written = "".join(path.read_text() for path in first.dir.iterdir())
    assert "hunter2" not in written
    assert ".partial" not in written.replace(first.results["folder"], "")

    monkeypatch.setattr(kernel, "execute", lambda *a, **k: pytest.fail("a kernel was started"))
    again = _run(notebook, tmp_path / "runs", params={"x": 2})
    assert again.cached
    assert (again.dir, again.results, again.status) == (first.dir, first.results, first.status)
    assert runs.find(notebook, {"x": 2}, root=tmp_path / "runs") == again
    assert runs.find(notebook, {"x": 3}, root=tmp_path / "runs") is None
    assert _folders(tmp_path / "runs") == [f"demo/{first.id}"]


@pytest.mark.parametrize(
    "params", [{"y": 1}, {"x": "1"}, {"x": True}, {"x": 1.0}, {"x": 6}, {"x": None}]
)
def test_parameters_that_do_not_fit_start_no_kernel_and_leave_no_trace(tmp_path, no_kernel, params):
    notebook = write(tmp_path / "demo.ipynb", parameters())
    with pytest.raises(ParameterError):
        _run(notebook, tmp_path / "runs", params=params)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("x = 2\n1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(0)", "RuntimeError: a cell left the notebook before its end"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os; os._exit(1)", "DeadKernelError: Kernel died"),
    ],
)
def test_a_failing_cell_leaves_a_record_marked_failed(tmp_path, cell, reason):
    notebook = write(
        tmp_path / "demo.ipynb", parameters(), code("print(1)"), code(cell), code("print(2)")
    )
    error = _fail(notebook, tmp_path / "runs")
    first_line = cell.partition("\n")[0]
    assert str(error) == f"demo failed: in cell `{first_line}`: {reason}\nits record is {error.dir}"
    assert error.dir.name.endswith(".failed")
    assert {path.name for path in error.dir.iterdir()} == {
        "notebook.ipynb",
        "params.json",
        "status.json",
    }
    status = json.loads((error.dir / "status.json").read_text())
    assert (status["status"], status["error"], status["cell"]) == ("failed", reason, first_line)
    cells = [
        cell
        for cell in nbformat.read(error.dir / "notebook.ipynb", as_version=4).cells
        if cell.cell_type == "code"
    ]
    assert [cell.metadata.papermill["status"] for cell in cells] == [
        "completed",
        "completed",
        "failed",
        "pending",
    ]
    assert "error" in [output.output_type for output in cells[2].outputs]
    assert not cells[3].outputs
    assert records.load(error.dir) is None
    assert runs.find(notebook, root=tmp_path / "runs") is None
    assert _folders(tmp_path / "runs") == [f"demo/{error.dir.name}"]


def _fake(monkeypatch, action):
    """Runs ``action(folder)`` in place of the notebook's cells."""
    monkeypatch.setattr(kernel, "execute", lambda path, parameters, **options: action(path.parent))


def test_force_runs_again_and_replaces_only_by_a_complete_record(tmp_path, monkeypatch):
    flag = tmp_path / "flag"
    _fake(
        monkeypatch,
        lambda folder: (folder / "results.json").write_text(f'{{"n": {len(flag.read_text())}}}'),
    )
    notebook = write(tmp_path / "demo.ipynb", parameters())
    failed = _fail(notebook, tmp_path / "runs").dir
    flag.write_text("1")
    first = _run(notebook, tmp_path / "runs")
    assert first.results == {"n": 1}
    assert not failed.exists(), "what failed has been answered now"
    flag.write_text("12")
    assert _run(notebook, tmp_path / "runs").results == {"n": 1}
    assert _run(notebook, tmp_path / "runs", force=True).results == {"n": 2}
    flag.unlink()
    with pytest.raises(runs.RunFailedError):
        _run(notebook, tmp_path / "runs", force=True)
    assert _run(notebook, tmp_path / "runs").results == {"n": 2}
    assert _folders(tmp_path / "runs") == [f"demo/{first.id}", f"demo/{first.id}.failed"]


def test_the_first_of_two_processes_is_kept(tmp_path, monkeypatch):
    notebook = write(tmp_path / "demo.ipynb", parameters())

    def slow(folder):
        _fake(monkeypatch, lambda inner: (inner / "results.json").write_text('{"who": "fast"}'))
        _run(notebook, tmp_path / "runs")  # the other process, meanwhile
        (folder / "results.json").write_text('{"who": "slow"}')

    _fake(monkeypatch, slow)
    run = _run(notebook, tmp_path / "runs")
    assert run.results == {"who": "fast"}
    assert _folders(tmp_path / "runs") == [f"demo/{run.id}"]


def test_what_is_no_complete_record_is_not_mistaken_for_one(tmp_path, monkeypatch):
    notebook = write(tmp_path / "demo.ipynb", parameters())
    _fake(monkeypatch, lambda folder: (folder / "results.json").write_text("{}"))
    target = _run(notebook, tmp_path / "runs").dir
    for spoil in [
        lambda: (target / "status.json").write_text("{"),
        lambda: (target / "status.json").unlink(),
        lambda: (target / "params.json").unlink(),
        lambda: (target / "results.json").unlink(),
        lambda: (target / "status.json").write_text("[]"),
    ]:
        spoil()
        assert runs.find(notebook, root=tmp_path / "runs") is None
        assert not _run(notebook, tmp_path / "runs").cached
        assert _run(notebook, tmp_path / "runs").cached
    assert _folders(tmp_path / "runs") == [f"demo/{target.name}"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(OSError("no space left"), "failed"), (KeyboardInterrupt(), "interrupted")],
)
def test_whatever_stops_a_run_is_recorded(tmp_path, monkeypatch, error, status):
    def stop(folder):
        raise error

    _fake(monkeypatch, stop)
    notebook = write(tmp_path / "demo.ipynb", parameters())
    expected = runs.RunFailedError if status == "failed" else KeyboardInterrupt
    with pytest.raises(expected, match=f"demo {status}: "):
        _run(notebook, tmp_path / "runs")
    (folder,) = (tmp_path / "runs" / "demo").iterdir()
    assert folder.name.endswith(".failed")
    assert json.loads((folder / "status.json").read_text())["status"] == status


def test_a_damaged_record_is_run_again_and_that_is_said_once(tmp_path, monkeypatch, caplog):
    _fake(monkeypatch, lambda folder: None)
    notebook = write(tmp_path / "demo.ipynb", parameters())
    first = _run(notebook, tmp_path / "runs")
    (first.dir / "status.json").write_text("[]")
    again = _run(notebook, tmp_path / "runs")
    assert (again.cached, again.dir) == (False, first.dir)
    assert len(caplog.messages) == 1


def test_a_run_that_records_nothing_is_complete_too(tmp_path, monkeypatch):
    _fake(monkeypatch, lambda folder: None)
    notebook = write(tmp_path / "demo.ipynb", parameters())
    assert _run(notebook, tmp_path / "runs").results == {}
    assert _run(notebook, tmp_path / "runs").cached


def test_changed_weights_are_another_question(tmp_path, monkeypatch):
    _fake(monkeypatch, lambda folder: None)
    notebook = write(tmp_path / "demo.ipynb", parameters("model: str = 'doclm'"))
    weights = tmp_path / "mine" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_text("one")
    asked = {"params": {"model": str(weights.parent)}}
    first = _run(notebook, tmp_path / "runs", **asked)
    assert _run(notebook, tmp_path / "runs", **asked).dir == first.dir
    weights.write_text("two")
    again = _run(notebook, tmp_path / "runs", **asked)
    assert not again.cached
    assert again.id != first.id


@pytest.mark.parametrize("place", ["runs", "runs/demo", "runs/demo/ID"])
def test_records_that_cannot_be_kept_are_noticed_before_any_work(tmp_path, no_kernel, place):
    notebook = write(tmp_path / "demo.ipynb", parameters())
    source = notebooks.load(notebook)
    file = tmp_path / place.replace("ID", source.run_id(source.check({})))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    with pytest.raises(RecordError, match=r"no record can be kept in|found a file; move it away"):
        _run(notebook, tmp_path / "runs")
    assert file.read_text() == "mine"
    assert [
        path for path in (tmp_path / "runs").rglob("*") if path.is_file() and path != file
    ] == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left"), RecordError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_disk_that_fills_up_during_a_run_leaves_its_reason_and_no_files(
    tmp_path, monkeypatch, error, expected
):
    def fill(folder):
        def full(*arguments, **options):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "write_text", full)
        raise error

    _fake(monkeypatch, fill)
    notebook = write(tmp_path / "demo.ipynb", parameters())
    with pytest.raises(
        expected,
        match=(
            r"demo (failed|interrupted): .*\nno record of it could be kept: No space left on device"
        ),
    ):
        _run(notebook, tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []
