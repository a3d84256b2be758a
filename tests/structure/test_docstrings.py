"""A link in a docstring leads to something public that has a docstring, or the site, which is made
of them, could not be built.
"""

import ast
import re

import pytest

from gaussmark_lib.files import EXPERIMENTS, ROOT

ROLE = re.compile(r":(?:func|class|meth):`([\w.]+)`")


def dangling(sources: list[str]) -> list[str]:
    """The links to nothing that is documented in these modules."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    defined = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    public = {
        node.name for node in defined if ast.get_docstring(node) and not node.name.startswith("_")
    }
    links = [link for source in sources for link in ROLE.findall(source)]
    return [link for link in links if link.rpartition(".")[2] not in public]


def test_docstrings_link_to_what_is_documented():
    files = [*(ROOT / "gaussmark_lib").rglob("*.py"), *EXPERIMENTS.rglob("*.py")]
    assert dangling([file.read_text(encoding="utf-8") for file in files]) == []


@pytest.mark.parametrize(("link", "n"), [("A.run", 0), ("run", 0), ("bare", 1), ("_private", 1)])
def test_a_link_to_nothing_is_noticed(link, n):
    source = f"""
def bare(): pass
def _private(): "Not in the reference."
class A:
    "A class."
    def run(self): "See :meth:`{link}`."
"""
    assert len(dangling([source])) == n
