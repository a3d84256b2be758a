"""Runs side by side: hands them to an executor, and collects how each of them ended.

The executor is one of ``concurrent.futures``: threads of this process, each of which starts one
kernel process at a time; a Dask scheduler; or jobs of a queue. A run that fails, or whose process
is killed, is an outcome like any other, and the others go on.
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

REFRESH = 2  # seconds after which the bar is drawn again, even if nothing has finished
PATIENCE = 10  # seconds for a scheduler to answer
MEMORY = 2 * 1024**3  # bytes that a small model's run may need
MOST = 256  # runs at a time
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Outcome(NamedTuple):
    """How a run ended: ``error`` is empty if its record is complete; ``failed`` is the folder of a
    run that is not.
    """

    error: str = ""
    traceback: str = ""
    failed: Path | None = None


class Slot(threading.local):
    """What a thread of this process gives the runs that it starts; workers elsewhere have the
    defaults.
    """

    env: Mapping[str, str] = {}
    stop = threading.Event()  # set in a sweep that is interrupted


slot = Slot()


@contextmanager
def progress(n: int, n_done: int, unit: str, again: str, *, shown: bool) -> Iterator[tqdm]:
    """A bar; an interruption says what is done, and what goes on from there."""
    title = f"{n} {unit}"
    with tqdm(total=n, initial=n_done, desc=title, unit=f" {unit}", disable=not shown) as bar:
        try:
            yield bar
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; {bar.n} of {title} are done, and {again} goes on from there"
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
    """How each job ended, in the order of the jobs; ``bar`` moves on by one for each.

    Args:
        n_runs: of the whole sweep, those included that have their records already.
        root: where records lie, for the workers too.
        place: see :func:`executor`.

    GaussMarkError: no such place, or its scheduler went away.
    """
    n_failed = 0
    with executor(n_runs, **place) as pool:
        names = {pool.submit(run_one, job, root, force): job.notebook.name for job in jobs}
        left = set(names)
        while left:
            done, left = wait(left, REFRESH, FIRST_COMPLETED)
            n_failed += sum(bool(_outcome(future).error) for future in done)
            running = sorted({names[future] for future in left if future.running()})
            bar.set_postfix_str(", ".join([*running, f"{n_failed} failed"]), refresh=False)
            bar.update(len(done)) or bar.refresh()
        return [_outcome(future) for future in names]


def run_one(job: Question, root: Path, force: bool) -> Outcome:
    """Runs one notebook, or finds its record. Expected problems come back as words, which travel
    between machines.
    """
    if question(job.notebook, job.values).id != job.id:
        return Outcome(
            "its code or its model is not the same on this worker as where the sweep began, or has"
            " changed since; start again"
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
    try:
        return future.result()
    except CancelledError:
        raise GaussMarkError(
            "the scheduler went away; finished runs have their records, and the same command goes"
            " on from there"
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
    """Takes functions to where they run; what was started for it is stopped at the end.

    Args:
        n_runs: of the whole sweep, the finished ones included.
        workers: how many run at a time on this machine; by default one per core (or per GPU, if
            runs use them), but not more than ``n_runs``.
        scheduler: address of a Dask scheduler, to use its workers instead.
        cluster: YAML file of a ``dask-jobqueue`` cluster, to start workers as jobs instead.
        gpus_per_run: here, each run sees so many GPUs alone; elsewhere, it takes so much of the
            workers' resource GPU.

    GaussMarkError: there is no such place, or nothing there has the GPUs.
    """
    given = {"workers": workers, "scheduler": scheduler, "cluster": cluster}
    if len(chosen := [name for name, value in given.items() if value is not None]) > 1:
        raise GaussMarkError(
            f"expected one place to run on, got {' and '.join(chosen)}; give one of them, or none"
            " for this machine"
        )
    if workers is None and chosen and importlib.util.find_spec("dask_jobqueue") is None:
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
    import joblib  # here, because workers elsewhere read this file too

    cores = joblib.cpu_count()
    environments = _environments(n_runs, workers, gpus_per_run, cores)
    stop, waiting = threading.Event(), iter(environments)

    def take() -> None:
        slot.env, slot.stop = next(waiting), stop

    before = {name: os.environ.get(name) for name in THREADS}
    os.environ |= dict.fromkeys(THREADS, str(max(1, cores // len(environments))))
    pool = ThreadPoolExecutor(len(environments), "run", take)
    try:
        yield pool
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _environments(
    n_runs: int, workers: int | None, gpus_per_run: int, cores: int
) -> list[dict[str, str]]:
    """What each run that runs at the same time has in its environment.

    How many there are does not depend on what is left to do, because the number of threads of a
    run may change a last digit.
    """
    if workers is not None and not (isinstance(workers, int) and 1 <= workers <= MOST):
        raise GaussMarkError(f"expected from 1 to {MOST} workers, got {shown(workers)}")
    if not gpus_per_run:
        memory = psutil.virtual_memory().total // MEMORY
        return [{}] * (workers or max(1, min(n_runs, cores, memory)))
    groups = zip(*[iter(gpus())] * gpus_per_run, strict=False)  # of so many each, without a rest
    shares = [*groups][: workers or n_runs]
    if len(shares) < (workers or 1):
        raise GaussMarkError(
            f"expected at most {len(shares)} workers with {gpus_per_run} GPU(s) each on this"
            f" machine, got {workers or 1}; ask for fewer, or name a --scheduler or --cluster"
        )
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]


def gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES calls the GPUs that this process may use."""
    import torch  # here, because only those who ask for a GPU should wait for it

    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",")[:count] if given else [*map(str, range(count))]


@contextmanager
def _scheduler(address: str, gpus_per_run: int) -> Iterator[Executor]:
    try:
        client = _client(address)
    except (OSError, ValueError, TypeError) as error:
        raise GaussMarkError(
            f"no Dask scheduler answers at {address}; start one with `dask scheduler`, or correct"
            f" the address ({error or type(error).__name__})"
        ) from None
    with client:
        # Dask waits for ever for a resource that no worker has
        workers = client.scheduler_info(-1)["workers"].values()
        if not any(worker["resources"].get("GPU", 0) >= gpus_per_run for worker in workers):
            raise GaussMarkError(
                f"none of the {len(workers)} workers of {address} has {gpus_per_run} GPU(s); start"
                f" some with `dask worker {address} --nthreads 1 --resources GPU={gpus_per_run}`"
            )
        yield _executor(client, gpus_per_run)


def _client(address: str) -> Any:
    from distributed import Client

    try:
        return Client(address, timeout=PATIENCE, set_as_default=False)
    except AssertionError:  # Dask gives its thread ten seconds to start, too few on a busy machine
        return Client(address, timeout=PATIENCE, set_as_default=False)


def _executor(client: Any, gpus_per_run: int) -> Executor:
    resources = {"GPU": gpus_per_run} if gpus_per_run else None
    return client.get_executor(pure=False, resources=resources)


@contextmanager
def _queue(file: str | Path, gpus_per_run: int) -> Iterator[Executor]:
    from distributed import Client

    cluster, least, most = described(file)
    with cluster:
        try:
            _submit_one(cluster)
        except (OSError, RuntimeError, ValueError) as error:
            raise GaussMarkError(
                f"{file}: the queue took no job; correct the file and start again: {error}"
            ) from None
        cluster.adapt(minimum_jobs=least, maximum_jobs=most)
        with Client(cluster, set_as_default=False) as client:
            yield _executor(client, gpus_per_run)


def _submit_one(cluster: Any) -> None:
    """Submits the first job by hand, because ``adapt`` only logs that a queue takes none."""

    from distributed import Status

    async def submitted() -> None:
        try:
            await cluster
        except BaseException:
            for job in cluster.workers.values():  # or Dask would not close the cluster
                job.status = Status.failed
            raise

    cluster.worker_spec.update(cluster.new_worker_spec())
    cluster.sync(submitted)


def described(file: str | Path) -> tuple[Any, int, int]:
    """The ``dask-jobqueue`` cluster that a YAML file describes, with nothing submitted yet, and the
    least and most jobs that it wants.

    ``kind`` says which queue, ``jobs`` how many (a number, or [least, most]); all else are keyword
    arguments of the cluster of that kind. A file that describes none is a GaussMarkError.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    import dask_jobqueue  # which makes a Ctrl-C end the process with code 0

    for number, handler in before.items():
        signal.signal(number, handler)
    queues = vars(dask_jobqueue).items()
    kinds = {name[:-7].lower(): queue for name, queue in queues if name.endswith("Cluster")}
    given = presets.read(file, "cluster")
    kind, jobs = given.pop("kind", None), given.pop("jobs", None)
    if kind not in kinds:
        raise GaussMarkError(f"{file}: expected `kind:` one of {', '.join(kinds)}, got {kind!r}")
    try:
        least, most = jobs if isinstance(jobs, list) else (int(jobs), int(jobs))
        return kinds[kind](**{"cores": 1, "processes": 1, **given}), least, most
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        raise GaussMarkError(f"{file}: no {kind} cluster can be made of it: {error}") from None
