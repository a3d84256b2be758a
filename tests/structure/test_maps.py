"""Each package says what every file of its folder is for, and the short names of the library lead
to what they are short for.
"""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import gaussmark_lib
from gaussmark_lib.files import EXPERIMENTS, ROOT

MOST_FILES = 22  # at the top of the library
MOST_LINES = 40  # of its map
NAME = re.compile(r"``([a-z_]+)``")
MAPS = sorted([*(ROOT / "gaussmark_lib").rglob("__init__.py"), *EXPERIMENTS.rglob("__init__.py")])
HEAVY = {"torch", "numpy", "pandas", "transformers"}


def unnamed(folder: Path) -> set[str]:
    """The modules and packages of a folder that its ``__init__`` does not name."""
    named = NAME.findall(ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "")
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    folders = {path.parent.name for path in folder.glob("*/__init__.py")}
    return (files | folders) - set(named)


@pytest.mark.parametrize("path", MAPS, ids=lambda path: path.parent.name)
def test_a_package_names_every_file_of_its_folder(path):
    assert unnamed(path.parent) == set()


def test_a_file_without_a_name_is_noticed(tmp_path):
    (tmp_path / "__init__.py").write_text('"""Has ``one``."""')
    (tmp_path / "one.py").touch()
    assert unnamed(tmp_path) == set()
    (tmp_path / "two.py").touch()
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "__init__.py").touch()
    assert unnamed(tmp_path) == {"two", "three"}


def test_what_the_library_s_map_names_is_there():
    rows = re.findall(r"^(``.*?``)  ", gaussmark_lib.__doc__, re.MULTILINE)
    names = [name for row in rows for name in NAME.findall(row)]
    assert len(names) == len(set(names)) > 15
    for name in names:
        import_module(f"gaussmark_lib.{name}")


def test_the_top_of_the_library_is_small():
    top = ROOT / "gaussmark_lib"
    assert len(list(top.glob("*.py"))) <= MOST_FILES
    assert len((top / "__init__.py").read_text().splitlines()) <= MOST_LINES


def test_short_names_are_those_of_their_modules():
    assert set(gaussmark_lib.HOMES) == {"load", "Watermark", "Key", "watermarked", "sample"}
    for name, home in gaussmark_lib.HOMES.items():
        theirs = getattr(import_module(f"gaussmark_lib.{home}"), name)
        assert getattr(gaussmark_lib, name) is theirs
        assert theirs.__module__ == f"gaussmark_lib.{home}"


def test_modules_remain_modules_and_other_names_are_missing():
    script = """
import sys
import gaussmark_lib
print(*sys.modules)
from gaussmark_lib import score, gradients
print(score.__name__, gradients.__name__)
try:
    gaussmark_lib.no_such_name
except AttributeError as error:
    print(error)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded, modules, error = done.stdout.splitlines()
    assert not HEAVY & set(loaded.split())
    assert [name for name in loaded.split() if name.startswith("gaussmark_lib.")] == []
    assert modules == "gaussmark_lib.score gaussmark_lib.gradients"
    assert error == "module 'gaussmark_lib' has no attribute 'no_such_name'"
