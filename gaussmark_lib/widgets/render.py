"""Results as HTML: escaped, readable in light and dark themes, and never by colour alone.

Colours are translucent and text keeps the page's colour, so contrast holds in both themes. Styles
are attributes: a notebook's sanitizer would drop a style sheet.
"""

import base64
import io
from html import escape

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gaussmark_lib.experiments.played import (
    PLAIN,
    THIS_KEY,
    WATERMARKED,
    WRONG_KEY,
    Comparison,
    Draft,
    Edited,
    Question,
    Verdict,
)
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.plots import style
from gaussmark_lib.widgets.curve import growth
from gaussmark_lib.widgets.words import (
    LEVEL,
    after_edit,
    earlier,
    expectation,
    plural,
    probability,
    signed,
    verdict_sentence,
)

MOST_PIECES = 5000  # that are shown: the browser is slow with more
# evidence of 3/√T has the full colour: three standard deviations of a token's equal share of ψ ~
# N(0, 1)
FULL_COLOUR = 3.0
LABEL = "8.5em"  # width of the inputs' labels
INDENT = f"calc({LABEL} + 8px)"  # where the inputs begin
DOCLM = (
    "doclm is a small model that knows only the documentation of Python libraries: it goes on in"
    " that style, whatever the prompt."
)
_CARD = (
    "flex:1 1 20em;min-width:0;padding:.6em .9em;border:1px solid"
    " rgba(128,128,128,.45);border-radius:6px"
)
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.7"
_CELL = "padding:.2em .9em .2em 0;text-align:left;white-space:nowrap"
_RULE = "border-bottom:1px solid rgba(128,128,128,.6)"
_QUIET = "opacity:.75;font-size:90%"


def message(sentence: str, is_error: bool = False) -> str:
    """A sentence that a screen reader reads out."""
    if not sentence:
        return ""
    edge = _rgba(style.WATERMARKED, 1.0) if is_error else "rgba(128,128,128,.6)"
    role = "alert" if is_error else "status"
    return (
        f'<div role="{role}" style="padding:.35em .8em;border-left:4px solid'
        f' {edge};line-height:1.4">{escape(sentence)}</div>'
    )


def dimmed(html: str) -> str:
    """A result that is not of the present settings."""
    return f'<div style="opacity:.45">{html}</div>' if html else ""


def aside(sentence: str) -> str:
    """A quiet line below an input."""
    return (
        f'<div style="margin-left:{INDENT};line-height:1.5"><span'
        f' style="{_QUIET}">{escape(sentence)}</span></div>'
    )


def draft(result: Draft, level: float = LEVEL) -> str:
    """Everything about texts that are being written: the texts and the curve so far, and the
    settings they are written with.
    """
    asked, empty = result.question, [""] * result.question.n_samples
    pairs = [
        _side_by_side(
            *(
                _card(_title(asked, kind, i), _plainly(result.texts.get(kind, empty)[i]))
                for kind in (PLAIN, WATERMARKED)
            )
        )
        for i in range(asked.n_samples)
    ]
    return _block(
        _paragraph(
            "<b>Being written.</b> The colours of the tokens come when the texts are whole."
        ),
        _paragraph(f"After the prompt: {escape(asked.prompt)}", _QUIET),
        pairs[0],
        growth(result, level),
        *pairs[1:],
        _paragraph(escape(_circumstances(asked, result.wm, result.key_id)), _QUIET),
    )


def comparison(
    result: Comparison, picture: Figure | None = None, level: float = LEVEL, code: str = ""
) -> str:
    """Everything about plain and watermarked text: sentence, texts side by side, table, and the
    curve, the figure and the code if there are any.
    """
    asked = result.question
    sentence = verdict_sentence(result.score(WATERMARKED, THIS_KEY), level)
    table = f'<div style="flex:0 1 auto">{_score_table(result.scores, level)}</div>'
    figure = f'<div style="flex:1 1 600px;min-width:0">{image(picture)}</div>' if picture else ""
    pairs = [
        _side_by_side(*(_text_card(result, kind, sample) for kind in (PLAIN, WATERMARKED)))
        for sample in range(asked.n_samples)
    ]
    return _block(
        _paragraph(f"<b>Watermarked text, this key:</b> {escape(sentence)}"),
        _paragraph(f"After the prompt: {escape(asked.prompt)}", _QUIET),
        pairs[0],
        growth(result, level) if len(result.curve) else "",
        *pairs[1:],
        legend(asked.n_tokens),
        _side_by_side(table, figure),
        _paragraph(
            escape(
                _circumstances(
                    asked,
                    result.wm,
                    result.key_id,
                    f" (these plain texts predict {result.predicted:.2f})",
                )
            ),
            _QUIET,
        ),
        _folded(code),
    )


def verdict(result: Verdict, level: float = LEVEL, code: str = "") -> str:
    """Everything about a text that was tested: sentence, what is new in it, what to expect,
    control, evidence, and the code if there is any.
    """
    this, wrong = (result.scores.set_index("key").loc[key] for key in (THIS_KEY, WRONG_KEY))
    control = (
        f"Negative control, a wrong key: p = {probability(wrong['p_value'], wrong['log10_p'])}."
        f" {result.weight}, key {result.key_id}."
    )
    return _block(
        _paragraph(f"<b>This key:</b> {escape(verdict_sentence(this, level, result.n_windows))}"),
        (
            _paragraph(escape(earlier(result.given, level)))
            if result.given and result.given.n_before
            else ""
        ),
        _paragraph(escape(expectation(result, level))) if result.sigma else "",
        _paragraph(escape(control), _QUIET),
        f'<div style="{_CARD}">{tokens(result.pieces, this["psi"])}</div>',
        legend(int(this["n_tokens"])),
        _folded(code),
    )


def edited(result: Edited, level: float = LEVEL, code: str = "") -> str:
    """Everything about a tested text after an edit."""
    this, wrong = (result.after.row(key) for key in (THIS_KEY, WRONG_KEY))
    control = (
        f"Negative control, a wrong key: p = {probability(wrong['p_value'], wrong['log10_p'])}."
    )
    return _block(
        _paragraph(f"<b>After the edit, this key:</b> {escape(after_edit(result, level))}"),
        _paragraph(
            f"{control} An edited text is tested alone, and does not count as one that you tested"
            " before.",
            _QUIET,
        ),
        f'<div style="{_CARD}">{tokens(result.after.pieces, this["psi"])}</div>',
        legend(int(this["n_tokens"])),
        _folded(code),
    )


def tokens(pieces: pd.DataFrame, psi: float) -> str:
    """A text with its evidence: orange and a solid line lean to the key, blue and a dotted line
    away from it; each piece says its number.
    """
    full = FULL_COLOUR / np.sqrt(pieces["n_tokens"].sum())
    spans = ""
    for row in (
        pieces[pieces["text"] != ""].head(MOST_PIECES).itertuples()
    ):  # an end token has evidence, and no text
        spans += (
            f'<span style="{_look(row.evidence, full)}" title="evidence {row.evidence:+.3f}, log p'
            f' {row.log_p:.2f}">{_lines(row.text)}</span>'
        )
    if (left := len(pieces) - MOST_PIECES) > 0:
        spans += f" … and {left:,} more pieces, which were tested and are not shown"
    return (
        f'<div role="group" aria-label="{escape(_in_words(pieces, psi))}"'
        f' style="{_TEXT}">{spans}</div>'
    )


def legend(n_tokens: int) -> str:
    """What the colours mean, for texts of this length."""
    full = FULL_COLOUR / np.sqrt(n_tokens)
    steps = "".join(
        f'<span style="{_look(x * full, full)};padding:0 .55em">&nbsp;</span>'
        for x in np.linspace(-1, 1, 9)
    )
    return _paragraph(
        f"Evidence of a token: −{full:.2f} or less, away from the key {steps} towards the key,"
        f" {full:.2f} or more. It adds up to ψ over the text; point at a token for its number.",
        _QUIET,
    )


def image(figure: Figure) -> str:
    """A figure as an ``<img>`` with its own title as alternative text. At 576 pixels and more its
    smallest words are 11 pixels high.
    """
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=144, facecolor="white")
    source = base64.b64encode(data.getvalue()).decode()
    words = "; ".join(
        [
            *(axes.get_title("left") for axes in figure.axes),
            *(text.get_text() for text in figure.texts),
        ]
    )
    return (
        f'<img alt="{escape(words)}" src="data:image/png;base64,{source}"'
        ' style="width:100%;max-width:660px;border-radius:6px">'
    )


def _folded(code: str) -> str:
    """Code that opens at a click."""
    look = (
        "white-space:pre-wrap;overflow-wrap:anywhere;font-size:90%;padding:.6em .9em;border:1px"
        " solid rgba(128,128,128,.45);border-radius:6px"
    )
    return (
        '<details><summary style="cursor:pointer">Show the code</summary><pre'
        f' style="{look}">{escape(code)}</pre></details>'
        if code
        else ""
    )


def _block(*parts: str) -> str:
    return f'<div style="line-height:1.5">{"".join(parts)}</div>'


def _paragraph(html: str, look: str = "") -> str:
    return f'<p style="margin:.4em 0;{look}">{html}</p>'


def _side_by_side(*parts: str) -> str:
    """On a narrow screen, below one another."""
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:1em;align-items:stretch;margin-top:.8em">'
        f"{''.join(parts)}</div>"
    )


def _circumstances(asked: Question, wm: Watermark, key_id: str, predicted: str = "") -> str:
    return (
        f"{wm.weight}, σ = {wm.sigma:.3g} for a wanted ψ of {asked.psi:g}{predicted}, key {key_id},"
        f" {asked.n_samples} × {asked.n_tokens} {plural('token', asked.n_tokens)}, sampler's seed"
        f" {asked.seed}."
    )


def _title(asked: Question, kind: str, sample: int) -> str:
    return f"{kind.capitalize()} text" + (f" {sample + 1}" if asked.n_samples > 1 else "")


def _plainly(text: str) -> str:
    return f'<div style="{_TEXT}">{_lines(text)}</div>'


def _lines(text: str) -> str:
    return escape(text).replace("\n", "↵\n")


def _card(title: str, html: str) -> str:
    return (
        f'<div style="{_CARD}"><div'
        f' style="font-weight:600;margin-bottom:.4em">{title}</div>{html}</div>'
    )


def _text_card(result: Comparison, kind: str, sample: int) -> str:
    this = result.score(kind, THIS_KEY, sample)
    pieces = result.pieces.query("kind == @kind and sample == @sample")
    said = f"ψ = {signed(this['psi'])}, p = {probability(this['p_value'], this['log10_p'])}"
    title = (
        f"{_title(result.question, kind, sample)} <span"
        f' style="font-weight:400;{_QUIET}">{said}</span>'
    )
    return _card(title, tokens(pieces, this["psi"]))


def _score_table(scores: pd.DataFrame, level: float) -> str:
    several = scores["sample"].nunique() > 1
    head = "".join(
        f'<th scope="col" style="{_CELL};{_RULE}">{name}</th>'
        for name in ("Text", "Key", "ψ", "p", f"level {level}")
    )
    body = ""
    for _, row in scores.sort_values(
        ["kind", "key", "sample"], ascending=[False, True, True]
    ).iterrows():
        number = f" {row['sample'] + 1}" if several else ""
        detected = "detected" if row["p_value"] <= level else "–"
        cells = (
            row["kind"] + number,
            row["key"],
            signed(row["psi"]),
            probability(row["p_value"], row["log10_p"]),
            detected,
        )
        weight = "600" if (row["kind"], row["key"]) == (WATERMARKED, THIS_KEY) else "400"
        body += (
            "<tr>"
            + "".join(
                f'<td style="{_CELL};font-weight:{weight}">{escape(cell)}</td>' for cell in cells
            )
            + "</tr>"
        )
    return (
        '<table style="border-collapse:collapse;background:none;font-size:inherit">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _look(evidence: float, full: float) -> str:
    strength = min(1.0, abs(evidence) / full)
    colour = style.WATERMARKED if evidence > 0 else style.PLAIN
    line = f";border-bottom:2px {'solid' if evidence > 0 else 'dotted'}" if strength > 0.5 else ""
    return f"background-color:{_rgba(colour, 0.6 * strength)}{line}"


def _in_words(pieces: pd.DataFrame, psi: float) -> str:
    ranked = pieces[pieces["text"] != ""].sort_values("evidence")
    if ranked.empty:
        return f"No text, ψ = {psi:.2f} in all"
    most, least = ranked.iloc[-1], ranked.iloc[0]
    return (
        f"Text with its evidence per token, ψ = {psi:.2f} in all; most for the key: “{most.text}”"
        f" {most.evidence:+.2f}, most against it: “{least.text}” {least.evidence:+.2f}"
    )


def _rgba(colour: tuple[float, float, float], alpha: float) -> str:
    red, green, blue = (round(255 * x) for x in mpl.colors.to_rgb(colour))
    return f"rgba({red},{green},{blue},{alpha:.2f})"
