"""Workers as jobs of a queue. The queue is two scripts that are called like SLURM's commands."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from small_notebooks import code, parameters, write

from gaussmark_lib import paths, sweeps
from gaussmark_lib.errors import ClusterError
from gaussmark_lib.sweeps import places

# dask-jobqueue drops a cluster whose arguments it refuses, without closing it
pytestmark = pytest.mark.filterwarnings("ignore:unclosed cluster:ResourceWarning")

SBATCH = """#!/bin/sh
setsid sh -c "$(cat "$1")" >/dev/null 2>&1 &
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/sh
kill -TERM -"$1"
"""


def _command(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    """A cluster file, and the commands of its queue."""
    _command(tmp_path / "bin", "sbatch", SBATCH)
    _command(tmp_path / "bin", "scancel", SCANCEL)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(paths.ROOT))
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "kind: slurm\njobs: 1\nmemory: 2GB\ninterface: lo\nworker_extra_args: [--resources GPU=1]\n"
    )
    return file


@pytest.fixture
def notebook(tmp_path) -> Path:
    source = (
        "from gaussmark_lib import runs; import os; runs.record({'square': x * x, 'job':"
        " os.getppid()})"
    )
    return write(tmp_path / "demo.ipynb", parameters(), code(source))


def test_jobs_are_submitted_work_and_are_cancelled(slurm, notebook, tmp_path):
    done = sweeps.sweep(
        notebook,
        {"x": [1, 2]},
        cluster=slurm,
        gpus_per_run=1,
        root=tmp_path / "records",
        progress=False,
    )
    assert done.results["square"].tolist() == [1, 4]
    _, alive = psutil.wait_procs(
        [psutil.Process(pid) for pid in set(done.results["job"]) if psutil.pid_exists(pid)],
        timeout=20,
    )
    assert [job for job in alive if job.status() != psutil.STATUS_ZOMBIE] == [], "scancel ends them"


def test_a_queue_that_takes_no_job(slurm, notebook, tmp_path):
    _command(tmp_path / "bin", "sbatch", "#!/bin/sh\necho 'invalid partition' >&2; exit 1\n")
    with pytest.raises(ClusterError, match="invalid partition"):
        sweeps.sweep(
            notebook, {"x": [1, 2]}, cluster=slurm, root=tmp_path / "records", progress=False
        )


def test_a_machine_without_a_queue(slurm, notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    with pytest.raises(ClusterError, match="sbatch, which is not on this machine"):
        sweeps.sweep(
            notebook, {"x": [1, 2]}, cluster=slurm, root=tmp_path / "records", progress=False
        )


@pytest.mark.parametrize(
    ("text", "gpus", "message"),
    [
        ("jobs: 1", 0, "`kind:` one of slurm, pbs"),
        ("kind: slrum\njobs: 1", 0, "got 'slrum'"),
        ("kind: slurm", 0, "`jobs:` a number"),
        ("kind: slurm\njobs: 0", 0, "`jobs:` a number"),
        ("kind: slurm\njobs: [2, 1]", 0, "`jobs:` a number"),
        ("kind: slurm\njobs: [0, 1000000]", 0, "`jobs:` a number from 1 to 10,000"),
        ("kind: slurm\njobs: true", 0, "`jobs:` a number"),
        ("kind: slurm\njobs: 1", 0, "no slurm cluster can be made of it: .*memory"),
        (
            "kind: slurm\njobs: 1\nmemory: 2GB\npartition: gpu",
            0,
            "no slurm cluster can be made of it: .*partition",
        ),
        ("kind: slurm\njobs: 1\nmemory: 2GB\ncores: 4", 0, "one thread"),
        ("kind: slurm\njobs: 1\nmemory: 2GB", 1, "asks for 1 GPU"),
        (
            "kind: slurm\njobs: 1\nmemory: 2GB\nworker_extra_args: [--resources GPU=1]",
            2,
            "no worker has more than 1",
        ),
    ],
)
def test_a_file_that_describes_no_cluster_for_such_runs(tmp_path, text, gpus, message):
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with (
        pytest.raises(ClusterError, match=message),
        places.connect(runs=1, cluster=file, gpus_per_run=gpus),
    ):
        pass


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("--resources GPU=1", 1),
        ("--resources 'A=1 GPU=2'", 2),
        ("--resources=A=3,GPU=4", 4),
        ("--name GPU=1", 0),
    ],
)
def test_resources_that_a_job_script_declares(extra, expected):
    assert places._declared(
        "#!/bin/sh\n#SBATCH GPU=9\npython -m distributed.cli.dask_worker tcp://a:1 --nthreads 2"
        f" {extra}\n"
    ) == (2, expected)


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


@pytest.mark.parametrize("inherited", ["SIG_DFL", "SIG_IGN"])
def test_a_queue_leaves_ctrl_c_as_it_is(inherited):
    """dask-jobqueue sets a handler of its own, which ends the process with exit code 0. What a
    shell starts in the background ignores Ctrl-C.
    """
    source = f"""
import signal
signal.signal(signal.SIGINT, signal.{inherited})
from gaussmark_lib.sweeps import places
before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
places.queue("slurm")[0].close()
assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
"""
    subprocess.run(
        [sys.executable, "-c", source], check=True, env=os.environ | {"PYTHONPATH": str(paths.ROOT)}
    )
