"""Finding notebooks, and the id that a question and its answer share."""

import nbformat
import pytest
from small_notebooks import code, markdown, parameters, write

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError, ParameterError
from gaussmark_lib.workbench.runs import notebook as notebooks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "NOTEBOOKS", tmp_path)
    for name in ("00_first", "01_second", "02_third_a", "02_third_b", "solution"):
        write(tmp_path / f"{name}.ipynb", markdown("# Title"), parameters())
    return tmp_path


def test_a_notebook_is_found_by_number_name_and_path(folder, tmp_path_factory):
    other = write(tmp_path_factory.mktemp("other") / "00_first.ipynb", parameters("y: int = 1"))
    for name in ("00", "00_first", "00_first.ipynb"):
        assert notebooks.load(name).path == folder / "00_first.ipynb"
    assert notebooks.load(other).path == other
    names = ["00_first", "01_second", "02_third_a", "02_third_b"]
    assert [path.stem for path in notebooks.numbered()] == names


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("99", "there are 00_first, 01_second"),
        ("02", "several notebooks"),
        ("/nowhere/00_x.ipynb", "no notebook"),
        ("x" * 300, "no notebook"),
        ("\0.ipynb", "no notebook"),
    ],
)
def test_a_missing_notebook_is_named_with_what_there_is(folder, name, complaint):
    with pytest.raises(GaussMarkError, match=complaint):
        notebooks.load(name)


BROKEN = ["", "[]", "{}", '{"cells": [{}], "nbformat": 4}', '{"cells": [], "nbformat": 3}', "\xff"]


@pytest.mark.parametrize("content", [*BROKEN, "[" * 100_000])
def test_a_broken_notebook_is_refused(tmp_path, content):
    path = tmp_path / "broken.ipynb"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(GaussMarkError, match=r"broken.ipynb cannot be read as a notebook"):
        notebooks.load(path)


def test_notebooks_that_cannot_be_run_are_refused(tmp_path):
    for cells in ([], [code("x: int = 1")], [parameters(), parameters()]):
        with pytest.raises(ParameterError, match="exactly one code cell tagged 'parameters'"):
            _ = notebooks.load(write(tmp_path / "a.ipynb", *cells)).parameters
    injected = code("n = 7", "injected-parameters")
    with pytest.raises(GaussMarkError, match=r"is the record of a run.*run the original notebook"):
        notebooks.load(write(tmp_path / "a.ipynb", parameters("n: int = 1"), injected))


def _id(path, **values):
    return notebooks.question(path, values).id


def test_the_id_is_that_of_the_question_alone(tmp_path):
    cells = [markdown("# T"), parameters("x: float = 1.0  # [0, 5]"), code("x")]
    path = write(tmp_path / "a.ipynb", *cells)
    first = _id(path)
    assert len(first) == 12
    assert first == _id(path, x=1) == _id(path, x=1.0)
    cells[2].outputs = [nbformat.v4.new_output("stream", text="1.0")]
    cells[2].execution_count = 7
    assert _id(write(tmp_path / "b.ipynb", *cells)) == first
    assert "stream" not in notebooks.load(tmp_path / "b.ipynb").text, "megabytes of figures"


def test_the_id_changes_with_everything_that_could_change_the_answer(tmp_path, monkeypatch):
    """Cells, values, the code that is used, and the files that the values name."""
    declared = "x: int = 1  # [0, 5]\nmodel: str = 'doclm'"
    cells = [markdown("# T"), parameters(declared), code("x"), code("import helper")]
    path = write(tmp_path / "a.ipynb", *cells)
    (tmp_path / "mine").mkdir()
    ids = [_id(path), _id(path, x=2), _id(path, model="mine")]
    for index, changed in [
        (0, markdown("# U")),
        (1, parameters(declared.replace("5", "6"))),
        (2, code("x + 0")),
        (2, code("x", "nbval-skip")),
    ]:
        others = [changed if i == index else cell for i, cell in enumerate(cells)]
        ids.append(_id(write(tmp_path / "b.ipynb", *others)))
    (tmp_path / "mine" / "model.safetensors").write_text("weights")
    ids.append(_id(path, model="mine"))
    (tmp_path / "helper.py").write_text("x = 1")
    ids.append(_id(path))
    monkeypatch.setattr(notebooks.Notebook, "code", "another")
    assert len({*ids, _id(path)}) == len(ids) + 1
