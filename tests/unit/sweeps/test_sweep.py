"""A sweep ends in the same files whatever happened to it: with real kernels and signals where they
matter.
"""

import json
import os
import signal
import sys

import pandas as pd
import psutil
import pytest
from sweep_places import GRID, family, finish, gone, same_files, until

from gaussmark_lib.workbench import cli
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.runs.notebook import Notebook
from gaussmark_lib.workbench.sweeps import jobs

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


def test_the_tables_over_all_runs(undisturbed):
    ids = list(undisturbed.runs)
    assert (undisturbed.cached, undisturbed.failed) == (0, [])
    results = undisturbed.results
    assert results["run"].tolist() == ids, "in the grid's order, each run once"
    assert results["square"].tolist() == [16, 1, 9]
    assert [part.tolist() for part in results["deep.list"]] == [[4, 0.5], [1, 0.5], [3, 0.5]]
    assert undisturbed.table("rows")["x"].tolist() == [2, 4 / 3, 1 / 2, 1 / 3, 3 / 2, 1]
    about = json.loads((undisturbed.dir / "sweep.json").read_text())
    assert (about["notebook"], about["status"], about["grid"]) == ("demo", "complete", GRID)
    values = {run["run"]: run["params"]["x"] for run in about["runs"]}
    assert values == dict(zip(ids, [4, 1, 3], strict=True))


def test_the_same_sweep_starts_nothing_and_a_smaller_one_neither(place, undisturbed, monkeypatch):
    monkeypatch.setattr(jobs, "executor", lambda *arguments, **options: pytest.fail("it ran"))
    again = place.sweep(undisturbed.dir.parent)
    assert (again.dir, again.cached, again.failed) == (undisturbed.dir, 3, [])
    smaller = place.sweep(undisturbed.dir.parent, {"x": [3, 4]}, params={"words": ["a", "b"]})
    assert smaller.dir != undisturbed.dir
    assert smaller.results["square"].tolist() == [9, 16]


def test_a_run_that_fails_does_not_stop_the_others_and_is_run_again(
    place, undisturbed, tmp_path, in_this_process, capsys
):
    place.set("fail", 4)
    grid = ["--grid", str(place.folder / "grid.yaml"), "--records", str(tmp_path)]
    assert cli.main(["sweep", str(place.notebook), *grid, "--workers", "1"]) == cli.FAILED
    printed = capsys.readouterr()
    assert "failed: {'x': 4}: RuntimeError: no 4" in printed.err
    assert "2 of 3 runs complete, 0 of them from record, 1 failed" in printed.out
    (folder,) = tmp_path.glob("sweep-*")
    results = pd.read_parquet(folder / "results.parquet")
    assert results["status"].tolist() == ["failed", "complete", "complete"]
    assert results["square"].isna().tolist() == [True, False, False]
    about = json.loads((folder / "sweep.json").read_text())
    assert (about["status"], about["runs"][0]["error"]) == ("failed", "RuntimeError: no 4")

    place.unset("fail")
    again = place.sweep(tmp_path, workers=1)
    assert (again.cached, again.failed) == (2, [])
    same_files(tmp_path, undisturbed)


def test_a_run_of_changed_code_is_refused(place, tmp_path, monkeypatch):
    asked = notebooks.question(place.notebook)
    monkeypatch.setattr(Notebook, "code", "another one")
    assert "code or its model on this worker differs" in jobs.run_one(asked, tmp_path, False).error


def test_a_killed_kernel_is_a_failed_run_and_a_killed_sweep_is_taken_up_where_it_was(
    place, undisturbed, tmp_path
):
    place.set("hold", 1, 3)
    process = place.start(tmp_path, "--workers", "2")
    until(lambda: place.kernels(1) and place.kernels(3), process)
    psutil.Process(*place.kernels(1)).kill()
    (failed,) = until(lambda: list(tmp_path.glob("demo/*.failed")), process)
    assert json.loads((failed / "status.json").read_text())["status"] == "failed"
    processes = family(process)
    process.kill()
    until(lambda: gone(processes))
    finish(process, -signal.SIGKILL)
    assert list(tmp_path.glob("sweep-*")) == []
    place.unset("hold")
    again = place.sweep(tmp_path, workers=2)
    assert (again.cached, again.failed) == (1, [])
    same_files(tmp_path, undisturbed)


def test_an_interrupted_sweep_stops_everything_and_keeps_what_is_finished(place, tmp_path):
    place.set("hold", 1, 3)
    process = place.start(tmp_path, "--workers", "2")
    kept = lambda: list(tmp_path.glob("demo/[!.]*"))  # noqa: E731
    until(lambda: place.kernels(1) and place.kernels(3) and kept(), process)
    processes = family(process)
    os.killpg(process.pid, signal.SIGINT)  # all of them at once, as a terminal does it
    _, errors = finish(process, 130)
    until(lambda: gone(processes), seconds=20)
    last = "gaussmark: interrupted; 1 of 3 runs are done, and the same command continues"
    assert errors.splitlines()[-1] == last
    assert "gaussmark_lib" not in errors, "no traceback of ours"
    assert {path.suffix for path in tmp_path.glob("demo/*")} == {"", ".failed"}, "nothing half done"
