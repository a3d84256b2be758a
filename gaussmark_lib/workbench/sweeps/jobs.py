"""Runs at the same time: an executor runs them, and each has an outcome.

The executor has the interface of ``concurrent.futures``. It is a pool of threads of this process,
each of which starts one kernel process at a time; a Dask scheduler; or jobs of a queue. If a run
fails or its process is killed, this is its outcome, and the other runs continue.
"""

import importlib.util
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from tqdm.auto import tqdm

from gaussmark_lib.errors import GaussMarkError, shown
from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.runs import presets
from gaussmark_lib.workbench.runs.notebook import Question, question

REFRESH = 2  # seconds between updates of the bar, even if no run has finished
PATIENCE = 10  # seconds for a scheduler to answer
MEMORY = 2 * 1024**3  # bytes that a run of a small model may need
MOST = 256  # runs at the same time
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Outcome(NamedTuple):
    """How a run ended.

    ``error`` is empty if the record is complete. ``failed`` is the folder of a failed run.
    """

    error: str = ""
    traceback: str = ""
    failed: Path | None = None


class Slot(threading.local):
    """Settings of a thread for the runs that it starts; workers elsewhere have the defaults."""

    env: Mapping[str, str] = {}
    stop = threading.Event()  # set when a sweep is interrupted


slot = Slot()


@contextmanager
def progress(n: int, n_done: int, unit: str, again: str, *, shown: bool) -> Iterator[tqdm]:
    """Show a bar; an interruption says how many runs are done, and how to continue."""
    title = f"{n} {unit}"
    with tqdm(total=n, initial=n_done, desc=title, unit=f" {unit}", disable=not shown) as bar:
        try:
            yield bar
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; {bar.n} of {title} are done, and {again} continues"
            ) from None


def run_all(
    jobs: Sequence[Question],
    n_runs: int,
    *,
    root: Path,
    bar: tqdm,
    force: bool = False,
    **place: Any,
) -> list[Outcome]:
    """Run jobs; return their outcomes in the order of the jobs. ``bar`` advances by one per job.

    Args:
        n_runs: number of runs of the whole sweep, with those that have records already.
        root: folder of the records, for the workers too.
        place: see :func:`executor`.

    Raises:
        GaussMarkError: if there is no such place, or its scheduler stopped.
    """
    n_failed = 0
    with executor(n_runs, **place) as pool:
        names = {pool.submit(run_one, job, root, force): job.notebook.name for job in jobs}
        pending = set(names)
        while pending:
            done, pending = wait(pending, REFRESH, FIRST_COMPLETED)
            n_failed += sum(bool(_outcome(future).error) for future in done)
            running = sorted({names[future] for future in pending if future.running()})
            bar.set_postfix_str(", ".join([*running, f"{n_failed} failed"]), refresh=False)
            is_drawn = bar.update(len(done))
            if not is_drawn:
                bar.refresh()
        return [_outcome(future) for future in names]


def run_one(job: Question, root: Path, force: bool) -> Outcome:
    """Run a notebook, or find its record. Expected errors are returned as words, which can be sent
    between machines.
    """
    if question(job.notebook, job.values).id != job.id:
        return Outcome(
            "its code or its model on this worker differs from that at the start of the sweep;"
            " start again"
        )
    try:
        runs.run(
            job,
            force=force,
            progress=False,
            root=root,
            env=slot.env,
            wanted=lambda: not slot.stop.is_set(),
        )
    except runs.RunFailedError as error:
        return Outcome(error.reason, error.traceback, error.dir)
    except KeyboardInterrupt:
        return Outcome("interrupted")
    except GaussMarkError as error:
        return Outcome(str(error))
    return Outcome()


def _outcome(future: "Future[Outcome]") -> Outcome:
    """The outcome of a finished job."""
    try:
        return future.result()
    except CancelledError:
        raise GaussMarkError(
            "the scheduler stopped; finished runs have their records, and the same command"
            " continues"
        ) from None
    except Exception as error:  # the worker died, or could not load what it was sent
        return Outcome(f"{type(error).__name__}: {error}")


def executor(
    n_runs: int,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    cluster: str | Path | None = None,
    gpus_per_run: int = 0,
) -> AbstractContextManager[Executor]:
    """Return an executor for a place; what it starts is stopped at the end.

    Args:
        n_runs: number of runs of the whole sweep, with the finished runs.
        workers: number of runs at the same time on this machine; by default one per core (or per
            GPU, if runs use GPUs), but at most ``n_runs``.
        scheduler: address of a Dask scheduler, to use its workers instead.
        cluster: YAML file of a ``dask-jobqueue`` cluster, to start workers as jobs instead.
        gpus_per_run: on this machine, each run sees this number of GPUs alone; elsewhere, it takes
            this much of the workers' resource GPU.

    Raises:
        GaussMarkError: if there is no such place, or it does not have the GPUs.
    """
    places = {"workers": workers, "scheduler": scheduler, "cluster": cluster}
    chosen = [name for name, value in places.items() if value is not None]
    if len(chosen) > 1:
        raise GaussMarkError(
            f"expected one place to run on, got {' and '.join(chosen)}; give only one of these, or"
            " none for this machine"
        )
    is_elsewhere = scheduler is not None or cluster is not None
    if is_elsewhere and importlib.util.find_spec("dask_jobqueue") is None:
        raise GaussMarkError(
            "a sweep on other machines needs Dask: pip install 'gaussmark[cluster]'"
        )
    if scheduler is not None:
        return _scheduler(scheduler, gpus_per_run)
    if cluster is not None:
        return _queue(cluster, gpus_per_run)
    return _here(n_runs, workers, gpus_per_run)


@contextmanager
def _here(n_runs: int, workers: int | None, gpus_per_run: int) -> Iterator[Executor]:
    """An executor of this machine, with a thread per run."""
    import joblib  # here, because workers elsewhere import this file, too

    cores = joblib.cpu_count()
    environments = _environments(n_runs, workers, gpus_per_run, cores)
    not_taken = iter(environments)
    stop = threading.Event()

    def take() -> None:
        slot.env = next(not_taken)
        slot.stop = stop

    threads_per_run = max(1, cores // len(environments))
    with _threads(threads_per_run):
        pool = ThreadPoolExecutor(len(environments), "run", take)
        try:
            yield pool
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


@contextmanager
def _threads(n: int) -> Iterator[None]:
    """Set the number of threads of processes that are started inside."""
    original = {name: os.environ.get(name) for name in THREADS}
    os.environ |= dict.fromkeys(THREADS, str(n))
    try:
        yield
    finally:
        for name, value in original.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _environments(
    n_runs: int, workers: int | None, gpus_per_run: int, cores: int
) -> list[dict[str, str]]:
    """The environment of each run that runs at the same time.

    Their number does not depend on how many runs are missing, because the number of threads per run
    may change a last digit.
    """
    if workers is not None and not (isinstance(workers, int) and 1 <= workers <= MOST):
        raise GaussMarkError(f"expected from 1 to {MOST} workers, got {shown(workers)}")
    if not gpus_per_run:
        n_by_memory = psutil.virtual_memory().total // MEMORY
        n = workers or max(1, min(n_runs, cores, n_by_memory))
        return [{} for _ in range(n)]
    available = gpus()
    n_groups = len(available) // gpus_per_run  # without the remainder
    groups = [available[i * gpus_per_run : (i + 1) * gpus_per_run] for i in range(n_groups)]
    shares = groups[: workers or n_runs]
    if len(shares) < (workers or 1):
        raise GaussMarkError(
            f"expected at most {len(shares)} workers with {gpus_per_run} GPU(s) each on this"
            f" machine, got {workers or 1}; ask for fewer, or give a --scheduler or --cluster"
        )
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]


def gpus() -> list[str]:
    """Return the names of the GPUs of this process, as in CUDA_VISIBLE_DEVICES."""
    import torch  # here, because the import is slow and only runs with GPUs need it

    count = torch.cuda.device_count()
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names:
        return names.split(",")[:count]
    return [str(number) for number in range(count)]


@contextmanager
def _scheduler(address: str, gpus_per_run: int) -> Iterator[Executor]:
    """An executor of a Dask scheduler."""
    try:
        client = _client(address)
    except (OSError, ValueError, TypeError) as error:
        raise GaussMarkError(
            f"no Dask scheduler answers at {address}; start one with `dask scheduler`, or correct"
            f" the address ({error or type(error).__name__})"
        ) from None
    with client:
        # Dask waits forever for a resource that no worker has.
        workers = client.scheduler_info(-1)["workers"].values()
        if not any(worker["resources"].get("GPU", 0) >= gpus_per_run for worker in workers):
            raise GaussMarkError(
                f"none of the {len(workers)} workers of {address} has {gpus_per_run} GPU(s); start"
                f" workers with `dask worker {address} --nthreads 1 --resources GPU={gpus_per_run}`"
            )
        yield _executor(client, gpus_per_run)


def _client(address: str) -> Any:
    """A client of a Dask scheduler; Dask's types are not imported here."""
    from distributed import Client

    try:
        return Client(address, timeout=PATIENCE, set_as_default=False)
    except AssertionError:  # Dask gives its thread ten seconds to start: try again
        return Client(address, timeout=PATIENCE, set_as_default=False)


def _executor(client: Any, gpus_per_run: int) -> Executor:
    resources = {"GPU": gpus_per_run} if gpus_per_run else None
    return client.get_executor(pure=False, resources=resources)


@contextmanager
def _queue(file: str | Path, gpus_per_run: int) -> Iterator[Executor]:
    """An executor whose workers are jobs of a queue."""
    from distributed import Client

    cluster, n_min, n_max = described(file)
    with cluster:
        try:
            _submit_one(cluster)
        except (OSError, RuntimeError, ValueError) as error:
            raise GaussMarkError(
                f"{file}: the queue refused a job; correct the file and start again: {error}"
            ) from None
        cluster.adapt(minimum_jobs=n_min, maximum_jobs=n_max)
        with Client(cluster, set_as_default=False) as client:
            yield _executor(client, gpus_per_run)


def _submit_one(cluster: Any) -> None:
    """Submit the first job explicitly, because ``adapt`` only logs that a queue refuses jobs."""
    from distributed import Status

    async def submitted() -> None:
        try:
            await cluster
        except BaseException:
            for job in cluster.workers.values():  # otherwise Dask would not close the cluster
                job.status = Status.failed
            raise

    cluster.worker_spec.update(cluster.new_worker_spec())
    cluster.sync(submitted)


def described(file: str | Path) -> tuple[Any, int, int]:
    """Return the ``dask-jobqueue`` cluster of a YAML file, and its smallest and largest number of
    jobs. No job is submitted.

    ``kind`` is the kind of queue, and ``jobs`` the number of jobs (a number, or
    [smallest, largest]); all other values are keyword arguments of the cluster.

    Raises:
        GaussMarkError: if the file does not describe a cluster.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    import dask_jobqueue

    # The import sets handlers with which Ctrl-C would end the process with code 0.
    for number, handler in handlers.items():
        signal.signal(number, handler)
    kinds = {}
    for name, queue in vars(dask_jobqueue).items():
        if name.endswith("Cluster"):
            kinds[name.removesuffix("Cluster").lower()] = queue
    settings = presets.read(file, "cluster")
    kind = settings.pop("kind", None)
    jobs = settings.pop("jobs", None)
    if kind not in kinds:
        raise GaussMarkError(f"{file}: expected `kind:` one of {', '.join(kinds)}, got {kind!r}")
    try:
        n_min, n_max = jobs if isinstance(jobs, list) else [int(jobs), int(jobs)]
        settings = {"cores": 1, "processes": 1} | settings
        return kinds[kind](**settings), n_min, n_max
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        raise GaussMarkError(f"{file}: it does not describe a {kind} cluster: {error}") from None
