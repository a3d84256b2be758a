"""``gaussmark generate`` and ``detect``: text under a key's watermark, and its test.

For a single text, the answer is printed and nothing else; a text that cannot be answered ends the
command. For several texts, each gets its answer, or the reason why it has none. ``detect`` reads
the output of ``generate --json``. With ``--out``, every batch of answers is stored on disk before
the next batch begins, and the same command continues after the last answer. Texts do not depend on
the batches: row i has its own stream of random numbers.
"""

import os
from typing import Annotated

import typer

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench.cli import answers, inputs, options
from gaussmark_lib.workbench.cli.panels import ADVANCED
from gaussmark_lib.workbench.cli.question import ask

EXIT_OF_GENERATE = (
    "Exit codes: 0 all written; 1 failed; 2 refused; 3 some prompts could not be continued; 130"
    " interrupted."
)
EXIT_OF_DETECT = (
    "Exit codes: 0 all scored, whatever their p-value; 1 failed; 2 refused; 3 some could not be"
    " scored; 130 interrupted."
)


def detect(
    key: options.KeyFiles,
    files: options.TextFiles = None,
    text: options.Text = None,
    model: options.Model = "doclm",
    prompt: options.Prompt = "",
    level: options.Level = 0.05,
    normalise: Annotated[
        bool,
        typer.Option(
            "--normalise",
            help="Also test each text with plain spaces and quotes and without hard line breaks."
            " The p-value takes both tests into account.",
        ),
    ] = False,
    as_json: options.AsJson = False,
    prompt_file: options.PromptFile = None,
    edited: options.Edited = None,
    column: options.Column = None,
    format: options.StandardInput = None,
    out: options.Out = None,
    batch: options.Batch = 64,
) -> int:
    """Test whether texts carry a key's watermark."""
    texts = inputs.texts(
        files or [],
        {"--text": text},
        prompt=prompt,
        prompt_file=prompt_file,
        format=format,
        column=column,
        out=out,
    )
    question = ask(key, model, level=level, edited=edited)

    from gaussmark_lib.workbench.cli.normalise import Normalising
    from gaussmark_lib.workbench.cli.scoring import Scoring

    work = Normalising(question) if normalise else Scoring(question)
    return answers.give(work, texts, batch=batch, out=out, as_json=as_json)


def generate(
    key: options.KeyFile,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            help="A text to continue, or your message to a chat model; - reads standard input.",
        ),
    ] = None,
    model: options.Model = "doclm",
    file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="File of prompts: a text file is one prompt; a .csv, .tsv, .json, .jsonl or"
            " .ndjson file has several, in a field `prompt`; any of these as .gz; or a folder of"
            " such files. May be repeated.",
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Largest number of tokens of a text.")
    ] = 200,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Sampling temperature; 0 takes the most likely token.  [1.0, chat models 0.7]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Sampling seed (not the key).")] = 0,
    as_json: options.AsJson = False,
    top_p: Annotated[
        float,
        typer.Option(
            help="Nucleus sampling: total probability of the kept tokens.",
            rich_help_panel=ADVANCED,
        ),
    ] = 1.0,
    until_end: Annotated[
        bool | None,
        typer.Option(
            "--until-end/--full-length",
            help="Stop at the model's end of text, or write all tokens.  [chat models stop]",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    column: options.Column = None,
    format: options.StandardInput = None,
    out: options.Out = None,
    batch: options.Batch = 16,
) -> int:
    """Write text that carries a key's watermark."""
    typed = {}  # prompts by their names
    names = []  # of files
    for word in prompts or []:
        if word == "-":
            names.append(word)
            continue
        # A word such as "data" may be both a prompt and the name of a folder.
        if os.path.exists(word) and ("." in word[1:] or os.sep in word):
            raise GaussMarkError(
                f"expected a prompt, got the name of a file, {word!r}; to continue its content, use"
                " --file"
            )
        typed[f"prompt {len(typed) + 1}"] = word
    names += file or []
    texts = inputs.texts(names, typed, field="prompt", format=format, column=column, out=out)
    items = list(texts.items)  # all prompts, because the bar needs their number
    texts = inputs.Texts(iter(items), many=texts.many or len(items) > 1)

    answers.loading(model)
    from gaussmark_lib import models, perturb
    from gaussmark_lib.keys import Key
    from gaussmark_lib.workbench.begin import KEY_TEMPERATURE
    from gaussmark_lib.workbench.cli.writing import Sampling, Writing

    carried = Key.load(key)
    watermark = carried.watermark  # refuses an unbound key before the model is loaded
    lm = models.load(model)
    ends = lm.is_chat if until_end is None else until_end
    if temperature is None:
        temperature = KEY_TEMPERATURE if lm.is_chat else 1.0
    work = Writing(lm, carried, Sampling(tokens, ends, seed, top_p, temperature))
    work.refuse_options()  # before any text is written
    with perturb.watermarked(lm.model, watermark, carried):
        return answers.give(
            work, texts, batch=batch, out=out, as_json=as_json, total=len(items) * tokens
        )
