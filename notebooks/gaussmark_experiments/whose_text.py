"""Whose text it is: users of a codebook, several texts of one author, the marked span of a longer
text (``tracing``). Measured on texts that a model writes under a known key, beside human texts.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_lib import generate, models, perturb, score, stats
from gaussmark_lib.beyond import tracing
from gaussmark_lib.beyond.tracing import attribution
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench.pairs import means
from gaussmark_lib.workbench.plots import style

Pair = tuple[list[int], list[int]]


def gradients(
    lm: models.LM,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    dtype: str | None = None,
    lengths: Sequence[int] | None = None,
) -> list[TextGradient]:
    """In the texts' order."""
    unordered = score.gradients(lm.model, prompts, responses, wm, dtype=dtype, lengths=lengths)
    return sorted(unordered, key=lambda gradient: (gradient.text, gradient.n_tokens))


def forecast(plain: Sequence[TextGradient], sigma: float, book: tracing.Codebook) -> pd.DataFrame:
    """The chance that a text is named rightly, from σ‖G‖ of the *plain* text after the same prompt
    alone: ``text, n_tokens, psi`` (σ‖G‖), ``value``.
    """
    rows = [(one.text, one.n_tokens, sigma * one.norm) for one in plain]
    table = pd.DataFrame(rows, columns=["text", "n_tokens", "psi"])
    sizes = book.n_users, book.n_base
    return table.assign(value=[tracing.share_right(psi, *sizes) for psi in table["psi"]])


def texts_of_users(
    lm: models.LM,
    prompts: Texts,
    users: Sequence[int],
    wm: Watermark,
    book: tracing.Codebook,
    n_tokens: int,
    *,
    seed: int = 0,
    **sampling,
) -> list[list[list[int]]]:
    """For each user the texts after prompts of the user's own, which stand in turn in ``prompts``.
    Making a user's noise takes longer than a text.
    """
    texts = []
    n = len(prompts) // len(users)
    for i, user in enumerate(users):
        own = prompts[i * n :][:n]
        with perturb.watermarked(lm.model, wm, book.key(user)):
            texts.append(generate.sample(lm.model, own, n_tokens, seed=seed + i, **sampling))
    return texts


def shares(named: pd.DataFrame) -> pd.DataFrame:
    """Share named rightly by length, with intervals over users: ``n_tokens, value, low, high, n``.

    ``named`` is ``tracing.attribute``'s table with the column ``author``.
    """
    right = named.assign(right=(named["user"] == named["author"]).astype(float))
    return means(right, ["n_tokens"], "right", "author", share=True)


def off_forecast(named: pd.DataFrame, forecast: pd.DataFrame) -> dict[int, stats.Estimate]:
    """By length: the share named rightly less its forecast, over texts of the same prompts, with an
    interval over users.
    """
    rows = named.merge(forecast, on=["text", "n_tokens"])
    rows["off"] = (rows["user"] == rows["author"]) - rows["value"]
    return {
        n: stats.interval(of_length["off"], cluster=of_length["author"])
        for n, of_length in rows.groupby("n_tokens")
    }


def nobodys(
    human: Sequence[TextGradient],
    n_users: int,
    n_base: int,
    n_books: int,
    first_seed: int,
) -> pd.DataFrame:
    """Human texts in turn, each with a codebook of its own: ``exact`` and ``Bonferroni``'s p-value
    over all users.
    """
    rows = []
    for i in range(n_books):
        book = tracing.Codebook(perturb.Key.from_seed(first_seed + i), n_users, n_base)
        unit = human[i % len(human)].unit()[None]
        _, [psi], _ = attribution.best(attribution.base_inner(unit, book), book)
        bound = min(1.0, n_users * tracing.family_p(psi, 1, n_base))
        rows.append(
            {
                "exact": tracing.family_p(psi, n_users, n_base),
                "Bonferroni": bound,
            }
        )
    return pd.DataFrame(rows)


def at_levels(p: pd.DataFrame, levels: Sequence[float]) -> pd.DataFrame:
    """Share of p-values at most each level: ``level, test, value, low, high, n``."""
    return pd.DataFrame(
        {"level": level, "test": test} | stats.interval(p[test] <= level).row()
        for level in levels
        for test in p
    )


def together(
    marked: Sequence[TextGradient],
    human: Sequence[TextGradient],
    wm: perturb.PlacedWatermark,
    keys: Sequence[perturb.Key],
    counts: Sequence[int],
) -> pd.DataFrame:
    """ψ of the first n texts of an author as one: under the author's key ``keys[0]``, under another
    user's ``keys[1]``, and of n human texts under the first: ``n_texts, kind, psi, predicted``.
    """
    sums = [tracing.summed(texts[:n]) for texts in (marked, human) for n in counts]
    psi = score.psi(sums, wm, keys)
    of_author = psi[: len(counts)]
    of_human = psi[len(counts) :]
    predicted = [wm.sigma * whole.norm for whole in sums[: len(counts)]]
    kinds = {
        "author's key": of_author[:, 0],
        "another user's key": of_author[:, 1],
        "human texts": of_human[:, 0],
    }
    return pd.DataFrame(
        {
            "n_texts": n,
            "kind": kind,
            "psi": values[i],
            "predicted": predicted[i],
        }
        for kind, values in kinds.items()
        for i, n in enumerate(counts)
    )


def of_authors(
    lm: models.LM,
    prompts: Texts,
    of_user: Sequence[Texts],
    users: Sequence[int],
    human: Sequence[TextGradient],
    wm: Watermark,
    book: tracing.Codebook,
    counts: Sequence[int],
    dtype: str | None = None,
) -> pd.DataFrame:
    """:func:`together` of each user's texts, which follow the user's part of the prompts; another
    user is the one before. ``author`` is the user.
    """
    n = len(of_user[0])
    tables = []
    for i, user in enumerate(users):
        marked = gradients(lm, prompts[i * n :][:n], of_user[i], wm, dtype=dtype)
        keys = [book.key(user), book.key(users[i - 1])]
        of_one = together(marked, human, wm.on(lm.model), keys, counts)
        tables.append(of_one.assign(author=user))
    return pd.concat(tables, ignore_index=True)


def marked_span(n_tokens: int, share: float, block: int) -> tuple[int, int]:
    """Start and end of a marked span of at least a block, about the middle of a text. It begins
    half a block off the scan's grid: on it, the scan could find the span to the token.
    """
    n_marked = min(n_tokens, max(block, round(share * n_tokens)))
    start = min(
        (n_tokens - n_marked) // 2 // block * block + block // 2,
        n_tokens - n_marked,
    )
    return start, start + n_marked


def spliced(
    lm: models.LM,
    human: Sequence[Pair],
    wm: Watermark,
    keys: Sequence[perturb.Key],
    span: tuple[int, int],
    seed: int = 0,
    **sampling,
) -> list[list[int]]:
    """Each human text with the tokens of the span written by the model under the text's own key."""
    start, end = span
    marks = [(wm, key) for key in keys]
    before = [[*prompt, *response[:start]] for prompt, response in human]
    written = generate.sample(lm.model, before, end - start, marks=marks, seed=seed, **sampling)
    return [
        [*response[:start], *middle, *response[end:]]
        for (_, response), middle in zip(human, written, strict=True)
    ]


def scanned(
    lm: models.LM,
    pairs: Sequence[Pair],
    wm: Watermark,
    keys: Sequence[Sequence[perturb.Key]],
    **settings,
) -> pd.DataFrame:
    """``tracing.scan`` of each text under its own keys."""
    tables = [
        tracing.scan(lm.model, [prompt], [response], wm, own, **settings)
        for (prompt, response), own in zip(pairs, keys, strict=True)
    ]
    return pd.concat(tables, ignore_index=True)


def scans(
    lm: models.LM,
    human: Sequence[Pair],
    wm: Watermark,
    own: Sequence[perturb.Key],
    fresh: Sequence[perturb.Key],
    span: tuple[int, int],
    *,
    block: int,
    seed: int,
    dtype: str | None = None,
    **sampling,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """:func:`scanned` of each text with the span marked under its ``own`` key; and of the human
    texts under the ``fresh`` ones, dealt to them in turn.
    """
    settings = {"block": block, "seed": seed, "dtype": dtype}
    mixed = spliced(lm, human, wm, own, span, seed, **sampling)
    mixed = [(prompt, ids) for (prompt, _), ids in zip(human, mixed, strict=True)]
    others = [fresh[i :: len(human)] for i in range(len(human))]
    marked = scanned(lm, mixed, wm, [[key] for key in own], **settings)
    return marked, scanned(lm, human, wm, others, **settings)


def overlap(table: pd.DataFrame, start: int, end: int) -> np.ndarray:
    """Tokens in both the found span and the true one, over those in either."""
    both = (np.minimum(table["end"], end) - np.maximum(table["start"], start)).clip(lower=0)
    return (both / (np.maximum(table["end"], end) - np.minimum(table["start"], start))).to_numpy()


def arrows(codes: np.ndarray, w: np.ndarray, author: int, caption: str) -> Figure:
    """Users as arrows in the plane of two base noises, and a text as a point."""
    figure, axes = plt.subplots(figsize=(5.4, 5.0))
    length = np.linalg.norm(w)
    for user, code in enumerate(codes * length):
        colour = style.WATERMARKED if user == author else style.PLAIN
        axes.annotate(
            "",
            code,
            (0, 0),
            arrowprops={"arrowstyle": "->", "color": colour},
        )
        axes.text(
            *(1.15 * code),
            str(user),
            color=colour,
            ha="center",
            va="center",
        )
    axes.plot(*w, "*", color="black", markersize=14, label="the text")
    ends = (-1.3 * length, 1.3 * length)
    axes.set(
        xlim=ends,
        ylim=ends,
        aspect="equal",
        xlabel="w₁ = ⟨z₁, u⟩",
        ylabel="w₂ = ⟨z₂, u⟩",
    )
    return style.caption(
        figure,
        caption,
        "Users 0 to 7 as arrows: which one does the text follow?",
    )


def spans(
    table: pd.DataFrame,
    true: tuple[int, int],
    n_tokens: int,
    caption: str,
) -> Figure:
    """The span that the scan found in each text, 60 at most, over the marked one."""
    figure, axes = plt.subplots(figsize=(7.0, 4.0))
    axes.axvspan(*true, color="0.88", label="marked")
    shown = table.head(60).sort_values(["start", "end"], ignore_index=True)
    for look, sign, rows in (
        ("-", "≤", shown[shown["p_value"] <= 0.05]),
        (":", ">", shown[shown["p_value"] > 0.05]),
    ):
        look = {
            "color": style.WATERMARKED,
            "linestyle": look,
            "label": f"found, p {sign} 0.05",
        }
        axes.hlines(rows.index, rows["start"], rows["end"], **look)
    axes.set(xlim=(0, n_tokens), xlabel=style.TOKENS, ylabel="text", yticks=[])
    style.legend_beside(axes)
    return style.caption(figure, caption, "Where does the scan find the mark?")
