"""``gaussmark detect``: the test of one text or of millions, and how a provider answers strangers.

A text alone: what cannot be scored ends the command. Several texts: each gets its answer, a broken
one its reason, and the rest goes on. With ``--out`` every batch of answers is on the disk before
the next one begins, and the same command again goes on behind the last of them.
"""

from contextlib import nullcontext
from typing import Annotated

import typer

from gaussmark_lib import files
from gaussmark_lib.cli import answers, inputs
from gaussmark_lib.cli.inputs import AsJson, Batch, CodebookName, Lines, Model, Out
from gaussmark_lib.errors import GaussMarkError

EXIT = (
    "Exit codes: 0 all texts were scored, whatever their p; 1 failed, as on a full disk; 2 refused:"
    " arguments, key or model, or the one text; 3 some texts could not be scored (their names and"
    " reasons are on standard error), and all others were; 130 interrupted."
)


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
        float,
        typer.Option(
            min=0,
            max=1,
            help="How often a text without the key may be called detected; a codebook has none.",
        ),
    ] = 0.05,
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
        list[str] | None, typer.Option(metavar="FILE", help="Unmarked texts of the kind to expect.")
    ] = None,
    share: Annotated[
        float, typer.Option(min=0, max=1, help="Of a stream's texts, how many are expected marked.")
    ] = 0.1,
    out: Out = None,
    batch: Batch = 64,
    as_json: AsJson = False,
) -> int:
    """Test whether texts carry a key's watermark."""
    names, given = texts or [], given or []
    if bool(names) == (text is not None):
        raise GaussMarkError(
            "expected one text to test, or more: FILEs, - for standard input, or --text"
        )
    if prompt and prompt_file is not None:
        raise GaussMarkError("expected one prompt: --prompt or --prompt-file")
    if codebook is not None and (len(key) > 1 or stream is not None or given):
        raise GaussMarkError(
            "--codebook: expected one --key, the codebook's own, and neither --stream nor --given"
        )
    if given and out is not None and stream is None:
        raise GaussMarkError(
            "--given with --out: expected --stream STATE too, so that an interrupted run goes on"
            " with what it remembers"
        )
    if out is not None:
        inputs.refuse_among(out, [*names, *given])
    many = text is None and inputs.are_many(names, lines=jsonl)
    items = (
        inputs.items(names, lines=jsonl) if text is None else iter([inputs.Item("--text", text)])
    )
    if prompt_file is not None:
        prompt = inputs.of_file(prompt_file, "prompt").valid()
    state = None if stream is None else files.named(stream, "--stream", GaussMarkError)

    from gaussmark_lib.cli.batches import Scoring

    with answers.alone(state) if state else nullcontext():
        scoring = Scoring(key, model, prompt, level, share, codebook, state, given)
        options = {"batch": batch, "out": out, "as_json": as_json}
        return answers.give(scoring, items, many=many, **options, desc="testing", unit=" texts")
