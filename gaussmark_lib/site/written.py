"""The written pages: prose that lies in git, whose numbers are filled in from the reference records
when the site is built.

A page is a Jinja template. In it, ``record("level_check")`` is a reference record; ``claim`` gives
one of its claims in words, ``headline`` its headline; ``percent`` is a filter. A number or a claim
that the record does not have is an error.
"""

from functools import partial
from pathlib import Path

import jinja2

from gaussmark_lib import paths, words
from gaussmark_lib.errors import RecordError
from gaussmark_lib.runs import folder
from gaussmark_lib.runs.folder import Run
from gaussmark_lib.sweeps import findings

PAGES = paths.NOTEBOOKS / "pages"
REFERENCE = paths.RUNS / "reference"


def filled(text: str, records: Path = REFERENCE) -> str:
    """A page's text with its numbers; RecordError for a record or a claim that there is not,
    Jinja's error for any other name.
    """
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["percent"] = percent
    environment.globals |= {
        "record": partial(record, records=records),
        "claim": claim,
        "headline": headline,
    }
    return environment.from_string(text).render()


def record(name: str, records: Path = REFERENCE) -> Run:
    """The reference record of this name."""
    run = folder.read(records / name) if (records / name).is_dir() else None
    if run is None:
        raise RecordError(f"expected the name of a folder of {records}, got {name!r}")
    return run


def claim(run: Run, name: str, *, percent: bool = False) -> str:
    """What a record measured of one of its claims, with interval and n."""
    found = [row for row in run.results["claims"] if row["claim"] == name]
    if len(found) != 1:
        raise RecordError(f"{run.id}: expected one of its claims, got {name!r}")
    return " ".join(words.estimate(found[0], as_percent=percent))


def headline(run: Run) -> str:
    """A record's one number in words."""
    line = findings.headline(run)
    return f"{line.name}: {line.value} {line.basis}" if line else ""


def percent(share: float, digits: int = 1) -> str:
    """
    >>> percent(0.0512)
    '5.1%'
    """
    return f"{share:.{digits}%}"
