"""The options and arguments that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gaussmark_lib.workbench.cli.panels import ADVANCED


class Format(StrEnum):
    """The format of standard input."""

    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    TEXT = "text"


KeyFile = Annotated[Path, typer.Option("--key", metavar="KEY", exists=True, help="Key file.")]
KeyFiles = Annotated[
    list[Path],
    typer.Option(
        "--key",
        metavar="KEY",
        exists=True,
        help="Key file; may be repeated with keys for the same weight and sigma.",
    ),
]
Model = Annotated[
    str,
    typer.Option(
        help="Base model: doclm, smollm2, gemma-3-270m, a folder, a .gguf file or a hub id."
    ),
]
TextFiles = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE",
        help="A text file; a .csv, .tsv, .json, .jsonl or .ndjson file with a field `text`, and"
        " optionally `prompt`; any of these as .gz; a folder of such files; - reads standard"
        " input.",
    ),
]
Text = Annotated[str | None, typer.Option("--text", help="The text itself.")]
Prompt = Annotated[
    str,
    typer.Option(
        help="Prompt of the texts. Without it the p-value is still valid, but the power is lower."
    ),
]
Level = Annotated[float, typer.Option(min=1e-300, max=0.99, help="False-alarm rate per text.")]
CodebookName = Annotated[
    str | None,
    typer.Option(metavar="FILE|N", help="A codebook of the key, or its number of users."),
]
Records = Annotated[str | None, typer.Option(help="Folder of the records [papermill_runs].")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]

PromptFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Read the prompt from a file.", rich_help_panel=ADVANCED),
]
Edited = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Share of replaced tokens that the test is tuned for; the p-value is valid for any"
        " share.  [from the key file]",
        rich_help_panel=ADVANCED,
    ),
]
Column = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Field to read.  [text, or prompt in generate]",
        rich_help_panel=ADVANCED,
    ),
]
StandardInput = Annotated[
    Format | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Format of standard input (-): text, which is one text, csv, json or jsonl.  [text]",
        rich_help_panel=ADVANCED,
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write JSON lines to this file; the same command continues an interrupted run.",
        rich_help_panel=ADVANCED,
    ),
]
Batch = Annotated[
    int,
    typer.Option(
        min=1, max=100_000, metavar="N", help="Texts per batch.", rich_help_panel=ADVANCED
    ),
]
