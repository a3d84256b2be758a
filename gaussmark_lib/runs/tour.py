"""The tour: every numbered notebook in order with its defaults, and one page that shows what came of them.

    papermill_runs/tour-<id>/index.html      the page, with figures/ and notebooks/ beside it; the folder can be moved or served as it is

A notebook that was run before is answered from its record. One that fails is shown as failed, and the others still run.
"""

import platform
import re
import secrets
import shutil
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import jinja2
import nbformat
from IPython.core.latex_symbols import latex_symbols
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html
from PIL import Image
from tqdm.auto import tqdm

from gaussmark_lib import paths, runs
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs import kernel
from gaussmark_lib.runs import notebook as notebooks

TEMPLATES = Path(__file__).parent / "templates"
SYMBOLS = latex_symbols | {"\\langle": "⟨", "\\rangle": "⟩"}
_FORMULA = re.compile(r"\$([^$]+)\$")


@dataclass(frozen=True)
class Figure:
    """A figure of the page; the words come out of the PNG, where ``runs.save_figure`` put them."""

    href: str
    width: int
    height: int
    title: str
    caption: str
    alt: str


@dataclass
class Stop:
    """One notebook's part of the page. ``record`` is the folder of its run, complete or failed; None if it could not start."""

    name: str
    title: str
    claim: str = ""
    run: runs.Run | None = None
    record: Path | None = None
    error: str = ""
    traceback: str = ""
    figures: list[Figure] = field(default_factory=list)
    notebook: str = ""

    @property
    def outcome(self) -> str:
        return f"{self.run.status['seconds']} s{', from its record' if self.run.cached else ''}" if self.run else f"failed: {self.error}"


@dataclass(frozen=True)
class Tour:
    dir: Path
    stops: list[Stop]

    @property
    def page(self) -> Path:
        return self.dir / "index.html"

    @property
    def failed(self) -> list[Stop]:
        return [stop for stop in self.stops if stop.run is None]


def tour(*, force: bool = False, progress: bool = True, root: Path | None = None) -> Tour:
    """Runs all numbered notebooks and writes the page; a notebook that fails is in ``failed``.

    Raises:
        GaussMarkError: there is no notebook to run.
    """
    root = root or paths.RUNS
    files = notebooks.numbered()
    if not files:
        raise GaussMarkError(f"expected numbered notebooks like 00_first_watermark.ipynb in {paths.NOTEBOOKS}, found none")
    stops = []
    with tqdm(files, desc="tour", unit="notebook", disable=not progress) as bar:
        for file in bar:
            bar.set_postfix_str(file.stem)
            stops.append(_visit(file, force, progress and {"leave": False, "position": 1}, root))
    target = root / f"tour-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    partial = records.begin(target)
    for stop in stops:
        if stop.record:
            _copy(stop, partial)
    (partial / "index.html").write_text(_page(stops), encoding="utf-8")
    records.finish(partial, target, replace=False)
    return Tour(target, stops)


def _visit(file: Path, force: bool, progress: dict | bool, root: Path) -> Stop:
    stop = Stop(file.stem, file.stem)
    try:
        source = notebooks.load(file)
        stop.title, stop.claim = _claim(source)
        stop.run = runs.run(source, force=force, progress=progress, root=root)
        stop.record = stop.run.dir
    except runs.RunFailedError as error:
        stop.error, stop.record = error.reason, error.dir
    except GaussMarkError as error:
        stop.error = str(error)
    return stop


def _claim(source: notebooks.Notebook) -> tuple[str, str]:
    """A notebook's title and, as HTML, its first paragraph: what its first markdown cell opens with."""
    text = next((cell.source.strip() for cell in source.cells if cell.kind == "markdown"), "")
    title, rest = text.split("\n", 1) if text.startswith("# ") and "\n" in text else (source.name, text)
    return title.removeprefix("# ").strip(), markdown2html(_FORMULA.sub(_unicode, rest.strip().split("\n\n")[0]))


def _unicode(formula: re.Match) -> str:
    """A short LaTeX formula in Unicode, so that the page needs no script to typeset it."""
    return re.sub(r"\\[A-Za-z]+", lambda name: SYMBOLS.get(name[0], name[0][1:]), formula[1])


def _copy(stop: Stop, folder: Path) -> None:
    """Brings the executed notebook, as it is and as HTML, and the figures into the page's folder."""
    for name in ("notebooks", "figures"):
        (folder / name).mkdir(exist_ok=True)
    stop.notebook = f"notebooks/{stop.name}"
    shutil.copyfile(stop.record / "notebook.ipynb", folder / f"{stop.notebook}.ipynb")
    node = nbformat.read(stop.record / "notebook.ipynb", as_version=4)
    html, _ = HTMLExporter(template_file=str(TEMPLATES / "notebook.html.j2")).from_notebook_node(node, {"metadata": {"name": stop.title}})
    (folder / f"{stop.notebook}.html").write_text(html, encoding="utf-8")
    stop.traceback = kernel.traceback(stop.record / "notebook.ipynb") if stop.error else ""
    for path in records.figures(stop.record):
        href = f"figures/{stop.name}-{path.name}"
        shutil.copyfile(path, folder / href)
        with Image.open(path) as image:
            words = [image.text.get(key, "") for key in ("Title", "Comment", "Description")]
            stop.figures.append(Figure(href, *image.size, *words))


def _page(stops: list[Stop]) -> str:
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    facts = {"commit": records.commit(), "python": platform.python_version(), "torch": records.version("torch")}
    return environment.get_template("tour.html.j2").render(stops=stops, made=datetime.now(), facts=facts)
