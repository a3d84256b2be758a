"""Pages that are made from what lies in the repository: one a reference record, one for the
presets, one a module or room of the library.
"""

import pkgutil
import re
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from PIL import Image

import gaussmark_lib
from gaussmark_lib import paths, words
from gaussmark_lib.runs import folder, presets
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs.folder import Run
from gaussmark_lib.sweeps import findings

TEMPLATES = Path(__file__).parent / "templates"
ROWS = 12  # of a table that is shown


def record(run: Run) -> str:
    """A reference record in Markdown: its claims, tables, figures and parameters."""
    claims = [
        {
            "claim": row["claim"],
            "expected": row["expected"],
            "measured": " ".join(words.estimate(row)),
            "outcome": findings.OUTCOMES[row["outcome"]],
        }
        for row in run.results.get("claims", [])
    ]
    notebook = next(
        (
            path.stem
            for path in notebooks.numbered()
            if path.stem[3:] == run.id or run.id.startswith(path.stem[3:] + "_")
        ),
        "",
    )
    return _render(
        "record.md.j2",
        run=run,
        notebook=notebook,
        headline=findings.headline(run),
        claims=_table(pd.DataFrame(claims)) if claims else "",
        numbers=(
            _table(pd.DataFrame(run.numbers.items(), columns=["quantity", "value"]))
            if not claims
            else ""
        ),
        params=_table(pd.DataFrame(run.params.items(), columns=["parameter", "value"]).astype(str)),
        tables={
            path.stem: _head(run.table(path.stem)) for path in sorted(run.dir.glob("*.parquet"))
        },
        figures=[(path.name, description(path)) for path in folder.figures(run.dir)],
    )


def description(png: Path) -> str:
    """What ``runs.save_figure`` wrote into a figure's file."""
    with Image.open(png) as image:
        return " ".join(image.text.get("Description", "").split())


def all_presets() -> str:
    """All preset files, by kind, in Markdown."""
    kinds = {"preset": "-f", "grid": "--grid", "cluster": "--cluster"}
    found = {
        kind: {
            name: (paths.PRESETS / f"{name}.yaml").read_text(encoding="utf-8")
            for name in presets.known(kind)
        }
        for kind in kinds
    }
    return _render("presets.md.j2", kinds=kinds, found=found)


def modules() -> dict[str, str]:
    """A page in reStructuredText for each module of the core and each room, by name, in the order
    of the map.
    """
    order = re.findall(r"``(\w+)``", gaussmark_lib.__doc__ or "")
    inside = {module.name: module for module in pkgutil.iter_modules(gaussmark_lib.__path__)}
    found = {}
    for name in sorted(inside, key=lambda name: order.index(name) if name in order else len(order)):
        rooms = (
            pkgutil.iter_modules([str(Path(gaussmark_lib.__file__).parent / name)])
            if inside[name].ispkg
            else ()
        )
        parts = [
            part.name for part in rooms if not part.name.startswith("__") and part.name != "conf"
        ]
        found[name] = _render("module.rst.j2", name=name, parts=parts, room=inside[name].ispkg)
    return found


def _head(table: pd.DataFrame) -> dict[str, Any]:
    return {"rows": len(table), "html": _table(table.head(ROWS)), "more": max(0, len(table) - ROWS)}


def _table(table: pd.DataFrame) -> str:
    """HTML without blank lines, so that Markdown leaves it alone."""
    with pd.option_context("display.max_colwidth", 60):
        return re.sub(
            r"\n\s*", "\n", table.to_html(index=False, border=0, float_format="{:.4g}".format)
        )


def _render(template: str, **words: Any) -> str:
    loader = jinja2.FileSystemLoader(TEMPLATES)
    return (
        jinja2.Environment(
            loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        .get_template(template)
        .render(**words)
    )
