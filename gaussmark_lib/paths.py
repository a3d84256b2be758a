"""Where things lie in a checkout, whatever folder a notebook or papermill was started from."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
DATA = ROOT / "data"
RUNS = ROOT / "papermill_runs"
PRESETS = RUNS / "presets"
CACHE = DATA / "cache"  # rebuilt on demand, ignored by git
TEXTS = CACHE / "written"  # texts of schemes, kept by ``schemes.cache``
