"""A sweep ends in the same files whatever happened to it: with real workers, kernels and signals
where they matter.
"""

import json
import os
import re
import signal
import sys

import nbformat
import pandas as pd
import psutil
import pytest
from sweep_places import GRID, family, finish, gone, same_files, until

from gaussmark_lib import cli
from gaussmark_lib.sweeps import over_grid, places
from gaussmark_lib.sweeps.worker import Outcome

# What zmq may log in a kernel whose worker is killed in the middle of a message, and nothing else.
LAST_WORDS = re.compile(
    r"[^\n]*callback\nTraceback \(most recent call last\):\n +File"
    r' "[^"\n]*/zmq/eventloop/zmqstream\.py"[^\n]*\n(?: [^\n]*\n)*'
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


def test_the_tables_over_all_runs(undisturbed):
    ids = list(undisturbed.runs)
    words = [["a", "b"]] * 3
    assert undisturbed.cached == 0
    assert undisturbed.failed == []
    expected = {
        **{
            "run": ids,
            "status": "complete",
            "x": [4, 1, 3],
            "words": words,
            "square": [16, 1, 9],
            "result.x": [40, 10, 30],
        },
        **{
            "deep.list": [[4, 0.5], [1, 0.5], [3, 0.5]],
            "gpu": [os.environ.get("CUDA_VISIBLE_DEVICES")] * 3,
        },
    }
    found = undisturbed.results.map(
        lambda value: value.tolist() if hasattr(value, "tolist") else value
    )
    pd.testing.assert_frame_equal(found, pd.DataFrame(expected), check_dtype=False)
    assert str(found["square"].dtype) == "int64"
    rows = undisturbed.table("rows")
    assert rows.columns.tolist() == [
        "run",
        "param.x",
        "n",
        "x",
    ], "what does not vary is not repeated"
    assert rows["param.x"].tolist() == [4, 4, 1, 1, 3, 3]
    assert rows["run"].tolist() == [ids[0], ids[0], ids[1], ids[1], ids[2], ids[2]]
    assert rows["x"].tolist() == [2, 4 / 3, 1 / 2, 1 / 3, 3 / 2, 1]
    about = json.loads((undisturbed.dir / "sweep.json").read_text())
    assert (about["notebook"], about["status"], about["grid"]) == ("demo", "complete", GRID)
    assert [(run["run"], run["params"], run["status"]) for run in about["runs"]] == [
        (i, {"x": x}, "complete") for i, x in zip(ids, [4, 1, 3], strict=True)
    ]


def test_the_same_sweep_again_starts_nothing_and_another_one_only_what_is_new(
    place, undisturbed, monkeypatch
):
    monkeypatch.setattr(places, "connect", lambda **options: pytest.fail("workers were started"))
    again = place.sweep(undisturbed.dir.parent)
    assert (again.dir, again.cached, again.failed) == (undisturbed.dir, 3, [])
    smaller = place.sweep(undisturbed.dir.parent, {"x": [3, 4]}, params={"words": ["a", "b"]})
    assert smaller.dir != undisturbed.dir
    assert smaller.results["square"].tolist() == [9, 16]


@pytest.mark.slow
def test_a_killed_worker_is_replaced(place, undisturbed, tmp_path):
    place.set("hold", 1)
    process = place.start(tmp_path, "--workers", "2")
    (kernel,) = map(psutil.Process, until(lambda: place.kernels(1), process))
    kernel.parent().kill()
    until(lambda: gone([kernel]))
    place.unset("hold")
    printed, errors = finish(process, 0)
    assert "3 of 3 runs complete, 0 of them from record, 0 failed" in printed
    assert "3/3" in errors
    assert "Traceback" not in LAST_WORDS.sub("", errors)
    assert (len(place.kernels(1)), len(place.kernels(3))) == (2, 1)
    same_files(tmp_path, undisturbed)


def test_a_run_that_fails_does_not_stop_the_others_and_is_run_again(
    place, undisturbed, tmp_path, in_this_process
):
    place.set("fail", 1)
    done = place.sweep(tmp_path)
    (failed,) = done.failed
    assert (failed.params, failed.reason) == ({"x": 1}, "RuntimeError: no 1")
    assert done.results["status"].tolist() == ["complete", "failed", "complete"]
    assert done.results["square"].isna().tolist() == [False, True, False]
    about = json.loads((done.dir / "sweep.json").read_text())
    assert (about["status"], about["runs"][1]["error"]) == ("failed", failed.reason)

    words = [
        "sweep",
        str(place.notebook),
        "--grid",
        str(place.folder / "grid.yaml"),
        "--records",
        str(tmp_path),
    ]
    assert cli.main(words) == cli.FAILED
    place.unset("fail")
    again = place.sweep(tmp_path)
    assert (again.cached, again.failed) == (2, [])
    same_files(tmp_path, undisturbed)


def test_the_command_says_which_runs_failed_and_why(place, tmp_path, in_this_process, capsys):
    place.set("fail", 1)
    words = [
        "sweep",
        str(place.notebook),
        "--grid",
        str(place.folder / "grid.yaml"),
        "--records",
        str(tmp_path),
    ]
    assert cli.main(words) == cli.FAILED
    printed = capsys.readouterr()
    assert "failed: x=1\n" in printed.err
    assert "RuntimeError: no 1" in printed.err
    assert "2 of 3 runs complete, 0 of them from record, 1 failed" in printed.out
    table = [line.split() for line in printed.out.splitlines()[-5:-1]]
    assert [row[:2] for row in table] == [
        ["param.x", "square"],
        ["4", "16"],
        ["1", "failed"],
        ["3", "9"],
    ]


def test_the_traceback_of_a_failed_run_is_shown_without_colours(place, tmp_path):
    node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    node.cells[0].outputs = [
        nbformat.v4.new_output(
            "error", ename="E", evalue="", traceback=["\x1b[31mE\x1b[0m", "no 1"]
        )
    ]
    nbformat.write(node, tmp_path / "notebook.ipynb")
    failure = over_grid._failure("id", {"x": 1}, Outcome("RuntimeError: no 1", tmp_path), tmp_path)
    assert (failure.why, failure.reason) == ("E\nno 1", "RuntimeError: no 1")
    assert "no record" in over_grid._failure("id", {}, Outcome(), tmp_path).reason


def test_a_killed_sweep_leaves_no_process_and_is_taken_up_where_it_was(
    place, undisturbed, tmp_path
):
    place.set("hold", 1)
    process = place.start(tmp_path, "--workers", "2")
    until(lambda: place.kernels(1) and list(tmp_path.glob("demo/[!.]*")), process)
    processes = family(process)
    process.kill()
    until(lambda: gone(processes))
    finish(process, -signal.SIGKILL)
    assert list(tmp_path.glob("demo/.*.partial-*")), "what it was at"
    assert list(tmp_path.glob("sweep-*")) == []
    complete = len(list(tmp_path.glob("demo/[!.]*")))
    place.unset("hold")
    place.unset("pid")
    again = place.sweep(tmp_path, workers=2)
    assert again.cached == complete > 0
    assert len(place.kernels()) == 3 - complete
    same_files(tmp_path, undisturbed)


def test_an_interrupted_sweep_stops_everything_and_keeps_what_is_finished(place, tmp_path):
    place.set("hold", 1, 3)
    process = place.start(tmp_path, "--workers", "2")
    until(
        lambda: place.kernels(1) and place.kernels(3) and list(tmp_path.glob("demo/[!.]*")), process
    )
    processes = family(process)
    assert len(processes) > 4
    os.killpg(process.pid, signal.SIGINT)  # all of them at once, as a terminal does it
    _, errors = finish(process, 130)
    until(lambda: gone(processes), seconds=20)
    assert (
        errors.splitlines()[-1]
        == "gaussmark: interrupted; 1 of 3 runs are done, and the same command goes on from there"
    )
    assert "Traceback" not in errors
    assert (
        len([path for path in tmp_path.glob("demo/[!.]*") if not path.name.endswith(".failed")])
        == 1
    )


def test_two_sweeps_at_once_over_the_same_runs(place, undisturbed, tmp_path):
    place.set("hold", 1, 3, 4)
    both = [place.start(tmp_path, "--workers", "1") for _ in range(2)]
    until(lambda: len(place.kernels(4)) == 2, both[0])
    place.unset("hold")
    for process in both:
        printed, _ = finish(process, 0)
        assert "3 of 3 runs complete" in printed
    same_files(tmp_path, undisturbed)


def test_only_a_killed_kernels_last_words_are_left_out():
    ours = (
        'Traceback (most recent call last):\n  File "/x/gaussmark_lib/sweeps/worker.py", line 1, in'
        " run_one\nValueError: ours\n"
    )
    file = '  File "/x/zmq/eventloop/zmqstream.py", line 585, in _log_error\n    f.result()\n'
    zmqs = f"Uncaught exception in zmqstream callback\nTraceback (most recent call last):\n{file}"
    assert LAST_WORDS.sub("", f"demo: 0%\n{zmqs}{ours}") == f"demo: 0%\n{ours}"
