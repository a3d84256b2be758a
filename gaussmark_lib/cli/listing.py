"""``gaussmark list``: which notebooks, presets, grids, clusters and records there are, and which
weights a model has; and tables for a terminal.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from gaussmark_lib import files, words
from gaussmark_lib.cli.common import Model, Records, visible
from gaussmark_lib.errors import GaussMarkError

Rows = Iterator[tuple[str, str]]
WEIGHTS = "weights"


def add(app: typer.Typer) -> None:
    app.command("list")(list_)


def list_(
    what: Annotated[
        str | None, typer.Argument(metavar="WHAT", help="One of them [all but weights].")
    ] = None,
    records: Records = None,
    model: Model = "doclm",
) -> None:
    """List the notebooks, presets, grids, clusters and records, or a model's weights."""
    if what not in (None, WEIGHTS, *LISTS):
        raise GaussMarkError(
            f"expected one of the lists, got {what!r}; {words.nearest(what, [*LISTS, WEIGHTS])}"
        )
    for number, name in enumerate([what] if what else LISTS):
        if not what:
            print("\n" * bool(number) + name)
        rows = _weights(model) if name == WEIGHTS else LISTS[name](files.records(records))
        if not show([{"name": entry, "about": about} for entry, about in rows]):
            print("none")


def show(rows: Sequence[Mapping[str, object]], *, heading: bool = False) -> bool:
    """Prints a table that fits the terminal; whether there is any row."""
    from rich.console import Console
    from rich.table import Table

    if not rows or not rows[0]:
        return False
    table = Table(box=None, pad_edge=False, show_header=heading, padding=(0, 2, 0, 0))
    for name in rows[0]:
        table.add_column(name, overflow="fold", header_style="none")
    for row in rows:  # a record from elsewhere may hold anything
        table.add_row(*(visible(str(cell)) for cell in row.values()))
    width = shutil.get_terminal_size((120, 24)).columns
    Console(width=width, markup=False, emoji=False, highlight=False).print(table)
    return True


def _notebooks(records: Path) -> Rows:
    from gaussmark_lib.runs import notebook as notebooks

    for path in notebooks.numbered():
        cells = notebooks.load(path).cells
        title = next((cell.source for cell in cells if cell.kind == "markdown"), "")
        yield path.stem, title.partition("\n")[0].lstrip("# ")


def _presets(records: Path, kind: str = "preset") -> Rows:
    """Each with its first line, where a comment says what it is."""
    from gaussmark_lib.runs import presets

    for name in presets.known(kind):
        text = (files.PRESETS / f"{name}.yaml").read_text(encoding="utf-8", errors="replace")
        first = text.partition("\n")[0]
        yield name, first.lstrip("# ") if first.startswith("#") else ""


def _records(records: Path) -> Rows:
    """Complete runs by notebook and time, each with its headline; then sweeps and tours."""
    from gaussmark_lib.runs import folder

    def by_notebook_and_time(path: Path) -> tuple[str, int]:
        return path.parent.parent.name, path.stat().st_mtime_ns

    for path in sorted(records.glob("*/*/status.json"), key=by_notebook_and_time):
        if run := folder.load(path.parent):
            line = run.headline
            about = f"{line.name}: {line}" if line else "no headline"
            yield f"{run.dir.parent.name}/{run.id}", f"{run.status['finished'][:16]}  {about}"
    for kind, about in (("sweep", "a table of runs"), ("tour", "a page")):
        for path in sorted(records.glob(f"{kind}-*")):
            yield path.name, about


def _weights(model: str) -> Rows:
    """Those that can carry a watermark, each with its shape."""
    from gaussmark_lib import models
    from gaussmark_lib.weights import Weight

    loaded = models.load(model).model
    for name in models.watermarkable(loaded):
        yield name, " × ".join(map(str, Weight(loaded, name).shape))


LISTS = {
    "notebooks": _notebooks,
    "presets": _presets,
    "grids": lambda records: _presets(records, "grid"),
    "clusters": lambda records: _presets(records, "cluster"),
    "records": _records,
}
