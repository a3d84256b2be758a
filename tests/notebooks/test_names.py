"""A notebook gives no name that it imported to something else, which would break later cells."""

import ast

import nbformat


def test_an_imported_name_keeps_its_meaning(any_notebook):
    imported: set[str] = set()
    for cell in nbformat.read(any_notebook, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        lines = [line for line in cell.source.splitlines() if not line.startswith(("%", "!"))]
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                assert node.id not in imported, f"{cell.id}: {node.id} is imported above"
