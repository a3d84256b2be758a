"""The reference records in git, kept true: which are older than the code, and which of those the
present code would give again.

    python tests/references.py                      each record: of this code, or of an older one
    python tests/references.py keep FOLDER…         make these complete records the references
    python tests/references.py stamp quality…       compare, and note the present code's version
    python tests/references.py pool COMMIT…         pool these commits' records of notebook 14

``stamp`` runs the notebook twice, with small sizes: by the commit that made or stamped the record,
and by this checkout. Where every number and outcome agrees to 1e-6, the record's ``status.json``
gets the present code's version, and under ``stamped`` what was compared. A record of times (10)
cannot be compared so. ``pool`` makes one record of several, when a notebook was recorded more than
once: ``after_release_pooled`` holds what they measured, which commits they are from, and what they
say together. pytest does not collect this script.
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


def records() -> dict[str, folder.Run]:
    return {path.name: folder.load(path) for path in sorted(REFERENCES.iterdir()) if path.is_dir()}


def notebook_of(run: folder.Run) -> notebooks.Notebook:
    """The notebook whose name without its number begins the record's name."""
    [path] = [p for p in notebooks.numbered() if run.dir.name.startswith(p.stem[3:])]
    return notebooks.load(path)


def is_current(run: folder.Run) -> bool:
    return run.status.get("code") == notebook_of(run).code


def keep(record: Path) -> None:
    """A complete record of ``papermill_runs`` as the reference of its notebook."""
    run = folder.load(record)
    if run is None:
        sys.exit(f"{record}: expected the folder of a complete record")
    name = record.resolve().parent.name[3:]
    target = REFERENCES / name
    left_out = [] if (target / "figures").is_dir() else ["figures"]  # but where a page shows them
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(record, target, ignore=shutil.ignore_patterns(*left_out))
    print(f"{record} is {target.relative_to(ROOT)}")


def stamp(run: folder.Run) -> bool:
    """Whether both versions agree on small sizes; then the record says so."""
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
    if apart := list(differences(*answers)):
        first = "\n  ".join(apart[:9])
        print(f"{run.dir.name}: {len(apart)} numbers differ; record it anew:\n  {first}")
        return False
    note = {"commit": folder.commit(), "compared with": OTHER[source.name]}
    files.write_json(run.dir / "status.json", run.status | {"code": source.code, "stamped": note})
    print(f"{run.dir.name}: the present code gives the same numbers")
    return True


def of_commit(commit: str, name: str) -> bytes:
    """A file of notebook 14's reference record, as a commit has it."""
    path = f"{commit}:papermill_runs/reference/after_release/{name}"
    git = ["git", "-C", str(ROOT), "show", path]
    return subprocess.run(git, check=True, capture_output=True).stdout


def tables_of(commits: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The releases and the served texts of these commits' records, named by commit and number."""
    releases, served = [], []
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
    """One record of several: its tables, its sources, and what they say together."""
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
    """What a checkout's notebook records with those of the values that it declares."""
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
    """Places where two answers differ in a name, an outcome, or a number by more than ``CLOSE``."""
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
        version = "an older version of the" if run in old else "this"
        version = "several versions of the" if "pooled" in run.status else version
        print(f"{run.dir.name:24}{run.status['finished'][:10]}  by {version} code")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
