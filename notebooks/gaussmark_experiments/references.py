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
once: ``after_release_pooled`` holds the measurements, their commits, and the pooled results. Parts
of one record that were declared together have a command of their own, ``pooled``.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from gaussmark_experiments import after_release, pooled
from gaussmark_lib import files
from gaussmark_lib.workbench import record
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


def keep(path: Path) -> None:
    """Make a complete record of ``papermill_runs`` the reference of its notebook."""
    run = folder.load(path)
    if run is None:
        sys.exit(f"{path}: expected the folder of a complete record")
    name = path.resolve().parent.name[3:]
    target = REFERENCES / name
    # figures only if the old reference has figures, which a page then shows
    left_out = [] if (target / "figures").is_dir() else ["figures"]
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(path, target, ignore=shutil.ignore_patterns(*left_out))
    print(f"{path} is {target.relative_to(ROOT)}")


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
            # each checkout runs its own notebook with its own library
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


def records_of(commits: list[str], scratch: Path) -> dict[str, folder.Run]:
    """Return notebook 14's reference record as each commit has it, unpacked into ``scratch``."""
    path = "papermill_runs/reference/after_release"
    return {commit: pooled.load(f"{commit}:{path}", scratch) for commit in commits}


def tables_of(parts: Mapping[str, folder.Run]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the releases and the served texts of these records, named by commit and number."""
    releases = []
    served = []
    for commit, part in parts.items():
        of_part = after_release.by_release(part.table("attacks"))
        # numbers of releases and pairs begin at 0 in each record
        named = _named(commit, of_part["release"])
        releases.append(of_part.assign(release=named))
        texts = part.table("served")
        named = _named(commit, texts["pair"])
        served.append(texts.assign(pair=named))
    return pd.concat(releases, ignore_index=True), pd.concat(served, ignore_index=True)


def _named(commit: str, numbers: pd.Series) -> pd.Series:
    return commit + " " + numbers.astype(str)


def pool(commits: list[str]) -> None:
    """Make one record of several: tables, sources and pooled results. They were not declared
    together and differ in their numbers of releases, so ``pooled.pool`` would refuse them.
    """
    target = REFERENCES / POOLED
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        parts = records_of(commits, Path(scratch))
        releases, served = tables_of(parts)
    releases.to_parquet(target / "releases.parquet")
    served.to_parquet(target / "served.parquet")
    sources = []
    for commit, part in parts.items():
        source = {"record in": commit}
        for name in ("seed", "n_releases"):
            source[name] = part.params[name]
        for name in ("commit", "code", "finished"):
            source[name] = part.status[name]
        sources.append(source)
    *_, last = parts.values()
    status = {
        "status": "complete",
        "pooled": sources,
        "started": min(part.status["started"] for part in parts.values()),
        "finished": last.status["finished"],
        "seconds": sum(part.status["seconds"] for part in parts.values()),
    }
    files.write_json(target / "status.json", status)
    # the parameters of the pool: all seeds, and sums of sizes
    of_all = {"seed": [source["seed"] for source in sources]}
    for name in ("n_releases", "n_served"):
        of_all[name] = sum(part.params[name] for part in parts.values())
    files.write_json(target / "params.json", last.params | of_all)
    (target / "results.json").unlink(missing_ok=True)
    with pooled.recording(target):
        record.record(after_release.pooled(releases, served))


def results(tree: Path, notebook: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a checkout's notebook with these values, if it declares them."""
    with tempfile.TemporaryDirectory() as root:
        path = os.pathsep.join([str(tree), str(tree / "notebooks")])
        env = os.environ | {"PYTHONPATH": path, "GAUSSMARK_RUNS": root}
        subprocess.run(
            [sys.executable, "-c", ASK, notebook, json.dumps(values)], env=env, cwd=tree, check=True
        )
        [path] = Path(root).glob("*/*/results.json")
        return json.loads(path.read_text())


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
        print(f"{run.dir.name:34}{run.status['finished'][:10]}  by {version} code")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
