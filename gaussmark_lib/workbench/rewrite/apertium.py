"""Translation by Apertium's rules: a program in Debian's packages that needs no network and no GPU.

A batch of texts goes through one process. Apertium reads its own stream format from standard input
and answers after every null character, so null characters separate the texts. In that format, white
space that must stay as it is stands in brackets, and a backslash stands before each character that
has a meaning. An answer that does not end as its text did is refused, because texts may be mixed
up.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from gaussmark_lib.errors import GaussMarkError, InvalidModelError

PROGRAM = "apertium"
# Languages, from and to → Apertium's name for the direction, and the Debian package that has it
DIRECTIONS = {
    ("en", "es"): ("eng-spa", "apertium-eng-spa"),
    ("es", "en"): ("spa-eng", "apertium-eng-spa"),
    ("en", "ca"): ("eng-cat", "apertium-eng-cat"),
    ("ca", "en"): ("cat-eng", "apertium-eng-cat"),
    ("en", "eo"): ("en-eo", "apertium-eo-en"),
    ("eo", "en"): ("eo-en", "apertium-eo-en"),
}
NULL = "\0"
# A full stop and white space after each text, as Apertium's own reader of plain text has it.
# Without them, a special character at the end of a text joins this text to the next one.
END = ".[][\n]"
_END = re.compile(r"\.?\[\]\[\n\]\Z")  # the full stop may belong to an abbreviation
_SPECIAL = re.compile(r"[\[\]{}^$/\\@<>]")
# White space other than single spaces between words, and tildes, which Apertium would drop.
_KEPT = re.compile(r"\s*[^\S ]\s*|^ +| +$|  +|~+")
_ESCAPED = re.compile(r"\\(.)|[\[\]]", re.DOTALL)


@dataclass(frozen=True)
class Apertium:
    """One direction of the installed program."""

    direction: str

    @property
    def name(self) -> str:
        """For messages."""
        return f"{PROGRAM} {self.direction}"

    def batch(self, texts: Sequence[str]) -> list[str]:
        """Translate texts by one process, in their order. Unknown words stay as they are."""
        # -u: no marks at unknown words; -z: an answer after each null character
        options = ["-u", "-z", "-f", "none", self.direction]
        stdin = "".join(to_stream(text) + END + NULL for text in texts)
        answered = _run(*options, stdin=stdin)
        # The pipe's programs may end their answers with more null characters.
        answers = [_END.split(answer) for answer in answered.stdout.split(NULL) if answer]
        if [len(parts) for parts in answers] != [2] * len(texts):
            raise GaussMarkError(
                f"expected {len(texts)} texts from {self.name}, got {len(answers)}:"
                f" {answered.stderr.strip() or 'without a message'}"
            )
        return [from_stream(text) for text, _ in answers]


def is_installed() -> bool:
    """Return whether the program is on the PATH."""
    return shutil.which(PROGRAM) is not None


def load(source: str, target: str) -> Apertium:
    """Return the direction of ``DIRECTIONS`` for two languages. InvalidModelError if the program or
    the direction is not installed.
    """
    direction, package = DIRECTIONS[source, target]
    if not is_installed():
        got = "no such program"
    elif direction not in _run("-l").stdout.split():
        got = "a program without it"
    else:
        return Apertium(direction)
    raise InvalidModelError(
        f"translator: expected the program {PROGRAM} on the PATH, with its direction {direction},"
        f" got {got}; install the Debian packages {PROGRAM} and {package}"
    )


def to_stream(text: str) -> str:
    """Write a text in Apertium's stream format.

    >>> to_stream("Note [1]:\\n  a < b")
    'Note \\\\[1\\\\]:[\\n  ]a \\\\< b'
    """
    escaped = _SPECIAL.sub(r"\\\g<0>", text.replace(NULL, " "))
    return _KEPT.sub(r"[\g<0>]", escaped)


def from_stream(stream: str) -> str:
    """Return the text of a stream: without unescaped brackets, and without backslashes."""
    return _ESCAPED.sub(lambda found: found[1] or "", stream)


def _run(*options: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The program's answer, in UTF-8 whatever the terminal's locale."""
    return subprocess.run(
        [PROGRAM, *options],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=os.environ | {"LC_ALL": "C.UTF-8"},
        check=False,
    )
