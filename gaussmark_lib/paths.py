"""Names of an earlier version: see ``files``."""

from gaussmark_lib.files import CACHE, DATA, NOTEBOOKS, PRESETS, ROOT, RUNS, TEXTS, records

__all__ = ["CACHE", "DATA", "NOTEBOOKS", "PRESETS", "ROOT", "RUNS", "TEXTS", "records"]
