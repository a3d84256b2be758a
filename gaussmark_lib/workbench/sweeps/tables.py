"""The tables of a sweep, made of its records alone: the same runs give the same tables, however
often the sweep was disturbed.

    results   one row per run, in the grid's order: run, status, parameters, recorded numbers
    <name>    the tables of that name that the runs saved, one under the other, each with its run
              and the parameters that vary

So they do not depend on times, machines or the order in which runs finish.
"""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from gaussmark_lib.workbench import words
from gaussmark_lib.workbench.runs.folder import Run

Params = Mapping[str, dict[str, Any]]  # run id → parameters, in the grid's order


def tables(runs: Params, answers: Mapping[str, Run], varying: list[str]) -> dict[str, pd.DataFrame]:
    """File name → table."""
    by_name = saved(runs, answers, varying)
    return {"results": results(runs, answers)} | {f"tables/{n}": t for n, t in by_name.items()}


def results(runs: Params, answers: Mapping[str, Run]) -> pd.DataFrame:
    """One row per run; one without a complete record is ``failed`` and has no results.

    Nested results have their names joined by dots. A result named like a parameter becomes
    ``result.<name>``.
    """
    rows = []
    for run_id, params in runs.items():
        run = answers.get(run_id)
        row = {"run": run_id, "status": "complete" if run else "failed", **params}
        recorded = run.results.items() if run else ()
        rows.append(row | {f"result.{key}" if key in row else key: v for key, v in recorded})
    return _storable(pd.json_normalize(rows))


def summary(runs: Params, answers: Mapping[str, Run], varying: list[str]) -> pd.DataFrame:
    """What a reader wants first, in words, by run id: what varied, the headline, then the numbers
    that differ between runs, then all others.

    A run without a complete record has ``failed`` in place of them. ``attrs["headlines"]`` says
    what the headline is, each wording once.
    """
    rows = {i: {"headline": str(run.headline or "–")} | run.numbers for i, run in answers.items()}
    table = pd.DataFrame.from_dict(rows, orient="index").fillna("–")
    order = sorted(table, key=lambda name: name != "headline" and table[name].nunique() == 1)
    table = table[order].reindex(list(runs), fill_value="failed")
    varied = {name: [words.of(params[name]) for params in runs.values()] for name in varying}
    table = _behind(varied, table)
    lines = dict.fromkeys(run.headline.name for run in answers.values() if run.headline)
    table.attrs["headlines"] = list(lines)
    return table


def saved(runs: Params, answers: Mapping[str, Run], varying: list[str]) -> dict[str, pd.DataFrame]:
    """Name → the tables of that name over all complete runs. A parameter named like one of their
    columns becomes ``param.<name>``.
    """
    parts: dict[str, list[pd.DataFrame]] = {}
    for run_id in filter(answers.get, runs):
        params = {"run": run_id} | {name: runs[run_id][name] for name in varying}
        for path in sorted(answers[run_id].dir.glob("*.parquet")):
            table = answers[run_id].table(path.stem)
            table = table.reset_index(drop=table.index.names == [None])
            columns = {name: [value] * len(table) for name, value in params.items()}
            parts.setdefault(path.stem, []).append(_behind(columns, table))
    return {name: _storable(pd.concat(parts[name], ignore_index=True)) for name in sorted(parts)}


def _behind(columns: dict[str, list], table: pd.DataFrame) -> pd.DataFrame:
    """The table behind these columns; one that it has itself becomes ``param.<name>``."""
    named = {f"param.{name}" if name in table else name: columns[name] for name in columns}
    return pd.concat([pd.DataFrame(named, index=table.index), table], axis="columns")


def _storable(table: pd.DataFrame) -> pd.DataFrame:
    """Columns of mixed kinds (a number here, a word there) as JSON, because a parquet column holds
    one kind.
    """
    for name in [name for name, kind in table.dtypes.items() if pd.api.types.is_object_dtype(kind)]:
        try:
            pa.array(table[name], from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            table[name] = [json.dumps(value, ensure_ascii=False) for value in table[name]]
    return table
