"""Where runs run: processes of this machine, a Dask scheduler that is there already, or one that
submits jobs to a queue.

A worker is always a process with one thread, because a process runs one notebook at a time. Dask
waits for ever for a resource that no worker has, so ``connect`` looks for everything that is asked
for, and refuses what is not there.
"""

import asyncio
import logging
import os
import re
import shlex
import shutil
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
from dask.system import CPU_COUNT
from distributed import Client, Nanny, Scheduler, Security, SpecCluster, Status, comm
from distributed.system import MEMORY_LIMIT

from gaussmark_lib import checks
from gaussmark_lib.errors import ClusterError
from gaussmark_lib.runs import presets

if TYPE_CHECKING:
    from dask_jobqueue import JobQueueCluster

PATIENCE = 10  # seconds for a scheduler to answer
MEMORY = 2 * 1024**3  # bytes that a small model's run may need
MOST_PER_CORE = 16  # local processes
MOST_JOBS = 10_000  # of a queue
QUEUES = {
    "slurm": "SLURM",
    "pbs": "PBS",
    "sge": "SGE",
    "lsf": "LSF",
    "oar": "OAR",
    "moab": "Moab",
    "htcondor": "HTCondor",
}


def connect(
    runs: int,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    cluster: str | Path | None = None,
    gpus_per_run: int = 0,
) -> AbstractContextManager[Client]:
    """A client of the workers that a sweep asks for; what was started for it is stopped at the end.

    Args:
        runs: how many runs the whole sweep has, the finished ones included.
        workers: how many local processes; one a core (or a GPU, if runs use them), but not more
            than runs, by default.
        scheduler: address of a Dask scheduler, to use its workers instead.
        cluster: YAML file of a ``dask-jobqueue`` cluster, to start workers as jobs instead.
        gpus_per_run: how much of the workers' resource GPU a run takes.

    Raises:
        ClusterError: it cannot be reached, or no worker has the resources that a run asks for; says
            what to do.
    """
    chosen = [
        name
        for name, value in {"workers": workers, "scheduler": scheduler, "cluster": cluster}.items()
        if value is not None
    ]
    if len(chosen) > 1:
        raise ClusterError(
            f"expected one place to run on, got {' and '.join(chosen)}; give one of them, or none"
            " for this machine"
        )
    if scheduler is not None:
        return _scheduler(scheduler, gpus_per_run)
    return (
        _queue(cluster, gpus_per_run)
        if cluster is not None
        else _local(runs, workers, gpus_per_run)
    )


def at_once(runs: int, workers: int | None = None) -> int:
    """How many local processes work at once: as many as asked for, or one a core, but not more than
    runs or than memory allows.

    It does not depend on what is left to do, because the number of threads of each process may
    change a last digit.
    """
    most = MOST_PER_CORE * CPU_COUNT
    if workers is not None and not (checks.is_whole(workers) and 1 <= workers <= most):
        raise ClusterError(
            f"expected from 1 to {most} workers on this machine of {CPU_COUNT} cores, got"
            f" {checks.shown(workers)}"
        )
    return workers or max(1, min(runs, CPU_COUNT, int(MEMORY_LIMIT // MEMORY)))


def gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES calls the GPUs that this process may use."""
    import torch  # here, because only those who ask for a GPU should wait for it

    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (
        [name.strip() for name in given.split(",")][:count]
        if given
        else [str(number) for number in range(count)]
    )


@contextmanager
def _local(runs: int, workers: int | None, gpus_per_run: int) -> Iterator[Client]:
    environments, resources = _shares(runs, workers, gpus_per_run)
    threads = str(max(1, CPU_COUNT // len(environments)))
    common = {
        "nthreads": 1,
        "memory_limit": 0,  # Dask sees the worker, and the memory is taken by its kernel
        "death_timeout": 60,
        "dashboard_address": "127.0.0.1:0",
        "silence_logs": logging.CRITICAL,
        "resources": resources,
        "preload": ["gaussmark_lib.sweeps.worker"],
    }
    nannies = [
        {"cls": Nanny, "options": {**common, "env": environment, "name": index}}
        for index, environment in enumerate(environments)
    ]
    # set before the workers start, and instead of Dask's own, which gives every process one thread
    # and makes memory slow to grow
    before_start = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads
    )
    hub = {
        "cls": Scheduler,
        "options": {
            "host": "127.0.0.1",
            "port": 0,
            "dashboard": False,
            "dashboard_address": "127.0.0.1:0",
        },
    }
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": before_start}),
        closing(
            SpecCluster(
                dict(enumerate(nannies)),
                scheduler=hub,
                silence_logs=logging.CRITICAL,
                name="gaussmark",
            )
        ) as started,
        Client(started, set_as_default=False) as client,
    ):
        yield client


def _shares(
    runs: int, workers: int | None, gpus_per_run: int
) -> tuple[list[dict[str, str]], dict[str, float]]:
    """Each local worker's environment, and what resources each has."""
    if not gpus_per_run:
        return [{}] * at_once(runs, workers), {}
    at_once(runs, workers)  # refuses what is no number of workers
    found = gpus()
    most = len(found) // gpus_per_run
    if (workers or 1) > most:
        raise ClusterError(
            f"{workers or 1} worker(s) with {gpus_per_run} GPU(s) each were asked for, and this"
            f" machine has {len(found)}; ask for fewer, or name a --scheduler or --cluster that has"
            " them"
        )
    taken = [
        found[index * gpus_per_run : (index + 1) * gpus_per_run]
        for index in range(workers or min(runs, most))
    ]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(names)} for names in taken], {"GPU": gpus_per_run}


@contextmanager
def _scheduler(address: str, gpus_per_run: int) -> Iterator[Client]:
    try:
        socket.create_connection(
            comm.get_address_host_port(address, strict=True), PATIENCE / 2
        ).close()  # refused at once
        with ThreadPoolExecutor(1) as aside:  # a notebook has an event loop in this thread
            kind = aside.submit(
                asyncio.run, asyncio.wait_for(_who_is(address), PATIENCE / 2)
            ).result()
        if kind != "Scheduler":
            raise ClusterError(f"it is a Dask {kind}")
        client = Client(address, timeout=PATIENCE, set_as_default=False)
    except Exception as error:  # as many kinds as there are servers
        reason = str(error) or type(error).__name__
        raise ClusterError(
            f"no Dask scheduler answers at {address}; start one with `dask scheduler`, or correct"
            f" the address ({reason})"
        ) from None
    with client:
        found = client.scheduler_info()["workers"].values()
        if not found:
            raise ClusterError(
                f"the scheduler at {address} has no workers; start some with `dask worker {address}"
                " --nthreads 1`"
            )
        _enough(
            address,
            [(worker["nthreads"], worker.get("resources", {}).get("GPU", 0)) for worker in found],
            gpus_per_run,
        )
        yield client


async def _who_is(address: str) -> str:
    """Which of its kinds of servers Dask says is there. ``Client`` alone would wait minutes for
    another server that takes a connection in silence.
    """
    line = await comm.connect(address, **Security().get_connection_args("client"))
    try:
        await line.write({"op": "identity", "reply": True})
        return (await line.read())["type"]
    finally:
        line.abort()


@contextmanager
def _queue(file: str | Path, gpus_per_run: int) -> Iterator[Client]:
    cluster, jobs = queue(file)
    with closing(cluster):
        _enough(str(file), [_declared(cluster.job_script())], gpus_per_run)
        if (
            command := shlex.split(getattr(cluster.job_cls, "submit_command", None) or "")
        ) and not shutil.which(command[0]):
            raise ClusterError(
                f"{file}: jobs are submitted with {command[0]}, which is not on this machine; start"
                " the sweep where it is"
            )
        try:
            _submit(cluster, jobs)
        except (OSError, RuntimeError, ValueError) as error:
            raise ClusterError(
                f"{file}: the queue took no job; correct the file and start again: {error}"
            ) from None
        with Client(cluster, set_as_default=False) as client:
            yield client


def _submit(cluster: "JobQueueCluster", jobs: int | list[int]) -> None:
    """Submits the jobs; the first ones by hand, because ``scale`` and ``adapt`` leave it in a log
    if the queue takes none.
    """

    async def submitted() -> None:
        try:
            await cluster
        finally:
            for job in cluster.workers.values():
                if job.status == Status.created:
                    job.status = Status.failed  # or Dask would not close the cluster

    least, most = jobs if isinstance(jobs, list) else (jobs, jobs)
    for _ in range(max(1, least)):
        cluster.worker_spec.update(cluster.new_worker_spec())
    cluster.sync(submitted)
    if most > least:
        cluster.adapt(minimum_jobs=least, maximum_jobs=most)


def queue(file: str | Path) -> tuple["JobQueueCluster", int | list[int]]:
    """The cluster that a YAML file describes, with nothing submitted yet, and how many jobs it
    wants: a number, or [least, most].

    ``kind`` says which queue, ``jobs`` how many; all else are keyword arguments of
    ``dask-jobqueue``'s cluster of that kind. A file that describes none is a ClusterError.
    """
    given = presets.read(file, "cluster")
    kind, jobs = given.pop("kind", None), given.pop("jobs", None)
    if kind not in QUEUES:
        raise ClusterError(f"{file}: expected `kind:` one of {', '.join(QUEUES)}, got {kind!r}")
    if not _is_count(jobs):
        raise ClusterError(
            f"{file}: expected `jobs:` a number from 1 to {MOST_JOBS:,}, or [least, most] as work"
            f" comes, got {jobs!r}"
        )
    try:
        return _class(kind)(**{"cores": 1, "processes": 1, **given}), jobs
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        raise ClusterError(f"{file}: no {kind} cluster can be made of it: {error}") from None


def _class(kind: str) -> type["JobQueueCluster"]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # here, because importing it makes a Ctrl-C end the process with exit code 0
    import dask_jobqueue

    for number, handler in before.items():
        signal.signal(number, handler)
    return getattr(dask_jobqueue, f"{QUEUES[kind]}Cluster")


def _is_count(jobs: Any) -> bool:
    numbers = jobs if isinstance(jobs, list) else [0, jobs]
    return (
        len(numbers) == 2
        and all(type(number) is int for number in numbers)
        and 0 <= numbers[0] <= numbers[1]
        and 1 <= numbers[1] <= MOST_JOBS
    )


def _declared(script: str) -> tuple[int, float]:
    """(threads, GPUs) of the workers that a job script starts."""
    (command,) = [line for line in script.splitlines() if "dask_worker" in line]
    threads = re.search(r"--nthreads[ =](\d+)", command)
    gpus = re.search(r"--resources\b.*?\bGPU=([\d.]+)", command)
    return int(threads[1]) if threads else 1, float(gpus[1]) if gpus else 0


def _enough(where: str, workers: list[tuple[int, float]], gpus_per_run: int) -> None:
    """Refuses workers, each given as (threads, GPUs), that a run cannot have to itself."""
    if (threads := max(threads for threads, _ in workers)) != 1:
        raise ClusterError(
            f"{where}: expected workers with one thread, because each runs one notebook at a time,"
            f" got {threads}; say --nthreads 1"
        )
    most = max(gpus for _, gpus in workers)
    if gpus_per_run > most:
        raise ClusterError(
            f"{where}: a run asks for {gpus_per_run} GPU(s), and no worker has more than {most:g}; "
            f"start workers with --resources GPU={gpus_per_run}, or ask for fewer"
        )
