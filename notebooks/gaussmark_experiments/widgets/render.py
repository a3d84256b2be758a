"""Results as HTML, by the macros of ``templates/results.html.j2``, which escape every word."""

import base64
import io
import re
from html import escape
from pathlib import Path

import jinja2
import numpy as np

from gaussmark_experiments.widgets.playground import ROUND_TRIP, Comparison, Draft, Tested, figure
from gaussmark_lib.workbench import verdict
from gaussmark_lib.workbench.plots import show, style

FULL_COLOUR = 3.0  # / √T: three standard deviations of a token's equal share of ψ ~ N(0, 1)
FALSE_ALARM = (
    "without a watermark are called detected. Such false alarms are what level"
    f" {verdict.LEVEL} means: one key in twenty gives a false alarm on a text."
)
LABEL = "8.5em"  # width of the labels of inputs
INDENT = f"calc({LABEL} + 8px)"  # left edge of the inputs
TEMPLATES = Path(__file__).parent / "templates"


def _rgb(colour: tuple[float, float, float]) -> str:
    return ",".join(str(round(255 * share)) for share in colour)


def _minus(words: str) -> str:
    """Numbers with a minus sign instead of a hyphen, except in 1e-9."""
    return re.sub(r"(?<!\w)-(?=\d)", "−", words)


_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals |= {
    "verdict": verdict,
    "false_alarm": FALSE_ALARM,
    "indent": INDENT,
    "colour": {"for_key": _rgb(style.WATERMARKED), "against": _rgb(style.PLAIN)},
}
_environment.filters["minus"] = _minus
_macros = _environment.get_template("results.html.j2").module
message = _macros.message  # a sentence that a screen reader reads out
outdated = _macros.outdated  # a result, dimmed, and the names of the settings that have changed
aside = _macros.aside  # a quiet line below an input


def draft(so_far: Draft) -> str:
    """Render the first texts while they are being written, with ψ after each piece."""
    columns = {}
    for kind, text in so_far.texts.items():
        columns[_macros.growing(kind.capitalize(), so_far.psis[kind])] = escape(text)
    return show.cards(columns).data


def stopped(so_far: Draft) -> str:
    """Render texts that Stop left half written."""
    return _macros.stopped(draft(so_far)) if any(so_far.texts.values()) else ""


def comparison(result: Comparison) -> str:
    """Render plain and watermarked texts: the verdict, all texts side by side, and the figure."""
    n = result.question.n_samples
    detected = {
        kind: sum(text.row["verdict"] == "detected" for text in texts)
        for kind, texts in result.tested.items()
    }
    cards = []
    for i in range(n):
        number = f" {i + 1}" if n > 1 else ""
        pair = {f"{kind} text{number}": texts[i] for kind, texts in result.tested.items()}
        cards.append(_cards(pair))
    return _macros.comparison(result, detected, cards, _picture(result))


def of_test(result: Tested) -> str:
    """Render a test: the verdict, and the text with its evidence."""
    edit = result.edit
    title = edit.how if edit.share else "This key"
    if edit.share and edit.how != ROUND_TRIP:  # which has no share
        title += f", {edit.share:.0%} of the tokens"
    if edit.allowed:
        title += f", tested for {edit.allowed:.0%} replaced tokens"
    return _macros.of_test(result, title, _cards({"tested text": result}))


def tokens(result: Tested) -> str:
    """Render a text with its evidence.

    Orange and a solid line are evidence for the key, blue and a dotted line against it. Each piece
    has its number as a tooltip.
    """
    full = FULL_COLOUR / np.sqrt(result.pieces["n_tokens"].sum())
    shown = result.pieces.query("text != ''")  # an end token has evidence, and no text
    strength = (shown["evidence"].abs() / full).clip(upper=1)
    pieces = shown.assign(strength=strength).to_dict("records")
    ranked = sorted(pieces, key=lambda piece: piece["evidence"])
    return _macros.tokens(pieces, ranked, result.row["psi"])


def _cards(texts: dict[str, Tested]) -> str:
    """Texts with their evidence, side by side below their titles."""
    columns = {
        _macros.heading(title.capitalize(), text): tokens(text) for title, text in texts.items()
    }
    return show.cards(columns).data


def _picture(result: Comparison) -> dict[str, str]:
    """The figure as a PNG file; its description has the titles, and the last p of each curve."""
    data = io.BytesIO()
    picture = figure(result)
    picture.savefig(data, format="png", dpi=120, facecolor="white")
    words = [axes.get_title("left") for axes in picture.axes]
    last = result.curve.groupby(["kind", "key"], sort=False).last()
    for (kind, key), row in last.iterrows():
        words.append(_minus(f"{kind}, {key}: log10 p = {row['log10_p']:.1f}"))
    return {"alt": "; ".join(words), "data": base64.b64encode(data.getvalue()).decode()}
