"""Several runs of a notebook side by side: parameters that differ, results, findings and figures.

comparison = compare(["detectability/3f…", "reference/detectability_smollm2"])
comparison                        in a notebook: the tables and the figures
comparison.findings               a table
comparison.save("compare.html")   one page, which needs no other file
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench import words
from gaussmark_lib.workbench.plots import show
from gaussmark_lib.workbench.runs import folder, notebook
from gaussmark_lib.workbench.runs.folder import Run

MISSING = "–"
NOTE = f"{MISSING} means that the record does not have it."
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Comparison:
    """Complete records of one notebook, by name."""

    runs: Mapping[str, Run]

    @cached_property
    def parameters(self) -> pd.DataFrame:
        """The parameters whose values differ: a row per parameter, a column per run."""
        table = self._table(_parameters)
        return table[table.nunique(axis=1) > 1]

    @cached_property
    def findings(self) -> pd.DataFrame:
        """The headline and the findings, with intervals: a row per quantity, a column per run."""
        return self._table(_findings)

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """All further results: a row per result, a column per run."""
        return self._table(lambda run: run.numbers)

    @cached_property
    def circumstances(self) -> pd.DataFrame:
        """When and with what the runs were made: a column per run."""
        return self._table(_circumstances)

    @cached_property
    def figures(self) -> dict[str, dict[str, Path]]:
        """The saved figures: name → run → file."""
        paths: dict[str, dict[str, Path]] = {}
        for name, run in self.runs.items():
            for path in sorted(run.dir.glob("figures/*.png")):
                paths.setdefault(path.stem, {})[name] = path
        return paths

    def _table(self, of: Callable[[Run], Mapping[str, str]]) -> pd.DataFrame:
        """A row per name in what ``of`` returns, in the order of their first run."""
        columns = {name: pd.Series(of(run), dtype=object) for name, run in self.runs.items()}
        rows: dict[str, None] = {}  # a set that keeps its order
        for column in columns.values():
            rows |= dict.fromkeys(column.index)
        table = pd.DataFrame({name: column.reindex([*rows]) for name, column in columns.items()})
        return table.fillna(MISSING)

    def html(self) -> str:
        """Return the tables and figures as HTML."""
        parts = []
        tables = {
            "Parameters that differ": self.parameters,
            "Findings": self.findings,
            "Further results": self.numbers,
            "When and with what": self.circumstances,
        }
        for heading, table in tables.items():
            parts.append(f"<h2>{heading}</h2>")
            content = table.to_html(border=0) if len(table) else "<p>none</p>"
            parts.append(f'<div class="scroll">{content}</div>')
            if lacks(table):
                parts.append(f"<p>{NOTE}</p>")
        if self.figures:
            parts.append("<h2>Figures</h2>")
        for figure, paths in self.figures.items():
            parts.append(f"<h3>{escape(figure)}</h3>")
            images = [_image(name, path) for name, path in paths.items()]
            parts.append(f'<div style="{self._row}">{"".join(images)}</div>')
        return "\n".join(parts)

    @property
    def _row(self) -> str:
        """The style of a row of figures: a column per run, where the page is wide enough. A column
        stays empty if its run has no such figure.
        """
        n = len(self.runs)
        widest = f"(100% - {n - 1}em) / {n}"
        columns = f"repeat(auto-fill,minmax(max(min(20em,100%),{widest}),1fr))"
        return f"display:grid;grid-template-columns:{columns};gap:1em"

    def _repr_html_(self) -> str:
        return self.html()

    def save(self, path: str | Path) -> Path:
        """Write one page with everything; GaussMarkError if it cannot be written."""
        path = files.as_path(path, "cannot write the comparison", GaussMarkError)
        title = f"GaussMark: {' and '.join(map(escape, self.runs))}"
        try:
            environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES))
            page = environment.get_template("comparison.html.j2")
            path.write_text(page.render(title=title, body=self.html()), encoding="utf-8")
        except OSError as error:
            raise GaussMarkError(f"cannot write the comparison {path}: {error}") from None
        return path


def compare(names: Sequence[str | Path], root: str | Path | None = None) -> Comparison:
    """Return records side by side.

    Args:
        names: of at least two records: as ``gaussmark list records`` prints them, or folders.
        root: the folder of all records; None for ``papermill_runs``.

    Raises:
        GaussMarkError: a name without a complete record, a name given twice, fewer than two names,
            or records of different notebooks.
    """
    if len(names) < 2:
        raise GaussMarkError(f"expected at least two records to compare, got {len(names)}")
    runs = {str(name): find(name, root) for name in names}
    if len(runs) < len(names):
        raise GaussMarkError("expected different records, got the same name twice")
    sources = {name: source for name, run in runs.items() if (source := _notebook(run))}
    if len({*sources.values()}) > 1:
        found = ", ".join(f"{name} of {source}" for name, source in sources.items())
        raise GaussMarkError(f"expected records of one notebook, got {found}")
    parameters = [set(run.params) for run in runs.values()]
    if not set.intersection(*parameters):
        raise GaussMarkError(
            "expected records of one notebook, got records that have no parameter in common:"
            f" {', '.join(runs)}"
        )
    return Comparison(runs)


def find(name: str | Path, root: str | Path | None = None) -> Run:
    """Return the record of this name, "<notebook>/<id>" or a folder; raise GaussMarkError if there
    is no complete record.
    """
    records = files.records(root)
    path = files.as_path(name, "cannot read the record", GaussMarkError)
    for place in (path, records / path):  # a folder of the user, or a name
        if run := folder.load(place):
            return run
    folders = [found.parent for found in records.glob("*/*/status.json")]
    known = [f"{record.parent.name}/{record.name}" for record in folders]
    raise GaussMarkError(
        f"{name}: expected a complete record; {words.nearest(str(name), sorted(known), records)}"
    )


def lacks(table: pd.DataFrame) -> bool:
    """Whether a cell is empty."""
    return bool((table == MISSING).any(axis=None))


def _notebook(run: Run) -> str | None:
    """The notebook of a record, by the names of its folders; None for a folder elsewhere."""
    place = run.dir.resolve()
    for path in notebook.numbered():
        in_git = place.parent.name == "reference" and place.name.startswith(path.stem[3:])
        if in_git or place.parent.name == path.stem:
            return path.stem
    return None


def _parameters(run: Run) -> dict[str, str]:
    return {name: _shown(value) for name, value in run.params.items()}


def _findings(run: Run) -> dict[str, str]:
    cells = {run.headline.name: str(run.headline)} if run.headline else {}
    for finding in run.findings:
        cells[finding["claim"]] = f"{finding['value']} {finding['basis']}: {words.outcome(finding)}"
    return cells


def _circumstances(run: Run) -> dict[str, str]:
    wanted = ("finished", "seconds", "commit", "platform")
    facts = {name: _shown(run.status[name]) for name in wanted if name in run.status}
    return facts | {name: _shown(text) for name, text in run.status.get("versions", {}).items()}


def _shown(value: Any) -> str:
    return words.of(value) or "none"


def _image(name: str, path: Path) -> str:
    """A saved figure inside the page, under the name of its run."""
    picture = show.saved(path, colours=32)
    alt = escape(picture.alt or f"{path.stem} of {name}")
    caption = f"<figcaption>{escape(name)}</figcaption>"
    return f'<figure>{caption}<img alt="{alt}" src="{picture.source}"></figure>'
