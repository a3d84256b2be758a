"""Whose text is it? Users of a codebook, several texts of one author, and the marked span of a
longer text (``tracing``), measured on texts that a model writes under a known key, and on human
texts.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_experiments.robustness import quoted
from gaussmark_lib import generate, models, perturb, score, stats
from gaussmark_lib.beyond import tracing
from gaussmark_lib.beyond.tracing import attribution
from gaussmark_lib.engine.blocks import in_lists
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench.pairs import means
from gaussmark_lib.workbench.plots import style

Pair = tuple[list[int], list[int]]  # prompt and response


def gradients(
    lm: models.LM,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    dtype: str | None = None,
    lengths: Sequence[int] | None = None,
) -> list[TextGradient]:
    """Return the gradients of the texts, in the texts' order."""
    # they come in batches of their own order
    unordered = score.gradients(lm.model, prompts, responses, wm, dtype=dtype, lengths=lengths)
    return sorted(
        unordered,
        key=lambda gradient: (gradient.text, gradient.n_tokens),
    )


def forecast(plain: Sequence[TextGradient], sigma: float, book: tracing.Codebook) -> pd.DataFrame:
    """Predict the probability that the right user is named, only from σ‖G‖ of the *plain* text
    after the same prompt: ``text, n_tokens, psi`` (σ‖G‖), ``value``.
    """
    rows = [(gradient.text, gradient.n_tokens, sigma * gradient.norm) for gradient in plain]
    table = pd.DataFrame(rows, columns=["text", "n_tokens", "psi"])
    value = [tracing.share_right(psi, book.n_users, book.n_base) for psi in table["psi"]]
    return table.assign(value=value)


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
    """Write for each user the texts after the user's part of ``prompts``, which are in the order of
    the users.
    """
    n = len(prompts) // len(users)  # prompts per user
    marks = [(wm, book.key(user)) for user in users for _ in range(n)]
    texts = generate.sample(
        lm.model,
        prompts[: len(marks)],
        n_tokens,
        marks=marks,
        seed=seed,
        **sampling,
    )
    return [*in_lists(texts, n)]


def shares(named: pd.DataFrame) -> pd.DataFrame:
    """Return the share named correctly by length, with intervals over users: ``n_tokens, value,
    low, high, n``.

    ``named`` is ``tracing.attribute``'s table with the column ``author``.
    """
    right = named.assign(right=(named["user"] == named["author"]).astype(float))  # 1.0 or 0.0
    return means(right, ["n_tokens"], "right", "author", share=True)


def off_forecast(named: pd.DataFrame, forecast: pd.DataFrame) -> dict[int, stats.Estimate]:
    """Return by length the share named correctly less its forecast, over texts of the same prompts,
    with an interval over users.
    """
    # texts with their author and their forecast
    rows = named.merge(forecast, on=["text", "n_tokens"])
    is_right = rows["user"] == rows["author"]
    rows["off"] = is_right - rows["value"]
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
    """Test human texts in turn, each with a codebook of its own: ``exact`` and ``Bonferroni``'s
    p-value over all users.
    """
    rows = []
    for i in range(n_books):
        key = perturb.Key.from_seed(first_seed + i)
        book = tracing.Codebook(key, n_users, n_base)
        unit = human[i % len(human)].unit()[None]  # (1, d)
        inner = attribution.base_inner(unit, book)
        _, [psi], _ = attribution.best(inner, book)
        exact = tracing.family_p(psi, n_users, n_base)  # for the best of all users
        of_one_user = tracing.family_p(psi, 1, n_base)  # as if only this user had been tested
        rows.append(
            {
                "exact": exact,
                "Bonferroni": min(1.0, n_users * of_one_user),
            }
        )
    return pd.DataFrame(rows)


def at_levels(p: pd.DataFrame, levels: Sequence[float]) -> pd.DataFrame:
    """Return the share of p-values at most each level: ``level, test, value, low, high, n``."""
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
    """Return ψ of the first n texts of an author as one text, for each n of ``counts``.

    The texts are tested under the author's key ``keys[0]`` and under another user's ``keys[1]``; n
    human texts are tested under the first. The columns are ``n_texts, kind, psi, predicted``.
    """
    # sums of gradients, one for each count
    of_author = [tracing.summed(marked[:n]) for n in counts]
    of_human = [tracing.summed(human[:n]) for n in counts]
    psi_of_author = score.psi(of_author, wm, keys)  # (counts, keys)
    psi_of_human = score.psi(of_human, wm, keys)
    predicted = [wm.sigma * whole.norm for whole in of_author]
    kinds = {
        "author's key": psi_of_author[:, 0],
        "another user's key": psi_of_author[:, 1],
        "human texts": psi_of_human[:, 0],
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
    """Return :func:`together` of each user's texts, which follow the user's part of the prompts.
    The other user is the previous user. ``author`` is the user.
    """
    n = len(of_user[0])  # texts of each user
    tables = []
    for i, user in enumerate(users):
        marked = gradients(lm, prompts[i * n :][:n], of_user[i], wm, dtype=dtype)
        keys = [
            book.key(user),
            book.key(users[i - 1]),
        ]  # the author's, and another user's
        of_one = together(marked, human, wm.on(lm.model), keys, counts)
        tables.append(of_one.assign(author=user))
    return pd.concat(tables, ignore_index=True)


def marked_span(n_tokens: int, share: float, block: int) -> tuple[int, int]:
    """Return start and end of a marked span of at least a block, near the middle of a text. It
    begins half a block off the scan's grid: on the grid, the scan could find the span exactly.
    """
    # at least a block, at most the text
    n_marked = min(n_tokens, max(block, round(share * n_tokens)))
    n_unmarked = n_tokens - n_marked
    on_grid = n_unmarked // 2 // block * block
    start = min(on_grid + block // 2, n_unmarked)
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
    """Replace the tokens of the span in each human text by tokens that the model writes under the
    text's own key.
    """
    start, end = span
    marks = [(wm, key) for key in keys]
    # what the model continues
    prefixes = [[*prompt, *response[:start]] for prompt, response in human]
    written = generate.sample(
        lm.model,
        prefixes,
        end - start,
        marks=marks,
        seed=seed,
        **sampling,
    )
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
    """Return ``tracing.scan`` of each text under its own keys."""
    tables = [
        tracing.scan(lm.model, [prompt], [response], wm, keys_of_text, **settings)
        for (prompt, response), keys_of_text in zip(pairs, keys, strict=True)
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
    """Return :func:`scanned` of each text with the span marked under its ``own`` key, and of the
    human texts under the ``fresh`` keys, which are dealt to them in turn.
    """
    scan = partial(scanned, lm, wm=wm, block=block, seed=seed, dtype=dtype)
    responses = spliced(lm, human, wm, own, span, seed, **sampling)
    mixed = [(prompt, ids) for (prompt, _), ids in zip(human, responses, strict=True)]
    fresh_of_texts = [fresh[i :: len(human)] for i in range(len(human))]  # each text has several
    marked = scan(pairs=mixed, keys=[[key] for key in own])
    unmarked = scan(pairs=human, keys=fresh_of_texts)
    return marked, unmarked


def pasted(human: Sequence[Pair], texts: Texts, share: float, seed: int = 0) -> list[Pair]:
    """Return human texts of their length in which a share of the tokens is copied from watermarked
    texts: the first tokens of each text, in a gap at random (a *copy-paste attack*). With more
    texts than human texts, these take turns. Human texts have one length.
    """
    hosts = [human[i % len(human)] for i in range(len(texts))]
    prompts = [prompt for prompt, _ in hosts]
    responses = [response for _, response in hosts]
    if share:
        n_copied = round(share * len(responses[0]))
        parts = [ids[:n_copied] for ids in texts]
        quote = quoted(hosts=responses)
        prompts, responses = quote(prompts, parts, 1 - share, seed)
    return list(zip(prompts, responses, strict=True))


def scans_of_pasted(
    lm: models.LM,
    human: Sequence[Pair],
    prompts: Texts,
    wm: Watermark,
    keys: Sequence[perturb.Key],
    shares_pasted: Sequence[float],
    *,
    block: int,
    seed: int,
    dtype: str | None = None,
    **sampling,
) -> pd.DataFrame:
    """Return :func:`scanned` of human texts with a copied part (:func:`pasted`), each under the key
    that wrote the part, by ``share``. The share 0 is the control: the same human texts and keys.
    """
    marks = [(wm, key) for key in keys]
    n_longest = round(max(shares_pasted) * len(human[0][1]))
    written = generate.sample(
        lm.model,
        prompts[: len(keys)],
        n_longest,
        marks=marks,
        seed=seed,
        **sampling,
    )
    of_texts = [[key] for key in keys]
    tables = []
    for share in (0.0, *shares_pasted):
        mixed = pasted(human, written, share, seed)
        scan = scanned(lm, mixed, wm, of_texts, block=block, seed=seed, dtype=dtype)
        tables.append(scan.assign(share=share))
    return pd.concat(tables, ignore_index=True)


def named_when_pasted(
    lm: models.LM,
    human: Sequence[Pair],
    of_user: Sequence[Texts],
    users: Sequence[int],
    wm: Watermark,
    book: tracing.Codebook,
    shares_pasted: Sequence[float],
    *,
    seed: int,
    dtype: str | None = None,
) -> pd.DataFrame:
    """Return ``tracing.attribute`` of human texts with a part copied from a user's text, with the
    columns ``author`` and ``share``.
    """
    texts = [ids for responses in of_user for ids in responses]
    authors = np.repeat(users, len(of_user[0]))
    tables = []
    for share in shares_pasted:
        prompts, mixed = zip(*pasted(human, texts, share, seed), strict=True)
        named = tracing.attribute(lm.model, prompts, mixed, wm, book, dtype=dtype)
        tables.append(named.assign(author=authors[named["text"]], share=share))
    return pd.concat(tables, ignore_index=True)


def of_pasted(scans: pd.DataFrame, named: pd.DataFrame) -> pd.DataFrame:
    """Return the share of texts that each test gets right, by the share of the text that is copied:
    ``copied, test, value, low, high, n``. The scan and the whole text are tested at level 0.05.
    """
    rows = []
    for share, texts in scans.groupby("share"):
        hits = {
            "best span": texts["p_value"] <= 0.05,
            "whole text": texts["whole_p"] <= 0.05,
        }
        of_share = named[named["share"] == share]
        if len(of_share):
            hits["user named"] = of_share["user"] == of_share["author"]
        label = f"copy-paste, {share:.0%}" if share else "human text alone"
        for test, is_hit in hits.items():
            cluster = of_share["author"] if test == "user named" else None
            estimate = stats.interval(is_hit, cluster=cluster)
            rows.append({"copied": label, "test": test, **estimate.row()})
    return pd.DataFrame(rows)


def more_by_scan(texts: pd.DataFrame) -> stats.Estimate:
    """Return the share of these texts that the scan finds at level 0.05, less the share that the
    test of the whole text finds (rows of :func:`scanned`).
    """
    found_by_scan = (texts["p_value"] <= 0.05).astype(float)
    found_whole = (texts["whole_p"] <= 0.05).astype(float)
    return stats.interval(found_by_scan - found_whole)


def overlap(table: pd.DataFrame, start: int, end: int) -> np.ndarray:
    """Divide the tokens in both the found span and the true span by the tokens in either."""
    common = np.minimum(table["end"], end) - np.maximum(table["start"], start)
    either = np.maximum(table["end"], end) - np.minimum(table["start"], start)
    return (common.clip(lower=0) / either).to_numpy()  # 0 where the spans do not meet


def arrows(codes: np.ndarray, w: np.ndarray, author: int, caption: str) -> Figure:
    """Draw users as arrows in the plane of two base noises, and a text as a point."""
    figure, axes = plt.subplots(figsize=(5.4, 5.0))
    length = np.linalg.norm(w)  # codes are of unit length
    for user, code in enumerate(codes * length):
        colour = style.WATERMARKED if user == author else style.PLAIN
        # an arrow from the origin, and the user's number beyond its head
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
        xlabel="w₁ = ⟨z₁, G⟩/‖G‖",
        ylabel="w₂ = ⟨z₂, G⟩/‖G‖",
    )
    return style.caption(
        figure,
        caption,
        "Users 0 to 7 as arrows: which arrow does the text follow?",
    )


def spans(
    table: pd.DataFrame,
    true: tuple[int, int],
    n_tokens: int,
    caption: str,
) -> Figure:
    """Draw the span that the scan found in each of the first 60 texts, over the marked span."""
    figure, axes = plt.subplots(figsize=(7.0, 4.0))
    axes.axvspan(*true, color="0.88", label="watermarked")
    # ordered, so that the spans form a staircase
    shown = table.head(60).sort_values(["start", "end"], ignore_index=True)
    is_detected = shown["p_value"] <= 0.05  # at level 0.05
    for rows, line, label in (
        (shown[is_detected], "-", "best span, p ≤ 0.05"),
        (shown[~is_detected], ":", "best span, p > 0.05"),
    ):
        axes.hlines(
            rows.index,
            rows["start"],
            rows["end"],
            color=style.WATERMARKED,
            linestyle=line,
            label=label,
        )
    axes.set(
        xlim=(0, n_tokens),
        xlabel=style.TOKENS,
        ylabel="text",
        yticks=[],
    )
    style.legend_beside(axes)
    return style.caption(figure, caption, "Where does the scan find the watermark?")
