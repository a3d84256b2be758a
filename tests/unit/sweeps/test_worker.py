"""What a worker does with one run, without a cluster: every end of it comes back as an outcome."""

import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
from distributed import Worker
from small_notebooks import parameters, write

from gaussmark_lib import runs
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.runs import kernel
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.sweeps import worker
from gaussmark_lib.sweeps.worker import Outcome


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_wanted", lambda: lambda: True)
    monkeypatch.setattr(kernel, "execute", lambda *arguments, **options: None)
    return notebooks.load(write(tmp_path / "demo.ipynb", parameters()))


def _run(source, root: Path, **options) -> Outcome:
    values = source.check({})
    return worker.run_one(source, values, source.run_id(values), root, **options)


def test_a_run_is_answered_from_its_record_unless_forced(source, tmp_path):
    assert [
        _run(source, tmp_path).cached,
        _run(source, tmp_path).cached,
        _run(source, tmp_path, force=True).cached,
    ] == [False, True, False]


def test_a_worker_with_other_code_runs_nothing(source, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "run", lambda *arguments, **options: pytest.fail("it ran"))
    outcome = worker.run_one(source, {"x": 1}, "another id", tmp_path)
    assert "not the same on this worker" in outcome.error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (runs.RunFailedError("long", "short", Path("kept")), Outcome("short", Path("kept"))),
        (KeyboardInterrupt(), Outcome("interrupted")),
        (GaussMarkError("refused"), Outcome("refused")),
    ],
)
def test_expected_problems_come_back_as_words(source, tmp_path, monkeypatch, error, expected):
    def stop(*arguments, **options):
        raise error

    monkeypatch.setattr(runs, "run", stop)
    assert _run(source, tmp_path) == expected


def test_the_problems_of_a_worker(source, tmp_path):
    assert worker.problem(source, source.code, tmp_path) == ""
    assert worker.problem(source, "another", tmp_path).startswith(
        f"has version {source.code} of the code of demo, expected another"
    )
    assert worker.problem(source, source.code, tmp_path / "missing").startswith(
        f"does not see {tmp_path / 'missing'}"
    )


def test_signals_are_left_to_the_sweep_and_not_ignored_by_kernels(monkeypatch):
    handlers = {}
    monkeypatch.setattr(
        signal, "signal", lambda number, handler: handlers.update({number: handler})
    )
    worker.dask_setup(Mock(spec=Worker))
    assert handlers.keys() == {signal.SIGINT, signal.SIGTERM}
    assert all(callable(handler) for handler in handlers.values())
