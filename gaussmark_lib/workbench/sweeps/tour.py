"""The tour: a run of every numbered notebook with its defaults, and a page with the results,
``papermill_runs/tour-<id>/index.html``.

One notebook runs per core, the longest first. A notebook with timings has the metadata
``{"gaussmark": {"alone": true, "seconds": 90}}``: it runs after the other notebooks, alone and on
all cores. ``seconds`` is the approximate time that a notebook takes. A notebook with a record is
answered from the record. If a notebook fails, the page says so, and the other notebooks still run.

The page is a single file, without scripts, and needs no network. Formulas become MathML. Figures
become WebP, which is lossless and takes less than half of the bytes of PNG.
"""

import platform
import re
import secrets
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from latex2mathml.converter import convert
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from gaussmark_lib import files
from gaussmark_lib.engine import packages
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.answers import title
from gaussmark_lib.workbench.plots import show
from gaussmark_lib.workbench.runs import folder as records
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.runs import presets
from gaussmark_lib.workbench.runs.folder import Run
from gaussmark_lib.workbench.sweeps import jobs

TEMPLATES = Path(__file__).parent / "templates"
SHARPER = 1.44  # pixels of a saved figure per pixel of the page
# a function with its sub- and superscripts, before a letter, a digit or a symbol
FUNCTION = re.compile(
    r"(\\(?:log|ln|exp|(?:arc)?(?:sin|cos|tan)|sinh|cosh|tanh)(?![A-Za-z])"
    r"(?:[_^](?:\{[^{}]*\}|\w))*)\s*"
    r"(?=\w|\\(?!left\b|[bB]igg?l?\b|lVert\b|lvert\b|langle\b)[A-Za-z])"
)


@dataclass
class Stop:
    """A notebook and its result."""

    name: str
    title: str
    claim: str = ""  # HTML
    job: notebooks.Question | None = None
    run: Run | None = None
    failed: Path | None = None  # the folder of a failed run
    error: str = ""
    traceback: str = ""

    @property
    def outcome(self) -> str:
        """The time that the notebook took, or its error."""
        if not self.run:
            return f"failed: {self.error}"
        source = ", from its record" if self.run.cached else ""
        return f"{self.run.status['seconds']} s{source}"


class Tour(NamedTuple):
    """A page, and its notebooks."""

    page: Path
    stops: list[Stop]

    @property
    def failed(self) -> list[Stop]:
        """The notebooks that failed."""
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
    """Run all numbered notebooks and write the page; notebooks that fail are in ``failed``.

    Args:
        names: numbers or names of notebooks; by default all.
        preset: a YAML file of parameter values, or its name in papermill_runs/presets; by default
            the notebooks run with their defaults.
        workers: number of notebooks at the same time; by default one per core, as far as memory
            allows.

    Raises:
        GaussMarkError: if there is no notebook to run, or the page cannot be written.
        KeyboardInterrupt: after all present runs are stopped; finished notebooks keep their
            records.
    """
    root = files.records(root)
    values = presets.read(preset) if preset else {}
    stops = [_read(name, values) for name in list(names) or notebooks.numbered()]
    if not stops:
        raise GaussMarkError(
            f"expected numbered notebooks like 00_first_watermark.ipynb in {files.NOTEBOOKS}, found"
            " none"
        )
    target = root / f"tour-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    with records.hidden(target):
        pass  # raises before any work if the page cannot be written there
    for stop in stops:
        if stop.job and not force:  # a notebook that cannot be read has no job
            stop.run = records.load(stop.job.target(root))
    waiting = [stop for stop in stops if not stop.run and not stop.error]
    waiting.sort(key=lambda stop: -stop.job.notebook.tour.get("seconds", 0))  # the longest first
    together = [stop for stop in waiting if not stop.job.notebook.tour.get("alone")]
    alone = [stop for stop in waiting if stop not in together]
    n = len(stops)
    again = "the same command without --force"
    with jobs.progress(n, n - len(waiting), "notebooks", again, shown=progress) as bar:
        _run(together, n, root, bar=bar, force=force, workers=workers)
        _run(alone, n, root, bar=bar, force=force, workers=1)
    with records.hidden(target) as hidden:
        (hidden / "index.html").write_text(html(stops, preset), encoding="utf-8")
        records.place(hidden, target, replace=False)
    return Tour(target / "index.html", stops)


def _read(name: str | Path, values: dict[str, Any]) -> Stop:
    """A notebook, and its run with the values of a preset."""
    stem = Path(name).stem
    stop = Stop(name=stem, title=stem)
    try:
        source = notebooks.load(name)
        stop.name = source.name
        stop.title = source.title
        stop.claim = claim(source)
        values_of_notebook, _ = presets.taken(values, source.name[:2], source.parameters)
        stop.job = notebooks.question(source, values_of_notebook)
    except GaussMarkError as error:
        stop.error = str(error)
    return stop


def _run(stops: list[Stop], n_runs: int, root: Path, **options: Any) -> None:
    """Run notebooks, and write their outcomes into the stops."""
    outcomes = jobs.run_all([stop.job for stop in stops], n_runs, root=root, **options)
    for stop, outcome in zip(stops, outcomes, strict=True):
        stop.error, stop.traceback, stop.failed = outcome
        if not stop.error:
            run = records.load(stop.job.target(root))
            stop.run = replace(run, cached=False)


def verdicts(run: Run | None, large: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the findings of a run (``Run.findings``), each with its ``reference``.

    The reference is the same finding of the first larger run that has it, with its ``model``; None
    if no larger run has it.
    """
    references: dict[str, dict[str, Any]] = {}
    for larger in large:
        for finding in larger.findings:
            references.setdefault(finding["claim"], finding | {"model": title(larger)})
    of_run = run.findings if run else []
    return [finding | {"reference": references.get(finding["claim"])} for finding in of_run]


def mathml(latex: str, display: str = "inline") -> str:
    """Return a formula as MathML, or as LaTeX if it cannot be converted.

    It does not raise, because the page is written after hours of runs. A thin space is put between
    a function and its argument, as TeX does: converted alone, \\log p would be "logp".
    """
    try:
        return convert(FUNCTION.sub(r"\1\\,", latex), display=display)
    except Exception:  # latex2mathml's errors; for some formulas IndexError or StopIteration
        return f"<code>{escape(latex)}</code>"


class _Renderer(IPythonRenderer):
    inline_math = staticmethod(mathml)
    block_math = staticmethod(partial(mathml, display="block"))


def claim(source: notebooks.Notebook) -> str:
    """Return the claim of a notebook as HTML."""
    markdown = MarkdownWithMath(renderer=_Renderer(escape=False, exclude_anchor_links=True))
    return markdown.render(source.claim)


def html(stops: list[Stop], preset: str | None = None) -> str:
    """Return the page about the results of all notebooks."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("tour.html.j2")
    models = _models(stops)
    facts = {
        "made": datetime.now(),
        "commit": records.commit(),
        "python": platform.python_version(),
        "torch": records.version("torch"),
        "preset": preset,
        "names": models,
        "models": [_title(model) for model in models],
    }
    views = {stop.name: _view(stop) for stop in stops}
    return template.render(views=views, facts=facts)


def _models(stops: list[Stop]) -> list[str]:
    """The models that the runs use, in order; a notebook may have none."""
    models = [stop.job.values.get("model") for stop in stops if stop.job]
    return list(dict.fromkeys(model for model in models if model))


def _title(model: str) -> str:
    """A model's name, with the kind of its weights if the name does not tell it."""
    entry = packages.MODELS.get(model)
    return f"{model} ({entry.weights})" if entry else model


def _view(stop: Stop) -> dict[str, Any]:
    """The part of the page about a notebook."""
    run = stop.run
    large = runs.references(stop.name)
    findings = verdicts(run, large)
    counts = Counter((finding["reference"] or finding)["outcome"] for finding in findings)
    folder = run.dir if run else stop.failed
    pictures = folder.glob("figures/*.png") if folder else []
    in_order = sorted(pictures, key=lambda path: (path.stat().st_mtime_ns, path.name))
    with ThreadPoolExecutor() as threads:  # compression is slow
        figures = list(threads.map(_figure, in_order))
    results = run.results if run else {}
    return {
        "stop": stop,
        "headline": run and run.headline,
        "large": large[0].headline if large else None,
        "on": title(large[0]) if large else "",
        "verdicts": findings,
        "counts": ", ".join(f"{n} {outcome}" for outcome, n in counts.items()),
        "checks": [check["check"] for check in results.get("checks", [])],
        "numbers": run.numbers if run else {},
        "figures": figures,
    }


def _figure(path: Path) -> dict[str, Any]:
    """A figure, its size on the page, and the description in its PNG file."""
    picture = show.saved(path)
    size = {"width": round(picture.width / SHARPER), "height": round(picture.height / SHARPER)}
    return {"source": picture.source, "alt": picture.alt} | size
