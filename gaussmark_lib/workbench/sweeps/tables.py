"""The tables of a sweep, made only from its records.

    results   one row per run, in the grid's order: run, status, parameters, recorded numbers
    <name>    the tables of that name that the runs saved, one below the other, each with its run
              and the parameters that vary

The same runs give the same tables: they do not depend on interruptions, times, machines or the
order in which runs finish.
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
    """Return all tables, by file name."""
    by_file = {"results": results(runs, answers)}
    for name, table in saved(runs, answers, varying).items():
        by_file[f"tables/{name}"] = table
    return by_file


def results(runs: Params, answers: Mapping[str, Run]) -> pd.DataFrame:
    """Return one row per run; a run without a complete record is ``failed`` and has no results.

    Nested results have their names joined by dots. A result named like a parameter becomes
    ``result.<name>``.
    """
    rows = []
    for run_id, params in runs.items():
        run = answers.get(run_id)
        row = {"run": run_id, "status": "complete" if run else "failed", **params}
        recorded = {}
        for key, value in run.results.items() if run else ():
            recorded[f"result.{key}" if key in row else key] = value
        rows.append(row | recorded)
    return _storable(pd.json_normalize(rows))


def summary(runs: Params, answers: Mapping[str, Run], varying: list[str]) -> pd.DataFrame:
    """Return the results in words, by run id, with the most interesting columns first.

    These are the parameters that vary, the headline, the numbers that differ between runs, and then
    all other numbers. A run without a complete record has ``failed`` instead of numbers.
    ``attrs["headlines"]`` has the distinct sentences of the headlines.
    """
    rows = {}
    for run_id, run in answers.items():
        rows[run_id] = {"headline": str(run.headline or "–")} | run.numbers
    table = pd.DataFrame.from_dict(rows, orient="index").fillna("–")
    is_constant = {name: name != "headline" and table[name].nunique() == 1 for name in table}
    order = sorted(table, key=is_constant.__getitem__)
    table = table[order].reindex(list(runs), fill_value="failed")
    varied = {name: [words.of(params[name]) for params in runs.values()] for name in varying}
    table = _behind(varied, table)
    headlines = [run.headline.name for run in answers.values() if run.headline]
    table.attrs["headlines"] = list(dict.fromkeys(headlines))
    return table


def saved(runs: Params, answers: Mapping[str, Run], varying: list[str]) -> dict[str, pd.DataFrame]:
    """Return the tables of all complete runs, joined by name.

    A parameter with the name of a column becomes ``param.<name>``.
    """
    parts: dict[str, list[pd.DataFrame]] = {}
    for run_id in filter(answers.get, runs):
        params = {"run": run_id} | {name: runs[run_id][name] for name in varying}
        for path in sorted(answers[run_id].dir.glob("*.parquet")):
            table = answers[run_id].table(path.stem)
            is_unnamed = table.index.names == [None]  # then the index only counts rows
            table = table.reset_index(drop=is_unnamed)
            columns = {name: [value] * len(table) for name, value in params.items()}
            parts.setdefault(path.stem, []).append(_behind(columns, table))
    joined = {}
    for name in sorted(parts):
        joined[name] = _storable(pd.concat(parts[name], ignore_index=True))
    return joined


def _behind(columns: dict[str, list], table: pd.DataFrame) -> pd.DataFrame:
    """The table to the right of these columns; a column that it has, too, is ``param.<name>``."""
    named = {f"param.{name}" if name in table else name: columns[name] for name in columns}
    return pd.concat([pd.DataFrame(named, index=table.index), table], axis="columns")


def _storable(table: pd.DataFrame) -> pd.DataFrame:
    """The table with columns of mixed types (numbers and words) as JSON, because a column of a
    parquet file has a single type.
    """
    objects = [name for name, kind in table.dtypes.items() if pd.api.types.is_object_dtype(kind)]
    for name in objects:
        try:
            pa.array(table[name], from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            table[name] = [json.dumps(value, ensure_ascii=False) for value in table[name]]
    return table
