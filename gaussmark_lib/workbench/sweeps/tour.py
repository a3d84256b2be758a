"""The tour: a sweep over every numbered notebook with its defaults, and one page that shows what
came of them, ``papermill_runs/tour-<id>/index.html``.

As many notebooks run at a time as there are cores, the longest first. A notebook that times things
says so in its metadata, ``{"gaussmark": {"alone": true, "seconds": 90}}``, and runs after the
others, alone and on all cores; ``seconds`` is about how long a notebook takes. A notebook that was
run before is answered from its record. If one fails, the page says so, and the others still run.

The page is one file, which needs no script, no network and no other file. Formulas become MathML.
Figures become WebP, which loses nothing and takes less than half of PNG's bytes.
"""

import base64
import platform
import secrets
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from latex2mathml.converter import convert
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from PIL import Image

from gaussmark_lib import files
from gaussmark_lib.engine import packages
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.runs import folder as records
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.runs import presets
from gaussmark_lib.workbench.runs.folder import Run
from gaussmark_lib.workbench.sweeps import jobs

TEMPLATES = Path(__file__).parent / "templates"
SHARPER = 1.44  # pixels of a saved figure for one on the page


@dataclass
class Stop:
    """One notebook and what came of it."""

    name: str
    title: str
    claim: str = ""  # HTML
    job: notebooks.Question | None = None
    run: Run | None = None
    failed: Path | None = None  # the folder of a run that did not end
    error: str = ""
    traceback: str = ""

    @property
    def outcome(self) -> str:
        if not self.run:
            return f"failed: {self.error}"
        return f"{self.run.status['seconds']} s{', from its record' * self.run.cached}"


class Tour(NamedTuple):
    """A page, and what it is about."""

    page: Path
    stops: list[Stop]

    @property
    def failed(self) -> list[Stop]:
        return [stop for stop in self.stops if stop.run is None]


def tour(
    names: Sequence[str] = (),
    *,
    preset: str | None = None,
    force: bool = False,
    workers: int | None = None,
    progress: bool = True,
    root: str | Path | None = None,
) -> Tour:
    """Runs all numbered notebooks and writes the page; a notebook that fails is in ``failed``.

    Args:
        names: numbers or names of notebooks; by default all.
        preset: a YAML file of parameter values, or its name in papermill_runs/presets; the
            notebooks' defaults where there is none.
        workers: how many notebooks run at a time; by default one per core, as far as memory allows.

    Raises:
        GaussMarkError: there is no notebook to run, or no page can be kept there.
        KeyboardInterrupt: after everything that runs is stopped; finished notebooks keep their
            records.
    """
    root = files.records(root)
    values = presets.read(preset) if preset else {}
    wanted = [*names] or notebooks.numbered()
    if not (stops := [_read(name, values) for name in wanted]):
        raise GaussMarkError(
            f"expected numbered notebooks like 00_first_watermark.ipynb in {files.NOTEBOOKS}, found"
            " none"
        )
    target = root / f"tour-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    with records.hidden(target):
        pass  # before any work: the page can be kept there
    for stop in stops:
        if stop.job and not force:
            stop.run = records.load(stop.job.target(root))
    waiting = [stop for stop in stops if not (stop.run or stop.error)]
    waiting.sort(key=lambda stop: -stop.job.notebook.tour.get("seconds", 0))
    together = [stop for stop in waiting if not stop.job.notebook.tour.get("alone")]
    alone = [stop for stop in waiting if stop not in together]
    n, again = len(stops), "the same command without --force"
    with jobs.progress(n, n - len(waiting), "notebooks", again, shown=progress) as bar:
        _run(together, n, root, bar=bar, force=force, workers=workers)
        _run(alone, n, root, bar=bar, force=force, workers=1)
    with records.hidden(target) as hidden:
        (hidden / "index.html").write_text(html(stops, preset), encoding="utf-8")
        records.place(hidden, target, replace=False)
    return Tour(target / "index.html", stops)


def _read(name: str | Path, values: dict[str, Any]) -> Stop:
    """A notebook, and the question that a preset's values ask of it."""
    stop = Stop(Path(name).stem, Path(name).stem)
    try:
        source = notebooks.load(name)
        stop.name, stop.title, stop.claim = source.name, source.title, claim(source)
        given, _ = presets.taken(values, source.name[:2], source.parameters)
        stop.job = notebooks.question(source, given)
    except GaussMarkError as error:
        stop.error = str(error)
    return stop


def _run(stops: list[Stop], n_runs: int, root: Path, **options: Any) -> None:
    outcomes = jobs.run_all([stop.job for stop in stops], n_runs, root=root, **options)
    for stop, outcome in zip(stops, outcomes, strict=True):
        stop.error, stop.traceback, stop.failed = outcome
        if not stop.error:
            stop.run = replace(records.load(stop.job.target(root)), cached=False)


def verdicts(run: Run | None, large: Run | None) -> list[dict[str, Any]]:
    """A run's findings (``Run.findings``), each with the same finding of a larger run as
    ``reference``, or None.
    """
    of_run = run.findings if run else []
    of_large = large.findings if large else []
    references = {finding["claim"]: finding for finding in of_large}
    return [finding | {"reference": references.get(finding["claim"])} for finding in of_run]


def mathml(latex: str, display: str = "inline") -> str:
    """A formula as MathML; as its LaTeX where it is not understood, because a page is written after
    hours of runs.
    """
    try:
        return convert(latex, display=display)
    except Exception:  # its own errors, and IndexError or StopIteration for some formulas
        return f"<code>{escape(latex)}</code>"


class _Renderer(IPythonRenderer):
    inline_math = staticmethod(mathml)
    block_math = staticmethod(partial(mathml, display="block"))


def claim(source: notebooks.Notebook) -> str:
    """A notebook's claim as HTML."""
    markdown = MarkdownWithMath(renderer=_Renderer(escape=False, exclude_anchor_links=True))
    return markdown.render(source.claim)


def html(stops: list[Stop], preset: str | None = None) -> str:
    """The page over what came of each notebook, asked with its defaults or with a preset."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("tour.html.j2")
    facts = {
        "made": datetime.now(),
        "commit": records.commit(),
        "python": platform.python_version(),
        "torch": records.version("torch"),
        "preset": preset,
        "names": _models(stops),
        "models": [_title(model) for model in _models(stops)],
        "larger": [_title(model) for model in _models_of_references(stops)],
    }
    return template.render(views={stop.name: _view(stop) for stop in stops}, facts=facts)


def _models(stops: list[Stop]) -> list[str]:
    """The models that the runs use, in order."""
    used = [stop.job.values.get("model") for stop in stops if stop.job]
    return [*dict.fromkeys(filter(None, used))]


def _models_of_references(stops: list[Stop]) -> list[str]:
    """The models of the larger runs that stand beside them."""
    large = [runs.reference(stop.name) for stop in stops]
    used = [run.params.get("model") for run in large if run]
    return [*dict.fromkeys(filter(None, used))]


def _title(model: str) -> str:
    """A model's name, and what its weights are where the name does not say."""
    entry = packages.MODELS.get(model)
    return f"{model} ({entry.weights})" if entry else model


def _view(stop: Stop) -> dict[str, Any]:
    """What the page shows of a notebook."""
    run = stop.run
    large = runs.reference(stop.name)
    findings = verdicts(run, large)
    counts = Counter((finding["reference"] or finding)["outcome"] for finding in findings)
    folder = run.dir if run else stop.failed
    pictures = folder.glob("figures/*.png") if folder else []
    in_order = sorted(pictures, key=lambda path: (path.stat().st_mtime_ns, path.name))
    with ThreadPoolExecutor() as threads:
        figures = list(threads.map(_figure, in_order))
    results = run.results if run else {}
    return {
        "stop": stop,
        "headline": run and run.headline,
        "large": large and large.headline,
        "verdicts": findings,
        "counts": ", ".join(f"{n} {outcome}" for outcome, n in counts.items()),
        "checks": [check["check"] for check in results.get("checks", [])],
        "numbers": run.numbers if run else {},
        "figures": figures,
    }


def _figure(path: Path) -> dict[str, Any]:
    """A figure, its size on the page, and the description that its PNG file keeps."""
    stored = BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").save(stored, "WEBP", lossless=True, method=2, quality=20)
        width, height = (round(length / SHARPER) for length in image.size)
        alt = " ".join(image.text.get("Description", "").split())
    data = base64.b64encode(stored.getvalue()).decode()
    return {"data": data, "width": width, "height": height, "alt": alt}
