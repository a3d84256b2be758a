"""Where things lie in a checkout, whatever folder a notebook or papermill was started from."""

import os
from pathlib import Path

from gaussmark_lib import files
from gaussmark_lib.errors import RecordError

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
DATA = ROOT / "data"
RUNS = ROOT / "papermill_runs"
PRESETS = RUNS / "presets"
CACHE = Path(os.environ.get("GAUSSMARK_CACHE", DATA / "cache"))  # rebuilt on demand
TEXTS = CACHE / "written"  # texts of schemes, kept by ``schemes.cache``


def records(root: str | Path | None) -> Path:
    """The folder of all records, absolute; where none is named, that of ``GAUSSMARK_RUNS``, or
    ``papermill_runs``. RecordError for what is no name.
    """
    root = os.environ.get("GAUSSMARK_RUNS", RUNS) if root is None else root
    return files.named(root, "no record can be kept there", RecordError).absolute()
