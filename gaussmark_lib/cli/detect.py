"""``gaussmark detect``: the test of one text or of millions, and how a provider answers strangers.

A text alone: what cannot be scored ends the command. Several texts: each gets its answer, a broken
one its reason, and the rest goes on. With ``--out`` every batch of answers is on the disk before
the next one begins, and the same command again goes on behind the last of them.
"""

import json
from contextlib import ExitStack
from itertools import islice
from typing import Annotated

import typer

from gaussmark_lib import files
from gaussmark_lib.cli.common import AsJson, Lines, Model, Out, visible
from gaussmark_lib.cli.keys import CodebookName
from gaussmark_lib.errors import GaussMarkError

SHARE = 0.1  # of a stream's texts that are expected to be marked, by default
MOST_AT_ONCE = 1_000_000  # texts of a batch, which are all held in memory
EXIT = (
    "Exit codes: 0 all texts were scored, whatever their p; 1 failed, as on a full disk; 2 refused:"
    " arguments, key or model, or the one text; 3 some texts could not be scored (their names and"
    " reasons are on standard error), and all others were; 130 interrupted."
)
WHAT = "results of these texts with this model, these keys, this prompt and level"


def add(app: typer.Typer) -> None:
    app.command(epilog=EXIT)(detect)


def detect(
    key: Annotated[
        list[str],
        typer.Option(
            metavar="KEY", help="Key file; may be repeated, for keys of one weight and sigma."
        ),
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="A text; a folder of texts; a .jsonl file with a `text`, and perhaps a `prompt`,"
            " per line; - reads standard input.",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="The text itself.")] = None,
    jsonl: Lines = False,
    model: Model = "doclm",
    prompt: Annotated[
        str, typer.Option(help="The texts' prompt; without it the test is exact, with less power.")
    ] = "",
    prompt_file: Annotated[str | None, typer.Option(help="The same from a file.")] = None,
    level: Annotated[
        float | None,
        typer.Option(
            metavar="α", help="How often a text without the key may be called detected [0.05]."
        ),
    ] = None,
    codebook: CodebookName = None,
    stream: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="Answer strangers: the file STATE remembers all answers, so that what they gave"
            " away counts no more; keep it like a key.",
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Unmarked texts of the kind to expect."),
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="Of a stream's texts, how many are expected marked [0.1].")
    ] = None,
    out: Out = None,
    batch: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=MOST_AT_ONCE, help="Texts that are answered together."
        ),
    ] = 64,
    as_json: AsJson = False,
) -> int:
    """Test whether texts carry a key's watermark."""
    names, given = list(texts or ()), list(given or ())
    of_stream = stream is not None or bool(given)
    refusals = [
        (
            bool(names) == (text is not None),
            "expected one text to test, or more: FILEs, - for standard input, or --text",
        ),
        (prompt and prompt_file is not None, "expected one prompt: --prompt or --prompt-file"),
        (
            codebook is not None and (len(key) > 1 or of_stream),
            "--codebook: expected one --key, the codebook's own, and neither --stream nor --given",
        ),
        (
            codebook is not None and level is not None,
            "--level: expected it without --codebook, which gives a user and a p-value, and no"
            " verdict",
        ),
        (
            given and out is not None and stream is None,
            "--given with --out: expected --stream STATE too, so that an interrupted run goes on"
            " with what it remembers",
        ),
        (
            level is not None and not 0 < level < 1,
            f"--level: expected a number between 0 and 1, got {level}",
        ),
        (
            share is not None and not 0 < share < 1,
            f"--share: expected 0 < share < 1, got {share}",
        ),
        (
            share is not None and not of_stream,
            "--share: expected --stream or --given too: only a stream of texts has a share of"
            " marked ones",
        ),
    ]
    for holds, reason in refusals:
        if holds:
            raise GaussMarkError(reason)

    from gaussmark_lib.cli import answers, inputs

    inputs.check_stdin([*names, *given, prompt_file], jsonl, "texts")
    if out is not None:
        inputs.refuse_among(out, [*names, *given])
    many = text is None and inputs.are_many(names, lines=jsonl)
    items = inputs.items(names, lines=jsonl) if names else iter([inputs.Item("--text", text or "")])
    if not many:
        items = iter(list(islice(items, 1)))  # read, or refused, before the model is loaded
    before = prompt if prompt_file is None else inputs.read_prompt(prompt_file)
    state = None if stream is None else files.named(stream, "--stream", GaussMarkError)

    from gaussmark_lib import verdict
    from gaussmark_lib.cli.scoring import Scoring
    from gaussmark_lib.runs.ask import stoppable

    with stoppable(), ExitStack() as stack:
        if state:
            stack.enter_context(answers.alone(state))
        scoring = Scoring(
            key,
            model,
            before,
            level=verdict.LEVEL if level is None else level,
            share=SHARE if share is None else share,
            codebook=codebook,
            state_file=state,
            given=given,
        )
        kept = None
        if out is not None:
            kept = stack.enter_context(answers.Kept(out, scoring.per_text, WHAT))

        def answer(batch: list[inputs.Item]) -> list[list[answers.Row]]:
            rows = scoring(batch)
            work.bar.update(len(batch))
            return rows

        def show(row: answers.Row) -> None:
            if as_json:
                print(json.dumps(row))
            elif "error" not in row:
                print(_in_words(row, alone=not many))

        work = answers.Work(names, "scored", answer, show, many, scoring.digest)
        return work.all(items, batch, kept, desc="testing", unit=" texts")


def _in_words(row: dict, *, alone: bool) -> str:
    """Sentences on a text alone; of several, one line for each."""
    from gaussmark_lib import verdict

    sentences = _named(row) if "user" in row else verdict.sentences(row)
    if alone:
        return "\n".join([*sentences, *(row["warnings"] if "user" in row else ())])
    return "; ".join([f"{visible(row['text'])}: {sentences[0]}", *row["warnings"]])


def _named(row: dict) -> list[str]:
    """The user that a text leans to most."""
    from gaussmark_lib import verdict

    p = f"{row['p_value']:.3g}"
    return [
        f"user {row['user']}, p = {p} over all users  (ψ = {row['psi']:.3f}, the next"
        f" {row['runner_up'] or float('nan'):.3f}, {verdict.length(row)}, key {row['key_id']})",
        "If this text had been written without the key, some user's key would score it at least as"
        f" high with probability {p}.",
    ]
