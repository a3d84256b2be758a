"""Each notebook runs with parameters other than its defaults: its claims are not tuned to one seed,
and nothing in it is hard-wired.

The defaults are run once by nbval; sizes are small here, so that both together take minutes.
"""

import shutil
import tomllib
from operator import attrgetter
from pathlib import Path

import nbformat
import pytest
import tracked

from gaussmark_lib import texts
from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.runs import kernel
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.runs.kernel import SKIP_TAG

EXERCISE = "exercise"  # the tag of one that is executed here
QUICK = ("01", "03", "07", "09", "11", "16", "20")  # at most twenty core-seconds each
UNSOLVED = ("not yet", "Not yet", "there is nothing to choose from")

OTHER = tomllib.loads(Path(__file__).with_name("other_parameters.toml").read_text(encoding="utf-8"))


def _own_text(folder: Path) -> Path:
    """A folder of text that is not the documentation corpus."""
    folder.mkdir()
    (folder / "licences.txt").write_text("\n\n".join(texts.load("licences", n=60)["text"]))
    return folder


def test_every_notebook_has_a_second_set_of_parameters():
    assert set(OTHER) == {path.stem for path in tracked.NOTEBOOKS}


def _with_exercises(path: Path, folder: Path) -> Path:
    """A copy of the notebook whose exercises are executed as they stand; a run leaves them out."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if SKIP_TAG in cell.metadata.get("tags", []):
            cell.metadata.tags = [EXERCISE]
    nbformat.write(notebook, folder / path.name)
    return folder / path.name


def _said(cell: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


@pytest.mark.spread
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.stem[:2] in QUICK else pytest.mark.slow, id=path.stem)
        for path in tracked.NOTEBOOKS
    ],
)
def test_it_runs_with_other_parameters(path, tmp_path):
    """To its record; and no exercise that nobody has solved is right, or stops what stands below
    it.
    """
    params = OTHER.get(path.stem, {})
    if path.stem == "20_train_doclm":
        params = params | {"folder": str(_own_text(tmp_path / "own"))}
    run = runs.run(_with_exercises(path, tmp_path), params, progress=False, root=tmp_path / "runs")
    assert run.params.items() >= OTHER[path.stem].items()
    assert run.results, "it records its numbers"
    assert [*run.dir.glob("figures/*.png")], "and its figures"
    cells = nbformat.read(run.dir / "notebook.ipynb", as_version=4).cells
    exercises = [cell for cell in cells if EXERCISE in cell.metadata.get("tags", [])]
    assert exercises
    assert [said for said in map(_said, exercises) if not said.startswith(UNSOLVED)] == []


@pytest.mark.slow
@pytest.mark.spread
@pytest.mark.parametrize(
    "path", tracked.files("notebooks/solutions/*.ipynb"), ids=attrgetter("stem")
)
def test_a_solution_is_right(path, tmp_path):
    """Every cell of it, each with its assertions."""
    copy = Path(shutil.copy(path, tmp_path))
    where = {"folder": path.parent, "env": {}, "progress": False, "wanted": lambda: True}
    kernel.execute(copy, {}, **where)
    cells = [cell for cell in nbformat.read(copy, as_version=4).cells if cell.cell_type == "code"]
    assert sum("assert" in cell.source for cell in cells) > 0
    assert all(cell.execution_count for cell in cells)


@pytest.mark.parametrize("stem", OTHER)
def test_the_other_parameters_differ_from_the_defaults(stem):
    declared = notebooks.load(stem).parameters
    assert all(declared[name].default != value for name, value in OTHER[stem].items())
