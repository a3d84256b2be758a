"""The tour's page and the executed notebooks beside it: everything is set here, so that a browser
needs no script and no network.

Formulas become MathML. Figures become WebP, which loses nothing and takes less than half of PNG's
bytes; an executed notebook shows those of the page. ``write_single`` puts the page into one file.
"""

import base64
import os
import platform
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import nbformat
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from PIL import Image
from pygments.formatters import HtmlFormatter

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs import kernel, versions
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.sweeps import cards, findings
from gaussmark_lib.sweeps.mathml import mathml

if TYPE_CHECKING:
    from gaussmark_lib.sweeps.tour import Stop

TEMPLATES = Path(__file__).parent / "templates"
CODE = {"light": "default", "dark": "github-dark"}  # Pygments' styles
SHARPER = 1.44  # pixels of a saved figure for one on the page
_SHOWN_AS = (
    "text/html",
    "text/markdown",
    "image/png",
    "image/svg+xml",
    "text/latex",
)  # what says more than an object's repr


@dataclass(frozen=True)
class Figure:
    """A figure in the page's folder, and the words that ``runs.save_figure`` put into its PNG."""

    name: str
    href: str
    width: int
    height: int
    alt: str

    def html(self, src: str) -> str:
        return (
            f'<img src="{src}" width="{self.width}" height="{self.height}" alt="{escape(self.alt)}"'
            ' loading="lazy">'
        )


class _Renderer(IPythonRenderer):
    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return mathml(body, display=True)


class _Exporter(HTMLExporter):
    def markdown2html(self, context: Any, source: str) -> str:
        return markdown(source)

    markdown2html.jinja_pass_arg = (
        HTMLExporter.markdown2html.jinja_pass_arg
    )  # jinja hands it the cell's context


def markdown(text: str) -> str:
    """Markdown as HTML, its formulas as MathML."""
    return MarkdownWithMath(renderer=_Renderer(escape=False, exclude_anchor_links=True)).render(
        text
    )


def claim(source: notebooks.Notebook) -> tuple[str, str]:
    """A notebook's title and, as HTML, its first paragraph: what its first markdown cell opens
    with.
    """
    text = next((cell.source.strip() for cell in source.cells if cell.kind == "markdown"), "")
    title, rest = (
        text.split("\n", 1) if text.startswith("# ") and "\n" in text else (source.name, text)
    )
    return title.removeprefix("# ").strip(), markdown(rest.strip().split("\n\n")[0])


def write(stops: "list[Stop]", folder: Path) -> None:
    """``index.html``, ``figures/`` and ``notebooks/`` of what came of each notebook."""
    for name in ("notebooks", "figures"):
        (folder / name).mkdir(exist_ok=True)
    exported = [stop for stop in stops if stop.record]
    with ThreadPoolExecutor() as threads:
        for stop in exported:
            stop.figures = list(
                threads.map(
                    lambda path, name=stop.name: _figure(path, name, folder),
                    records.figures(stop.record),
                )
            )
    for stop in exported:
        stop.notebook = f"notebooks/{stop.name}.html"
        stop.traceback = kernel.traceback(stop.record / "notebook.ipynb") if stop.error else ""
        body = _linked(_body(stop), {other.name for other in exported})
        code = {
            theme: HtmlFormatter(style=style).get_style_defs(".highlight")
            for theme, style in CODE.items()
        }
        (folder / stop.notebook).write_text(
            _render("notebook.html.j2", stop=stop, body=body, code=code), encoding="utf-8"
        )
    (folder / "index.html").write_text(_page(stops, {}, single=False), encoding="utf-8")


def write_single(stops: "list[Stop]", folder: Path, file: Path) -> None:
    """The page that is in the folder as one file, with its figures inside it and without the
    executed notebooks.
    """
    sources = {}
    for figure in (figure for stop in stops for figure in stop.figures):
        sources[figure.href] = (
            "data:image/webp;base64,"
            + base64.b64encode((folder / figure.href).read_bytes()).decode()
        )
    try:
        file.write_text(_page(stops, sources, single=True), encoding="utf-8")
    except OSError as error:
        raise GaussMarkError(
            f"{file} could not be written: {error.strerror}; the page is in {folder / 'index.html'}"
        ) from None


def writable(file: Path) -> Path:
    """The file, if one can be written there; GaussMarkError before there is any work to lose."""
    if (
        file.is_dir()
        or not file.absolute().parent.is_dir()
        or not os.access(file if file.exists() else file.absolute().parent, os.W_OK)
    ):
        raise GaussMarkError(
            "expected the name of a file, in a folder that exists and can be written to, for the"
            f" page; got {str(file)!r}"
        )
    return file


def _figure(path: Path, notebook: str, folder: Path) -> Figure:
    href = f"figures/{notebook}-{path.stem}.webp"
    with Image.open(path) as image:
        image.convert("RGB").save(folder / href, "WEBP", lossless=True, method=2, quality=20)
        size = (round(length / SHARPER) for length in image.size)
        return Figure(path.stem, href, *size, " ".join(image.text.get("Description", "").split()))


def _body(stop: "Stop") -> str:
    """The executed notebook's cells as HTML. A cell that saves figures shows them from the page's
    folder; widgets are not kept.
    """
    node = nbformat.read(stop.record / "notebook.ipynb", as_version=4)
    for cell in node.cells:
        saved = sorted(
            (cell.source.find(f'"{figure.name}"'), figure)
            for figure in _named_in(cell.source, stop.figures)
        )
        pictures = [
            output.data
            for output in cell.get("outputs", [])
            if "image/png" in output.get("data", {})
        ]
        for data, (_, figure) in zip(
            pictures, saved if len(saved) == len(pictures) else [], strict=False
        ):
            del data["image/png"]
            data["text/html"] = figure.html(f"../{figure.href}")
        cell.outputs = [output for output in cell.get("outputs", []) if not _is_widget(output)]
    exporter = _Exporter(
        template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True
    )
    return exporter.from_notebook_node(node)[0]


def _named_in(source: str, figures: list[Figure]) -> list[Figure]:
    return [figure for figure in figures if f'"{figure.name}"' in source]


def _is_widget(output: Any) -> bool:
    return any("widget" in kind for kind in output.get("data", {})) and not any(
        kind in output.data for kind in _SHOWN_AS
    )


def _linked(body: str, exported: set[str]) -> str:
    """Links to a notebook that is exported go to its HTML; other links to files lead nowhere from
    here, and become their words.
    """

    def link(match: re.Match) -> str:
        file, _, place = match[1].partition("#")
        if file.removesuffix(".ipynb") in exported:
            return f'<a href="{file.removesuffix(".ipynb")}.html{"#" * bool(place)}{place}">{match[2]}</a>'
        return match[0] if re.match("[a-z]+:|#", match[1]) else match[2]

    return re.sub(r'<a href="([^"]*)">(.*?)</a>', link, body, flags=re.DOTALL)


def _page(stops: "list[Stop]", sources: dict[str, str], *, single: bool) -> str:
    facts = {
        "commit": versions.commit(),
        "python": platform.python_version(),
        "torch": versions.of("torch"),
    }
    runs = {stop.name: stop.run for stop in stops if stop.run}
    words = {
        "stops": stops,
        "views": [_view(stop) for stop in stops],
        "cards": cards.of(runs),
        "sources": sources,
        "single": single,
    }
    return _render("tour.html.j2", **words, made=datetime.now(), facts=facts)


def _view(stop: "Stop") -> dict[str, Any]:
    """What the page shows of a notebook: a few lines, and the rest for who asks."""
    verdicts = findings.verdicts(stop.run, stop.name)
    lines = findings.chosen(verdicts)
    if len(lines) < findings.FEWEST:
        lines += findings.numbers(stop.run, findings.MOST - len(lines))
    counted = [
        f"{n} {outcome}"
        for outcome in findings.ORDER
        if (n := sum(line.outcome == outcome for line in verdicts))
    ]
    stated = (
        f"Of {len(verdicts)} expectation{'s'[: len(verdicts) != 1]} stated beforehand:"
        f" {', '.join(counted)}"
    )
    rest = (
        {name: value for name, value in stop.run.numbers.items() if name != "claims"}
        if stop.run
        else {}
    )
    return {
        "stop": stop,
        "headline": findings.headline(stop.run),
        "lines": lines,
        "verdicts": verdicts,
        "caption": stated if counted else "Main numbers",
        "rest": rest,
    }


def _render(template: str, **words: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**words)
