"""The tour: a sweep over every numbered notebook with its defaults, and one page that shows what
came of them, ``papermill_runs/tour-<id>/index.html``.

As many notebooks run at a time as there are cores, the longest first. A notebook that times things
says so in its metadata, ``{"gaussmark": {"alone": true, "seconds": 90}}``, and runs after the
others, alone and on all cores; ``seconds`` is about how long a notebook takes. A notebook that was
run before is answered from its record. If one fails, the page says so, and the others still run.
"""

import secrets
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.runs.folder import Run
from gaussmark_lib.sweeps import jobs, page


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
    """A page, in its folder, and what it is about."""

    dir: Path
    stops: list[Stop]

    @property
    def page(self) -> Path:
        return self.dir / "index.html"

    @property
    def failed(self) -> list[Stop]:
        return [stop for stop in self.stops if stop.run is None]


def tour(
    *,
    force: bool = False,
    workers: int | None = None,
    progress: bool = True,
    root: str | Path | None = None,
) -> Tour:
    """Runs all numbered notebooks and writes the page; a notebook that fails is in ``failed``.

    Args:
        workers: how many notebooks run at a time; by default one per core, as far as memory allows.

    Raises:
        GaussMarkError: there is no notebook to run, or no page can be kept there.
        KeyboardInterrupt: after everything that runs is stopped; finished notebooks keep their
            records.
    """
    root = files.records(root)
    if not (stops := [_read(file) for file in notebooks.numbered()]):
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
        options = {"root": root, "bar": bar, "force": force}
        _run(together, n, workers=workers, **options)
        _run(alone, n, workers=1, **options)
    with records.hidden(target) as partial:
        (partial / "index.html").write_text(page.html(stops), encoding="utf-8")
        records.place(partial, target, replace=False)
    return Tour(target, stops)


def _read(file: Path) -> Stop:
    stop = Stop(file.stem, file.stem)
    try:
        source = notebooks.load(file)
        stop.title, stop.claim = source.title, page.claim(source)
        stop.job = notebooks.question(source)
    except GaussMarkError as error:
        stop.error = str(error)
    return stop


def _run(stops: list[Stop], n_runs: int, root: Path, **options: Any) -> None:
    if not stops:
        return
    outcomes = jobs.run_all([stop.job for stop in stops], n_runs, root=root, **options)
    for stop, outcome in zip(stops, outcomes, strict=True):
        stop.error, stop.traceback, stop.failed = outcome
        if not stop.error:
            stop.run = replace(records.load(stop.job.target(root)), cached=False)
