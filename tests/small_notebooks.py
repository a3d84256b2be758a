"""Notebooks of a few cells, for tests of the code that runs notebooks."""

from pathlib import Path

import nbformat
from nbformat import NotebookNode


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
