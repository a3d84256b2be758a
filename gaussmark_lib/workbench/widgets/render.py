"""Results as HTML: escaped, readable in light and dark themes, and never by colour alone. And the
library's lines that give them: runnable as they are, and without a key's secret.

Colours are translucent and text keeps the page's colour, so contrast holds in both themes. Styles
are attributes: a notebook's sanitizer would drop a style sheet.
"""

import base64
import io
from html import escape

import matplotlib as mpl
import numpy as np
import pandas as pd

from gaussmark_lib.workbench import verdict
from gaussmark_lib.workbench.plots import style
from gaussmark_lib.workbench.widgets.playground import (
    EDIT_SEED,
    PLAIN,
    WATERMARKED,
    Comparison,
    Tested,
    figure,
)

FULL_COLOUR = 3.0  # / √T: three standard deviations of a token's equal share of ψ ~ N(0, 1)
KEY_FILE = "playground_key.json"
LABEL = "8.5em"  # width of the inputs' labels
INDENT = f"calc({LABEL} + 8px)"  # where the inputs begin
DOCLM = (
    "doclm is a small model that knows only the documentation of Python libraries: it goes on in"
    " that style, whatever the prompt."
)
FALSE_ALARM = (
    "in which no mark is, are called detected. Such a false alarm is what level"
    f" {verdict.LEVEL} means: any text gets one from one key in twenty."
)
_BOX = "padding:.6em .9em;border:1px solid rgba(128,128,128,.45);border-radius:6px"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.7"
_QUIET = "opacity:.75;font-size:90%"


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
    return f'<div style="margin-left:{INDENT};line-height:1.5;{_QUIET}">{escape(sentence)}</div>'


def comparison(result: Comparison, code: str = "") -> str:
    """Plain and watermarked text: the verdict, texts side by side, all scores, the figure and the
    code if there is any.
    """
    asked = result.question
    texts = [
        _side_by_side(*(_card(result, kind, sample) for kind in (PLAIN, WATERMARKED)))
        for sample in range(asked.n_samples)
    ]
    about = (
        f"{asked.weight}, σ = {result.wm.sigma:.3g} for a wanted ψ of {asked.psi:g} (these plain"
        f" texts predict {result.predicted:.2f}; by first order alone"
        f" {result.predicted * result.bend:.2f}), key {result.key_id}, {asked.n_samples} ×"
        f" {asked.n_tokens} tokens, sampler's seed {asked.seed}."
    )
    alarms, n = result.detected(PLAIN), asked.n_samples
    judged = (
        f"{result.detected(WATERMARKED)} of {n} detected; each was expected with probability"
        f" {verdict.probability(result.power)}, as plain texts foretold. As tokens, their mean ψ is"
        f" {np.mean([result.row(WATERMARKED, i)['psi'] for i in range(n)]):.2f}; copied as"
        f" characters, {np.mean(result.copied):.2f}, since a copied text is cut into tokens anew."
    )
    return _block(
        _paragraph(f"<b>Watermarked texts, this key:</b> {judged}"),
        _paragraph(f"{alarms} of {n} plain texts, {FALSE_ALARM}") if alarms else "",
        _verdict("The first watermarked text, this key", result.row(WATERMARKED)),
        _paragraph(f"After the prompt: {escape(asked.prompt)}", _QUIET),
        *texts,
        _legend(asked.n_tokens),
        image(result),
        _table(result.scores),
        _paragraph(escape(about), _QUIET),
        _folded(code),
    )


def of_test(result: Tested, title: str = "This key", code: str = "") -> str:
    """A text that was tested: the verdict, the text with its evidence, and the code."""
    row = result.row
    return _block(
        _verdict(title, row),
        *(_paragraph(escape(warning)) for warning in row["warnings"]),
        f'<div style="{_BOX}">{tokens(result.pieces, row["psi"])}</div>',
        _legend(row["n_tokens"]),
        _folded(code),
    )


def _verdict(title: str, row: dict) -> str:
    first, *others = map(escape, verdict.sentences(row))
    return _paragraph(f"<b>{escape(title)}:</b> {first}") + _paragraph(" ".join(others), _QUIET)


def tokens(pieces: pd.DataFrame, psi: float) -> str:
    """A text with its evidence: orange and a solid line lean to the key, blue and a dotted line
    away from it; each piece says its number.
    """
    full = FULL_COLOUR / np.sqrt(pieces["n_tokens"].sum())
    shown = pieces[pieces["text"] != ""]  # an end token has evidence, and no text
    spans = "".join(
        f'<span style="{_look(row.evidence, full)}" title="evidence {row.evidence:+.3f}, log p'
        f' {row.log_p:.2f}">{escape(row.text).replace(chr(10), "↵" + chr(10))}</span>'
        for row in shown.itertuples()
    )
    label = escape(_in_words(shown.sort_values("evidence"), psi))
    return f'<div role="group" aria-label="{label}" style="{_TEXT}">{spans}</div>'


def _in_words(ranked: pd.DataFrame, psi: float) -> str:
    if ranked.empty:
        return f"No text, ψ = {psi:.2f} in all"
    most, least = ranked.iloc[-1], ranked.iloc[0]
    return (
        f"Text with its evidence per token, ψ = {psi:.2f} in all; most for the key: “{most.text}”"
        f" {most.evidence:+.2f}, most against it: “{least.text}” {least.evidence:+.2f}"
    )


def _legend(n_tokens: int) -> str:
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


def image(result: Comparison) -> str:
    """The figure, with its titles and the last p of each curve as words."""
    data, picture = io.BytesIO(), figure(result)
    picture.savefig(data, format="png", dpi=120, facecolor="white")
    source = base64.b64encode(data.getvalue()).decode()
    last = result.curve.groupby(["kind", "key"], sort=False).last()
    words = "; ".join(
        [axes.get_title("left") for axes in picture.axes]
        + [f"{kind}, {key}: log10 p = {row['log10_p']:.1f}" for (kind, key), row in last.iterrows()]
    )
    look = "width:100%;max-width:1000px;border-radius:6px"
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{source}" style="{look}">'


def _table(scores: pd.DataFrame) -> str:
    outcome = np.where(scores["p_value"] <= verdict.LEVEL, "detected", "–")
    p = scores["log10_p"].map(verdict.p_value)
    table = scores[["kind", "sample", "key", "psi"]].assign(p=p, outcome=outcome)
    table["sample"] += 1
    names = {"kind": "text", "sample": "number", "psi": "ψ", "outcome": f"level {verdict.LEVEL}"}
    return table.rename(columns=names).to_html(
        index=False, border=0, justify="left", float_format="{:.2f}".format
    )


def _card(result: Comparison, kind: str, sample: int) -> str:
    row = result.row(kind, sample)
    pieces = result.pieces.query("kind == @kind and sample == @sample")
    number = f" {sample + 1}" if result.question.n_samples > 1 else ""
    title = f"{kind.capitalize()} text{number}"
    p = f"ψ = {row['psi']:.2f}, p = {verdict.p_value(row['log10_p'])}"
    heading = f'<b>{title}</b> <span style="{_QUIET}">{p}</span>'
    look = f"flex:1 1 20em;min-width:0;{_BOX}"
    return f'<div style="{look}">{_paragraph(heading)}{tokens(pieces, row["psi"])}</div>'


def _folded(code: str) -> str:
    """Code that opens at a click."""
    look = f"white-space:pre-wrap;overflow-wrap:anywhere;font-size:90%;{_BOX}"
    summary = '<summary style="cursor:pointer">Show the code</summary>'
    return f'<details>{summary}<pre style="{look}">{escape(code)}</pre></details>' if code else ""


def _block(*parts: str) -> str:
    return f'<div style="line-height:1.5">{"".join(parts)}</div>'


def _paragraph(html: str, look: str = "") -> str:
    return f'<p style="margin:.4em 0;{look}">{html}</p>'


def _side_by_side(*parts: str) -> str:
    """On a narrow screen, below one another."""
    look = "display:flex;flex-wrap:wrap;gap:1em;align-items:stretch;margin-top:.8em"
    return f'<div style="{look}">{"".join(parts)}</div>'


def _look(evidence: float, full: float) -> str:
    strength = min(1.0, abs(evidence) / full)
    colour = style.WATERMARKED if evidence > 0 else style.PLAIN
    line = f";border-bottom:2px {'solid' if evidence > 0 else 'dotted'}" if strength > 0.5 else ""
    return f"background-color:{_rgba(colour, 0.6 * strength)}{line}"


def _rgba(colour: tuple[float, float, float], alpha: float) -> str:
    red, green, blue = (round(255 * x) for x in mpl.colors.to_rgb(colour))
    return f"rgba({red},{green},{blue},{alpha:.2f})"


def loaded(path: str) -> str:
    """How code gets a key that is saved there."""
    return f"Key(Key.load({path!r}).secret)  # without its binding, so that σ can be turned"


SAVED_KEY = f'{loaded(KEY_FILE)}; first press "Save the key"'


def code_of_comparison(result: Comparison, model: str, key: str) -> str:
    """The lines behind a comparison; ``key`` is how code gets the key."""
    asked, n = result.question, result.question.n_samples
    return f"""from gaussmark_lib import generate, models, score
from gaussmark_lib.perturb import Key, Watermark, watermarked

lm = models.load({model!r})
key = {key}
wm = Watermark({asked.weight!r}, {result.wm.sigma!r})  \
# σ = ψ / median‖G‖, for a wanted ψ of {asked.psi:g}
prompts = [lm.prompt({asked.prompt!r})] * {n}
plain = generate.sample(lm.model, prompts, {asked.n_tokens}, seed={asked.seed})
with watermarked(lm.model, wm, key):
    marked = generate.sample(lm.model, prompts, {asked.n_tokens}, seed={asked.seed})
scores = score.score(lm.model, 2 * prompts, plain + marked, wm, [key])  # the plain texts first
print(lm.decode(marked[0]))
print(scores[["text", "psi", "p_value", "n_tokens"]])
"""


def code_of_test(
    result: Tested, model: str, key: str, how: str = "", share: float = 0.0, allowed: float = 0.0
) -> str:
    """The lines behind a test, or behind that of the same text after an edit."""
    prompt = f"lm.prompt({result.prompt!r})" if result.prompt.strip() else "[]  # unknown"
    edit = (
        f"_, [ids] = corrupt.named(lm, [{how!r}])[{how!r}]([[]], [lm.encode(text)], {share!r},"
        f" {EDIT_SEED})\ntext = lm.decode(ids)\n"
        if how
        else ""
    )
    return f"""from gaussmark_lib import {"corrupt, " if how else ""}models
from gaussmark_lib.beyond import channel, tracing
from gaussmark_lib.beyond.tracing.authors import windows
from gaussmark_lib.perturb import Key, Watermark

lm = models.load({model!r})
key = {key}
wm = Watermark({result.question.weight!r}, 1.0)  # σ cancels in ψ
prompt = {prompt}
text = {result.text!r}
{edit}pairs = windows(lm.model, prompt, lm.encode(text))
weights = channel.weights(lm.model, {allowed!r})
scores = tracing.author(lm.model, *pairs, wm, [key], token_weights=weights)
print(scores[["psi", "p_value", "n_tokens"]])
"""
