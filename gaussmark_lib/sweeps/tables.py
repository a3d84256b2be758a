"""The tables of a sweep, made of its records alone: the same runs give the same tables, however
often the sweep was disturbed.

    results   one row a run, in the grid's order: run, status, every parameter, every recorded
    number <name>    the tables of that name that the runs saved, one under the other, each with its
    run and the parameters that vary

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
from gaussmark_lib.sweeps import findings

Params = Mapping[str, dict[str, Any]]  # run id → parameters, in the grid's order


def write(folder: Path, runs: Params, answers: Mapping[str, Run], varying: list[str]) -> None:
    """``results.parquet``, and ``tables/<name>.parquet`` if the runs saved any."""
    results(runs, answers).to_parquet(folder / "results.parquet")
    for name, table in saved(runs, answers, varying).items():
        (folder / "tables").mkdir(exist_ok=True)
        table.to_parquet(folder / "tables" / f"{name}.parquet")


def results(runs: Params, answers: Mapping[str, Run]) -> pd.DataFrame:
    """One row a run; one without a complete record is ``failed`` and has no results.

    Nested results have their names joined by dots. A result named like a parameter becomes
    ``result.<name>``.
    """
    rows = []
    for run_id, params in runs.items():
        found = _flat(answers[run_id].results) if run_id in answers else {}
        taken = {"run", "status", *params}
        recorded = {
            f"result.{name}" if name in taken else name: value for name, value in found.items()
        }
        rows.append(
            {
                "run": run_id,
                "status": "complete" if run_id in answers else "failed",
                **params,
                **recorded,
            }
        )
    return _storable(pd.DataFrame(rows))


def summary(runs: Params, answers: Mapping[str, Run], varying: list[str]) -> pd.DataFrame:
    """What a reader wants first, in words, by run id: what varied, the headline, then the numbers
    that differ between runs, then all others.

    A run without a complete record has ``failed`` in place of them. ``attrs["headlines"]`` says
    what the headline is, each wording once.
    """
    headlines = {
        run_id: line for run_id, run in answers.items() if (line := findings.headline(run))
    }
    numbers = {
        run_id: ({"headline": headlines[run_id].said} if run_id in headlines else {}) | run.numbers
        for run_id, run in answers.items()
    }
    names = list(dict.fromkeys(name for found in numbers.values() for name in found))
    is_same = {
        name: name != "headline" and len({found.get(name) for found in numbers.values()}) == 1
        for name in names
    }
    rows = {}
    for run_id, params in runs.items():
        found = {
            name: numbers[run_id].get(name, "–") if run_id in answers else "failed"
            for name in sorted(names, key=is_same.get)
        }
        rows[run_id] = {
            f"param.{name}" if name in found else name: words.of(params[name]) for name in varying
        } | found
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.attrs["headlines"] = list(dict.fromkeys(line.name for line in headlines.values()))
    return table


def saved(runs: Params, answers: Mapping[str, Run], varying: list[str]) -> dict[str, pd.DataFrame]:
    """Name → the tables of that name over all complete runs. A parameter named like one of their
    columns becomes ``param.<name>``.
    """
    parts: dict[str, list[pd.DataFrame]] = {}
    for run_id, params in runs.items():
        if run_id not in answers:
            continue
        for path in sorted(answers[run_id].dir.glob("*.parquet")):
            table = answers[run_id].table(path.stem)
            table = table.reset_index(drop=table.index.names == [None])
            columns = {"run": run_id, **{name: params[name] for name in varying}}
            for position, (name, value) in enumerate(columns.items()):
                table.insert(
                    position,
                    f"param.{name}" if name in table else name,
                    pd.Series([value] * len(table), index=table.index),
                )
            parts.setdefault(path.stem, []).append(table)
    return {
        name: _storable(pd.concat(tables, ignore_index=True))
        for name, tables in sorted(parts.items())
    }


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    return {
        long: leaf
        for key, item in value.items()
        for long, leaf in _flat(item, f"{name}.{key}" if name else key).items()
    }


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
