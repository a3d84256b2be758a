"""What the larger runs of a notebook found, next to the reader's own run.

A reader's run takes seconds and often decides nothing. The notebook's records in git
(``runs.references``) are larger, and one of them is of a real model. So they speak first:
:func:`answer` says which prediction came true, :func:`sentences` words the same tables of all runs,
and :func:`beside` puts the tables of all runs into one table, for one figure.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from IPython.display import Markdown

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench import runs, words
from gaussmark_lib.workbench.runs.folder import Run

THIS_RUN = "this run"
TITLES = {"smollm2": "SmolLM2", "gemma-3-270m": "Gemma"}

# name of a prediction → the values for which it is true, from the least to the most
Options = Mapping[str, tuple[float, float]]


def title(run: Run) -> str:
    """Return the name of a record's model, as people write it."""
    model = run.params.get("model", "doclm")
    return TITLES.get(model, model)


def recorded(run: Run, statement: str) -> Estimate | None:
    """Return the estimate of a finding, or of the headline, in a record; None if it has none."""
    rows = [*run.results.get("claims", [])]
    headline = run.results.get("headline")
    if headline:
        rows.append(headline | {"claim": headline["sentence"]})
    for row in rows:
        if row["claim"] == statement and row["value"] is not None:
            ends = [math.nan if row[end] is None else row[end] for end in ("low", "high")]
            return Estimate(row["value"], *ends, row["n"])
    return None


def true_options(estimate: Estimate, options: Options) -> list[str]:
    """Return the predictions that an interval leaves possible: those whose values it touches. An
    estimate without an interval leaves all of them.

    >>> options = {"less": (-math.inf, 1), "more": (1, math.inf)}
    >>> true_options(Estimate(0.9, 0.8, 0.97, 300), options)
    ['less']
    >>> true_options(Estimate(0.9, 0.6, 1.2, 10), options)
    ['less', 'more']
    """
    if math.isnan(estimate.low):
        return list(options)
    return [
        name
        for name, (least, most) in options.items()
        if estimate.low < most and least < estimate.high
    ]


def answer(
    notebook: str,
    statement: str | Callable[[Run], Estimate | None],
    estimate: Estimate,
    options: Options,
    *,
    heading: str = "",
    model: str = "",
) -> Markdown:
    """Say which prediction came true: in each record of the notebook, and then in this run.

    Args:
        statement: the sentence of a finding, or a function from a record to the estimate (None, or
            an estimate without a number, if the record has none).
        estimate: of this run.
        options: each prediction, and the values for which it is true.
        heading: what the numbers are, where the text above does not say it.
        model: the name of this run's model.
    """
    if len(options) < 2:
        raise GaussMarkError(f"options: expected at least two predictions, got {list(options)}")
    find = statement if callable(statement) else lambda run: recorded(run, statement)
    estimates = {title(run): find(run) for run in runs.references(notebook)}
    found = {
        name: _in_words(estimate_of_record, options)
        for name, estimate_of_record in estimates.items()
        if estimate_of_record is not None and not math.isnan(estimate_of_record.value)
    }
    answers = listed(found, _in_words(estimate, options), model)
    return Markdown(f"{heading}:\n\n{answers.data}") if heading else answers


def sentences(
    notebook: str, words: Callable[..., str], *, model: str = "", **tables: pd.DataFrame
) -> Markdown:
    """Word the tables of each record of the notebook, and then those of this run.

    Args:
        words: from tables, as arguments with the names of the tables in the record, to sentences.
        model: the name of this run's model.
        tables: of this run. A record that lacks one of these tables is left out.
    """
    found = {}
    for run in runs.references(notebook):
        if all(has_table(run, name) for name in tables):
            found[title(run)] = words(**{name: run.table(name) for name in tables})
    return listed(found, words(**tables), model)


def has_table(run: Run, name: str) -> bool:
    """Return whether a record has a table of this name."""
    return (run.dir / f"{name}.parquet").exists()


def listed(found: Mapping[str, str], here: str | None, model: str) -> Markdown:
    """Return a list: what the record of each model says, and then what this run says.

    Args:
        found: name of a record's model → its sentences.
        here: sentences of this run. None if it measured nothing of the kind.
        model: the name of this run's model.
    """
    lines = [f"- **{name}** (reference): {said}" for name, said in found.items()]
    if here is not None:
        this_run = f"{THIS_RUN} ({model})" if model else THIS_RUN
        lines.append(f"- {this_run}: {here}")
    return Markdown("\n".join(lines))


def _in_words(estimate: Estimate, options: Options) -> str:
    """The prediction that came true, with the estimate."""
    numbers = estimate.row()
    finite = {name: None if math.isnan(number) else number for name, number in numbers.items()}
    value, basis = words.estimate(finite)
    possible = true_options(estimate, options)
    if len(possible) == 1:
        return f"**{possible[0]}**, {value} {basis}"
    if not possible:  # between two ranges
        return f"none of the predictions, {value} {basis}"
    if math.isnan(estimate.low):
        return f"{value} {basis}"
    return f"{value} {basis}, too few to decide between {_either(possible)}"


def _either(names: Sequence[str]) -> str:
    """The names, joined by commas and an "and"."""
    *first, last = [f"*{name}*" for name in names]
    return f"{', '.join(first)} and {last}"


def beside(
    table: pd.DataFrame, notebook: str, name: str, change: Callable[[Run, Any], Any] | None = None
) -> pd.DataFrame:
    """Return this run's table under the tables of the same name in the notebook's records, with the
    column ``run``: the record's model, or ``THIS_RUN``.

    Args:
        name: of ``record.save_table``. A record without it is left out.
        change: what to do with a record's table first, as a function of the record and the table.
    """
    tables = {}
    for run in runs.references(notebook):
        if not has_table(run, name):
            continue
        recorded_table = run.table(name)
        tables[title(run)] = change(run, recorded_table) if change else recorded_table
    tables[THIS_RUN] = table
    parts = [part.assign(run=run_name) for run_name, part in tables.items()]
    return pd.concat(parts, ignore_index=True)


def from_table(
    name: str, estimate: Callable[[pd.DataFrame], Estimate | None]
) -> Callable[[Run], Estimate | None]:
    """Return a statement of :func:`answer` whose estimate is computed from a record's table. A
    record without the table, or without one of the rows that are asked for (KeyError), has none.
    """

    def find(run: Run) -> Estimate | None:
        if not has_table(run, name):
            return None
        try:
            return estimate(run.table(name))
        except KeyError:
            return None

    return find


def by_run(table: pd.DataFrame, in_words: Callable[[pd.DataFrame], str]) -> Markdown:
    """Say something about each run of :func:`beside`, one line per run. The table may hold records
    alone.

    Args:
        in_words: a function from the rows of a run to a sentence.
    """
    said = {name: in_words(rows) for name, rows in table.groupby("run", sort=False)}
    here = said.pop(THIS_RUN, None)
    return listed(said, here, model="")


def sizes(notebook: str, words: str, *, table: str = "", **here: object) -> str:
    """Return the sizes of all runs, for the caption of a figure that shows them all.

    Args:
        words: with names of parameters in braces, such as "{n_prompts} pairs".
        table: what the figure shows. A record that lacks this table is left out.
        here: the values of these parameters in this run.
    """
    shown = [run for run in runs.references(notebook) if not table or has_table(run, table)]
    values_by_run = {title(run): run.params for run in shown}
    values_by_run[THIS_RUN] = here
    return "; ".join(f"{name}: {words.format(**values)}" for name, values in values_by_run.items())
