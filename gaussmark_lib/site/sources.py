"""The folder that Sphinx reads. It has the repository's shape, so that a link that works there
works here, and a page's address is its path.
"""

import shutil
from pathlib import Path

import nbformat

from gaussmark_lib import paths
from gaussmark_lib.runs import folder, notebook
from gaussmark_lib.site import pages, written

DOCUMENTS = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CITATION.cff",
    "LICENSE",
]
DOCUMENTS += ["notebooks/README.md", "papermill_runs/README.md", "data/doclm/README.md"]


def assemble(made: Path) -> None:
    """Writes everything that the site shows into an empty folder."""
    for name in DOCUMENTS:
        _write(made / name, (paths.ROOT / name).read_text(encoding="utf-8"))
    for path in [*notebook.numbered(), *sorted((paths.NOTEBOOKS / "solutions").glob("*.ipynb"))]:
        _write(made / path.relative_to(paths.ROOT), without_widgets(path))
    for path in sorted(written.PAGES.glob("*.md")):
        _write(
            made / ("index.md" if path.stem == "index" else path.relative_to(paths.ROOT)),
            written.filled(path.read_text(encoding="utf-8")),
        )
    for run in filter(None, map(folder.load, sorted(written.REFERENCE.iterdir()))):
        _write(made / "records" / f"{run.id}.md", pages.record(run))
        if (run.dir / "figures").is_dir():
            shutil.copytree(run.dir / "figures", made / run.dir.relative_to(paths.ROOT) / "figures")
    _write(made / "presets.md", pages.all_presets())
    for name, text in (modules := pages.modules()).items():
        _write(made / "api" / f"{name}.rst", text)
    listed = "".join(f"   {name}\n" for name in modules)
    _write(
        made / "api" / "index.rst",
        "The library\n===========\n\n.. automodule:: gaussmark_lib\n\n.. toctree::\n  "
        f" :hidden:\n\n{listed}",
    )


def without_widgets(path: Path) -> str:
    """A notebook without outputs that need a kernel."""
    node = nbformat.read(path, as_version=4)
    node.metadata.pop("widgets", None)
    for cell in node.cells:
        cell.outputs = [
            output
            for output in cell.get("outputs", [])
            if not any("widget" in kind for kind in output.get("data", {}))
        ]
        if cell.cell_type != "code":
            del cell["outputs"]
    return nbformat.writes(node)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
