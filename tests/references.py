"""The reference records in git: which records are older than the code, and which of these the
present code would reproduce.

    python tests/references.py                      each record: of this code, or of an older one
    python tests/references.py keep FOLDER…         make these complete records the references
    python tests/references.py stamp quality…       compare, and note the present code's version
    python tests/references.py pool COMMIT…         pool these commits' records of notebook 14

``stamp`` runs the notebook twice, with small sizes: by the commit that made or stamped the record,
and by this checkout. If every number and outcome agrees to 1e-6, the record's ``status.json`` gets
the present code's version and, under ``stamped``, what was compared. A record of times (10) cannot
be compared like this. ``pool`` makes one record of several, if a notebook was recorded more than
once: ``after_release_pooled`` holds the measurements, their commits, and the pooled results. pytest
does not collect this script.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
from notebooks.test_other_parameters import OTHER

from gaussmark_experiments import after_release
from gaussmark_lib import files
from gaussmark_lib.workbench import record as recording
from gaussmark_lib.workbench.runs import folder
from gaussmark_lib.workbench.runs import notebook as notebooks

ROOT = Path(__file__).parents[1]
REFERENCES = ROOT / "papermill_runs" / "reference"
CLOSE = 1e-6
POOLED = "after_release_pooled"
BENCH = "bench"  # begins the names of the tables of `gaussmark bench`, which have no notebook


def records() -> dict[str, folder.Run]:
    """Return the notebooks' records by name."""
    folders = [path for path in sorted(REFERENCES.iterdir()) if path.is_dir()]
    of_notebooks = [path for path in folders if not path.name.startswith(BENCH)]
    return {path.name: folder.load(path) for path in of_notebooks}


def notebook_of(run: folder.Run) -> notebooks.Notebook:
    """Return the notebook whose name without its number begins the record's name."""
    paths = [path for path in notebooks.numbered() if run.dir.name.startswith(path.stem[3:])]
    [path] = paths
    return notebooks.load(path)


def is_current(run: folder.Run) -> bool:
    return run.status.get("code") == notebook_of(run).code


def keep(record: Path) -> None:
    """Make a complete record of ``papermill_runs`` the reference of its notebook."""
    run = folder.load(record)
    if run is None:
        sys.exit(f"{record}: expected the folder of a complete record")
    name = record.resolve().parent.name[3:]
    target = REFERENCES / name
    # figures only if the old reference has figures, which a page then shows
    left_out = [] if (target / "figures").is_dir() else ["figures"]
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(record, target, ignore=shutil.ignore_patterns(*left_out))
    print(f"{record} is {target.relative_to(ROOT)}")


def stamp(run: folder.Run) -> bool:
    """Return whether both versions agree on small sizes. If they do, the record says so."""
    source = notebook_of(run)
    commit = run.status.get("stamped", run.status)["commit"].removesuffix("-dirty")
    values = run.params | OTHER[source.name]
    with tempfile.TemporaryDirectory() as scratch:
        old = Path(scratch, "checkout")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", old, commit], check=True)
        try:
            answers = [results(tree, source.name, values) for tree in (old, ROOT)]
        finally:
            subprocess.run([*git, "remove", "--force", old], check=True)
    different = list(differences(*answers))
    if different:
        first_lines = "\n  ".join(different[:9])
        print(f"{run.dir.name}: {len(different)} numbers differ; record it again:\n  {first_lines}")
        return False
    note = {"commit": folder.commit(), "compared with": OTHER[source.name]}
    status = run.status | {"code": source.code, "stamped": note}
    files.write_json(run.dir / "status.json", status)
    print(f"{run.dir.name}: the present code gives the same numbers")
    return True


def of_commit(commit: str, name: str) -> bytes:
    """Return a file of notebook 14's reference record, as a commit has it."""
    path = f"{commit}:papermill_runs/reference/after_release/{name}"
    git = ["git", "-C", str(ROOT), "show", path]
    return subprocess.run(git, check=True, capture_output=True).stdout


def tables_of(commits: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the releases and the served texts of these commits' records, named by commit and
    number.
    """
    releases = []
    served = []
    for commit in commits:
        attacks = pd.read_parquet(BytesIO(of_commit(commit, "attacks.parquet")))
        of_record = after_release.by_release(attacks)
        releases.append(of_record.assign(release=_named(commit, of_record["release"])))
        texts = pd.read_parquet(BytesIO(of_commit(commit, "served.parquet")))
        served.append(texts.assign(pair=_named(commit, texts["pair"])))
    return pd.concat(releases, ignore_index=True), pd.concat(served, ignore_index=True)


def _named(commit: str, numbers: pd.Series) -> pd.Series:
    return commit + " " + numbers.astype(str)


def pool(commits: list[str]) -> None:
    """Make one record of several: tables, sources and pooled results."""
    statuses = [json.loads(of_commit(commit, "status.json")) for commit in commits]
    params = [json.loads(of_commit(commit, "params.json")) for commit in commits]
    target = REFERENCES / POOLED
    target.mkdir(exist_ok=True)
    releases, served = tables_of(commits)
    releases.to_parquet(target / "releases.parquet")
    served.to_parquet(target / "served.parquet")
    sources = [
        {"record in": commit, "seed": of["seed"], "n_releases": of["n_releases"]}
        | {name: status[name] for name in ("commit", "code", "finished")}
        for commit, of, status in zip(commits, params, statuses, strict=True)
    ]
    files.write_json(
        target / "status.json",
        {
            "status": "complete",
            "pooled": sources,
            "started": statuses[0]["started"],
            "finished": statuses[-1]["finished"],
            "seconds": sum(status["seconds"] for status in statuses),
        },
    )
    of_all = {"seed": [of["seed"] for of in params]}
    of_all["n_releases"] = sum(of["n_releases"] for of in params)
    of_all["n_served"] = sum(of["n_served"] for of in params)
    files.write_json(target / "params.json", params[-1] | of_all)
    (target / "results.json").unlink(missing_ok=True)
    with patch.dict(os.environ, {recording.RUN_DIR: str(target)}):
        recording.record(after_release.pooled(releases, served))


def results(tree: Path, notebook: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a checkout's notebook with these values, if it declares them."""
    with tempfile.TemporaryDirectory() as root:
        path = os.pathsep.join([str(tree), str(tree / "notebooks")])
        env = os.environ | {"PYTHONPATH": path, "GAUSSMARK_RUNS": root}
        subprocess.run(
            [sys.executable, "-c", ASK, notebook, json.dumps(values)], env=env, cwd=tree, check=True
        )
        [record] = Path(root).glob("*/*/results.json")
        return json.loads(record.read_text())


ASK = """
import json, sys
from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.runs import notebook
source, values = notebook.load(sys.argv[1]), json.loads(sys.argv[2])
runs.run(source, {name: value for name, value in values.items() if name in source.parameters})
"""


def differences(old: Any, new: Any, where: str = "results") -> Iterator[str]:
    """Yield where two answers differ in a name, an outcome, or by more than ``CLOSE``."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from differences(old.get(name), new.get(name), f"{where}.{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{where}[{i}]")
    elif isinstance(old, float) and isinstance(new, float | int):
        if not math.isclose(old, new, rel_tol=CLOSE, abs_tol=CLOSE):
            yield f"{where}: {old} and {new}"
    elif old != new:
        yield f"{where}: {old} and {new}"


def main(verb: str = "list", *names: str) -> int:
    if verb == "keep":
        for name in names:
            keep(Path(name))
        return 0
    if verb == "pool":
        pool(list(names))
        return 0
    chosen = [run for name, run in records().items() if not names or name in names]
    old = [run for run in chosen if not is_current(run) and "pooled" not in run.status]
    if verb == "stamp":
        agree = [stamp(run) for run in old]
        return int(not all(agree))
    for run in chosen:
        version = "this"
        if "pooled" in run.status:
            version = "several versions of the"
        elif run in old:
            version = "an older version of the"
        print(f"{run.dir.name:24}{run.status['finished'][:10]}  by {version} code")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
