"""``gaussmark list``: which notebooks, presets, grids, clusters and records there are, which
weights a model has; and tables for a terminal.
"""

import argparse
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gaussmark_lib import paths
from gaussmark_lib.cli.arguments import MODEL, command, visible

GAP, LEAST = "  ", 30  # between two columns; the least width of a text
WEIGHTS = "weights"


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    listed = command(
        commands,
        "list",
        _list,
        "list the notebooks, presets, grids, clusters and records, or a model's weights",
    )
    listed.add_argument(
        "what",
        nargs="?",
        choices=[*LISTS, WEIGHTS],
        help="one of them; without it, all but the weights",
    )
    listed.add_argument(
        "--records", metavar="DIR", help="folder of the records, instead of papermill_runs"
    )
    listed.add_argument(
        "--model", **MODEL | {"help": f"whose weights: {MODEL['help'].partition(': ')[2]}"}
    )


def _list(arguments: argparse.Namespace) -> None:
    for number, what in enumerate([arguments.what] if arguments.what else LISTS):
        if not arguments.what:
            print(f"{chr(10) * bool(number)}{what}")
        found = (
            _weights(arguments.model)
            if what == WEIGHTS
            else LISTS[what](paths.records(arguments.records))
        )
        rows = [
            (visible(name), visible(about)) for name, about in found
        ]  # a record from elsewhere may hold anything
        for name, about in rows:
            print(_wrapped(name, about, max(len(name) for name, _ in rows) + len(GAP)))
        if not rows:
            print("none")


def _wrapped(name: str, about: str, indent: int) -> str:
    """The name, and behind it what is said of it, in as many lines as the terminal's width makes of
    it; "n = 12" stays together.
    """
    whole = about.replace(" = ", "\xa0=\xa0")
    lines = textwrap.wrap(
        whole, max(_width() - indent, LEAST), break_long_words=False, break_on_hyphens=False
    ) or [""]
    return f"\n{' ' * indent}".join([f"{name:{indent}}{lines[0]}".rstrip(), *lines[1:]]).replace(
        "\xa0", " "
    )


def _width() -> int:
    return shutil.get_terminal_size((120, 24)).columns


def _notebooks(records: Path) -> Iterator[tuple[str, str]]:
    from gaussmark_lib.runs import notebook as notebooks

    for path in notebooks.numbered():
        first = next(
            (cell.source for cell in notebooks.load(path).cells if cell.kind == "markdown"), ""
        )
        yield path.stem, first.partition("\n")[0].lstrip("# ")


def _presets(records: Path) -> Iterator[tuple[str, str]]:
    yield from _files("preset")


def _grids(records: Path) -> Iterator[tuple[str, str]]:
    yield from _files("grid")


def _clusters(records: Path) -> Iterator[tuple[str, str]]:
    yield from _files("cluster")


def _files(kind: str) -> Iterator[tuple[str, str]]:
    """Each with its first line, where a comment says what it is."""
    from gaussmark_lib.runs import presets

    for name in presets.known(kind):
        first = (
            (paths.PRESETS / f"{name}.yaml")
            .read_text(encoding="utf-8", errors="replace")
            .partition("\n")[0]
        )
        yield name, first.lstrip("# ") if first.startswith("#") else ""


def _records(records: Path) -> Iterator[tuple[str, str]]:
    """Complete runs by notebook and time, each with its headline; sweeps and tours are found by
    their folders.
    """
    from gaussmark_lib.runs import folder
    from gaussmark_lib.sweeps import findings

    found = sorted(
        records.glob("*/*/status.json"),
        key=lambda path: (path.parent.parent.name, path.stat().st_mtime_ns),
    )
    for run in filter(None, (folder.load(path.parent) for path in found)):
        line = findings.headline(run)
        about = f"{line.name}: {line}" if line else "no headline"
        yield f"{run.dir.parent.name}/{run.id}", f"{run.status['finished'][:16]}{GAP}{about}"
    for path in sorted([*records.glob("sweep-*"), *records.glob("tour-*")]):
        yield path.name, "a table of runs" if path.name.startswith("sweep") else "a page"


def _weights(model: str) -> Iterator[tuple[str, str]]:
    """Those that can carry a watermark, each with its shape."""
    from gaussmark_lib import models

    loaded = models.load(model).model
    for name in models.watermarkable(loaded):
        yield name, " × ".join(map(str, models.linear(loaded, name).shape))


LISTS = {
    "notebooks": _notebooks,
    "presets": _presets,
    "grids": _grids,
    "clusters": _clusters,
    "records": _records,
}


def columns(rows: Sequence[Mapping[str, str]], width: int | None = None) -> Iterator[str]:
    """The lines of a table that fits the terminal: as many of the first columns as there is room
    for, and a line that counts the others.
    """
    names = list(rows[0]) if rows else []
    width = width or _width()
    cells = {name: [name, *(row[name] for row in rows)] for name in names}
    widths = {name: max(map(len, column)) for name, column in cells.items()}
    shown = [
        name
        for i, name in enumerate(names)
        if sum(widths[each] + len(GAP) for each in names[: i + 1]) <= width or i == 0
    ]
    for i in range(len(rows) + 1) if names else ():
        yield GAP.join(f"{cells[name][i]:{widths[name]}}" for name in shown).rstrip()
    if left := len(names) - len(shown):
        yield f"and {left} more number{'s'[: left != 1]} a run, in results.parquet"
