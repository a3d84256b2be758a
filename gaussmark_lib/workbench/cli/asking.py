"""``gaussmark stream``, ``answer`` and ``trace``: tests of more than single texts with one key.

``stream`` and ``answer`` keep a state, which belongs to their keys and is used by one process at a
time.
"""

from contextlib import closing
from typing import Annotated

import typer

from gaussmark_lib import files as paths
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench.cli import answers, inputs, options
from gaussmark_lib.workbench.cli.panels import ADVANCED
from gaussmark_lib.workbench.cli.question import ask


def stream(
    key: options.KeyFiles,
    state: Annotated[
        str,
        typer.Option(
            metavar="STATE",
            help="File that stores the stream's earlier answers, so that no evidence counts twice;"
            " a new file starts a stream. Protect it like a key.",
        ),
    ],
    files: options.TextFiles = None,
    text: options.Text = None,
    model: options.Model = "doclm",
    prompt: options.Prompt = "",
    level: options.Level = 0.05,
    as_json: options.AsJson = False,
    share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Expected share of watermarked texts.  [a mixture of shares from 0.01 to 0.3]",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Human texts of the stream's kind; what they have in common with the stream is not"
            " evidence. May be repeated.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    prompt_file: options.PromptFile = None,
    edited: options.Edited = None,
    column: options.Column = None,
    format: options.StandardInput = None,
    out: options.Out = None,
    batch: options.Batch = 64,
) -> int:
    """Test texts one after another, each only for new evidence."""
    texts = inputs.texts(
        files or [],
        {"--text": text},
        prompt=prompt,
        prompt_file=prompt_file,
        format=format,
        column=column,
        out=out,
    )
    path = paths.as_path(state, "--state", GaussMarkError)
    references = []  # the texts of --given
    if given:
        of_given = inputs.texts(given, {}, prompt=prompt, prompt_file=prompt_file, out=out)
        references = list(of_given.items)
        if not references:
            raise GaussMarkError("--given: expected at least one text, got none")
    with answers.alone(path):  # before the model is loaded
        question = ask(key, model, level=level, edited=edited)

        from gaussmark_lib.workbench.cli import streaming  # here, because it imports torch

        remembered = streaming.opened(path, question)  # refuses the state of another question
        work = streaming.Streaming(question, remembered, path, share, references)
        return answers.give(work, texts, batch=batch, out=out, as_json=as_json)


def answer(
    key: options.KeyFile,
    state: Annotated[
        str,
        typer.Option(
            metavar="STATE",
            help="File that counts the queries: a new file, or the file of earlier queries.",
        ),
    ],
    files: options.TextFiles = None,
    text: options.Text = None,
    model: options.Model = "doclm",
    prompt: options.Prompt = "",
    level: Annotated[
        float,
        typer.Option(
            min=1e-300, max=0.99, help="False-alarm rate per neighbourhood of similar texts."
        ),
    ] = 0.05,
    as_json: options.AsJson = False,
    prompt_file: options.PromptFile = None,
    edited: options.Edited = None,
    column: options.Column = None,
    format: options.StandardInput = None,
    out: options.Out = None,
    batch: options.Batch = 64,
) -> int:
    """Answer only yes or no, for untrusted users; STATE counts their queries."""
    texts = inputs.texts(
        files or [],
        {"--text": text},
        prompt=prompt,
        prompt_file=prompt_file,
        format=format,
        column=column,
        out=out,
    )
    question = ask([key], model, level=level, edited=edited)  # loads the model

    from gaussmark_lib.workbench.cli import answering

    with closing(answering.opened(state, question)) as queries:
        work = answering.Answering(question, queries)
        return answers.give(work, texts, batch=batch, out=out, as_json=as_json)


def trace(
    key: options.KeyFile,
    codebook: Annotated[
        str,
        typer.Option(metavar="FILE|N", help="A codebook of the key, or its number of users."),
    ],
    files: options.TextFiles = None,
    text: options.Text = None,
    model: options.Model = "doclm",
    prompt: options.Prompt = "",
    as_json: options.AsJson = False,
    prompt_file: options.PromptFile = None,
    edited: options.Edited = None,
    column: options.Column = None,
    format: options.StandardInput = None,
    out: options.Out = None,
    batch: options.Batch = 64,
) -> int:
    """Name the user of a codebook who has the highest score for each text.

    The p-value accounts for the number of users.
    """
    texts = inputs.texts(
        files or [],
        {"--text": text},
        prompt=prompt,
        prompt_file=prompt_file,
        format=format,
        column=column,
        out=out,
    )
    question = ask([key], model, edited=edited)

    from gaussmark_lib.workbench.cli.naming import Naming, codebook_of

    work = Naming(question, codebook_of(codebook, question.keys[0]))
    return answers.give(work, texts, batch=batch, out=out, as_json=as_json)
