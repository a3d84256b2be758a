"""What the commands have in common: exit codes, the options that name a key and a model, and words
that a terminal can show.
"""

import re
from typing import Annotated

import typer

FAILED, REFUSED, PARTLY, INTERRUPTED = 1, 2, 3, 130  # exit codes; 0 is success
CONTROLS = re.compile(  # what moves a terminal's cursor, or turns a line's direction
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
LONGEST, START = 1000, 200  # letters of a word in a message, and how many are left of a longer one

KeyFile = Annotated[str, typer.Option("--key", metavar="KEY", help="Key file.")]
Model = Annotated[str, typer.Option(help="Base model: doclm, a folder or a hub id.")]
Records = Annotated[
    str | None, typer.Option(metavar="DIR", help="Folder of the records [papermill_runs].")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write JSON lines there; where some are there already, go on behind the last.",
    ),
]
Lines = Annotated[bool, typer.Option("--jsonl", help="Standard input holds JSON lines.")]


def visible(text: str) -> str:
    """On one line and short, as a name or a message can stand in a terminal: what would control it
    is escaped, and endless words are cut.
    """
    cut = re.sub(
        rf"\S{{{LONGEST},}}", lambda word: f"{word[0][:START]}… ({len(word[0]):,} letters)", text
    )
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), cut)


def message(error: BaseException) -> str:
    """An error's message for a terminal; where the library advises a call in Python, the command
    that does the same.
    """
    words = str(error)
    if isinstance(error, OSError) and error.strerror:  # Python's own begins with a number
        words = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
    words = words.replace(
        "models.watermarkable(model) lists", "`gaussmark list weights --model MODEL` lists"
    )
    return "\n".join(map(visible, words.split("\n")))
