"""Results as HTML: escaped, readable in light and dark themes, and never by colour alone.

Colours are translucent and text keeps the page's colour, so contrast holds in both themes. Styles
are attributes: a notebook's sanitizer would drop a style sheet.
"""

import base64
import io
from html import escape

import matplotlib as mpl
import numpy as np

from gaussmark_lib.workbench import verdict
from gaussmark_lib.workbench.plots import show, style
from gaussmark_lib.workbench.widgets.playground import (
    PLAIN,
    WATERMARKED,
    Comparison,
    Tested,
    figure,
)

FULL_COLOUR = 3.0  # / √T: three standard deviations of a token's equal share of ψ ~ N(0, 1)
FALSE_ALARM = (
    "in which no mark is, are called detected. Such a false alarm is what level"
    f" {verdict.LEVEL} means: any text gets one from one key in twenty."
)
LEGEND = (
    "<p>Evidence of each token: orange with a solid line towards the key, blue with a dotted line"
    " away from it. It adds up to ψ; point at a token for its number.</p>"
)
LABEL = "8.5em"  # width of the inputs' labels
INDENT = f"calc({LABEL} + 8px)"  # where the inputs begin
QUIET = "opacity:.75;font-size:90%"


def message(sentence: str, is_error: bool = False) -> str:
    """A sentence that a screen reader reads out."""
    edge = _rgba(style.WATERMARKED, 1.0) if is_error else "rgba(128,128,128,.6)"
    look = f"padding:.35em .8em;border-left:4px solid {edge};line-height:1.4"
    role = "alert" if is_error else "status"
    return f'<div role="{role}" style="{look}">{escape(sentence)}</div>' if sentence else ""


def dimmed(html: str) -> str:
    """A result that is not of the present settings."""
    return f'<div style="opacity:.45">{html}</div>'


def aside(sentence: str) -> str:
    """A quiet line below an input."""
    look = f"margin-left:{INDENT};line-height:1.5;{QUIET}"
    return f'<div style="{look}">{escape(sentence)}</div>' if sentence else ""


def comparison(result: Comparison) -> str:
    """Plain and watermarked texts: the verdict, all texts side by side, and the figure."""
    question = result.question
    n = question.n_samples
    detected = {
        kind: sum(text.row["verdict"] == "detected" for text in texts)
        for kind, texts in result.tested.items()
    }
    alarms = detected[PLAIN]
    judged = (
        f"{detected[WATERMARKED]} of {n} detected; each was expected with probability"
        f" {verdict.probability(result.power)}, as predicted without the key."
    )
    cards = []
    for i in range(n):
        number = f" {i + 1}" if n > 1 else ""
        pair = {
            _heading(f"{kind} text{number}", texts[i]): tokens(texts[i])
            for kind, texts in result.tested.items()
        }
        cards.append(f'<div style="margin:1em 0">{show.cards(pair).data}</div>')
    about = (
        f"{question.weight}, σ = {result.wm.sigma:.3g} for a wanted ψ of {question.psi:g}, key"
        f" {result.key_id}, {n} × {question.n_tokens} tokens, sampler's seed {question.seed}."
    )
    return _block(
        _paragraph(f"<b>Watermarked texts, this key:</b> {judged}"),
        _paragraph(f"{alarms} of {n} plain texts, {FALSE_ALARM}") if alarms else "",
        _verdict("The first watermarked text, this key", result.tested[WATERMARKED][0]),
        _paragraph(f"After the prompt: {escape(question.prompt)}", QUIET),
        *cards,
        LEGEND,
        image(result),
        _paragraph(escape(about), QUIET),
        _paragraph(escape(f"In Python: session.compare({question!r}, key)"), QUIET),
    )


def of_test(result: Tested) -> str:
    """A text that was tested: the verdict, and the text with its evidence."""
    edit = result.edit
    title = f"{edit.how}, {edit.share:.0%} of the tokens" if edit.share else "This key"
    title += f", tested for {edit.allowed:.0%} exchanged tokens" if edit.allowed else ""
    before = ""
    if result.before:
        row = result.before.row
        p = verdict.p_value(row["log10_p"])
        before = f"Before the edit, by the paper's ψ: ψ = {row['psi']:.2f}, p = {p}."
    return _block(
        _verdict(title, result),
        _paragraph(before),
        *(_paragraph(escape(warning)) for warning in result.row["warnings"]),
        show.cards({_heading("tested text", result): tokens(result)}).data,
        LEGEND,
    )


def tokens(result: Tested) -> str:
    """A text with its evidence: orange and a solid line lean to the key, blue and a dotted line
    away from it; each piece says its number.
    """
    full = FULL_COLOUR / np.sqrt(result.pieces["n_tokens"].sum())
    shown = result.pieces.query("text != ''")  # an end token has evidence, and no text
    spans = "".join(
        f'<span style="{_look(row.evidence, full)}" title="evidence {row.evidence:+.3f}, log p'
        f' {row.log_p:.2f}">{escape(row.text).replace(chr(10), "↵" + chr(10))}</span>'
        for row in shown.itertuples()
    )
    words = f"Text with its evidence per token, ψ = {result.row['psi']:.2f} in all"
    if len(shown):
        most = shown.loc[shown["evidence"].idxmax()]
        least = shown.loc[shown["evidence"].idxmin()]
        words += f"; most for the key: “{most.text}” {most.evidence:+.2f}"
        words += f", most against it: “{least.text}” {least.evidence:+.2f}"
    look = "overflow-wrap:anywhere;line-height:1.7"
    return f'<div role="group" aria-label="{escape(words)}" style="{look}">{spans}</div>'


def image(result: Comparison) -> str:
    """The figure, with its titles and the last p of each curve as words."""
    data = io.BytesIO()
    picture = figure(result)
    picture.savefig(data, format="png", dpi=120, facecolor="white")
    source = base64.b64encode(data.getvalue()).decode()
    words = [axes.get_title("left") for axes in picture.axes]
    for (kind, key), row in result.curve.groupby(["kind", "key"], sort=False).last().iterrows():
        words.append(f"{kind}, {key}: log10 p = {row['log10_p']:.1f}")
    look = "width:100%;max-width:1000px;border-radius:6px"
    alt = escape("; ".join(words))
    return f'<img alt="{alt}" src="data:image/png;base64,{source}" style="{look}">'


def _heading(title: str, text: Tested) -> str:
    row = text.row
    p = f"ψ = {row['psi']:.2f}, p = {verdict.p_value(row['log10_p'])}, {row['verdict']}"
    wrong = f"wrong key: p = {row['control_p_value']:.3g}"
    return f'{title.capitalize()} <span style="font-weight:400">{p}; {wrong}</span>'


def _verdict(title: str, text: Tested) -> str:
    first, *others = map(escape, verdict.sentences(text.row))
    return _paragraph(f"<b>{escape(title)}:</b> {first}") + _paragraph(" ".join(others), QUIET)


def _block(*parts: str) -> str:
    return f'<div style="line-height:1.5">{"".join(parts)}</div>'


def _paragraph(html: str, look: str = "") -> str:
    return f'<p style="margin:.4em 0;{look}">{html}</p>'


def _look(evidence: float, full: float) -> str:
    strength = min(1.0, abs(evidence) / full)
    colour = style.WATERMARKED if evidence > 0 else style.PLAIN
    line = f";border-bottom:2px {'solid' if evidence > 0 else 'dotted'}" if strength > 0.5 else ""
    return f"background-color:{_rgba(colour, 0.6 * strength)}{line}"


def _rgba(colour: tuple[float, float, float], alpha: float) -> str:
    red, green, blue = (round(255 * x) for x in mpl.colors.to_rgb(colour))
    return f"rgba({red},{green},{blue},{alpha:.2f})"
