"""``python -m gaussmark_lib.site FOLDER``: the site in a folder. A broken link or an image without
a text is an error.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gaussmark_lib.site import check, sources


def main(folder: Path) -> str | None:
    """Why there is no whole site; None if there is one."""
    if (folder / "objects.inv").exists():  # a site, whose pages may be others than today's
        shutil.rmtree(folder)
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as doctrees:
        sources.assemble(Path(made))
        options = [
            "--fail-on-warning",
            "--keep-going",
            "--quiet",
            "--jobs=auto",
            f"--conf-dir={Path(__file__).parent}",
            f"--doctree-dir={doctrees}",
        ]
        done = subprocess.run([sys.executable, "-m", "sphinx", *options, made, str(folder)])
        if done.returncode:
            return "The site was not built: the warnings above are errors."
    if faults := check.faults(folder):
        return "\n".join(
            [
                *faults,
                (
                    f"{len(faults)} faults. (A notebook's figures get their texts when it is"
                    " executed again.)"
                ),
            ]
        )
    print(
        f"{folder / 'index.html'}: {len(list(folder.rglob('*.html')))} pages,"
        f" {sum(p.stat().st_size for p in folder.rglob('*')) / 1e6:.0f} MB"
    )
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
