"""The files that git knows. Tests ignore a user's own keys, texts, presets and notebooks."""

import subprocess
from pathlib import Path

from gaussmark_lib.files import ROOT


def files(pattern: str) -> list[Path]:
    """Return the files of ``ROOT.glob(pattern)`` that git knows, sorted. A copy without git returns
    all files.
    """
    if not (ROOT / ".git").exists():
        return sorted(ROOT.glob(pattern))
    listed = ["git", "ls-files", "-z", "--", f":(glob){pattern}"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in names.split("\0") if name]
    return sorted(path for path in paths if path.exists())


NOTEBOOKS = files("notebooks/[0-9][0-9]_*.ipynb")
PRESETS = files("papermill_runs/presets/*.yaml")
