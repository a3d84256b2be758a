"""papermill and nbval, with no options of ours on the command line, work on the notebooks: nbval
finds a cell that raises and an output that went stale.
"""

import re
import subprocess
import sys

import nbformat
import pytest
from small_notebooks import code, write

from gaussmark_lib import files


def _stored(source: str, output: str, *tags: str) -> nbformat.NotebookNode:
    """A cell that was committed with this output."""
    cell = code(source, *tags)
    cell.execution_count = 1
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)]
    return cell


def _python(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=files.ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.spread
def test_papermill_runs_a_notebook(tmp_path):
    out = tmp_path / "out.ipynb"
    few = ["-p", "n_tokens", "20", "-p", "n_samples", "1"]
    done = _python("papermill", "notebooks/11_playground.ipynb", str(out), *few)
    assert done.returncode == 0, done.stderr[-2000:]
    cells = nbformat.read(out, as_version=4).cells
    [injected] = [cell for cell in cells if "injected-parameters" in cell.metadata.get("tags", [])]
    assert "n_tokens = 20" in injected.source


@pytest.mark.slow
def test_nbval_finds_broken_notebooks(tmp_path):
    checked = "nbval-check-output"
    library = "from gaussmark_lib import perturb\nprint(perturb.Key.from_seed(7).key_id)"
    write(
        tmp_path / "fine.ipynb",
        _stored(library, "8201c635\n", checked),
        _stored("print(3)", "3\n", checked),
        _stored("print('took 2.5 s')", "took 71 s\n", checked),
        code("1 / 0", "nbval-skip"),
    )
    write(tmp_path / "ignored.ipynb", _stored("print(4)", "3\n"))
    write(tmp_path / "raises.ipynb", code("x = 1"), code("1 / 0"))
    write(tmp_path / "asserts.ipynb", code("assert 0.31 > 0.78, 'the claim does not hold'"))
    write(tmp_path / "stale.ipynb", _stored("print(4)", "3\n", checked))
    write(tmp_path / "unrun.ipynb", code("print(4)", checked))
    command = ["pytest", "-c", "pyproject.toml", "-rA", "-p", "no:cacheprovider", "--nbval-lax"]
    done = _python(*command, str(tmp_path))
    lines = re.findall(r"(?m)^(PASSED|FAILED|ERROR) \S*?(\w+)\.ipynb", done.stdout)
    outcomes = {name: outcome for outcome, name in lines}
    # nbval cannot see the fault of unrun: test_structure does
    wanted = dict.fromkeys(("fine", "ignored", "unrun"), "PASSED")
    wanted |= dict.fromkeys(("raises", "asserts", "stale"), "FAILED")
    assert outcomes == wanted, done.stdout + done.stderr
    assert done.returncode == 1
