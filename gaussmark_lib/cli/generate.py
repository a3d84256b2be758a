"""``gaussmark generate``: text under a key's watermark, for one prompt or for a file of them.

One prompt: its text is printed, and nothing else. Several: each under its name, or with ``--json``
a JSON line each, which ``detect`` takes as it is; a prompt that cannot be continued gets its
reason, and the others go on. With ``--out`` every batch is on the disk before the next one begins,
and the same command again goes on behind the last of them. What is written does not depend on the
batches: row i draws from a stream of its own.
"""

import os
from typing import Annotated

import typer

from gaussmark_lib.cli import answers, inputs
from gaussmark_lib.cli.inputs import AsJson, Batch, KeyFile, Lines, Model, Out
from gaussmark_lib.errors import GaussMarkError

EXIT = (
    "Exit codes: 0 all texts were written; 1 failed; 2 refused; 3 some prompts could not be"
    " continued, and all others were; 130 interrupted."
)


def generate(
    key: KeyFile,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT", help="A text to be continued; - reads one from standard input."
        ),
    ] = None,
    model: Model = "doclm",
    file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Prompts: a file is one, a .jsonl file has one per line (`prompt`), a folder has"
            " such files; may be repeated.",
        ),
    ] = None,
    jsonl: Lines = False,
    tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens of each text.")] = 200,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End a text where the model ends it, if earlier.")
    ] = False,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 1.0,
    top_p: Annotated[
        float, typer.Option(help="Leave out the least likely tokens, beyond this probability.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the random numbers that choose tokens; not of the key.")
    ] = 0,
    out: Out = None,
    batch: Batch = 16,
    as_json: AsJson = False,
) -> int:
    """Write text that carries a key's watermark."""
    prompts, files = prompts or [], file or []
    if not prompts and not files:
        raise GaussMarkError(
            "expected a prompt to continue, or more: PROMPTs, - for standard input, or --file"
        )
    for prompt in prompts:
        if os.path.exists(prompt) and ("." in prompt[1:] or os.sep in prompt):
            raise GaussMarkError(
                f"expected a prompt, got the name of a file, {prompt!r}; to continue what is in it,"
                " say --file"
            )
    stdin = ["-"] * prompts.count("-")
    names = [*stdin, *files]
    if out is not None:
        inputs.refuse_among(out, files)
    typed = [word for word in prompts if word != "-"]
    items = [inputs.Item(f"prompt {number}", word) for number, word in enumerate(typed, 1)]
    items += inputs.items(names, lines=jsonl, field="prompt")
    many = len(items) != 1 or inputs.are_many(names, lines=jsonl)

    from gaussmark_lib import models, perturb
    from gaussmark_lib.cli.batches import Writing
    from gaussmark_lib.keys import Key

    carried = Key.load(key)
    watermark = carried.watermark  # refuses an unbound key before the model is loaded
    lm = models.load(model)
    writing = Writing(lm, carried, tokens, until_end, seed, top_p, temperature, batch)
    options = {"batch": batch, "out": out, "as_json": as_json}
    bar = {"desc": "writing", "unit": " tokens", "total": len(items) * tokens}
    with perturb.watermarked(lm.model, watermark, carried):
        return answers.give(writing, iter(items), many=many, **options, **bar)
