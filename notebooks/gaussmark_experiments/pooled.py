"""Pool the parts of a record: runs of one notebook that differ in their seed, declared beforehand.

    python -m gaussmark_experiments.pooled detectability_smollm2 RUN RUN …

A RUN is the folder of a complete record, or COMMIT:FOLDER as git has it. The pooled record replaces
the reference of this name. ``gaussmark_experiments.references`` says which records are pooled.

What the parts recorded, and what becomes of it:

====================  ==============================================================================
tables of rows        stand below each other, with the columns ``part`` (its seed) and, for rows of
                      a pair, ``document``; pairs, texts and keys are renumbered
tables of estimates   computed from the rows by the notebook's functions (``summaries`` of its
                      module), or else combined from the parts' intervals (:func:`combined`)
findings, headline    the same (``estimates`` of the module); ``pooled`` says which
other results         the same (``numbers`` of the module), or else of the first part
figures               of the first part
====================  ==============================================================================

``status.json`` names the parts, and what is of the first part alone; ``parts.json`` has the results
of each part, so that no outcome is lost.

Two seeds never share a key. But they share documents: of 72 speeches outside the pilot, each seed
takes the first prompts of all, so 450 pairs of three seeds have 161 different prompts. Rows of one
document may resemble each other, so the intervals of a pooled record are over documents
(``pairs.over_pairs``); n still counts pairs. Requests that are the same for every seed are treated
like documents. The rows of estimates that were combined are taken as independent.
"""

import math
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_integer_dtype

from gaussmark_experiments import (
    detectability,
    first_watermark,
    intervals,
    kgw_baseline,
    motivation,
    robustness,
    sharper_test,
)
from gaussmark_lib import files, models, stats, texts
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench import claims, record
from gaussmark_lib.workbench.pairs import DOCUMENT
from gaussmark_lib.workbench.runs import folder
from gaussmark_lib.workbench.runs.folder import Run

# The seeds of each record's parts, as its preset declared them before the first run.
DECLARED = {
    "detectability_gemma": (5, 6),
    "detectability_smollm2": (5, 6, 7),
    "first_watermark_smollm2": (5, 6),
    "kgw_baseline_smollm2": (5, 6, 7),
    "motivation_smollm2": (5, 6, 7),
    "robustness_smollm2": (5, 6, 7),
    "sharper_test_smollm2": (5, 6, 7),
}
PART = "part"  # a column of pooled tables: the seed of a row's part
NUMBERS = ("text", "prompt", "pair", "key")  # columns that count from 0 in each part
ESTIMATE = ["value", "low", "high", "n"]
# Parameters that may differ between parts: they change nothing but how fast a part runs.
FREE = {"seed", "batch_size", "device"}
# Parameters that count what is drawn anew for each seed.
COUNTS = {
    "n_prompts",
    "n_spread_prompts",
    "n_few",
    "n_edited",
    "n_corrected",
    "n_requests",
    "n_fixed_keys",
    "n_null",
    "n_ratios",
}


# What the pooled status keeps of a part's.
SOURCE = (
    "commit",
    "code",
    "started",
    "finished",
    "seconds",
    "versions",
    "platform",
)


class Experiment(NamedTuple):
    """The module of a notebook, and its tables.

    Args:
        pairs: for each table of pairs, the column that numbers them; a table without the column has
            a row per pair.
        requests: a table of pairs whose prompts are fixed requests, and its column.
        estimates: for each table of estimates without rows, the columns that name an estimate.
        constants: from a part's results to columns of its pairs.
    """

    module: ModuleType
    pairs: dict[str, str]
    requests: tuple[str, str] | None = None
    estimates: Mapping[str, list[str]] = MappingProxyType({})
    constants: Callable[[dict[str, Any]], dict[str, float]] | None = None


EXPERIMENTS = {
    "detectability": Experiment(
        detectability,
        {"texts": "prompt"},
        estimates={"ratios": ["n_tokens", "ratio"]},
        constants=detectability.constants,
    ),
    "first_watermark": Experiment(
        first_watermark,
        {"texts": "pair"},
        estimates={"sweep": ["predicted", "curve"]},
        constants=first_watermark.constants,
    ),
    "kgw_baseline": Experiment(
        kgw_baseline,
        {"lengths": "text", "edits": "pair", "distances": "text"},
        requests=("temperatures", "text"),
        estimates={"costs": ["cost", "scheme"], "equivalent": ["scheme"]},
    ),
    "motivation": Experiment(
        motivation,
        {"language_model": "prompt"},
    ),
    "robustness": Experiment(
        robustness,
        {"random_edits": "pair", "prompts": "pair", "people": "pair"},
    ),
    "sharper_test": Experiment(
        sharper_test,
        {
            "after_edits": "pair",
            "directions": "pair",
            "likelihood_ratios": "pair",
            "spread": "pair",
            "tuned": "pair",
        },
    ),
}


class Pooled(NamedTuple):
    """What a pooled record holds."""

    tables: dict[str, pd.DataFrame]
    results: dict[str, Any]
    params: dict[str, Any]
    status: dict[str, Any]
    parts: list[Run]


def experiment_of(name: str) -> Experiment:
    """Return the experiment whose name begins the name of a record."""
    for beginning, experiment in EXPERIMENTS.items():
        if name.startswith(beginning):
            return experiment
    known = ", ".join(EXPERIMENTS)
    raise GaussMarkError(f"{name}: expected the name of a record of {known}")


def require_parts(parts: Sequence[Run], declared: Sequence[int]) -> None:
    """Raise GaussMarkError unless the parts differ in nothing but their declared seeds."""
    first = parts[0]
    seeds = [part.params["seed"] for part in parts]
    if len(set(seeds)) < len(seeds) or len(seeds) < 2:
        raise GaussMarkError(
            f"expected two or more parts, each with a seed of its own, got {seeds}"
        )
    if not set(seeds) <= set(declared):
        raise GaussMarkError(f"expected parts with the declared seeds {declared}, got {seeds}")
    for part in parts[1:]:
        # an older notebook may lack a parameter
        common = first.params.keys() & part.params.keys()
        different = [
            name for name in sorted(common - FREE) if first.params[name] != part.params[name]
        ]
        if different:
            names = ", ".join(different)
            raise GaussMarkError(
                f"expected parts that differ in their seeds alone, but {names} differ between"
                f" {first.dir} and {part.dir}"
            )
        for hashes in ("inputs", "weights"):
            if first.status.get(hashes) != part.status.get(hashes):
                raise GaussMarkError(
                    f"expected parts with the same {hashes}, but those of {part.dir} are not those"
                    f" of {first.dir}"
                )


def documents_of(part: Run) -> list[str]:
    """Return the document of each pair's prompt."""
    params = part.params
    return texts.sources(
        models.load(params["model"]),
        params["text"],
        params["n_prompts"],
        params.get("prompt_tokens", 32),  # where the notebook has no such parameter
        seed=params["seed"],
    )


def rows_of(
    part: Run,
    experiment: Experiment,
    documents: Sequence[str],
) -> dict[str, pd.DataFrame]:
    """Return the tables of a part, with the document of each pair."""
    names = sorted(path.stem for path in part.dir.glob("*.parquet"))
    tables = {name: part.table(name) for name in names}
    constants = {}  # columns that have one value in a part
    if experiment.constants:
        constants = experiment.constants(part.results)
    for name in experiment.pairs.keys() & tables.keys():
        table = tables[name]
        column = experiment.pairs[name]
        if column not in table:
            # a row per pair, in the order of the pairs
            table[column] = range(len(table))
        table[DOCUMENT] = np.take(documents, table[column])
        tables[name] = table.assign(**constants)
    if experiment.requests:
        name, column = experiment.requests
        table = tables[name]
        # every seed has the same requests
        table[DOCUMENT] = table[column].map("request {}".format)
    return tables


def stacked(tables: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """Put a table of all parts, by seed, into one: in a later part, each of ``NUMBERS`` counts on
    from the part before.
    """
    so_far: list[pd.DataFrame] = []
    for seed, table in tables.items():
        table = table.assign(**{PART: seed})
        for column in NUMBERS:
            if column not in table or not so_far:
                continue
            if is_integer_dtype(table[column]):  # a prompt can also be its token ids
                table[column] += so_far[-1][column].max() + 1
        so_far.append(table)
    return pd.concat(so_far, ignore_index=True)


def combined(estimates: Sequence[Estimate]) -> Estimate:
    """Combine estimates of independent parts whose rows were not kept: their mean, weighted by n.
    Shares of n trials are added up.

    The ends of the interval are those of Zou and Donner (Statistics in Medicine 27, 2008, 1693),
    who recover variances from intervals: with weights w_i, value − √Σ(w_i (value_i − low_i))², and
    the same above. For means with Student's intervals this is nearly the interval over all rows.

    >>> print(combined([Estimate(1.0, 0.7, 1.4, 50), Estimate(2.0, 1.6, 2.3, 50)]))
    1.5 (1.25 to 1.75), n = 100
    """
    n = sum(estimate.n for estimate in estimates)
    if all(folder.is_share(estimate.row()) for estimate in estimates):
        n_hits = sum(round(estimate.value * estimate.n) for estimate in estimates)
        return stats.share(np.arange(n) < n_hits)
    value = 0.0
    below = 0.0  # sums of squares
    above = 0.0
    for estimate in estimates:
        weight = estimate.n / n
        value += weight * estimate.value
        down = estimate.value - estimate.low
        up = estimate.high - estimate.value
        below += (weight * down) ** 2
        above += (weight * up) ** 2
    return Estimate(value, value - math.sqrt(below), value + math.sqrt(above), n)


def combined_rows(table: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Combine the rows of all parts in a table of estimates that have the same names. Another
    column, such as a σ that each part solved, has its mean.

    >>> rows = [["measured", 1.0, 0.5, 1.5, 10], ["predicted", 2.0, None, None, None]]
    >>> part = pd.DataFrame(rows, columns=["curve", *ESTIMATE])
    >>> combined_rows(pd.concat([part, part]), ["curve"])
           curve  value       low      high     n
    0   measured    1.0  0.646447  1.353553  20.0
    1  predicted    2.0       NaN       NaN   NaN
    """
    columns = [column for column in table.columns if column != PART]
    means = [column for column in columns if column not in [*names, *ESTIMATE]]
    rows = []
    for cell_name, cell in table.groupby(names, sort=False):
        row = dict(zip(names, cell_name, strict=True))
        row |= cell[means].mean().to_dict()
        # a prediction has no n, and is the same in all parts
        estimate = cell[ESTIMATE].iloc[0].to_dict()
        if cell["n"].notna().all():
            of_parts = [intervals.of_row(numbers) for numbers in cell.to_dict("records")]
            estimate = combined(of_parts).row()
        rows.append(row | estimate)
    return pd.DataFrame(rows)[columns]


def pooled_tables(
    parts: Sequence[Run],
    experiment: Experiment,
    documents: Sequence[Sequence[str]],
) -> dict[str, pd.DataFrame]:
    """Return the tables of rows, and those of estimates, of all parts. A table that some parts lack
    is of the parts that have it.
    """
    of_parts: dict[str, dict[int, pd.DataFrame]] = {}  # name → seed → table
    for part, of_pairs in zip(parts, documents, strict=True):
        seed = part.params["seed"]
        for name, table in rows_of(part, experiment, of_pairs).items():
            of_parts.setdefault(name, {})[seed] = table
    whole = {name: stacked(tables) for name, tables in of_parts.items()}
    # rows of estimates are not evidence of their own
    for name in experiment.estimates.keys() & whole.keys():
        whole[name] = combined_rows(whole[name], experiment.estimates[name])
    return whole | experiment.module.summaries(whole, parts[0].params)


def bounds(expected: str) -> dict[str, float]:
    """Return the range of a recorded finding as arguments of ``claims.finding``.

    >>> bounds("at most 0.5"), bounds("-0.05 to 0.05")
    ({'most': 0.5}, {'least': -0.05, 'most': 0.05})
    """
    first, _, last = expected.rpartition(" ")
    if first == "at least":
        return {"least": float(last)}
    if first == "at most":
        return {"most": float(last)}
    return {"least": float(first.removesuffix(" to")), "most": float(last)}


def pooled_row(
    rows: Mapping[int, Mapping[str, Any]],
    estimate: Estimate | None,
    is_complete: bool,
) -> dict[str, Any]:
    """Return the row of a finding in the pooled record.

    Args:
        rows: the finding in each part that has it, by seed.
        estimate: from the rows of these parts, if their tables decide it.
        is_complete: whether all declared parts are there, so that the planned n is reached.
    """
    seeds = ", ".join(map(str, rows))
    [first, *others] = rows.values()
    if not others:
        return {**first, "pooled": f"part {seeds} alone"}
    basis = "rows"
    if estimate is None:
        basis = "intervals"
        estimate = combined([intervals.of_row(row) for row in rows.values()])
    finding = claims.finding(
        first["claim"],
        estimate,
        **bounds(first["expected"]),
        law=first["law"],
        planned=0 if is_complete else sys.maxsize,
    )
    return {**finding.row(), "pooled": f"{basis} of parts {seeds}"}


def combined_result(values: Sequence[Any]) -> Any:
    """Combine a result of all parts if it is an estimate, or names estimates. Any other result, and
    one that a part lacks, is that of the first part.
    """
    first = values[0]
    if not all(isinstance(value, dict) for value in values):
        return first
    if set(ESTIMATE) <= first.keys():
        return first | combined([intervals.of_row(value) for value in values]).row()
    return {name: combined_result([value.get(name) for value in values]) for name in first}


def pooled_results(
    parts: Sequence[Run],
    tables: Mapping[str, pd.DataFrame],
    module: ModuleType,
    is_complete: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Return the results of the pooled record, and the names of those that are of the first part
    alone.
    """
    params = parts[0].params  # the same in all parts, where it matters here
    estimates = module.estimates(tables, params)
    by_claim: dict[str, dict[int, dict[str, Any]]] = {}  # sentence → seed → row
    for part in parts:
        for row in part.results["claims"]:
            by_claim.setdefault(row["claim"], {})[part.params["seed"]] = row
    rows = [
        pooled_row(of_parts, estimates.get(claim), is_complete)
        for claim, of_parts in by_claim.items()
    ]
    headline = parts[0].results["headline"]
    estimate = estimates.get(headline["sentence"])
    if estimate is None:
        headlines = [part.results["headline"] for part in parts]
        estimate = combined([intervals.of_row(row) for row in headlines])
    checks = {check["check"]: check for part in parts for check in part.results["checks"]}
    numbers = module.numbers(tables, params)
    results = combined_result([part.results for part in parts])
    for name, result in numbers.items():
        # rows decide some of these
        is_partial = isinstance(result, dict) and name in results
        results[name] = results[name] | result if is_partial else result
    results |= {"headline": headline | estimate.row(), "claims": rows}
    results["checks"] = list(checks.values())
    # what no table decides, and what was not combined, is of one part
    decided = {"headline", "claims", "checks", *numbers}
    undecided = [name for name in parts[0].results if name not in decided]
    of_first = []
    for name in undecided:
        of_parts = [part.results.get(name) for part in parts]
        is_first = results[name] == of_parts[0]
        if is_first and any(result != of_parts[0] for result in of_parts):
            of_first.append(name)
    return results, of_first


def pool(parts: Sequence[Run], experiment: Experiment, declared: Sequence[int]) -> Pooled:
    """Pool complete parts, in the order of their seeds.

    Raises:
        GaussMarkError: the parts differ in more than their seeds, or a seed is not declared.
    """
    parts = sorted(parts, key=lambda part: part.params["seed"])
    require_parts(parts, declared)
    documents = [documents_of(part) for part in parts]
    tables = pooled_tables(parts, experiment, documents)
    seeds = [part.params["seed"] for part in parts]
    results, of_first = pooled_results(
        parts, tables, experiment.module, is_complete=set(seeds) == set(declared)
    )
    params: dict[str, Any] = {"seed": seeds}
    for part in parts:
        params = part.params | params  # an older part lacks some
    for name in COUNTS & params.keys():
        params[name] = sum(part.params.get(name, 0) for part in parts)
    starts = [part.status["started"] for part in parts]
    ends = [part.status["finished"] for part in parts]
    seconds = sum(part.status["seconds"] for part in parts)
    status = {
        "status": "complete",
        "pooled": [_source(part) for part in parts],
        "declared seeds": list(declared),
        "documents of the prompts": len(set().union(*documents)),
        "of the first part alone": [*of_first, "figures"],
        "started": min(starts),
        "finished": max(ends),
        "seconds": round(seconds, 1),
        "inputs": parts[0].status.get("inputs"),
        "weights": parts[0].status.get("weights"),
    }
    return Pooled(tables, results, params, status, list(parts))


def _source(part: Run) -> dict[str, Any]:
    source = {name: part.params[name] for name in ("seed", "n_prompts")}
    for name in SOURCE:
        source[name] = part.status[name]
    return source


def write(pooled: Pooled, target: Path) -> None:
    """Write a pooled record, in place of the record that is there."""
    with folder.hidden(target) as partial:
        for name, table in pooled.tables.items():
            table.to_parquet(partial / f"{name}.parquet")
        files.write_json(partial / "params.json", pooled.params)
        with recording(partial):
            record.record(pooled.results)
        outcomes = [{"params": part.params, "results": part.results} for part in pooled.parts]
        files.write_json(partial / "parts.json", {"parts": outcomes})
        figures = pooled.parts[0].dir / "figures"
        if figures.is_dir():
            shutil.copytree(figures, partial / "figures")
        files.write_json(partial / "status.json", pooled.status)
        folder.place(partial, target, replace=True)


@contextmanager
def recording(run_dir: Path) -> Iterator[None]:
    """Let ``record`` write into a folder."""
    before = os.environ.get(record.RUN_DIR)
    os.environ[record.RUN_DIR] = str(run_dir)
    try:
        yield
    finally:
        del os.environ[record.RUN_DIR]
        if before is not None:
            os.environ[record.RUN_DIR] = before


def load(name: str, scratch: Path) -> Run:
    """Return the complete record of a folder, or of COMMIT:FOLDER, which is unpacked into
    ``scratch``.
    """
    path = Path(name)
    # a commit's folder
    if ":" in name:
        commit, _, inside = name.partition(":")
        git = ["git", "-C", str(files.ROOT), "archive", commit, inside]
        done = subprocess.run(git, capture_output=True)
        if done.returncode:
            raise GaussMarkError(f"{name}: {done.stderr.decode().strip()}")
        with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
            archive.extractall(scratch / commit, filter="data")
        path = scratch / commit / inside
    run = folder.load(path)
    if run is None or "pooled" in run.status:
        raise GaussMarkError(f"{name}: expected the folder of a complete record of one part")
    return run


def main(name: str, *runs: str) -> None:
    experiment = experiment_of(name)
    target = files.RUNS / "reference" / name
    if name not in DECLARED:
        raise GaussMarkError(f"{name}: expected one of {', '.join(DECLARED)}")
    with tempfile.TemporaryDirectory() as scratch:
        parts = [load(run, Path(scratch)) for run in runs]
        pooled = pool(parts, experiment, DECLARED[name])
        write(pooled, target)
    print(f"{target.relative_to(files.ROOT)}: parts {pooled.params['seed']}")
    for finding in folder.load(target).findings:
        estimate = f"{finding['value']} {finding['basis']}"
        print(f"{finding['verdict']}: {finding['claim']}: {estimate}, from {finding['pooled']}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except GaussMarkError as error:
        sys.exit(str(error))
