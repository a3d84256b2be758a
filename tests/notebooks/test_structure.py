"""Every notebook has the shape that a reader can rely on, and was committed as it came out of a run
with its defaults.
"""

import ast
import os
import pwd
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import tracked

from gaussmark_lib import files
from gaussmark_lib.workbench.runs import notebook as notebooks

WORDS = ("Claim.", "You will be able to", "Prerequisites:", "Time:", "Paper:")
PROMISES = ["# ", *(f"**{words}**" for words in WORDS)]


def _cells(path: Path) -> list[nbformat.NotebookNode]:
    """The code cells, exercises too."""
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def _code(path: Path, *, exercises: bool = False) -> list[nbformat.NotebookNode]:
    """The code cells that are no exercises, or those that are."""
    cells = _cells(path)
    return [cell for cell in cells if ("nbval-skip" in cell.metadata.get("tags", [])) == exercises]


def _python(cell: nbformat.NotebookNode) -> ast.Module:
    return ast.parse(re.sub(r"^[%!].*$", "", cell.source, flags=re.MULTILINE))


def test_there_are_notebooks_and_each_is_on_the_reading_path():
    """A test over no notebooks passes: so this one counts."""
    names = [path.name for path in tracked.NOTEBOOKS]
    assert len(names) >= 5
    guide = (files.NOTEBOOKS / "README.md").read_text()
    assert [name for name in names if f"({name})" not in guide] == []


def test_it_opens_with_its_claim(numbered):
    first = nbformat.read(numbered, as_version=4).cells[0]
    assert first.cell_type == "markdown"
    places = [first.source.find(promise) for promise in PROMISES]
    assert -1 not in places, dict(zip(PROMISES, places, strict=True))
    assert places == sorted(places)
    assert places[0] == 0


def test_every_parameter_is_declared_and_explained(numbered):
    declared = notebooks.load(numbered).parameters
    assert declared
    assert [name for name, parameter in declared.items() if not parameter.help] == []


def test_it_defines_nothing_that_belongs_in_the_library(numbered):
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    nodes = [node for cell in _code(numbered) for node in ast.walk(_python(cell))]
    assert [node.name for node in nodes if isinstance(node, kinds)] == []


def test_its_code_is_read_without_scrolling(any_notebook):
    lines = [line for cell in _cells(any_notebook) for line in cell.source.split("\n")]
    assert [line for line in lines if len(line) > 95] == []


def test_its_code_is_short(numbered):
    cells = [cell for cell in _code(numbered) if "parameters" not in cell.metadata.get("tags", [])]
    lines = [sum(map(bool, map(str.strip, cell.source.split("\n")))) for cell in cells]
    assert max(lines) <= 25
    assert sum(lines) <= 240


def test_it_was_executed_from_top_to_bottom_without_errors(any_notebook):
    cells = [cell for cell in _code(any_notebook) if cell.source.strip()]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output.ename for output in outputs if output.output_type == "error"] == []
    shown = [output for output in outputs if "data" in output]
    assert not [o for o in shown if "image/png" in {*o.metadata} - {*o.data}], "a picture is gone"
    tags = [tag for cell in cells for tag in cell.metadata.get("tags", [])]
    assert "injected-parameters" not in tags, "it shows a run with other parameters"


def test_folded_answers_are_folded_in_jupyterlab_and_on_the_site(numbered):
    cells = nbformat.read(numbered, as_version=4).cells
    hints = {cell.id: cell.metadata.get("jupyter", {}) for cell in cells}
    in_jupyterlab = [name for name, hint in hints.items() if hint.get("outputs_hidden")]
    on_the_site = [cell.id for cell in cells if "hide-output" in cell.metadata.get("tags", [])]
    assert in_jupyterlab == on_the_site


def test_it_ends_with_a_recap_and_three_questions(numbered):
    cells = nbformat.read(numbered, as_version=4).cells
    words = [cell.source for cell in cells if cell.cell_type == "markdown"]
    [recap] = [source for source in words if "## Recap" in source]
    lines = recap.partition("## Recap")[2].partition("\n## ")[0]
    assert len(re.findall(r"^(?:- |\d+\. )", lines, re.MULTILINE)) == 5
    [recall] = [source for source in words if "hree questions to recall" in source]
    questions = recall.partition("hree questions to recall")[2]
    assert questions.count("<details>") == 3 or questions.count("<summary>") in (1, 3)


def test_exercises_are_left_to_the_reader_and_have_solutions(numbered):
    exercises = _code(numbered, exercises=True)
    assert exercises
    for cell in exercises:
        assert cell.execution_count is None
        assert not cell.outputs
        _python(cell)
    assert (numbered.parent / "solutions" / numbered.name).is_file()


def test_it_records_its_results_last(numbered):
    assert "claims.report(" in _code(numbered)[-1].source


def test_it_is_small_and_portable(any_notebook):
    text = any_notebook.read_text(encoding="utf-8")
    assert len(text.encode()) < 1_000_000
    for private in (str(files.ROOT), pwd.getpwuid(os.getuid()).pw_dir):
        assert private not in text
    # the one name that every machine has
    assert nbformat.reads(text, as_version=4).metadata.kernelspec.name == "python3"


def test_an_imported_name_keeps_its_meaning(any_notebook):
    """Or later cells would break."""
    imported: set[str] = set()
    for cell in _cells(any_notebook):
        for node in ast.walk(_python(cell)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                assert node.id not in imported, f"{cell.id}: {node.id} is imported above"


# What belongs to a notebook under another name: 00 has the core alone, 05 is a room.
OTHER_ROOMS = {
    "first_watermark": "gaussmark_lib/perturb.py",
    "playground": "notebooks/gaussmark_experiments/widgets/playground.py",
}


def test_its_name_is_its_name_in_every_room(numbered):
    name = numbered.stem[3:]
    room = OTHER_ROOMS.get(name, f"notebooks/gaussmark_experiments/{name}.py")
    assert (files.ROOT / room).exists()
    tested = Path(room).stem if name != "first_watermark" else "score"
    names = [path.relative_to(files.ROOT) for path in (files.ROOT / "tests").rglob("test_*.py")]
    is_tested = [tested in (path.parent.name, path.stem.removeprefix("test_")) for path in names]
    assert any(is_tested), f"tests of {room}"


HOSTED = """
import subprocess
run = subprocess.run
def without_pip(command, check):
    print(*command[-3:], flush=True)
    return run(command, check=check) if command[0] == "git" else None
subprocess.run = without_pip
import builtins
builtins.input = lambda question: SOURCE
exec(CELL)
import gaussmark_lib, gaussmark_experiments
print(gaussmark_lib.__file__)
"""


@pytest.mark.parametrize("stem", ["00_first_watermark", "11_playground"])
@pytest.mark.parametrize("way", ["asked", "set"])
def test_its_first_cell_clones_and_installs_the_library_where_it_is_missing(stem, way, tmp_path):
    cell = _code(files.NOTEBOOKS / f"{stem}.ipynb")[0].source
    origin = tmp_path / "origin"
    for package in ("gaussmark_lib", "notebooks/gaussmark_experiments"):
        (origin / package).mkdir(parents=True)
        (origin / package / "__init__.py").touch()
    author = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for words in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "-m", "all"]):
        subprocess.run(["git", *words], cwd=origin, check=True)
    address = origin.as_uri()
    hosted = tmp_path / "hosted"
    hosted.mkdir()
    program = HOSTED.replace("SOURCE", repr(address if way == "asked" else "asked in vain"))
    if way == "set":
        cell = cell.replace('repository = ""', f'repository = "{address}"')
    # -I and -S: without this project and all other packages
    command = [sys.executable, "-I", "-S", "-c", program.replace("CELL", repr(cell))]
    env = {name: value for name, value in os.environ.items() if name != "GAUSSMARK_SOURCE"}
    done = subprocess.run(command, cwd=hosted, env=env, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        f"1 {address} gaussmark",
        "--quiet --editable gaussmark",
        str(hosted / "gaussmark" / "gaussmark_lib" / "__init__.py"),
    ]


@pytest.mark.parametrize("stem", ["00_first_watermark", "11_playground"])
def test_its_first_cell_has_the_projects_address_and_does_nothing_here(stem, monkeypatch):
    cell = _code(files.NOTEBOOKS / f"{stem}.ipynb")[0].source
    project = tomllib.loads((files.ROOT / "pyproject.toml").read_text())["project"]
    address = project.get("urls", {}).get("Repository", "")
    assert f'\nrepository = "{address}"  #' in cell
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it is installed"))
    exec(cell, {})
