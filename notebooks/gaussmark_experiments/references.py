"""The reference records in git: which records are older than the code, and which of these the
present code would reproduce.

    python -m gaussmark_experiments.references                  each record: of which code?
    python -m gaussmark_experiments.references keep FOLDER…     make these records the references
    python -m gaussmark_experiments.references stamp quality…   compare, note this code's version
    python -m gaussmark_experiments.references pool COMMIT…     pool notebook 14's records of these

``stamp`` runs the notebook twice, with small sizes: by the commit that made or stamped the record,
and by this checkout. If every number and outcome agrees to 1e-6, the record's ``status.json`` gets
the present code's version and, under ``stamped``, what was compared. A record of times (10) cannot
be compared like this. ``pool`` makes one record of several, if a notebook was recorded more than
once: ``after_release_pooled`` holds the measurements, their commits, and the pooled results.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd

from gaussmark_experiments import after_release
from gaussmark_lib import files
from gaussmark_lib.workbench import record as recording
from gaussmark_lib.workbench.runs import folder
from gaussmark_lib.workbench.runs import notebook as notebooks

ROOT = files.ROOT
REFERENCES = files.RUNS / "reference"
SMALL_SIZES = ROOT / "tests" / "notebooks" / "other_parameters.toml"
CLOSE = 1e-6
POOLED = "after_release_pooled"
BENCH = "bench"  # begins the names of the tables of `gaussmark bench`, which have no notebook


def records() -> dict[str, folder.Run]:
    """Return the notebooks' records by name."""
    found = {}
    for path in sorted(REFERENCES.iterdir()):
        # other files of the folder are tables and lists, such as likeness.json
        if path.is_dir() and not path.name.startswith(BENCH):
            found[path.name] = folder.load(path)
    return found


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
    # the last version that is known to give these numbers
    known = run.status.get("stamped", run.status)
    commit = known["commit"].removesuffix("-dirty")
    small = tomllib.loads(SMALL_SIZES.read_text(encoding="utf-8"))[source.name]
    values = run.params | small
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
        print(f"{run.dir.name}: {len(different)} numbers differ; record it again:")
        for line in different[:9]:  # enough to see what changed
            print(f"  {line}")
        return False
    note = {"commit": folder.commit(), "compared with": small}
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
        content = BytesIO(of_commit(commit, "attacks.parquet"))
        attacks = pd.read_parquet(content)
        of_record = after_release.by_release(attacks)
        # numbers of releases and pairs begin at 0 in each record
        named = _named(commit, of_record["release"])
        releases.append(of_record.assign(release=named))
        content = BytesIO(of_commit(commit, "served.parquet"))
        texts = pd.read_parquet(content)
        named = _named(commit, texts["pair"])
        served.append(texts.assign(pair=named))
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
    sources = []
    for commit, of, status in zip(commits, params, statuses, strict=True):
        source = {
            "record in": commit,
            "seed": of["seed"],
            "n_releases": of["n_releases"],
            "commit": status["commit"],
            "code": status["code"],
            "finished": status["finished"],
        }
        sources.append(source)
    status_of_pool = {
        "status": "complete",
        "pooled": sources,
        "started": statuses[0]["started"],
        "finished": statuses[-1]["finished"],
        "seconds": sum(status["seconds"] for status in statuses),
    }
    files.write_json(target / "status.json", status_of_pool)
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
