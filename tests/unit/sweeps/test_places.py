"""Where runs run: this machine, a scheduler that is there already."""

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dask
import distributed
import psutil
import pytest
from sweep_places import finish, gone, same_files, until

from gaussmark_lib import paths
from gaussmark_lib.errors import ClusterError
from gaussmark_lib.runs.notebook import Notebook
from gaussmark_lib.sweeps import places


@pytest.mark.parametrize(
    ("runs", "workers", "gpus", "environments", "resources"),
    [
        (1, None, 0, [{}], {}),
        (100, None, 0, [{}] * 4, {}),  # a core each
        (100, 9, 0, [{}] * 9, {}),
        (100, None, 1, [{"CUDA_VISIBLE_DEVICES": name} for name in "abc"], {"GPU": 1}),
        (2, None, 1, [{"CUDA_VISIBLE_DEVICES": name} for name in "ab"], {"GPU": 1}),
        (100, None, 2, [{"CUDA_VISIBLE_DEVICES": "a,b"}], {"GPU": 2}),
    ],
)
def test_what_local_workers_get(monkeypatch, runs, workers, gpus, environments, resources):
    monkeypatch.setattr(places, "gpus", lambda: ["a", "b", "c"])
    monkeypatch.setattr(places, "CPU_COUNT", 4)
    monkeypatch.setattr(places, "MEMORY_LIMIT", 2**40)
    assert places._shares(runs, workers, gpus) == (environments, resources)


@pytest.mark.parametrize(
    ("workers", "gpus"), [(0, 0), (-1, 1), (4, 1), (2, 2), (None, 4), (100_000, 0), (100_000, 1)]
)
def test_local_workers_that_cannot_be(monkeypatch, workers, gpus):
    monkeypatch.setattr(places, "gpus", lambda: ["a", "b", "c"])
    with pytest.raises(ClusterError):
        places._shares(10, workers, gpus)


def test_gpus_that_are_not_there_are_refused_before_anything_starts(place, tmp_path):
    with pytest.raises(ClusterError, match="this machine has 0"):
        place.sweep(tmp_path, gpus_per_run=1)
    assert not (tmp_path / "demo").exists()


def test_each_local_worker_gets_its_gpus_its_share_of_threads_and_one_run_at_a_time(monkeypatch):
    monkeypatch.setattr(places, "gpus", lambda: ["5", "7"])
    monkeypatch.setattr(places, "CPU_COUNT", 8)
    asked = {}

    def cluster(specification, **options):
        asked.update(
            workers=specification,
            environment=dask.config.get("distributed.nanny.pre-spawn-environ"),
        )
        raise ClusterError("enough seen")

    monkeypatch.setattr(places, "SpecCluster", cluster)
    with pytest.raises(ClusterError, match="enough seen"), places.connect(runs=9, gpus_per_run=1):
        pass
    options = [worker["options"] for worker in asked["workers"].values()]
    assert [worker["env"] for worker in options] == [
        {"CUDA_VISIBLE_DEVICES": "5"},
        {"CUDA_VISIBLE_DEVICES": "7"},
    ]
    assert all(worker["nthreads"] == 1 and worker["resources"] == {"GPU": 1} for worker in options)
    assert asked["environment"] == dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "4"
    )
    for name in options[0]["preload"]:
        importlib.import_module(name)


@pytest.mark.parametrize(
    ("threads", "gpus", "complaint"), [(2, 0, "one thread"), (1, 1, "no worker has more than 0")]
)
def test_workers_that_a_run_cannot_have_to_itself_are_refused(threads, gpus, complaint):
    with pytest.raises(ClusterError, match=complaint):
        places._enough("tcp://a:1", [(1, 0), (threads, 0)], gpus)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:9",
        "nonsense",
        "nowhere://x:1",
        "",
        "tcp://127.0.0.1:99999",
        "tcp://a..b:1",
        "tcp://\udcff:1",
    ],
)
def test_a_scheduler_that_does_not_answer(place, tmp_path, monkeypatch, address):
    monkeypatch.setattr(places, "PATIENCE", 1)
    with pytest.raises(ClusterError, match=f"no Dask scheduler answers at {address}"):
        place.sweep(tmp_path, scheduler=address)


@contextmanager
def _other_server(says: bytes) -> Iterator[str]:
    """Something that listens, says a few bytes to whoever comes, and reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = []

        def take():
            with suppress(OSError):
                while True:
                    taken.append(server.accept()[0])
                    taken[-1].sendall(says)

        thread = threading.Thread(target=take)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in taken:
            connection.close()


@pytest.mark.parametrize(
    "says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", bytes(64)]
)
def test_a_server_that_is_no_scheduler_is_left_after_seconds(monkeypatch, says):
    monkeypatch.setattr(places, "PATIENCE", 1)
    monkeypatch.setattr(
        places,
        "Client",
        lambda *arguments, **options: pytest.fail("a client would wait for minutes"),
    )
    started = time.monotonic()
    with (
        _other_server(says) as address,
        pytest.raises(ClusterError, match="no Dask scheduler answers"),
        places.connect(runs=1, scheduler=address),
    ):
        pass
    assert time.monotonic() - started < 5


def test_one_place_at_a_time():
    with (
        pytest.raises(ClusterError, match="got workers and scheduler"),
        places.connect(runs=1, workers=1, scheduler="tcp://a:1"),
    ):
        pass


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
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    with process:
        yield process.stdout.readline().strip()
        process.stdin.close()


@pytest.mark.slow
def test_a_scheduler_that_is_there_already(place, undisturbed, tmp_path, monkeypatch):
    root = tmp_path / "records"
    with _scheduler(tmp_path, 1) as address:
        with pytest.raises(ClusterError, match="no worker has more than 0"):
            place.sweep(root, scheduler=address, gpus_per_run=1)
        with distributed.Client(address, set_as_default=False) as client:
            (worker_address,) = client.scheduler_info()["workers"]
        with pytest.raises(ClusterError, match="it is a Dask Worker"):
            place.sweep(root, scheduler=worker_address)
        with monkeypatch.context() as patch:
            patch.setattr(Notebook, "code", "another one")
            with pytest.raises(ClusterError, match=r"has version .*, expected another one"):
                place.sweep(root, scheduler=address)
        assert place.kernels() == []

        place.set("hold", 1)
        process = place.start(root, "--scheduler", address)
        (kernel,) = map(psutil.Process, until(lambda: place.kernels(1), process))
        worker = kernel.parent()
        process.send_signal(signal.SIGINT)
        finish(process, 130)
        until(lambda: gone([kernel]))
        assert worker.is_running(), "it is not the sweep's"
        place.unset("hold")
        done = place.sweep(root, scheduler=address)
    assert done.cached == 1
    same_files(root, undisturbed)


def test_a_scheduler_that_goes_away(place, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "PATIENCE", 2)
    place.set("hold", 4)
    with _scheduler(tmp_path, 1) as address:
        scheduler = next(
            process
            for process in psutil.Process().children()
            if "scheduler.py" in " ".join(process.cmdline())
        )
        stopper = threading.Thread(
            target=lambda: (until(lambda: place.kernels(4)), scheduler.kill())
        )
        stopper.start()
        with pytest.raises(ClusterError, match="went away"):
            place.sweep(tmp_path / "records", scheduler=address)
        stopper.join()
