"""Docstrings and signatures as they are written in the code, for Sphinx, which would have them a
little different.
"""

import ast
import inspect
import re
import textwrap
from typing import Any

SECTIONS = ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:")
_NEXT = re.compile(
    r"(?<=\.) (?=[A-Za-z_]\w*(?:, \w+)*: )"
)  # before an argument that stands in the line of another
_LITERAL = re.compile(r"(``.*?``)")


def mend(lines: list[str]) -> None:
    """Changes a docstring's lines in place.

    Formulas and code, which are indented, become literal blocks; each argument gets a line; a name
    like ``score.score`` in a role is looked for in the whole library; a vertical bar is one; a
    column of a table may be as wide as its longest entry.
    """
    mended: list[str] = []
    indented = False
    for before, line in zip(["", *lines], lines, strict=False):
        if line.strip():
            begins = (
                line.startswith(" ")
                and not indented
                and not before.strip()
                and not _in_section(mended)
            )
            if begins:
                mended += ["::", ""]
            indented = begins or (indented and line.startswith(" "))
        entries = _NEXT.split(line) if line.startswith("    ") and _in_section(mended) else [line]
        mended += (
            [line]
            if indented
            else [
                _escaped(f"{'    ' * bool(number)}{entry}") for number, entry in enumerate(entries)
            ]
        )
    lines[:] = mended


def signature(function: Any) -> tuple[str, str | None]:
    """Arguments and result of a function as its file has them: ``Texts`` and ``ArrayLike``, and not
    what these stand for.
    """
    (node,) = (
        _Named(inspect.unwrap(function).__globals__)
        .visit(ast.parse(textwrap.dedent(inspect.getsource(function))))
        .body
    )
    arguments = node.args.posonlyargs or node.args.args
    if arguments and arguments[0].arg in ("self", "cls"):
        del arguments[0]
    return f"({ast.unparse(node.args)})", ast.unparse(node.returns) if node.returns else None


class _Named(ast.NodeTransformer):
    """Gives the library's classes their full names, because two modules may each have a class
    ``Verdict``.
    """

    def __init__(self, known: dict[str, Any]):
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._named(node, self.known.get(node.id))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        module = self.known.get(node.value.id) if isinstance(node.value, ast.Name) else None
        return self._named(node, getattr(module, node.attr, None))

    def _named(self, node: ast.expr, meant: Any) -> ast.expr:
        ours = inspect.isclass(meant) and meant.__module__.startswith("gaussmark_lib.")
        return ast.Name(f"{meant.__module__}.{meant.__qualname__}") if ours else node


def _in_section(lines: list[str]) -> bool:
    """Whether the last line that is not indented names a section of a docstring, whose
    entries are.
    """
    return (
        next((line for line in reversed(lines) if line and not line.startswith(" ")), "").strip()
        in SECTIONS
    )


def _escaped(line: str) -> str:
    if line.strip() and not line.strip("= "):
        return line.replace("=  =", "== =")
    parts = _LITERAL.split(re.sub(r":(func|class|meth):`(?=\w+\.)", r":\1:`.", line))
    return "".join(part if part.startswith("``") else part.replace("|", r"\|") for part in parts)
