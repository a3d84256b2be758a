r"""Characters that an editor, a word processor or a web page puts in place of a model's characters.

A language model mostly writes plain spaces and straight quotes. Software in between replaces them,
and each replaced character becomes other tokens, so the watermark's score falls.

======================  ==========================  ===================================
what                    becomes                     who usually puts it there
======================  ==========================  ===================================
non-breaking space      a space                     word processors, web pages
unusual space           a space                     typesetting: thin, en and em spaces
curly quote             ``'`` or ``"``              word processors
special hyphen          ``-``                       word processors
ellipsis character      ``...``                     word processors
ligature                its letters                 text copied from a PDF
soft hyphen             nothing                     web pages
invisible character     nothing                     web pages, chat windows
hard line break         a space                     e-mail, ``fold``, editors
======================  ==========================  ===================================

Dashes (– and —) stay, because models write them. Every character of another script stays, too.

All functions look at the text alone, never at a key.
"""

import re
import unicodedata
from collections import Counter
from itertools import pairwise

NON_BREAKING_SPACES = "\u00a0\u2007\u202f"
UNUSUAL_SPACES = "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a\u205f"
SINGLE_QUOTES = "\u2018\u2019\u201a\u201b"
DOUBLE_QUOTES = "\u201c\u201d\u201e\u201f"
HYPHENS = "\u2010\u2011"
ELLIPSIS = "\u2026"
LIGATURES = "\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06"
SOFT_HYPHEN = "\u00ad"
INVISIBLE = "\u200b\u2060\ufeff"

NAMES = {  # of each character, in the singular
    **dict.fromkeys(NON_BREAKING_SPACES, "non-breaking space"),
    **dict.fromkeys(UNUSUAL_SPACES, "unusual space"),
    **dict.fromkeys(SINGLE_QUOTES + DOUBLE_QUOTES, "curly quote"),
    **dict.fromkeys(HYPHENS, "special hyphen"),
    **dict.fromkeys(ELLIPSIS, "ellipsis character"),
    **dict.fromkeys(LIGATURES, "ligature"),
    **dict.fromkeys(SOFT_HYPHEN, "soft hyphen"),
    **dict.fromkeys(INVISIBLE, "invisible character"),
}
PLAIN = {  # what each character becomes
    **dict.fromkeys(NON_BREAKING_SPACES + UNUSUAL_SPACES, " "),
    **dict.fromkeys(SINGLE_QUOTES, "'"),
    **dict.fromkeys(DOUBLE_QUOTES, '"'),
    **dict.fromkeys(HYPHENS, "-"),
    **dict.fromkeys(ELLIPSIS, "..."),
    **{ligature: unicodedata.normalize("NFKC", ligature) for ligature in LIGATURES},
    **dict.fromkeys(SOFT_HYPHEN + INVISIBLE, ""),
}
TO_PLAIN = str.maketrans(PLAIN)

# Joiners and marks of direction belong to Persian, Indic and Arabic text and to emoji. Between
# two Latin letters they are invisible and have no meaning.
LATIN = r"[!-~\u00c0-\u024f]"
BETWEEN_LATIN = re.compile(rf"(?<={LATIN})[\u200c-\u200f\u202a-\u202e\u2066-\u2069]+(?={LATIN})")

WIDTHS = range(40, 121)  # characters: the lines of a wrapped text are about as long as these
STARTS_A_BLOCK = re.compile(r"\s|[-*+#>|]|\d+[.)]\s")  # a list, a heading, a quotation, code
BLANK_LINES = re.compile(r"(\n[ \t]*\n\s*)")


def line_feeds(text: str) -> str:
    r"""End every line with a line feed alone.

    >>> line_feeds("one\r\ntwo\rthree\n")
    'one\ntwo\nthree\n'
    """
    return text.replace("\r\n", "\n").replace("\r", "\n")


def normalised(text: str) -> str:
    r"""Return the text with plain characters, a line per paragraph and no empty lines at its end.

    >>> normalised("It\u2019s a\u00a0\ufb01sh\u2026\n\n\n")
    "It's a fish...\n"
    >>> text = "Plain text\nstays – as it is."
    >>> normalised(text) == text
    True
    """
    text = unicodedata.normalize("NFC", line_feeds(text))
    text = BETWEEN_LATIN.sub("", text.translate(TO_PLAIN))
    text = unwrapped(text)
    content = text.rstrip()
    ends_its_line = "\n" in text[len(content) :]
    return f"{content}\n" if ends_its_line else content


def unwrapped(text: str) -> str:
    r"""Join the lines of each paragraph that was wrapped at a fixed width.

    The longest line of the text gives the width. A paragraph was wrapped if none of its lines had
    room for the first word of the next line, and if not every line begins with a capital. Lists,
    tables, code and verse do not look like this, so they stay.

    >>> print(unwrapped("The mean of all the values that are in the table\nis returned."))
    The mean of all the values that are in the table is returned.
    >>> print(unwrapped("- The mean of all the values that are in the table\n- is returned."))
    - The mean of all the values that are in the table
    - is returned.
    """
    width = max(map(len, text.split("\n")))
    if width not in WIDTHS:
        return text
    # paragraphs, and the blank lines between them
    blocks = BLANK_LINES.split(text)
    return "".join(_joined(block) if _is_wrapped(block, width) else block for block in blocks)


def _is_wrapped(block: str, width: int) -> bool:
    """Return whether every line of a paragraph was broken because the next word had no room."""
    lines = block.strip("\n").split("\n")
    if all(line[:1].isupper() for line in lines[1:]):  # verse, or a single line
        return False
    for previous, line in pairwise(lines):
        if STARTS_A_BLOCK.match(line):
            return False
        first_word = line.split(maxsplit=1)[0]
        if len(f"{previous.rstrip()} {first_word}") <= width:  # it had room
            return False
    return True


def _joined(block: str) -> str:
    """Return the block on one line; line breaks at its beginning and end stay."""
    return re.sub(r"(?<=\S) *\n(?=\S)", " ", block)


def unusual(text: str) -> dict[str, int]:
    r"""Count the characters that models rarely write, by name.

    >>> unusual("\u201cIt\u2019s\u00a0a fish\u201d")
    {'curly quote': 3, 'non-breaking space': 1}
    >>> unusual("Plain text.\n")
    {}
    """
    counts = Counter(NAMES[character] for character in text if character in NAMES)
    hidden = BETWEEN_LATIN.findall(text)
    counts["invisible character"] += len("".join(hidden))
    counts["hard line break"] += text.count("\n") - unwrapped(text).count("\n")
    return {name: n for name, n in counts.most_common() if n}


def remark(text: str) -> str | None:
    r"""Return a sentence that names the unusual characters of a text, or None if all are plain.

    >>> remark("It\u2019s\u00a0a\u00a0fish")
    'This text has 2 non-breaking spaces and 1 curly quote, which models rarely write'
    """
    phrases = []
    for name, n in unusual(text).items():
        plural = name if n == 1 else f"{name}s"
        phrases.append(f"{n:,} {plural}")
    if not phrases:
        return None
    *first, last = phrases
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"This text has {listed}, which models rarely write"
