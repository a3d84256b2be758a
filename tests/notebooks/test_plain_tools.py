"""papermill and nbval, called without any option of ours, work on the notebooks."""

import subprocess
import sys

import nbformat
import pytest
from small_notebooks import code, write

from gaussmark_lib import paths


@pytest.mark.spread
@pytest.mark.slow
def test_papermill_runs_a_notebook(tmp_path):
    out = tmp_path / "out.ipynb"
    command = [
        "papermill",
        "notebooks/11_playground.ipynb",
        str(out),
        "-p",
        "n_tokens",
        "20",
        "-p",
        "n_samples",
        "1",
    ]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    cells = nbformat.read(out, as_version=4).cells
    [injected] = [cell for cell in cells if "injected-parameters" in cell.metadata.get("tags", [])]
    assert "n_tokens = 20" in injected.source


@pytest.mark.slow
@pytest.mark.spread
def test_nbval_checks_a_notebook_that_imports_the_library(tmp_path):
    cell = code(
        "from gaussmark_lib import errors, perturb\nprint(perturb.Key.from_seed(7).key_id)",
        "nbval-check-output",
    )
    cell.execution_count = 1
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="8201c635\n")]
    notebook = write(tmp_path / "one.ipynb", cell)
    command = [
        "pytest",
        "-c",
        "pyproject.toml",
        "-p",
        "no:cacheprovider",
        "--nbval-lax",
        str(notebook),
    ]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
