"""Results as HTML, which is escaped and readable in light and dark themes.

Nothing is shown by colour alone. Colours are translucent and text keeps the colour of the page, so
that contrast suffices in both themes. Styles are attributes, because the sanitizer of a notebook
removes style sheets.
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
    "without a watermark are called detected. Such false alarms are what level"
    f" {verdict.LEVEL} means: one key in twenty gives a false alarm on a text."
)
LEGEND = (
    "<p>Evidence of each token: orange with a solid line for the key, blue with a dotted line"
    " against it. It adds up to ψ. Point at a token to see its number.</p>"
)
LABEL = "8.5em"  # width of the labels of inputs
INDENT = f"calc({LABEL} + 8px)"  # left edge of the inputs
QUIET = "opacity:.75;font-size:90%"


def message(sentence: str, is_error: bool = False) -> str:
    """Return a sentence that a screen reader reads out."""
    if not sentence:
        return ""
    edge = _rgba(style.WATERMARKED, 1.0) if is_error else "rgba(128,128,128,.6)"
    look = f"padding:.35em .8em;border-left:4px solid {edge};line-height:1.4"
    role = "alert" if is_error else "status"
    return f'<div role="{role}" style="{look}">{escape(sentence)}</div>'


def dimmed(html: str) -> str:
    """Return a result of earlier settings, dimmed."""
    return f'<div style="opacity:.45">{html}</div>'


def aside(sentence: str) -> str:
    """Return a quiet line below an input."""
    if not sentence:
        return ""
    look = f"margin-left:{INDENT};line-height:1.5;{QUIET}"
    return f'<div style="{look}">{escape(sentence)}</div>'


def comparison(result: Comparison) -> str:
    """Render plain and watermarked texts: the verdict, all texts side by side, and the figure."""
    question = result.question
    n = question.n_samples
    detected = {
        kind: sum(text.row["verdict"] == "detected" for text in texts)
        for kind, texts in result.tested.items()
    }
    average = " on average over these texts" if n > 1 else ""
    verdicts = (
        f"{detected[WATERMARKED]} of {n} detected. The predicted probability of detection was"
        f" {verdict.probability(result.power)}{average}."
    )
    false_alarms = ""
    if detected[PLAIN]:
        false_alarms = _paragraph(f"{detected[PLAIN]} of {n} plain texts {FALSE_ALARM}")
    cards = []
    for i in range(n):
        number = f" {i + 1}" if n > 1 else ""
        pair = {  # a plain and a watermarked text
            _heading(f"{kind} text{number}", texts[i]): tokens(texts[i])
            for kind, texts in result.tested.items()
        }
        cards.append(f'<div style="margin:1em 0">{show.cards(pair).data}</div>')
    about = (
        f"{question.weight}, σ = {result.wm.sigma:.3g} for a wanted ψ of {question.psi:g}, key"
        f" {result.key_id}, {n} × {question.n_tokens} tokens, sampler's seed {question.seed}."
    )
    return _block(
        _paragraph(f"<b>Watermarked texts, this key:</b> {verdicts}"),
        false_alarms,
        _verdict("The first watermarked text, this key", result.tested[WATERMARKED][0]),
        _paragraph(f"After the prompt: {escape(question.prompt)}", QUIET),
        *cards,
        LEGEND,
        image(result),
        _paragraph(escape(about), QUIET),
        _paragraph(escape(f"In Python: session.compare({question!r}, key)"), QUIET),
    )


def of_test(result: Tested) -> str:
    """Render a test: the verdict, and the text with its evidence."""
    edit = result.edit
    title = f"{edit.how}, {edit.share:.0%} of the tokens" if edit.share else "This key"
    if edit.allowed:
        title += f", tested for {edit.allowed:.0%} replaced tokens"
    before = ""
    if result.before:
        row = result.before.row
        p = verdict.p_value(row["log10_p"])
        before = f"Before the edit, by the paper's ψ: ψ = {row['psi']:.2f}, p = {p}."
    warnings = [_paragraph(escape(warning)) for warning in result.row["warnings"]]
    return _block(
        _verdict(title, result),
        _paragraph(before),
        *warnings,
        show.cards({_heading("tested text", result): tokens(result)}).data,
        LEGEND,
    )


def tokens(result: Tested) -> str:
    """Render a text with its evidence.

    Orange and a solid line are evidence for the key, blue and a dotted line against it. Each piece
    has its number as a tooltip.
    """
    full = FULL_COLOUR / np.sqrt(result.pieces["n_tokens"].sum())
    shown = result.pieces.query("text != ''")  # an end token has evidence, and no text
    spans = []
    for row in shown.itertuples():
        text = escape(row.text).replace("\n", "↵\n")  # a line break is visible
        tooltip = f"evidence {row.evidence:+.3f}, log p {row.log_p:.2f}"
        colour = _look(row.evidence, full)
        spans.append(f'<span style="{colour}" title="{tooltip}">{text}</span>')
    words = f"Text with its evidence per token, ψ = {result.row['psi']:.2f} in all"
    if len(shown):
        top = shown.loc[shown["evidence"].idxmax()]
        bottom = shown.loc[shown["evidence"].idxmin()]
        words += f"; most for the key: “{top.text}” {top.evidence:+.2f}"
        words += f", most against it: “{bottom.text}” {bottom.evidence:+.2f}"
    look = "overflow-wrap:anywhere;line-height:1.7"
    content = "".join(spans)
    return f'<div role="group" aria-label="{escape(words)}" style="{look}">{content}</div>'


def image(result: Comparison) -> str:
    """Render the figure; its description has the titles, and the last p of each curve."""
    data = io.BytesIO()  # the PNG file
    picture = figure(result)
    picture.savefig(data, format="png", dpi=120, facecolor="white")
    source = base64.b64encode(data.getvalue()).decode()
    words = [axes.get_title("left") for axes in picture.axes]
    last = result.curve.groupby(["kind", "key"], sort=False).last()
    for (kind, key), row in last.iterrows():
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
    first, *further = [escape(sentence) for sentence in verdict.sentences(text.row)]
    answer = _paragraph(f"<b>{escape(title)}:</b> {first}")
    return answer + _paragraph(" ".join(further), QUIET)


def _block(*parts: str) -> str:
    return f'<div style="line-height:1.5">{"".join(parts)}</div>'


def _paragraph(html: str, look: str = "") -> str:
    return f'<p style="margin:.4em 0;{look}">{html}</p>'


def _look(evidence: float, full: float) -> str:
    """The style of a piece; strong evidence is underlined."""
    strength = min(1.0, abs(evidence) / full)
    is_for_key = evidence > 0
    colour = style.WATERMARKED if is_for_key else style.PLAIN
    look = f"background-color:{_rgba(colour, 0.6 * strength)}"
    if strength > 0.5:
        look += f";border-bottom:2px {'solid' if is_for_key else 'dotted'}"
    return look


def _rgba(colour: tuple[float, float, float], alpha: float) -> str:
    red, green, blue = (round(255 * x) for x in mpl.colors.to_rgb(colour))
    return f"rgba({red},{green},{blue},{alpha:.2f})"
