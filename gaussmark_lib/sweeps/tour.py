"""The tour: every numbered notebook with its defaults, side by side, and one page that shows what
came of them.

    papermill_runs/tour-<id>/index.html      the page, with figures/ and notebooks/ beside it; the
    folder can be moved or served as it is

As many notebooks run at a time as there are cores, each in a process of its own, the longest first.
A notebook that times things says so in its metadata, ``{"gaussmark": {"alone": true, "seconds":
90}}``, and runs after the others, alone and on all cores; ``seconds`` is about how long a notebook
takes. A notebook that was run before is answered from its record. If one fails, the page says so,
and the others still run.
"""

import secrets
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from gaussmark_lib import files, paths, runs
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.sweeps import page


@dataclass
class Stop:
    """One notebook's part of the page."""

    name: str
    title: str
    claim: str = ""  # HTML
    source: notebooks.Notebook | None = None
    values: dict[str, Any] = field(default_factory=dict)
    run_id: str = ""
    run: runs.Run | None = None
    failed: Path | None = None  # the folder of a run that did not end
    error: str = ""
    traceback: str = ""
    figures: list[page.Figure] = field(default_factory=list)
    notebook: str = ""  # of its HTML, in the page's folder

    @property
    def record(self) -> Path | None:
        """The folder of its run, complete or failed; None if it could not start."""
        return self.run.dir if self.run else self.failed

    @property
    def outcome(self) -> str:
        return (
            f"{self.run.status['seconds']} s{', from its record' if self.run.cached else ''}"
            if self.run
            else f"failed: {self.error}"
        )


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


def tour(
    *,
    force: bool = False,
    workers: int | None = None,
    progress: bool = True,
    root: str | Path | None = None,
    single: str | Path | None = None,
) -> Tour:
    """Runs all numbered notebooks and writes the page; a notebook that fails is in ``failed``.

    Args:
        workers: how many notebooks run at a time; one a core by default, as far as memory allows.
            With 1 each has all cores.
        single: a file to write the page to as well, with its figures inside it and without the
            notebooks, to send to somebody.

    Raises:
        GaussMarkError: there is no notebook to run, or no page can be kept there.
        KeyboardInterrupt: after everything that runs is stopped; finished notebooks keep their
            records.
    """
    root = paths.records(root)
    if not (stops := [_read(file) for file in notebooks.numbered()]):
        raise GaussMarkError(
            f"expected numbered notebooks like 00_first_watermark.ipynb in {paths.NOTEBOOKS}, found"
            " none"
        )
    target = root / f"tour-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    records.check(target)
    file = (
        None
        if single is None
        else page.writable(files.named(single, "no such folder", GaussMarkError))
    )
    for stop in stops:
        if not force and stop.source:
            stop.run = records.load(root / stop.name / stop.run_id)
    done = sum(bool(stop.run or stop.error) for stop in stops)
    with tqdm(
        total=len(stops),
        initial=done,
        desc="tour",
        unit=" notebooks",
        smoothing=0,
        disable=not progress,
    ) as bar:
        try:
            _run(stops, force, workers, bar, root)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; {bar.n} of {len(stops)} notebooks are done, and the same command"
                " without --force goes on from there"
            ) from None
    with records.written(target, replace=False) as partial:
        page.write(stops, partial)
    if file:
        page.write_single(stops, target, file)
    return Tour(target, stops)


def _read(file: Path) -> Stop:
    stop = Stop(file.stem, file.stem)
    try:
        source = notebooks.load(file)
        stop.title, stop.claim = page.claim(source)
        stop.values = source.check({})
        stop.source, stop.run_id = source, source.run_id(stop.values)
    except GaussMarkError as error:
        stop.error = str(error)
    return stop


def _run(stops: list[Stop], force: bool, workers: int | None, bar: tqdm, root: Path) -> None:
    """Runs what has no answer yet: first side by side what may, then one by one in this process,
    which leaves all cores to each.
    """
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
                stop.run = runs.run(
                    stop.source,
                    force=force,
                    progress=not bar.disable and {"leave": False, "position": 1},
                    root=root,
                )
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
