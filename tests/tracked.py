"""The files that git knows: a user's own key, text, preset or notebook in a checkout is no concern
of the tests.
"""

import subprocess
from pathlib import Path

from gaussmark_lib.files import ROOT


def files(pattern: str) -> list[Path]:
    """Those of ``ROOT.glob(pattern)``, sorted; all of them in a copy without git."""
    if not (ROOT / ".git").exists():
        return sorted(ROOT.glob(pattern))
    listed = ["git", "ls-files", "-z", "--", f":(glob){pattern}"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in names.split("\0") if name]
    return sorted(path for path in paths if path.exists())


NOTEBOOKS = files("notebooks/[0-9][0-9]_*.ipynb")
PRESETS = files("papermill_runs/presets/*.yaml")
