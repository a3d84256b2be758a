"""A link in a docstring leads to something that the library's reference documents. Sphinx checks it
too, when the site is built.
"""

import ast
import re
from collections.abc import Iterator, Mapping

import pytest

from gaussmark_lib.paths import ROOT

LIBRARY = ROOT / "gaussmark_lib"
ROLE = re.compile(r":(?:func|class|meth):`([\w.]+)`")


def documented(modules: Mapping[str, ast.Module]) -> set[str]:
    """The dotted names of everything that has a page or an entry in the library's reference:
    public, with a docstring.
    """
    found = set()
    for name, tree in modules.items():
        for owner, node in _definitions(tree, name):
            if ast.get_docstring(node) and not node.name.startswith("_"):
                found.add(f"{owner}.{node.name}")
    return found


def dangling(modules: Mapping[str, ast.Module]) -> list[str]:
    """The links in docstrings whose target is not documented: Sphinx would stop at them, when the
    site is built.
    """
    targets = documented(modules)
    found = []
    for name, tree in modules.items():
        for owner, node in [("", tree), *_definitions(tree, name)]:
            inside = f"{owner}.{node.name}" if owner else name
            for link in ROLE.findall(ast.get_docstring(node) or ""):
                near = {f"{place}.{link}" for place in (name, owner, inside)}
                if not (
                    near & targets
                    or ("." in link and any(target.endswith(f".{link}") for target in targets))
                ):
                    found.append(f"{inside}: {link}")
    return found


def _definitions(tree: ast.AST, owner: str) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield owner, node
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node, f"{owner}.{node.name}")


def test_docstrings_link_to_what_is_documented():
    files = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): file
        for file in sorted(LIBRARY.rglob("*.py"))
    }
    assert (
        dangling(
            {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in files.items()}
        )
        == []
    )


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("helper", 0),
        ("A.run", 0),
        ("run", 0),
        ("m.A", 0),
        ("bare", 1),
        ("_private", 1),
        ("gone", 1),
    ],
)
def test_a_link_to_nothing_is_noticed(link, expected):
    source = f"""
def helper(): "Documented."
def bare(): pass
def _private(): "Not in the reference."
class A:
    "A class."
    def run(self): "See :meth:`{link}`."
"""
    assert len(dangling({"lib.m": ast.parse(source)})) == expected
