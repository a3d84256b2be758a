"""The tour: every numbered notebook with its defaults, side by side, and one page that shows what came of them.

    papermill_runs/tour-<id>/index.html      the page, with figures/ and notebooks/ beside it; the folder can be moved or served as it is

As many notebooks run at a time as there are cores, each in a process of its own, the longest first. A notebook that times things says so in its
metadata, ``{"gaussmark": {"alone": true, "seconds": 90}}``, and runs after the others, alone and on all cores; ``seconds`` is about how long
a notebook takes. A notebook that was run before is answered from its record. If one fails, the page says so, and the others still run.
"""

import platform
import re
import secrets
import shutil
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

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
from gaussmark_lib.runs import kernel, versions
from gaussmark_lib.runs import notebook as notebooks

TEMPLATES = Path(__file__).parent / "templates"
WORDS = {"title": "Title", "caption": "Comment", "alt": "Description"}  # of a figure, where ``runs.save_figure`` put them in its PNG
SYMBOLS = latex_symbols | {"\\langle": "⟨", "\\rangle": "⟩"}
_FORMULA = re.compile(r"\$([^$]+)\$")


@dataclass
class Stop:
    """One notebook's part of the page."""

    name: str
    title: str
    claim: str = ""
    source: notebooks.Notebook | None = None
    values: dict[str, Any] = field(default_factory=dict)
    run_id: str = ""
    run: runs.Run | None = None
    failed: Path | None = None  # the folder of a run that did not end
    error: str = ""
    traceback: str = ""
    figures: list[dict[str, Any]] = field(default_factory=list)
    notebook: str = ""

    @property
    def record(self) -> Path | None:
        """The folder of its run, complete or failed; None if it could not start."""
        return self.run.dir if self.run else self.failed

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


def tour(*, force: bool = False, workers: int | None = None, progress: bool = True, root: str | Path | None = None) -> Tour:
    """Runs all numbered notebooks and writes the page; a notebook that fails is in ``failed``.

    Args:
        workers: how many notebooks run at a time; one a core by default, as far as memory allows. With 1 each has all cores.

    Raises:
        GaussMarkError: there is no notebook to run, or no page can be kept there.
        KeyboardInterrupt: after everything that runs is stopped; finished notebooks keep their records.
    """
    root = paths.records(root)
    if not (stops := [_read(file) for file in notebooks.numbered()]):
        raise GaussMarkError(f"expected numbered notebooks like 00_first_watermark.ipynb in {paths.NOTEBOOKS}, found none")
    target = root / f"tour-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    records.check(target)
    for stop in stops:
        if not force and stop.source:
            stop.run = records.load(root / stop.name / stop.run_id)
    done = sum(bool(stop.run or stop.error) for stop in stops)
    with tqdm(total=len(stops), initial=done, desc="tour", unit="notebook", smoothing=0, disable=not progress) as bar:
        try:
            _run(stops, force, workers, bar, root)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; {bar.n} of {len(stops)} notebooks are done, and the same command goes on from there") from None
    with records.written(target, replace=False) as partial:
        for stop in stops:
            if stop.record:
                _copy(stop, partial)
        (partial / "index.html").write_text(_page(stops), encoding="utf-8")
    return Tour(target, stops)


def _read(file: Path) -> Stop:
    stop = Stop(file.stem, file.stem)
    try:
        source = notebooks.load(file)
        stop.title, stop.claim = _claim(source)
        stop.values = source.check({})
        stop.source, stop.run_id = source, source.run_id(stop.values)
    except GaussMarkError as error:
        stop.error = str(error)
    return stop


def _run(stops: list[Stop], force: bool, workers: int | None, bar: tqdm, root: Path) -> None:
    """Runs what has no answer yet: first side by side what may, then one by one in this process, which leaves all cores to each."""
    if all(stop.run or stop.error for stop in stops):
        return
    from gaussmark_lib.sweeps import places  # here, because Dask takes a second to import

    together = [stop for stop in stops if stop.source and not stop.source.tour.get("alone")]
    n = places.at_once(len(together), workers)
    if n > 1 and (waiting := [stop for stop in together if not (stop.run or stop.error)]):
        _run_side_by_side(waiting, force, n, bar, root)
    for stop in stops:
        if not (stop.run or stop.error):
            bar.set_postfix_str(stop.name)
            try:
                stop.run = runs.run(stop.source, force=force, progress=not bar.disable and {"leave": False, "position": 1}, root=root)
            except runs.RunFailedError as error:
                stop.error, stop.failed = error.reason, error.dir
            bar.update()


def _run_side_by_side(stops: list[Stop], force: bool, workers: int, bar: tqdm, root: Path) -> None:
    from gaussmark_lib.sweeps import places, submit

    longest_first = sorted(stops, key=lambda stop: -stop.source.tour.get("seconds", 0))
    jobs = [submit.Job(stop.source, stop.values, stop.run_id) for stop in longest_first]
    with places.connect(runs=len(stops), workers=workers) as client:
        root.mkdir(parents=True, exist_ok=True)
        outcomes = submit.run_all(client, jobs, root=root, bar=bar, force=force, at_a_time=workers)
    for stop, outcome in zip(longest_first, outcomes, strict=True):
        if run := not outcome.error and records.load(root / stop.name / stop.run_id):
            stop.run = replace(run, cached=outcome.cached)
        else:
            stop.error, stop.failed = outcome.error, outcome.failed


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
            words = {name: image.text.get(key, "") for name, key in WORDS.items()}
            stop.figures.append({"href": href, "width": image.width, "height": image.height, **words})


def _page(stops: list[Stop]) -> str:
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    facts = {"commit": versions.commit(), "python": platform.python_version(), "torch": versions.of("torch")}
    return environment.get_template("tour.html.j2").render(stops=stops, made=datetime.now(), facts=facts)
