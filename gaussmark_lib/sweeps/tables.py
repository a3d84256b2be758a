"""The tables of a sweep, made of its records alone: the same runs give the same tables, however
often the sweep was disturbed.

    results   one row per run, in the grid's order: run, status, parameters, recorded numbers
    <name>    the tables of that name that the runs saved, one under the other, each with its run
              and the parameters that vary

So they do not depend on times, machines or the order in which runs finish.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from gaussmark_lib import words
from gaussmark_lib.runs.folder import Run

Params = Mapping[str, dict[str, Any]]  # run id → parameters, in the grid's order


def write(folder: Path, runs: Params, answers: Mapping[str, Run], varying: list[str]) -> None:
    """``results.parquet``, and ``tables/<name>.parquet`` if the runs saved any."""
    results(runs, answers).to_parquet(folder / "results.parquet")
    (folder / "tables").mkdir()
    for name, table in saved(runs, answers, varying).items():
        table.to_parquet(folder / "tables" / f"{name}.parquet")


def results(runs: Params, answers: Mapping[str, Run]) -> pd.DataFrame:
    """One row per run; one without a complete record is ``failed`` and has no results.

    Nested results have their names joined by dots. A result named like a parameter becomes
    ``result.<name>``.
    """
    rows = []
    for run_id, params in runs.items():
        status = "complete" if run_id in answers else "failed"
        row = {"run": run_id, "status": status, **params}
        recorded = answers[run_id].results if run_id in answers else {}
        rows.append(
            row | {f"result.{key}" if key in row else key: recorded[key] for key in recorded}
        )
    return _storable(pd.json_normalize(rows))


def summary(runs: Params, answers: Mapping[str, Run], varying: list[str]) -> pd.DataFrame:
    """What a reader wants first, in words, by run id: what varied, the headline, then the numbers
    that differ between runs, then all others.

    A run without a complete record has ``failed`` in place of them. ``attrs["headlines"]`` says
    what the headline is, each wording once.
    """
    headlines = {run_id: line for run_id, run in answers.items() if (line := run.headline)}
    in_words = {
        run_id: ({"headline": str(headlines[run_id])} if run_id in headlines else {}) | run.numbers
        for run_id, run in answers.items()
    }
    table = pd.DataFrame.from_dict(in_words, orient="index").fillna("–")
    is_same = {name: name != "headline" and table[name].nunique() == 1 for name in table}
    table = table[sorted(table, key=is_same.get)].reindex(list(runs), fill_value="failed")
    for position, name in enumerate(varying):
        values = [words.of(params[name]) for params in runs.values()]
        table.insert(position, f"param.{name}" if name in table else name, values)
    table.attrs["headlines"] = list(dict.fromkeys(line.name for line in headlines.values()))
    return table


def saved(runs: Params, answers: Mapping[str, Run], varying: list[str]) -> dict[str, pd.DataFrame]:
    """Name → the tables of that name over all complete runs. A parameter named like one of their
    columns becomes ``param.<name>``.
    """
    parts: dict[str, list[pd.DataFrame]] = {}
    for run_id in filter(answers.get, runs):
        run = answers[run_id]
        for path in sorted(run.dir.glob("*.parquet")):
            table = run.table(path.stem)
            table = table.reset_index(drop=table.index.names == [None])
            columns = {"run": run_id, **{name: runs[run_id][name] for name in varying}}
            for position, (name, value) in enumerate(columns.items()):
                column = f"param.{name}" if name in table else name
                table.insert(position, column, [value] * len(table))
            parts.setdefault(path.stem, []).append(table)
    return {name: _storable(pd.concat(parts[name], ignore_index=True)) for name in sorted(parts)}


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
