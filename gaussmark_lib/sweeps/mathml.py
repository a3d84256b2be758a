r"""LaTeX's formulas as MathML, which browsers set by themselves: a page with formulas needs no
script and no network.

The part of LaTeX that notebooks use: letters, scripts, fractions, roots, sums, fences, words, and
symbols by name, ``\psi`` as IPython and HTML know them. What is not known becomes its name in
upright letters; nothing raises, because a page is written after hours of runs.
"""

import re
import unicodedata
from html import escape
from html.entities import html5

from IPython.core.latex_symbols import latex_symbols

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\s+|.", re.DOTALL)
_SPACES = {
    "\\,": 0.17,
    "\\:": 0.22,
    "\\;": 0.28,
    "\\ ": 0.3,
    "\\quad": 1,
    "\\qquad": 2,
    "\\!": -0.17,
}
_FUNCTIONS = {
    "arg",
    "cos",
    "cosh",
    "det",
    "exp",
    "ln",
    "log",
    "max",
    "min",
    "Pr",
    "sin",
    "sup",
    "inf",
    "tanh",
    "tr",
}
_LIMITS = {
    "∑",
    "∏",
    "max",
    "min",
    "sup",
    "inf",
    "argmax",
    "argmin",
}  # scripts stand above and below them in a formula of its own line
_OPEN = {
    "(": "(",
    "[": "[",
    "\\{": "{",
    "\\langle": "⟨",
    "\\lVert": "‖",
    "\\lvert": "|",
    "\\lfloor": "⌊",
    "\\lceil": "⌈",
}
_CLOSE = {
    ")": ")",
    "]": "]",
    "\\}": "}",
    "\\rangle": "⟩",
    "\\rVert": "‖",
    "\\rvert": "|",
    "\\rfloor": "⌋",
    "\\rceil": "⌉",
}
_SYMBOLS = {
    f"\\{name[:-1]}": sign for name, sign in html5.items() if name.endswith(";")
} | latex_symbols  # \nabla is &nabla;
_SYMBOLS |= {
    "-": "−",
    "*": "∗",
    "'": "′",
    "\\cdot": "⋅",
    "\\dots": "…",
    "\\ldots": "…",
    "\\infty": "∞",
    "\\to": "→",
    "\\Vert": "‖",
    "\\|": "‖",
}
_ORDINARY = set("∇∞∂∅⊤⊥…%_0123456789")  # no space around them, as around letters
_SIZES = {"\\big", "\\Big", "\\bigl", "\\bigr", "\\Bigl", "\\Bigr"}
_ACCENTS = {"\\bar": "¯", "\\hat": "^", "\\tilde": "~", "\\vec": "→"}
_UPRIGHT = {"\\mathrm", "\\operatorname"}
_NORMAL = ' mathvariant="normal"'
_WORDS = {"\\text", "\\textbf", "\\textit"}


def mathml(formula: str, display: bool = False) -> str:
    r"""A formula, without its dollars, as a ``<math>`` element; ``display`` is for one on its own
    line.

    >>> mathml(r"\psi_i^2")
    '<math><msubsup><mi>ψ</mi><mi>i</mi><mn>2</mn></msubsup></math>'
    """
    own_line = ' display="block"' if display else ""
    return f"<math{own_line}>{_Reader(_TOKEN.findall(formula.strip()), display).row()}</math>"


class _Reader:
    """Reads tokens from left to right, one element at a time."""

    def __init__(self, tokens: list[str], display: bool):
        self.tokens = tokens[::-1]  # the next one is the last
        self.display = display

    def next(self) -> str:
        self.skip()
        return self.tokens.pop() if self.tokens else ""

    def peek(self) -> str:
        self.skip()
        return self.tokens[-1] if self.tokens else ""

    def skip(self) -> None:
        while self.tokens and self.tokens[-1].isspace():
            self.tokens.pop()

    def row(self, end: str = "") -> str:
        """Elements up to the token ``end``, which is taken too, or to the last one."""
        elements: list[str] = []
        while (token := self.peek()) and token != end:
            elements.append(self.scripted(elements[-1] if elements else "<mo>"))
        self.next()
        return "".join(elements)

    def scripted(self, before: str) -> str:
        """One element with what stands below and above it. ``before`` is the element to its left,
        which decides about spaces.
        """
        token = self.peek()
        base, below, above = self.element(before), "", ""
        while (mark := self.peek()) in ("_", "^", "'") and mark:
            self.next()
            if mark == "_":
                below = self.argument()
            else:
                above += "<mo>′</mo>" if mark == "'" else self.argument()
        name = re.sub("<[^>]*>", "", base)
        if above.count("<m") > 1:
            above = f"<mrow>{above}</mrow>"
        if token == "\\underbrace" or (self.display and name in _LIMITS):
            found = _with_scripts("munder", "mover", "munderover", base, below, above)
        else:
            found = _with_scripts("msub", "msup", "msubsup", base, below, above)
        if name not in _FUNCTIONS:
            return found
        room = '<mspace width="0.17em"/>'
        left = "" if before.startswith("<mo") or before == room else room
        return (
            left
            + found
            + (
                ""
                if self.peek() in {*_OPEN, *_CLOSE, *_SIZES, "", "}", ",", ".", "\\left"}
                else room
            )
        )

    def argument(self) -> str:
        """What a command or a script applies to, as one element."""
        if self.peek() == "{":
            self.next()
            inner = self.row("}")
            return inner if len(re.findall("<m", inner)) == 1 else f"<mrow>{inner}</mrow>"
        token = self.peek()
        if len(token) > 1 and token.isdigit():  # \frac12 is one half
            self.tokens[-1:] = [token[1:], token[0]]
        return self.element("<mo>") if token else "<mrow></mrow>"

    def words(self) -> str:
        """The argument as it is written."""
        if self.peek() != "{":
            return self.next()
        depth, taken = 0, ""
        while self.tokens:
            token = self.tokens.pop()
            depth += (token == "{") - (token == "}")
            if depth == 0:
                break
            taken += token
        return taken[1:].replace("\\", "")

    def element(self, before: str) -> str:
        token = self.next()
        if token == "{":
            return f"<mrow>{self.row('}')}</mrow>"
        if token in _SPACES:
            return f'<mspace width="{_SPACES[token]}em"/>'
        if token in ("\\frac", "\\tfrac", "\\dfrac"):
            small = (
                ' displaystyle="false" scriptlevel="+1"'
                if token == "\\tfrac" and self.display
                else ""
            )
            fraction = f"<mfrac>{self.argument()}{self.argument()}</mfrac>"
            return f"<mstyle{small}>{fraction}</mstyle>" if small else fraction
        if token == "\\sqrt":
            return f"<msqrt>{self.argument()}</msqrt>"
        if token in _ACCENTS:
            return (
                f'<mover accent="true">{self.argument()}<mo'
                f' stretchy="false">{_ACCENTS[token]}</mo></mover>'
            )
        if token == "\\underbrace":
            return f"<munder>{self.argument()}<mo>⏟</mo></munder>"
        if token in _WORDS:
            return "<mtext>" + escape(self.words()).replace(" ", "\u00a0") + "</mtext>"
        if token in _UPRIGHT or token.removeprefix("\\") in _FUNCTIONS:
            word = self.words() if token in _UPRIGHT else token[1:]
            return f"<mi{_NORMAL if len(word) == 1 else ''}>{escape(word)}</mi>"
        if token == "\\mathbb":
            letter = self.words()
            return "<mi>" + latex_symbols.get(f"\\bb{letter}", escape(letter)) + "</mi>"
        if token in ("\\left", "\\right"):
            return self.fence(self.next(), tall=True)
        if token in _SIZES:
            return self.fence(self.next(), size="1.25em")
        if token in _OPEN or token in _CLOSE:
            return self.fence(token)
        return _symbol(token, before)

    def fence(self, token: str, *, tall: bool = False, size: str = "") -> str:
        if token == ".":
            return ""
        form = "prefix" if token in _OPEN else "postfix" if token in _CLOSE else "infix"
        grown = (
            f' minsize="{size}" maxsize="{size}"' if size else "" if tall else ' stretchy="false"'
        )
        return f'<mo form="{form}"{grown}>{_OPEN.get(token) or _CLOSE.get(token) or escape(_SYMBOLS.get(token, token))}</mo>'


def _with_scripts(
    below_only: str, above_only: str, both: str, base: str, below: str, above: str
) -> str:
    if below and above:
        return f"<{both}>{base}{below}{above}</{both}>"
    if below or above:
        name = below_only if below else above_only
        return f"<{name}>{base}{below or above}</{name}>"
    return base


def _symbol(token: str, before: str) -> str:
    """A letter, number or sign. A minus behind another sign, or in front, belongs to what follows
    it.
    """
    sign = _SYMBOLS.get(token, token.removeprefix("\\"))
    if sign[:1].isdecimal():
        return f"<mn>{sign}</mn>"
    if len(sign) > 1:
        return f"<mtext>{escape(sign)}</mtext>"
    if sign in _ORDINARY or unicodedata.category(sign or "x").startswith("L"):
        return f"<mi{'' if sign.isalpha() else _NORMAL}>{sign}</mi>"
    if sign == ".":
        return "<mtext>.</mtext>"
    if sign in "/:!":
        return f'<mo lspace="0" rspace="0" stretchy="false">{sign}</mo>'
    prefix = (
        ' form="prefix"'
        if sign in "−+±" and before.startswith("<mo") and 'form="postfix"' not in before
        else ""
    )
    still = ' stretchy="false"' if sign in "|‖∣" else ""
    return f"<mo{prefix}{still}>{escape(sign)}</mo>"
