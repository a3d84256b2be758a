"""The command line, as a user meets it: exit codes, sentences, and real signals to a process of its
own.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from command_lines import answer
from small_notebooks import code, parameters, write
from sweep_places import gone, until

from gaussmark_lib.workbench import cli
from gaussmark_lib.workbench.runs import notebook as notebooks

COMMAND = [sys.executable, "-m", "gaussmark_lib.workbench.cli"]
SLOW = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
with open({path!r}, "w") as file:
    print(os.getpid(), child.pid, file=file)
time.sleep(600)
"""


def test_run_answers_and_prints_where(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(notebooks.Notebook, "code", "tested")
    monkeypatch.chdir(tmp_path)
    cell = code("from gaussmark_lib.workbench import record; record.record({'twice': 2 * x})")
    notebook = write(
        tmp_path / "demo.ipynb", parameters("x: float = 1.0  # [-5, 5] a number"), cell
    )
    (tmp_path / "preset.yaml").write_text("x: 4")
    words = ["run", str(notebook), "-f", "preset.yaml", "-p", "x", "-1e-1", "--records", "records"]
    checked = answer(capsys, *words, "--check")[1]
    assert " ".join(checked.split()) == "demo can run with x -0.1"
    assert not (tmp_path / "records").exists()
    _, out, err = answer(capsys, *words)
    assert "cell" in err, "a progress bar"
    assert out.splitlines()[1].split() == ["twice", "-0.2"]
    folder = Path(out.splitlines()[-1])
    assert json.loads((folder / "params.json").read_text()) == {"x": -0.1}
    exit_code, again, err = answer(capsys, *words)
    assert (exit_code, again.splitlines()[-1], err) == (0, str(folder), "")
    assert "answered from its record" in again
    listed = answer(capsys, "run", str(notebook), "--parameters")[1]
    assert listed == "x: float in [-5, 5] = 1.0  # a number\n"


def test_a_failing_cell_exits_with_1(tmp_path, capsys):
    notebook = write(tmp_path / "demo.ipynb", parameters(), code("1 / 0"))
    words = ["run", str(notebook), "--records", str(tmp_path / "records")]
    exit_code, out, err = answer(capsys, *words)
    assert (exit_code, out, "Traceback" in err) == (cli.FAILED, "", False)
    assert "demo failed: in cell `1 / 0`: ZeroDivisionError" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_kernel_and_nothing_that_looks_complete(tmp_path, number):
    pids = tmp_path / "pids"
    notebook = write(tmp_path / "demo.ipynb", parameters(), code(SLOW.format(path=str(pids))))
    command = [*COMMAND, "run", str(notebook), "--records", str(tmp_path / "records")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: pids.exists() and pids.read_text().endswith("\n"), process)
    kernel, child = (psutil.Process(int(pid)) for pid in pids.read_text().split())
    process.send_signal(number)
    process.send_signal(number)  # impatience must not cut the tidying up short
    if number == signal.SIGKILL:
        child.kill()
    _, errors = process.communicate(timeout=60)
    until(lambda: gone([kernel]), seconds=10)  # it watches its parent
    records = list((tmp_path / "records" / "demo").iterdir())
    if number == signal.SIGKILL:
        assert all(path.name.startswith(".") for path in records)
        return
    until(lambda: gone([child]), seconds=10)
    assert process.returncode == cli.INTERRUPTED
    assert "demo interrupted: in cell" in errors
    assert "Traceback" not in errors
    [record] = records
    status = json.loads((record / "status.json").read_text())
    assert (record.suffix, status["status"]) == (".failed", "interrupted")
    assert (status["error"], status["cell"]) == ("KeyboardInterrupt", "import os, subprocess, time")


LIGHT = """
import sys
import gaussmark_lib, gaussmark_lib.workbench.runs, gaussmark_lib.workbench.sweeps
from gaussmark_lib.workbench import cli
commands = ["--help", "--version", "list", "generate --help", "tour --help", "run no_such_notebook"]
for command in [*commands, "run 03 -f llama-3.1-8b --check"]:
    cli.main(command.split())
    heavy = {"torch", "transformers", "papermill", "distributed", "nbformat"} & set(sys.modules)
    assert not heavy, (command, heavy)
"""


def test_help_and_refusals_do_not_wait_for_heavy_packages():
    subprocess.run([sys.executable, "-c", LIGHT], check=True, timeout=120)


def test_a_key_is_made_for_one_weight_and_shown_without_its_secret(tmp_path, capsys):
    path = tmp_path / "key.json"
    weight = "model.layers.4.mlp.down_proj.weight"
    words = ["key", "new", str(path), "--weight", weight, "--sigma", "0.1", "--rank-dropped", "2"]
    code, out, _ = answer(capsys, *words)
    content = json.loads(path.read_text())
    assert (code, path.stat().st_mode & 0o777, content["key_id"] in out) == (0, 0o600, True)
    shown = answer(capsys, "key", "show", str(path))[1]
    assert content["secret"] not in shown
    facts = json.loads(shown)
    assert (facts["weight"], facts["sigma"], facts["rank_dropped"]) == (weight, 0.1, 2)
    assert answer(capsys, *words)[0] == cli.REFUSED
    assert json.loads(path.read_text()) == content, "it is never overwritten"


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), ValueError("deep")])
def test_an_interrupt_in_compiled_code_is_one(capsys, monkeypatch, cause):
    """numba raises a SystemError from it; from anything else it is a fault."""

    def stop(*_):
        raise SystemError("returned a result with an exception set") from cause

    monkeypatch.setattr(notebooks, "numbered", stop)
    if isinstance(cause, ValueError):
        with pytest.raises(SystemError):
            cli.main(["list", "notebooks"])
    else:
        assert answer(capsys, "list", "notebooks") == (130, "", "\ngaussmark: interrupted\n")
