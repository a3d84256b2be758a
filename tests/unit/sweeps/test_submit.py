"""Handing out runs and collecting their ends, with a client that runs everything in this
process.
"""

from concurrent.futures import CancelledError

import fake_dask
import pytest
from distributed import KilledWorker
from distributed.comm import CommClosedError
from small_notebooks import markdown, parameters, write
from tqdm.auto import tqdm

from gaussmark_lib.errors import ClusterError
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.sweeps import submit, worker
from gaussmark_lib.sweeps.worker import Outcome


class Bar(tqdm):
    def __init__(self):
        self.words: list[str] = []
        super().__init__(disable=True)

    def set_postfix_str(self, words: str, refresh: bool = True) -> None:
        self.words.append(words)


@pytest.fixture
def jobs(tmp_path, monkeypatch) -> list[submit.Job]:
    fake_dask.use(monkeypatch)
    monkeypatch.setattr(submit, "REFRESH", -1)
    sources = [
        notebooks.load(write(tmp_path / f"{name}.ipynb", markdown("#"), parameters()))
        for name in "abc"
    ]
    return [submit.Job(source, {"x": 1}, source.run_id({"x": 1})) for source in sources]


def _run(jobs, root, monkeypatch, cell, **options) -> tuple[list, Bar, fake_dask.Client]:
    bar, client = Bar(), fake_dask.Client()
    monkeypatch.setattr(worker, "run_one", cell)
    return submit.run_all(client, jobs, root=root, bar=bar, **options), bar, client


def test_every_run_has_its_outcome_and_failures_stop_nothing(jobs, tmp_path, monkeypatch):
    def cell(source, values, run_id, root, force):
        return {"a": Outcome(), "b": Outcome("no b"), "c": Outcome(cached=True)}[source.name]

    outcomes, bar, client = _run(jobs, tmp_path, monkeypatch, cell, gpus_per_run=2)
    assert outcomes == [Outcome(), Outcome("no b"), Outcome(cached=True)]
    assert bar.words[-1] == "1 from record, 1 failed, 1 worker"
    assert {options["resources"]["GPU"] for options in client.submitted} == {2}
    assert len({options["key"] for options in client.submitted}) == 3
    assert list(tmp_path.glob(".sweep-*")) == []


def test_a_few_at_a_time_are_handed_out_in_order_and_named(jobs, tmp_path, monkeypatch):
    outcomes, bar, _ = _run(
        jobs, tmp_path, monkeypatch, lambda source, *rest: Outcome(), at_a_time=2
    )
    assert len(outcomes) == 3
    assert bar.words == ["b", "c", ""], "what runs, after each end"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KilledWorker("task", None, 3), "its worker died 4 times, each time with this run"),
        (TypeError("cannot load"), "TypeError: cannot load"),
        (FileNotFoundError("no such folder there"), "FileNotFoundError: no such folder there"),
    ],
)
def test_what_dask_itself_raises_is_an_outcome_too(error, reason):
    assert submit._outcome(fake_dask.Future(error=error)).error.startswith(reason)


LOST = [CommClosedError("reset by peer"), TimeoutError(), OSError("Timed out trying to connect")]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ("result", CancelledError()),
        ("result", LOST[0]),
        *[(asked, error) for asked in ("run", "submit", "nthreads") for error in LOST],
    ],
)
def test_a_scheduler_that_is_lost_while_anything_is_asked_ends_the_sweep(
    jobs, tmp_path, monkeypatch, asked, error
):
    def lost(*arguments, **options):
        raise error

    monkeypatch.setattr(fake_dask.Future if asked == "result" else fake_dask.Client, asked, lost)
    with pytest.raises(ClusterError, match="went away"):
        _run(jobs, tmp_path, monkeypatch, lambda *arguments: Outcome())
    assert list(tmp_path.glob(".sweep-*")) == []


def test_a_worker_that_cannot_take_part_is_named_and_nothing_is_handed_out(
    jobs, tmp_path, monkeypatch
):
    monkeypatch.setattr(worker, "problem", lambda source, code, seen: "has another version")
    with pytest.raises(ClusterError, match="worker tcp://here has another version"):
        _run(jobs, tmp_path, monkeypatch, lambda *arguments: pytest.fail("it ran"))


def test_what_is_sent_has_no_outputs_and_asks_the_same(jobs, tmp_path):
    source = jobs[0].source
    small = submit._without_outputs(source)
    assert small.run_id({"x": 1}) == source.run_id({"x": 1})
