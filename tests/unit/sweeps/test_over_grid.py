"""A sweep ends in the same files whatever happened to it: with real workers, real kernels and real signals.

The notebook waits in a cell x as long as there is a file ``hold-<x>``, so that a test strikes when it means to.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import pandas as pd
import psutil
import pytest
from small_notebooks import code, parameters, write

from gaussmark_lib import paths, sweeps
from gaussmark_lib.errors import ClusterError
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.sweeps import places

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

PARAMETERS = """
x: int = 1
words: list[str] = []
"""
WORK = """
import os, time
from pathlib import Path
import pandas as pd
from gaussmark_lib import runs
folder = Path({folder!r})
(folder / f"pid-{{x}}-{{os.getpid()}}").touch()
while (folder / f"hold-{{x}}").exists():
    time.sleep(0.05)
if (folder / f"fail-{{x}}").exists():
    raise RuntimeError(f"no {{x}}")
if (folder / f"kill-{{x}}").exists():
    os.kill(os.getppid(), 9)
runs.record({{"square": x * x, "x": 10 * x, "deep": {{"list": [x, 0.5]}}, "gpu": os.environ.get("CUDA_VISIBLE_DEVICES")}})
runs.save_table(pd.DataFrame({{"n": [1, 2], "x": [x / 2, x / 3]}}), "rows")
"""
GRID = {"x": [4, 1, 3], "words": [["a", "b"]]}


class Place:
    """A folder with a notebook, and what its cells do and leave there."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.notebook = write(folder / "demo.ipynb", parameters(PARAMETERS), code(WORK.format(folder=str(folder))))
        (folder / "grid.yaml").write_text(json.dumps(GRID))
        self.started: list[subprocess.Popen] = []

    def set(self, what: str, *cells: int) -> None:
        for x in cells:
            (self.folder / f"{what}-{x}").touch()

    def unset(self, what: str) -> None:
        for path in self.folder.glob(f"{what}-*"):
            path.unlink()

    def kernels(self, x: int | str = "*") -> list[int]:
        return [int(path.name.split("-")[-1]) for path in self.folder.glob(f"pid-{x}-*")]

    def sweep(self, root: Path, grid: dict | None = None, **options) -> sweeps.Sweep:
        return sweeps.sweep(self.notebook, grid or GRID, root=root, progress=False, **options)

    def start(self, root: Path, *words: str) -> subprocess.Popen:
        """The command in a session of its own, as a terminal would start it."""
        command = [sys.executable, "-m", "gaussmark_lib.cli", "sweep", str(self.notebook), "--grid", str(self.folder / "grid.yaml")]
        environment = os.environ | {"PYTHONPATH": str(paths.ROOT)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.started.append(subprocess.Popen([*command, "--records", str(root), *words], env=environment, start_new_session=True, **pipes))
        return self.started[-1]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return Place(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(autouse=True)
def _tidy(place) -> Iterator[None]:
    yield
    for process in place.started:  # by a test that failed
        if process.poll() is None:
            process.terminate()
            process.communicate()
    place.started.clear()
    for what in ("hold", "fail", "kill", "pid"):
        place.unset(what)


@pytest.fixture(scope="module")
def undisturbed(place, tmp_path_factory) -> sweeps.Sweep:
    done = place.sweep(tmp_path_factory.mktemp("undisturbed"), workers=2)
    assert len(place.kernels()) == 3
    place.unset("pid")
    return done


def _until(condition, process: subprocess.Popen | None = None, seconds: float = 120):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)
    return found


def _family(process: subprocess.Popen) -> list[psutil.Process]:
    return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]


def _gone(processes: list[psutil.Process]) -> bool:
    return all(not process.is_running() or process.status() == psutil.STATUS_ZOMBIE for process in processes)


def _finish(process: subprocess.Popen, code: int) -> tuple[str, str]:
    printed, errors = process.communicate(timeout=180)
    assert process.returncode == code, errors
    return printed, errors


def _same_files(root: Path, expected: sweeps.Sweep) -> None:
    (folder,) = root.glob("sweep-*")
    assert folder.name == expected.dir.name
    for name in ("results.parquet", "tables/rows.parquet"):
        assert (folder / name).read_bytes() == (expected.dir / name).read_bytes()
    assert json.loads((folder / "sweep.json").read_text())["status"] == "complete"
    assert list(root.glob("**/.*")) == [], "nothing half-written is left"
    assert len(list((root / "demo").iterdir())) == 3


def test_the_tables_over_all_cells(undisturbed):
    ids = list(undisturbed.cells)
    words = [["a", "b"]] * 3
    assert undisturbed.cached == 0
    assert undisturbed.failed == []
    expected = {
        **{"run": ids, "status": "complete", "x": [4, 1, 3], "words": words, "square": [16, 1, 9], "result.x": [40, 10, 30]},
        **{"deep.list": [[4, 0.5], [1, 0.5], [3, 0.5]], "gpu": [os.environ.get("CUDA_VISIBLE_DEVICES")] * 3},
    }
    found = undisturbed.results.map(lambda value: value.tolist() if hasattr(value, "tolist") else value)
    pd.testing.assert_frame_equal(found, pd.DataFrame(expected), check_dtype=False)
    assert str(found["square"].dtype) == "int64"
    rows = undisturbed.table("rows")
    assert rows.columns.tolist() == ["run", "param.x", "n", "x"], "what does not vary is not repeated"
    assert rows["param.x"].tolist() == [4, 4, 1, 1, 3, 3]
    assert rows["run"].tolist() == [ids[0], ids[0], ids[1], ids[1], ids[2], ids[2]]
    assert rows["x"].tolist() == [2, 4 / 3, 1 / 2, 1 / 3, 3 / 2, 1]
    about = json.loads((undisturbed.dir / "sweep.json").read_text())
    assert (about["notebook"], about["status"], about["grid"]) == ("demo", "complete", GRID)
    assert [(cell["run"], cell["params"], cell["status"]) for cell in about["cells"]] == [
        (i, {"x": x}, "complete") for i, x in zip(ids, [4, 1, 3], strict=True)
    ]


def test_the_same_sweep_again_starts_nothing_and_another_one_only_what_is_new(place, undisturbed, monkeypatch):
    monkeypatch.setattr(places, "connect", lambda **options: pytest.fail("workers were started"))
    again = place.sweep(undisturbed.dir.parent)
    assert (again.dir, again.cached, again.failed) == (undisturbed.dir, 3, [])
    smaller = place.sweep(undisturbed.dir.parent, {"x": [3, 4]}, params={"words": ["a", "b"]})
    assert smaller.dir != undisturbed.dir
    assert smaller.results["square"].tolist() == [9, 16]


def test_a_killed_worker_is_replaced(place, undisturbed, tmp_path):
    place.set("hold", 1)
    process = place.start(tmp_path, "--workers", "2")
    (kernel,) = map(psutil.Process, _until(lambda: place.kernels(1), process))
    kernel.parent().kill()
    _until(lambda: _gone([kernel]))
    place.unset("hold")
    printed, errors = _finish(process, 0)
    assert "3 of 3 cells complete, 0 of them from record, 0 failed" in printed
    assert "3/3" in errors
    assert "Traceback" not in errors
    assert (len(place.kernels(1)), len(place.kernels(3))) == (2, 1)
    _same_files(tmp_path, undisturbed)


def test_a_killed_sweep_leaves_no_process_and_is_taken_up_where_it_was(place, undisturbed, tmp_path):
    place.set("hold", 1)
    process = place.start(tmp_path, "--workers", "2")
    _until(lambda: place.kernels(1) and list(tmp_path.glob("demo/[!.]*")), process)
    family = _family(process)
    process.kill()
    _until(lambda: _gone(family))
    _finish(process, -signal.SIGKILL)
    assert list(tmp_path.glob("demo/.*.partial-*")), "what it was at"
    assert list(tmp_path.glob("sweep-*")) == []
    complete = len(list(tmp_path.glob("demo/[!.]*")))
    place.unset("hold")
    place.unset("pid")
    again = place.sweep(tmp_path, workers=2)
    assert again.cached == complete > 0
    assert len(place.kernels()) == 3 - complete
    _same_files(tmp_path, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_stops_everything_and_keeps_what_is_finished(place, tmp_path, number):
    place.set("hold", 1, 3)
    process = place.start(tmp_path, "--workers", "2")
    _until(lambda: place.kernels(1) and place.kernels(3) and list(tmp_path.glob("demo/[!.]*")), process)
    family = _family(process)
    assert len(family) > 4
    os.killpg(process.pid, number)  # all of them at once, as a terminal does it
    _, errors = _finish(process, 130)
    _until(lambda: _gone(family), seconds=20)
    assert errors.splitlines()[-1] == "gaussmark: interrupted; 1 of 3 cells are done, and the same command goes on from there"
    assert "Traceback" not in errors
    assert len([path for path in tmp_path.glob("demo/[!.]*") if not path.name.endswith(".failed")]) == 1


def test_a_cell_that_fails_does_not_stop_the_others_and_is_run_again(place, undisturbed, tmp_path):
    place.set("fail", 1)
    place.set("kill", 3)
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        done = place.sweep(tmp_path, workers=1)
    failed, killed = done.failed
    assert (failed.params, failed.reason) == ({"x": 1}, "in cell `import os, time`: RuntimeError: no 1")
    assert "RuntimeError: no 1" in failed.traceback
    assert "\x1b" not in failed.traceback
    assert killed.params == {"x": 3}
    assert killed.reason.startswith("its worker died 1 times")
    assert done.results["status"].tolist() == ["complete", "failed", "failed"]
    assert done.results["square"].isna().tolist() == [False, True, True]
    about = json.loads((done.dir / "sweep.json").read_text())
    assert (about["status"], about["cells"][1]["error"]) == ("failed", failed.reason)

    place.unset("kill")
    printed, errors = _finish(place.start(tmp_path, "--workers", "1"), 1)
    assert "failed: x=1\n" in errors
    assert "RuntimeError: no 1" in errors
    assert "2 of 3 cells complete, 1 of them from record, 1 failed" in printed
    place.unset("fail")
    assert place.sweep(tmp_path, workers=1).cached == 2
    _same_files(tmp_path, undisturbed)


def test_two_sweeps_at_once_over_the_same_cells(place, undisturbed, tmp_path):
    place.set("hold", 1, 3, 4)
    both = [place.start(tmp_path, "--workers", "1") for _ in range(2)]
    _until(lambda: len(place.kernels(4)) == 2, both[0])
    place.unset("hold")
    for process in both:
        printed, _ = _finish(process, 0)
        assert "3 of 3 cells complete" in printed
    _same_files(tmp_path, undisturbed)


def test_a_gpu_for_each_worker(place, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "gpus", lambda: ["5", "7"])
    done = place.sweep(tmp_path, {"x": [1, 2]}, gpus_per_run=1)
    assert set(done.results["gpu"]) <= {"5", "7"}


def test_gpus_that_are_not_there_are_refused_before_anything_starts(place, tmp_path):
    with pytest.raises(ClusterError, match="this machine has 0"):
        place.sweep(tmp_path, gpus_per_run=1)
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("cells", "workers", "gpus", "environments", "resources"),
    [
        (1, None, 0, [{}], {}),
        (100, None, 0, [{}] * 4, {}),  # a core each
        (100, 9, 0, [{}] * 9, {}),
        (100, None, 1, [{"CUDA_VISIBLE_DEVICES": name} for name in "abc"], {"GPU": 1}),
        (2, None, 1, [{"CUDA_VISIBLE_DEVICES": name} for name in "ab"], {"GPU": 1}),
        (100, None, 2, [{"CUDA_VISIBLE_DEVICES": "a,b"}], {"GPU": 2}),
    ],
)
def test_what_local_workers_get(monkeypatch, cells, workers, gpus, environments, resources):
    monkeypatch.setattr(places, "gpus", lambda: ["a", "b", "c"])
    monkeypatch.setattr(places, "CPU_COUNT", 4)
    monkeypatch.setattr(places, "MEMORY_LIMIT", 2**40)
    assert places._shares(cells, workers, gpus) == (environments, resources)


@pytest.mark.parametrize(("workers", "gpus"), [(0, 0), (-1, 1), (4, 1), (2, 2), (None, 4)])
def test_local_workers_that_cannot_be(monkeypatch, workers, gpus):
    monkeypatch.setattr(places, "gpus", lambda: ["a", "b", "c"])
    with pytest.raises(ClusterError):
        places._shares(10, workers, gpus)


SCHEDULER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    quiet = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=1, threads_per_worker=int(sys.argv[1]), **quiet) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@contextmanager
def _scheduler(folder: Path, threads: int) -> Iterator[str]:
    (folder / "scheduler.py").write_text(SCHEDULER)
    command = [sys.executable, str(folder / "scheduler.py"), str(threads)]
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    with process:
        yield process.stdout.readline().strip()
        process.stdin.close()


def test_a_scheduler_that_is_there_already(place, undisturbed, tmp_path, monkeypatch):
    root = tmp_path / "records"
    with _scheduler(tmp_path, 1) as address:
        with pytest.raises(ClusterError, match="no worker has more than 0"):
            place.sweep(root, scheduler=address, gpus_per_run=1)
        with monkeypatch.context() as patch:
            patch.setattr(notebooks, "source_version", lambda: "another one")
            with pytest.raises(ClusterError, match=r"has version .*, expected another one"):
                place.sweep(root, scheduler=address)
        assert place.kernels() == []

        place.set("hold", 1)
        process = place.start(root, "--scheduler", address)
        (kernel,) = map(psutil.Process, _until(lambda: place.kernels(1), process))
        worker = kernel.parent()
        process.send_signal(signal.SIGINT)
        _finish(process, 130)
        _until(lambda: _gone([kernel]))
        assert worker.is_running(), "it is not the sweep's"
        place.unset("hold")
        done = place.sweep(root, scheduler=address)
    assert done.cached == 1
    _same_files(root, undisturbed)


def test_a_scheduler_that_goes_away(place, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "PATIENCE", 2)
    place.set("hold", 4)
    with _scheduler(tmp_path, 1) as address:
        scheduler = next(process for process in psutil.Process().children() if "scheduler.py" in " ".join(process.cmdline()))
        stopper = threading.Thread(target=lambda: (_until(lambda: place.kernels(4)), scheduler.kill()))
        stopper.start()
        with pytest.raises(ClusterError, match="went away"):
            place.sweep(tmp_path / "records", scheduler=address)
        stopper.join()


def test_workers_with_several_threads_are_refused(place, tmp_path):
    with _scheduler(tmp_path, 2) as address, pytest.raises(ClusterError, match="one thread"):
        place.sweep(tmp_path / "records", scheduler=address)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense", "nowhere://x:1"])
def test_a_scheduler_that_does_not_answer(place, tmp_path, monkeypatch, address):
    monkeypatch.setattr(places, "PATIENCE", 1)
    with pytest.raises(ClusterError, match=f"no Dask scheduler answers at {address}"):
        place.sweep(tmp_path, scheduler=address)


def test_one_place_at_a_time():
    with pytest.raises(ClusterError, match="got workers and scheduler"), places.connect(cells=1, workers=1, scheduler="tcp://a:1"):
        pass


def test_the_slurm_example_gives_the_script_that_it_says():
    cluster, jobs = places.queue("slurm")
    with cluster:
        script = cluster.job_script()
    assert jobs == [0, 8]
    for line in ["-p gpu", "-t 08:00:00", "--gres=gpu:1", "--cpus-per-task=8", "--mem=60G"]:
        assert f"#SBATCH {line}" in script.splitlines()
    command = script.splitlines()[-1]
    assert "--nthreads 1 " in command
    assert "--resources GPU=1" in command
    assert places._declared(script) == (1, 1.0)
    assert "export OMP_NUM_THREADS=8" in script


def test_a_queue_leaves_ctrl_c_as_it_is():
    source = """
import signal
from gaussmark_lib import clusters
places.queue("slurm")[0].close()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "dask-jobqueue sets its own, which ends with exit code 0"
"""
    subprocess.run([sys.executable, "-c", source], check=True, env=os.environ | {"PYTHONPATH": str(paths.ROOT)})
