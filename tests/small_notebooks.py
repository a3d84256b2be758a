"""Notebooks of a few cells, for tests of the code that runs notebooks."""

from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from gaussmark_lib.workbench import record
from gaussmark_lib.workbench.runs import kernel


def code(source: str, *tags: str) -> NotebookNode:
    cell = nbformat.v4.new_code_cell(source)
    cell.metadata.tags = list(tags)
    return cell


def markdown(source: str) -> NotebookNode:
    return nbformat.v4.new_markdown_cell(source)


def parameters(source: str = "x: int = 1  # [0, 5] a number") -> NotebookNode:
    return code(source, "parameters")


def write(path: Path, *cells: NotebookNode) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), path)
    return path


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the cells of notebooks in this process, one notebook at a time."""

    def execute(path, parameters, *, env, **options):
        monkeypatch.setenv(record.RUN_DIR, env[record.RUN_DIR])
        names: dict = {}
        for cell in nbformat.read(path, as_version=4).cells:
            exec(cell.source, names)
            if "parameters" in cell.metadata.get("tags", []):
                names.update(parameters)

    monkeypatch.setattr(kernel, "execute", execute)
