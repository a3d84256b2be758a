"""Where runs run: this machine, a scheduler that is there already, jobs of a queue."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import joblib
import psutil
import pytest
from small_notebooks import code, parameters, write
from sweep_places import finish, same_files, until

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench import sweeps
from gaussmark_lib.workbench.sweeps import jobs

pytestmark = [
    # dask-jobqueue drops a cluster whose arguments it refuses, without closing it
    pytest.mark.filterwarnings("ignore:unclosed cluster:ResourceWarning"),
    pytest.mark.filterwarnings(r"ignore:\nPort 8787:UserWarning"),  # of another test's cluster
    pytest.mark.filterwarnings("ignore:Port 8787:UserWarning"),
]


@pytest.mark.parametrize(
    ("runs", "workers", "gpus", "expected"),
    [
        (1, None, 0, [{}]),
        (100, None, 0, [{}] * 4),  # a core each
        (100, 9, 0, [{}] * 9),
        (100, None, 1, [{"CUDA_VISIBLE_DEVICES": name} for name in "abc"]),
        (2, None, 1, [{"CUDA_VISIBLE_DEVICES": name} for name in "ab"]),
        (100, None, 2, [{"CUDA_VISIBLE_DEVICES": "a,b"}]),
        (100, 0, 0, None),
        (100, 4, 1, None),
        (100, None, 4, None),
        (100, 257, 0, None),
    ],
)
def test_what_runs_get_on_this_machine(monkeypatch, runs, workers, gpus, expected):
    monkeypatch.setattr(jobs, "gpus", lambda: ["a", "b", "c"])
    monkeypatch.setattr(jobs, "MEMORY", 1)
    if expected is None:
        with pytest.raises(GaussMarkError, match="expected"):
            jobs._environments(runs, workers, gpus, cores=4)
    else:
        assert jobs._environments(runs, workers, gpus, cores=4) == expected


def test_each_slot_has_its_gpu_and_its_share_of_the_cores(monkeypatch):
    monkeypatch.setattr(jobs, "gpus", lambda: ["5", "7"])
    monkeypatch.setattr(joblib, "cpu_count", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    barrier = threading.Barrier(2)

    def seen() -> tuple[str, str]:
        barrier.wait(10)  # both at a time
        return jobs.slot.env["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"]

    with jobs.executor(9, gpus_per_run=1) as executor:
        futures = [executor.submit(seen) for _ in range(4)]
        assert sorted(future.result() for future in futures) == [("5", "4")] * 2 + [("7", "4")] * 2
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_one_place_at_a_time():
    with pytest.raises(GaussMarkError, match="got workers and scheduler"):
        jobs.executor(1, workers=1, scheduler="tcp://a:1")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nowhere://x:1"])
def test_a_scheduler_that_does_not_answer(place, tmp_path, monkeypatch, address):
    monkeypatch.setattr(jobs, "PATIENCE", 1)
    with pytest.raises(GaussMarkError, match=f"no Dask scheduler answers at {address}"):
        place.sweep(tmp_path, scheduler=address)


def test_without_the_extra_cluster_one_sentence_says_so(place, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(GaussMarkError, match=re.escape("pip install 'gaussmark[cluster]'")):
        place.sweep(tmp_path, cluster="slurm")


SCHEDULER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    quiet = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=1, threads_per_worker=1, **quiet) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@contextmanager
def _scheduler(folder: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    (folder / "scheduler.py").write_text(SCHEDULER)
    command = [sys.executable, str(folder / "scheduler.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        yield process.stdout.readline().strip(), process
        process.stdin.close()


@pytest.mark.slow
def test_a_scheduler_that_is_there_already_and_then_goes_away(place, undisturbed, tmp_path):
    with _scheduler(tmp_path) as (address, scheduler):
        with pytest.raises(GaussMarkError, match=r"none of the 1 workers .* has 1 GPU"):
            place.sweep(tmp_path / "records", scheduler=address, gpus_per_run=1)
        assert place.sweep(tmp_path / "records", scheduler=address).cached == 0
        same_files(tmp_path / "records", undisturbed)

        place.unset("pid")
        place.set("hold", 4)
        process = place.start(tmp_path / "others", "--scheduler", address)
        until(lambda: place.kernels(4), process)
        scheduler.kill()
        _, errors = finish(process, 2)
        assert "the scheduler stopped" in errors


SBATCH = """#!/bin/sh
setsid sh -c "$(cat "$1")" >/dev/null 2>&1 &
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/sh
kill -TERM -"$1"
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    """A cluster file, and two scripts that are called like the commands of its queue."""
    (tmp_path / "bin").mkdir()
    for name, text in {"sbatch": SBATCH, "scancel": SCANCEL}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "kind: slurm\njobs: 1\nmemory: 2GB\ninterface: lo\nworker_extra_args: [--resources GPU=1]\n"
    )
    return file


def test_jobs_are_submitted_work_and_are_cancelled(slurm, tmp_path):
    source = "from gaussmark_lib.workbench import record; record.record({'job': os.getppid()})"
    cells = parameters(), code("import os"), code(source)
    notebook = write(tmp_path / "demo.ipynb", *cells)
    settings = {"cluster": slurm, "gpus_per_run": 1, "root": tmp_path / "records"}
    done = sweeps.sweep(notebook, {"x": [1, 2]}, progress=False, **settings)
    assert done.results["status"].tolist() == ["complete"] * 2
    workers = [psutil.Process(pid) for pid in set(done.results["job"]) if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert [job for job in alive if job.status() != psutil.STATUS_ZOMBIE] == [], "scancel ends them"


def test_a_queue_that_takes_no_job(slurm, place, tmp_path):
    refusing = "#!/bin/sh\necho 'invalid partition' >&2; exit 1\n"
    (tmp_path / "bin" / "sbatch").write_text(refusing)
    with pytest.raises(GaussMarkError, match="invalid partition"):
        place.sweep(tmp_path / "records", cluster=slurm)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: slrum\njobs: 1", "`kind:` one of .*slurm.*, got 'slrum'"),
        ("kind: slurm\njobs: many\nmemory: 2GB", "does not describe a slurm cluster: .*'many'"),
        ("kind: slurm\njobs: 1", "it does not describe a slurm cluster: .*memory"),
        ("kind: slurm\njobs: 1\nmemory: 2GB\npartition: gpu", "a slurm cluster: .*partition"),
    ],
)
def test_a_file_that_describes_no_cluster(tmp_path, text, message):
    (tmp_path / "cluster.yaml").write_text(text)
    with pytest.raises(GaussMarkError, match=message):
        jobs.described(tmp_path / "cluster.yaml")


def test_the_slurm_example_gives_the_script_that_it_says():
    cluster, least, most = jobs.described("slurm")
    with cluster:
        script = cluster.job_script()
    assert (least, most) == (0, 8)
    for line in ["-p gpu", "-t 08:00:00", "--gres=gpu:1", "--cpus-per-task=8", "--mem=60G"]:
        assert f"#SBATCH {line}" in script.splitlines()
    assert "--nthreads 1 " in script.splitlines()[-1]
    assert "--resources GPU=1" in script.splitlines()[-1]
    assert "export OMP_NUM_THREADS=8" in script


@pytest.mark.parametrize("inherited", ["SIG_DFL", "SIG_IGN"])
def test_a_queue_leaves_ctrl_c_as_it_is(inherited):
    """dask-jobqueue sets a handler of its own, which ends the process with exit code 0. What a
    shell starts in the background ignores Ctrl-C.
    """
    source = f"""
import signal
signal.signal(signal.SIGINT, signal.{inherited})
from gaussmark_lib.workbench.sweeps import jobs
jobs.described("slurm")[0].close()
assert signal.getsignal(signal.SIGINT) == signal.{inherited}
"""
    subprocess.run([sys.executable, "-c", source], check=True)
