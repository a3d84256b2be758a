"""``gaussmark generate`` and ``detect``: text under a key's watermark; and its test, of one text or
of millions, also as a provider answers strangers.

One text alone: the answer is printed, and nothing else; what cannot be answered ends the command.
Several: each gets its answer, a broken one its reason, and the rest goes on. What ``generate
--json`` prints, ``detect`` takes as it is. With ``--out`` every batch of answers is on the disk
before the next one begins, and the same command again goes on behind the last of them. What is
written does not depend on the batches: row i draws from a stream of its own.
"""

import os
from contextlib import ExitStack, closing
from typing import Annotated

import typer

from gaussmark_lib import files
from gaussmark_lib.engine import text_files
from gaussmark_lib.engine.typography import line_feeds
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench.cli import answers, inputs
from gaussmark_lib.workbench.cli.inputs import (
    AsJson,
    Batch,
    CodebookName,
    Column,
    KeyFile,
    KeyFiles,
    Lines,
    Model,
    Out,
)

EXIT_OF_GENERATE = (
    "Exit codes: 0 all texts were written; 1 failed; 2 refused; 3 some prompts could not be"
    " continued, and all others were; 130 interrupted."
)
EXIT_OF_DETECT = (
    "Exit codes: 0 all texts were scored, whatever their p; 1 failed, as on a full disk; 2 refused:"
    " arguments, key or model, or the one text; 3 some texts could not be scored (their names and"
    " reasons are on standard error), and all others were; 130 interrupted."
)


def generate(
    key: KeyFile,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            help="A text to continue, or what you say to a chat model; - reads standard input.",
        ),
    ] = None,
    model: Model = "doclm",
    file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Prompts: a text file is one; a .csv, .tsv, .json, .jsonl or .ndjson file has"
            " several (`prompt`); a folder has such files; .gz of each; may be repeated.",
        ),
    ] = None,
    jsonl: Lines = False,
    column: Column = None,
    tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Tokens of each text at most.")
    ] = 200,
    until_end: Annotated[
        bool | None,
        typer.Option(
            "--until-end/--full-length",
            help="Stop where the model ends its text, or write all tokens  [chat models stop]",
        ),
    ] = None,
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
    prompts, named = prompts or [], file or []
    if not prompts and not named:
        raise GaussMarkError(
            "expected a prompt to continue, or more: PROMPTs, - for standard input, or --file"
        )
    for prompt in prompts:
        if os.path.exists(prompt) and ("." in prompt[1:] or os.sep in prompt):
            raise GaussMarkError(
                f"expected a prompt, got the name of a file, {prompt!r}; to continue what is in it,"
                " say --file"
            )
    names = ["-"] * prompts.count("-") + named
    inputs.refuse_among(out, named)
    typed = [word for word in prompts if word != "-"]
    items = [text_files.item(f"prompt {number}", word) for number, word in enumerate(typed, 1)]
    items += inputs.items(names, lines=jsonl, field="prompt", column=column)
    many = len(items) != 1 or inputs.are_many(names, lines=jsonl)

    answers.loading(model)
    from gaussmark_lib import models, perturb
    from gaussmark_lib.keys import Key
    from gaussmark_lib.workbench.cli.batches import Writing

    carried = Key.load(key)
    watermark = carried.watermark  # refuses an unbound key before the model is loaded
    lm = models.load(model)
    ends = lm.is_chat if until_end is None else until_end
    writing = Writing(lm, carried, tokens, ends, seed, top_p, temperature, batch)
    with perturb.watermarked(lm.model, watermark, carried):
        return answers.give(
            writing,
            iter(items),
            many=many,
            batch=batch,
            out=out,
            as_json=as_json,
            desc="writing",
            unit=" tokens",
            total=len(items) * tokens,
        )


def detect(
    key: KeyFiles,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="A text file; a .csv, .tsv, .json, .jsonl or .ndjson file of texts (`text`, and"
            " perhaps `prompt`); .gz of each; a folder of such files; - reads standard input.",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="The text itself.")] = None,
    jsonl: Lines = False,
    column: Column = None,
    model: Model = "doclm",
    prompt: Annotated[
        str, typer.Option(help="The texts' prompt; without it the test is exact, with less power.")
    ] = "",
    prompt_file: Annotated[str | None, typer.Option(help="The same from a file.")] = None,
    level: Annotated[
        float,
        typer.Option(
            min=1e-300,
            max=0.99,
            help="How often a text without the key may be called detected, or with --public a"
            " neighbourhood of texts; a codebook has none.",
        ),
    ] = 0.05,
    edited: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of a text's tokens that may have been exchanged, 0 to below 1; the test is"
            " exact with any  [the key's]",
        ),
    ] = None,
    normalise: Annotated[
        bool,
        typer.Option(
            "--normalise",
            help="Also test each text with plain spaces and quotes and without hard line breaks;"
            " p takes both tests into account.",
        ),
    ] = False,
    codebook: CodebookName = None,
    stream: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="Answer with numbers: the file STATE remembers all of them, so that what they gave"
            " away counts no more; keep it like a key.",
        ),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="Answer strangers: yes or no, by a rule that no asker can play; the file STATE"
            " counts their questions.",
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
    ways = [way for way in (codebook, public) if way is not None]
    if ways and (len(key) > 1 or stream is not None or given or len(ways) > 1):
        raise GaussMarkError(
            f"{'--codebook' if public is None else '--public'}: expected one --key, and neither"
            " --stream nor --given nor the other of these two"
        )
    if normalise and (ways or stream is not None or given):
        raise GaussMarkError(
            "--normalise: expected neither --stream nor --given, --public or --codebook, which"
            " test a text in one version; save the text with plain characters instead"
        )
    if given and out is not None and stream is None:
        raise GaussMarkError(
            "--given with --out: expected --stream STATE too, so that an interrupted run goes on"
            " with what it remembers"
        )
    inputs.refuse_among(out, [*names, *given])
    many = text is None and inputs.are_many(names, lines=jsonl)
    if text is None:
        items = inputs.items(names, lines=jsonl, column=column)
    else:
        items = iter([text_files.item("--text", text)])
    if prompt_file is not None:
        prompt = text_files.whole(prompt_file, "prompt").required()
    prompt = line_feeds(prompt)
    state = None if stream is None else files.as_path(stream, "--stream", GaussMarkError)

    answers.loading(model)
    from gaussmark_lib.workbench.cli.batches import Answering, Scoring
    from gaussmark_lib.workbench.cli.normalise import Normalising

    asked = key, model, prompt, level, share, codebook, state, given, edited, not many
    with ExitStack() as stack:
        if state:
            stack.enter_context(answers.alone(state))
        if public is not None:
            work = Answering(*asked, public)
        elif normalise:
            work = Normalising(*asked)
        else:
            work = Scoring(*asked)
        scoring = stack.enter_context(closing(work))
        return answers.give(
            scoring,
            items,
            many=many,
            batch=batch,
            out=out,
            as_json=as_json,
            desc="testing",
            unit=" texts",
        )
