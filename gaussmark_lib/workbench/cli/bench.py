"""``gaussmark bench``: one table for a model, watermarks by what happens to their texts.

``gaussmark_experiments.bench`` measures. The library imports no experiment, so this command finds
it by its name when it runs, as the kernel of a notebook does.
"""

import html as markup
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from gaussmark_lib import files
from gaussmark_lib.engine import packages
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench import runs, words
from gaussmark_lib.workbench.cli import answers
from gaussmark_lib.workbench.cli.options import Model, Records
from gaussmark_lib.workbench.cli.panels import ADVANCED
from gaussmark_lib.workbench.runs import folder

EXPERIMENT = f"{files.EXPERIMENTS.name}.bench"
WORDS = f"{EXPERIMENT}_words"
SIZES = {True: (24, 100), False: (100, 200)}  # is quick → texts by each scheme, tokens per text
NONE = "–"
FROM_REFERENCE = "*"
LIKENESS = {  # quantity → its heading
    "length": "words, divided by the original's",
    "copied": "runs of 4 words copied",
    "meaning": "meaning (another text 0, the text itself 1)",
}


def bench(
    model: Model = "doclm",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Measure clean, substituted and copy-paste texts, in about ten minutes for"
            " smollm2; show the other columns from the reference record.",
        ),
    ] = False,
    rewriting: Annotated[
        bool, typer.Option("--rewriting", help="Measure rewritten texts instead, for hours.")
    ] = False,
    scheme: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A further scheme: its name in the registry, or my_module:name; may be repeated.",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            help="Kind of human text, or a file of texts.  [speeches if installed, else docs]"
        ),
    ] = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the tables as a page, too.")
    ] = None,
    texts: Annotated[
        int | None,
        typer.Option(
            min=4,
            max=100_000,
            help="Texts by each scheme.  [100; 24 with --quick]",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=16,
            max=100_000,
            help="Tokens of each text.  [200; 100 with --quick]",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=1_000_000, help="Seed of documents and keys.", rich_help_panel=ADVANCED
        ),
    ] = 0,
    records: Records = None,
) -> None:
    """Compare watermarks in one table: how often their texts are detected, unedited and after
    edits, next to their prices.

    If you interrupt it, the same command continues.
    """
    n_texts, n_tokens = SIZES[quick]
    if html and not html.lower().endswith((".html", ".htm")):
        raise GaussMarkError(f"--html: expected a file that ends in .html, got {html!r}")
    answers.loading(model)
    experiment = import_module(EXPERIMENT)
    setting = experiment.Setting(
        model=model,
        text=text or packages.default_text(model),
        n_pairs=texts or n_texts,
        n_tokens=tokens or n_tokens,
        seed=seed,
    )
    columns = experiment.REWRITING if rewriting else experiment.COLUMNS
    root = files.records(records) / "bench"
    work = experiment.Bench(
        setting,
        names=[*experiment.SCHEMES, *(scheme or [])],  # refuses unknown schemes
        columns=experiment.QUICK if quick and not rewriting else columns,
        folder=root / f"{experiment.id_of(setting)}.cells",
    )
    target = root / work.id
    done = folder.load(target) or _run(work, target)  # answered from its record, if there is one
    # the columns that --quick leaves out are those of the reference record
    reference = reference_of(model, columns) if quick and not rewriting else None
    tables = shown(done.results, columns, reference)
    for title, rows in tables.items():
        print(f"\n{title}")
        answers.table(rows, heading=True)
    print(*["", *notes(done, reference), str(done.dir)], sep="\n")
    if html:
        Path(html).write_text(page(tables, notes(done, reference)), encoding="utf-8")
        print(f"The page is {html}")


def _run(work: Any, target: Path) -> folder.Run:
    """Complete all cells, and return their record. ``work`` is the experiment's ``Bench``."""
    from gaussmark_lib.workbench.sweeps.jobs import progress

    begun = folder.start()
    cells = [*work.cells()]
    with progress(len(cells), 0, "cells", "the same command", shown=True) as bar:
        for name, complete in cells:
            bar.set_postfix_str(name)
            complete()
            bar.update()
    with folder.hidden(target) as partial:  # complete, or not there
        params = asdict(work.setting) | {"schemes": list(work.names.values())}
        files.write_json(partial / "params.json", params | {"columns": work.columns})
        files.write_json(partial / "results.json", work.results())
        for name, table in work.tables().items():
            table.to_parquet(partial / f"{name}.parquet")
        weights = {work.setting.model: work.price()["weights"]}
        status = {"status": "complete", "weights": weights}
        files.write_json(partial / "status.json", status | folder.circumstances(begun))
        folder.place(partial, target, replace=False)
    return folder.load(target)


def reference_of(model: str, columns: Sequence[str]) -> folder.Run | None:
    """Return the reference record of a model's table with these columns, or None."""
    for run in runs.references("bench"):
        if run.params["model"] == model and run.params["columns"] == [*columns]:
            return run
    return None


def shown(
    results: Mapping[str, Any], columns: Sequence[str], reference: folder.Run | None = None
) -> dict[str, list[dict[str, str]]]:
    """Return title → lines of a table: the prices, and the rates at each level. Columns that were
    not measured come from the reference record.
    """
    levels = sorted({row["level"] for row in results["rates"]}, reverse=True)
    tables = {"Price, and size of the evidence (95% intervals)": price_lines(results)}
    for level in levels:
        title = f"Share of texts detected at a false-alarm rate of {100 * level:g}%"
        tables[title] = rate_lines(results, columns, level, reference)
    if results["likeness"]:
        tables["What remains of GaussMark's texts (95% intervals)"] = likeness_lines(results)
    return tables


def price_lines(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a line per scheme: both prices, and the tokens until half of the texts are detected
    at a false-alarm rate of 2%.
    """
    nats = {(row["scheme"], row["price"]): row for row in results["prices"]}
    needed = {row["scheme"]: row for row in results["tokens"]}
    return [
        {
            "scheme": name,
            "KL under one key, nats per token": _nats(nats[name, "kl"]),
            "Δ cross-entropy over keys, nats per token": _nats(nats[name, "change"]),
            "tokens at 2%": _tokens(needed[name]),
        }
        for name in results["schemes"]
    ]


def _nats(estimate: Mapping[str, Any]) -> str:
    value, basis = words.estimate(estimate)
    return f"{value} {basis.partition(', n')[0]}"


def _tokens(needed: Mapping[str, Any]) -> str:
    if needed["is_limit"] or needed["low"] is None:
        return needed["in_words"]
    return f"{needed['in_words']} ({needed['low']:.0f} to {needed['high']:.0f})"


def rate_lines(
    results: Mapping[str, Any],
    columns: Sequence[str],
    level: float,
    reference: folder.Run | None = None,
) -> list[dict[str, str]]:
    """Return two lines per scheme, shares and their intervals, and a last line with n."""
    measured = _by_cell(results, level)
    recorded = _by_cell(reference.results, level) if reference else {}
    lines = []
    n_by_column = {}
    headings = import_module(WORDS).HEADINGS
    for name in results["schemes"]:
        shares = {"scheme": name}
        intervals = {"scheme": ""}
        for column in columns:
            heading = headings.get(column, column)
            is_recorded = column not in results["columns"]
            estimate = (recorded if is_recorded else measured).get((name, column))
            mark = FROM_REFERENCE if is_recorded else ""
            shares[heading] = f"{estimate['value']:.0%}{mark}" if estimate else NONE
            intervals[heading] = _interval(estimate)
            if estimate:
                n_by_column[heading] = f"{estimate['n']}{mark}"
        lines += [shares, intervals]
    last = {headings.get(column, column): "" for column in columns}
    return [*lines, {"scheme": "n"} | last | n_by_column]


def likeness_lines(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a line per way of rewriting: length, copied runs, meaning, and whether at least half
    of the meaning is left.
    """
    lines: dict[str, dict[str, str]] = {}
    for row in results["likeness"]:
        line = lines.setdefault(row["way"], {"rewritten": row["way"]})
        if row["quantity"] in LIKENESS:
            line[LIKENESS[row["quantity"]]] = _nats(row)
        if row["quantity"] == "meaning" and row["low"] is not None:
            line["a paraphrase?"] = "yes" if row["low"] > 0.5 else "not shown"
    return [*lines.values()]


def _by_cell(results: Mapping[str, Any], level: float) -> dict[tuple[str, str], dict[str, Any]]:
    rows = [row for row in results["rates"] if row["level"] == level]
    return {(row["scheme"], row["column"]): row for row in rows}


def _interval(estimate: Mapping[str, Any] | None) -> str:
    if not estimate or estimate["low"] is None:
        return ""
    return f"{100 * estimate['low']:.0f}–{100 * estimate['high']:.0f}"


def notes(done: folder.Run, reference: folder.Run | None) -> list[str]:
    """Return what a reader must know to read the tables, in sentences."""
    params = done.params
    price = done.results["price"]
    lines = [
        f"{price['title']}: {params['n_pairs']} texts of {price['n_tokens']} tokens by each scheme,"
        f" each under a key of its own, after prompts of {params['text']} (seed {params['seed']}),"
        " sampled at temperature 1. n counts texts, or releases for LoRA. Second lines: exact 95%"
        " intervals in percent.",
        f"Equal price: GaussMark's σ = {price['sigma']:.3g} on {price['weight']} is solved for the"
        f" KL of KGW-1 under one key on plain texts of {price['n_pilot']} pilot prompts,"
        f" {price['nats']:.3f} nats per token. The other schemes have prices of their own.",
        "Controls: plain text is the model's own without a mark, tested under the same keys; wrong"
        " key tests each clean text under the next text's key. Both should stay near the"
        " false-alarm rate.",
    ]
    if {*done.results["columns"]} < {*import_module(EXPERIMENT).COLUMNS}:
        lines.append(_of_reference(reference, params["model"]))
    reasons = {row["why"]: None for row in done.results["missing"]}
    if reference:
        reasons |= {row["why"]: None for row in reference.results["missing"]}
    if reasons:
        lines.append(f"{NONE} {'; '.join(reasons)}.")
    return [*lines, import_module(WORDS).about(done.results["columns"])]


def _of_reference(reference: folder.Run | None, model: str) -> str:
    if reference is None:
        return (
            f"{NONE} not measured with --quick, and there is no reference record of {model}; leave"
            " out --quick to measure all columns."
        )
    params = reference.params
    return (
        f"{FROM_REFERENCE} not measured now: from the reference record of"
        f" {reference.status['finished'][:10]}, {params['n_pairs']} texts of {params['n_tokens']}"
        f" tokens of {params['text']}."
    )


def page(tables: Mapping[str, list[dict[str, str]]], sentences: Sequence[str]) -> str:
    """Return the tables as an HTML page."""
    import pandas as pd

    parts = ['<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>gaussmark bench</title>']
    for title, rows in tables.items():
        parts.append(f"<h2>{markup.escape(title)}</h2>")
        parts.append(pd.DataFrame(rows).to_html(index=False, border=0))
    parts += [f"<p>{markup.escape(sentence)}</p>" for sentence in sentences]
    return "\n".join([*parts, "</html>\n"])
