"""``gaussmark list``: which notebooks, presets, grids and records there are; and tables for a terminal."""

import argparse
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gaussmark_lib import paths
from gaussmark_lib.cli.arguments import command

GAP = "  "


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    listed = command(commands, "list", _list, "list the notebooks, presets, grids and records")
    listed.add_argument("what", nargs="?", choices=LISTS, help="one of them; without it, all")
    listed.add_argument("--records", metavar="DIR", help="folder of the records, instead of papermill_runs")


def _list(arguments: argparse.Namespace) -> None:
    for number, what in enumerate([arguments.what] if arguments.what else LISTS):
        if not arguments.what:
            print(f"{chr(10) * bool(number)}{what}")
        rows = list(LISTS[what](paths.records(arguments.records)))
        width = max((len(name) for name, _ in rows), default=0)
        for name, about in rows:
            print(f"{name:{width}}{GAP}{about}".rstrip())
        if not rows:
            print("none")


def _notebooks(records: Path) -> Iterator[tuple[str, str]]:
    from gaussmark_lib.runs import notebook as notebooks

    for path in notebooks.numbered():
        first = next((cell.source for cell in notebooks.load(path).cells if cell.kind == "markdown"), "")
        yield path.stem, first.partition("\n")[0].lstrip("# ")


def _presets(records: Path) -> Iterator[tuple[str, str]]:
    yield from _files("preset")
    yield from _files("cluster")


def _grids(records: Path) -> Iterator[tuple[str, str]]:
    yield from _files("grid")


def _files(kind: str) -> Iterator[tuple[str, str]]:
    """Each with its first line, where a comment says what it is."""
    from gaussmark_lib.runs import presets

    for name in presets.known(kind):
        first = (paths.PRESETS / f"{name}.yaml").read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        yield name, first.lstrip("# ") if first.startswith("#") else ""


def _records(records: Path) -> Iterator[tuple[str, str]]:
    """Complete runs by notebook and time, each with its headline; sweeps and tours are found by their folders."""
    from gaussmark_lib.runs import folder

    found = sorted(records.glob("*/*/status.json"), key=lambda path: (path.parent.parent.name, path.stat().st_mtime_ns))
    for run in filter(None, (folder.load(path.parent) for path in found)):
        said = f"{run.headline[0]}: {run.headline[1]}" if run.headline else ""
        yield f"{run.dir.parent.name}/{run.id}", f"{run.status['finished'][:16]}{GAP}{said}"
    for path in sorted([*records.glob("sweep-*"), *records.glob("tour-*")]):
        yield path.name, "a table of runs" if path.name.startswith("sweep") else "a page"


LISTS = {"notebooks": _notebooks, "presets": _presets, "grids": _grids, "records": _records}


def columns(rows: Sequence[Mapping[str, str]], width: int | None = None) -> Iterator[str]:
    """The lines of a table that fits the terminal: as many of the first columns as there is room for, and a line that counts the others."""
    names = list(rows[0]) if rows else []
    width = width or shutil.get_terminal_size((120, 24)).columns
    cells = {name: [name, *(row[name] for row in rows)] for name in names}
    widths = {name: max(map(len, column)) for name, column in cells.items()}
    shown = [name for i, name in enumerate(names) if sum(widths[each] + len(GAP) for each in names[: i + 1]) <= width or i == 0]
    for i in range(len(rows) + 1) if names else ():
        yield GAP.join(f"{cells[name][i]:{widths[name]}}" for name in shown).rstrip()
    if left := len(names) - len(shown):
        yield f"and {left} more number{'s'[: left != 1]} a run, in results.parquet"
