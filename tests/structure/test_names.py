"""One name for one thing in the core, and one spelling for each call of the notebooks."""

import ast
from collections import defaultdict
from pathlib import Path

import nbformat

from gaussmark_lib.files import EXPERIMENTS, NOTEBOOKS, ROOT

CORE = sorted((ROOT / "gaussmark_lib").glob("*.py"))
# Functions of several files that mean the same wherever they stand.
SHARED = {
    "load": {"models", "texts"},  # what a name stands for
    "named": {"corrupt", "scheme"},  # what is registered under some names, ready for use
}
KEEPERS = {"record", "headline", "save_table", "save_figure"}  # of workbench/record.py


def shared_names(sources: dict[str, str]) -> dict[str, set[str]]:
    """Public functions that several modules define, with these modules."""
    homes = defaultdict(set)
    for module, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                homes[node.name].add(module)
    return {name: modules for name, modules in homes.items() if len(modules) > 1}


def spellings(source: str) -> set[str]:
    """What the source writes before ``.record(``, ``.save_figure(`` and their like."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    attributes = [func for func in calls if isinstance(func, ast.Attribute)]
    return {ast.unparse(func.value) for func in attributes if func.attr in KEEPERS}


def test_no_two_functions_of_the_core_share_a_name():
    sources = {path.stem: path.read_text(encoding="utf-8") for path in CORE}
    assert shared_names(sources) == SHARED


def test_a_shared_name_is_noticed():
    one, two = "def f(): pass\ndef _g(): pass", "def _g(): pass\nclass A:\n    def f(self): pass"
    assert shared_names({"one": one, "two": two}) == {}
    assert shared_names({"one": one, "two": one}) == {"f": {"one", "two"}}


def test_keeping_a_result_has_one_spelling():
    found = defaultdict(set)
    for path in [*NOTEBOOKS.glob("*.ipynb"), *NOTEBOOKS.glob("solutions/*.ipynb")]:
        for spelling in spellings(_code(path)):
            found[spelling].add(path.name)
    for path in EXPERIMENTS.rglob("*.py"):
        for spelling in spellings(path.read_text(encoding="utf-8")):
            found[spelling].add(path.name)
    assert len(found["record"]) > 20
    assert found.keys() == {"record"}, dict(found)


def _code(path: Path) -> str:
    """The notebook's Python; magic commands are left out."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    lines = "\n".join(cell.source for cell in cells).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("%", "!")))


def test_a_second_spelling_is_noticed():
    source = "runs.save_figure(f, 'a'); record.save_table(t, 'b'); workbench.record.headline(x)"
    assert spellings(source) == {"runs", "record", "workbench.record"}
    assert spellings("record.RUN_DIR; table.save('c')") == set()
