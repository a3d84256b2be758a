"""Finding notebooks, and the id that a question and its answer share."""

import json

import pytest
from small_notebooks import code, markdown, parameters, write

from gaussmark_lib import paths
from gaussmark_lib.errors import GaussMarkError, ParameterError
from gaussmark_lib.runs import notebook as notebooks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    for name in ("00_first", "01_second", "02_third_a", "02_third_b"):
        write(tmp_path / f"{name}.ipynb", markdown("# Title"), parameters())
    return tmp_path


@pytest.mark.parametrize("name", ["00", "00_first", "00_first.ipynb"])
def test_a_notebook_is_found_by_number_and_name_from_anywhere(
    folder, name, monkeypatch, tmp_path_factory
):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert notebooks.load(name).path == folder / "00_first.ipynb"


def test_a_notebook_is_found_by_path(folder, tmp_path_factory, monkeypatch):
    other = write(tmp_path_factory.mktemp("other") / "00_first.ipynb", parameters("y: int = 1"))
    assert notebooks.load(other).path == other
    monkeypatch.chdir(other.parent)
    assert list(notebooks.load("00_first").parameters) == ["y"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("00_frist", "did you mean 00_first"),
        ("99", "there are 00_first, 01_second"),
        ("02", "several notebooks"),
        ("", "no notebook"),
        ("/nowhere/00_x.ipynb", "no notebook"),
        ("x" * 300, "no notebook"),
        ("\0.ipynb", "no notebook"),
    ],
)
def test_a_missing_notebook_is_named_with_what_there_is(folder, name, complaint):
    with pytest.raises(GaussMarkError, match=complaint):
        notebooks.load(name)


HUGE_FORMAT = f'{{"cells": [], "nbformat": {"4" * 5000}}}'


@pytest.mark.parametrize(
    "content",
    [
        *(
            "",
            "{",
            "[]",
            "{}",
            '{"cells": [{}], "nbformat": 4}',
            '{"cells": [], "nbformat": 3}',
            '{"cells": null, "nbformat": 4}',
            "\xff",
        ),
        *("[" * 100_000, HUGE_FORMAT),
    ],
)
def test_a_broken_notebook_is_refused(tmp_path, content):
    path = tmp_path / "broken.ipynb"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(GaussMarkError, match=r"broken.ipynb cannot be read as a notebook"):
        notebooks.load(path)


@pytest.mark.parametrize("name", ["...ipynb", "..ipynb", ".hidden.ipynb"])
def test_a_notebook_whose_record_would_lie_elsewhere_or_be_hidden_is_refused(tmp_path, name):
    with pytest.raises(GaussMarkError, match="does not begin with a dot"):
        notebooks.load(write(tmp_path / name, parameters()))


@pytest.mark.parametrize(
    "cells", [[], [code("x: int = 1")], [parameters(), parameters()], [markdown("x")]]
)
def test_a_notebook_has_exactly_one_parameters_cell(tmp_path, cells):
    with pytest.raises(ParameterError, match="expected exactly one code cell tagged 'parameters'"):
        _ = notebooks.load(write(tmp_path / "a.ipynb", *cells)).parameters


def test_a_record_s_notebook_is_not_run_with_what_was_injected_into_it(tmp_path):
    path = write(
        tmp_path / "a.ipynb",
        parameters("n: int = 1"),
        code("n = 7", "injected-parameters"),
        code("n"),
    )
    with pytest.raises(
        GaussMarkError, match=r"is the record of a run.*run the notebook that it was made from"
    ):
        notebooks.load(path)


def test_the_id_follows_the_modules_beside_the_notebook(tmp_path):
    path = write(tmp_path / "a.ipynb", parameters(), code("import helper, json"))
    ids = [_id(path)]
    for name, text in [
        ("helper.py", "from inner import deep"),
        ("helper.py", "from inner.deep import x"),
        ("inner/deep.py", "x = 1"),
        ("inner/deep.py", ""),
    ]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        ids.append(_id(path))
    assert len(set(ids)) == len(ids)
    (tmp_path / "nobodys.py").write_text("x = 1")
    assert _id(path) == ids[-1]


def test_the_id_follows_the_judge_that_the_environment_names_and_not_its_secret(
    tmp_path, monkeypatch
):
    path = write(tmp_path / "a.ipynb", parameters("judge: str = 'itself'"))
    ids = {}
    for name, value in [("URL", "https://a"), ("MODEL", "a"), ("MODEL", "b"), ("KEY", "secret")]:
        monkeypatch.setenv(f"GAUSSMARK_JUDGE_{name}", value)
        ids[name, value] = _id(path, judge="endpoint"), _id(path)
    assert len({judged for judged, _ in ids.values()}) == 3
    assert ids["KEY", "secret"] == ids["MODEL", "b"]
    assert len({other for _, other in ids.values()}) == 1


def test_the_numbered_notebooks_are_in_order(folder):
    write(folder / "solution.ipynb", parameters())
    assert [path.stem for path in notebooks.numbered()] == [
        "00_first",
        "01_second",
        "02_third_a",
        "02_third_b",
    ]


def _id(path, **values):
    notebook = notebooks.load(path)
    return notebook.run_id(notebook.check(values))


def test_the_id_is_that_of_the_question_alone(tmp_path):
    cells = [markdown("# T"), parameters("x: float = 1.0  # [0, 5]"), code("x")]
    path = write(tmp_path / "a.ipynb", *cells)
    first = _id(path)
    assert len(first) == 12
    assert int(first, 16) >= 0
    assert first == _id(path, x=1) == _id(path, x=1.0)
    cells[2].outputs = [nb_output()]
    cells[2].execution_count = 7
    cells[2].metadata["collapsed"] = True
    assert _id(write(tmp_path / "b.ipynb", *cells)) == first


def nb_output():
    import nbformat

    return nbformat.v4.new_output("stream", text="1.0")


def test_the_id_changes_with_everything_that_could_change_the_answer(tmp_path, monkeypatch):
    cells = [markdown("# T"), parameters("x: int = 1  # [0, 5]"), code("x")]
    ids = [_id(write(tmp_path / "a.ipynb", *cells)), _id(tmp_path / "a.ipynb", x=2)]
    for index, changed in [
        (0, markdown("# U")),
        (1, parameters("x: int = 1  # [0, 6]")),
        (2, code("x + 0")),
        (2, code("x", "nbval-skip")),
    ]:
        ids.append(
            _id(
                write(
                    tmp_path / "b.ipynb",
                    *[changed if i == index else cell for i, cell in enumerate(cells)],
                )
            )
        )
    ids.append(_id(write(tmp_path / "b.ipynb", *cells, code(""))))
    monkeypatch.setattr(notebooks.Notebook, "code", "another")
    ids.append(_id(tmp_path / "a.ipynb"))
    assert len(set(ids)) == len(ids)


def test_the_id_does_not_change_when_json_says_the_same_in_another_way(tmp_path):
    path = write(tmp_path / "a.ipynb", markdown("two\nlines"), parameters())
    content = json.loads(path.read_text())
    content["cells"][0]["source"] = "two\nlines"
    (tmp_path / "b.ipynb").write_text(json.dumps(content, indent=7))
    assert _id(path) == _id(tmp_path / "b.ipynb")


def test_the_id_follows_the_model_and_the_texts_that_the_parameters_name(tmp_path):
    path = write(
        tmp_path / "notebooks" / "a.ipynb",
        parameters("model: str = 'doclm'\ntext: str = 'docs'\nother: str = ''"),
    )
    model = tmp_path / "models" / "mine"
    model.mkdir(parents=True)
    ids = [_id(path), _id(path, model="../models/mine"), _id(path, text="../texts.jsonl")]
    (model / "model.safetensors").write_text("weights")
    ids.append(_id(path, model="../models/mine"))
    ids.append(_id(path, model=str(model)))
    (tmp_path / "texts.jsonl").write_text('{"text": "one"}')
    ids.append(_id(path, text="../texts.jsonl"))
    (tmp_path / "texts.jsonl").write_text('{"text": "two, and longer"}')
    ids.append(_id(path, text="../texts.jsonl"))
    assert len(set(ids)) == len(ids)
    assert _id(path) == ids[0]


def test_what_a_notebook_says_to_the_tour(tmp_path):
    path = write(tmp_path / "a.ipynb", parameters())
    assert notebooks.load(path).tour == {}
    content = json.loads(path.read_text())
    content["metadata"]["gaussmark"] = {"alone": True, "seconds": 90}
    path.write_text(json.dumps(content))
    assert notebooks.load(path).tour == {"alone": True, "seconds": 90}
