"""Where things lie in a checkout, whatever folder a notebook or papermill was started from."""

from pathlib import Path

from gaussmark_lib import files
from gaussmark_lib.errors import RecordError

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
DATA = ROOT / "data"
RUNS = ROOT / "papermill_runs"
PRESETS = RUNS / "presets"
CACHE = DATA / "cache"  # rebuilt on demand, ignored by git
TEXTS = CACHE / "written"  # texts of schemes, kept by ``schemes.cache``


def records(root: str | Path | None) -> Path:
    """The folder of all records, absolute: ``papermill_runs`` where none is named. RecordError for
    what is no name.
    """
    return (
        RUNS
        if root is None
        else files.named(root, "no record can be kept there", RecordError).absolute()
    )
