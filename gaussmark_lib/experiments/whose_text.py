"""Experiments on whose text it is: users of a codebook, several texts of one author (the marked
span of a longer text: ``scanned_spans``).

Everything is measured on texts that a model writes under a known key, beside human texts that no
key has touched.
"""

import time
from collections.abc import Sequence
from itertools import islice

import numpy as np
import pandas as pd
import torch

from gaussmark_lib import generate, models, perturb, score, stats, texts, tracing
from gaussmark_lib.corrupt import Pairs
from gaussmark_lib.errors import CorpusError
from gaussmark_lib.tokens import Texts
from gaussmark_lib.tracing import attribution
from gaussmark_lib.watermark import Watermark


def human(lm: models.LM, text: str, n: int, n_tokens: int) -> list[list[int]]:
    """Up to n beginnings of human texts, ``n_tokens`` each, all different; of "docs" also those
    that the embedded model was trained on, which are as human, where the held-out ones are too few.
    CorpusError below four.
    """
    chars = 6 * n_tokens if text in texts.KINDS else None
    splits = ("heldout", "train") if text == "docs" else ("heldout",)
    rows = (
        row
        for split in splits
        for row in texts.load(
            text, split=split, n=2 * n if text == "c4" else None, min_chars=chars
        )["text"]
    )
    found = list(
        islice((ids[:n_tokens] for ids in map(lm.encode, rows) if len(ids) >= n_tokens), n)
    )
    if len(found) < min(n, 4):
        raise CorpusError(
            f"{text}: expected at least 4 texts of {n_tokens} tokens, found {len(found)}; ask for"
            " shorter ones"
        )
    return found


def users(book: tracing.Codebook, n: int) -> list[int]:
    """n users, spread over the whole codebook."""
    return np.linspace(0, book.n_users - 1, min(n, book.n_users)).astype(int).tolist()


def noises(
    lm: models.LM, wm: Watermark, book: tracing.Codebook, names: Sequence[int]
) -> torch.Tensor:
    """``perturb.noises`` of these users' keys, in one pass over the base noises for all of them."""
    wm = wm.on(lm.model)
    z = book.normals(names, wm.linear.parameter.numel()) * wm.sigma
    return torch.stack(
        [wm.project(torch.from_numpy(row.astype("float32")).view(wm.linear.shape)) for row in z]
    )


def written(
    lm: models.LM,
    prompts: Texts,
    wm: Watermark,
    noises: torch.Tensor,
    n_tokens: int,
    *,
    seed: int = 0,
    **sampling,
) -> list[Texts]:
    """For each noise (users, d_out, d_in), the texts to all prompts that the model writes
    at θ + ξ.
    """
    texts = []
    for number, xi in enumerate(noises):
        with perturb.moved(lm.model, wm, xi):
            texts.append(
                generate.sample(lm.model, prompts, n_tokens, seed=seed + number, **sampling)
            )
    return texts


def attributed(
    lm: models.LM,
    prompts: Texts,
    texts: Sequence[Texts],
    human: Pairs,
    wm: Watermark,
    book: tracing.Codebook,
    names: Sequence[int],
    noises: torch.Tensor,
    **settings,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """``tracing.attribute`` of the users' texts and, in the same pass, of human ones: a table each.

    The first has further columns: ``author``, ``right``, ``own_psi`` (explicitly, under the
    author's noise) and ``predicted``, the chance of a right name from σ‖G‖ alone.
    """
    author = np.repeat(names, len(prompts))
    asked, answered = (
        [*list(prompts) * len(texts), *human[0]],
        [
            *(text for own in texts for text in own),
            *human[1],
        ],
    )
    table = tracing.attribute(lm.model, asked, answered, wm, book, **settings)
    is_human = table["text"] >= len(author)
    table, plain = table[~is_human].reset_index(drop=True), table[is_human].reset_index(drop=True)
    keys = [book.key(user) for user in names]
    own = [
        score.score(lm.model, prompts, of_user, wm, [key], xis=xi[None], **settings)["psi"]
        for of_user, key, xi in zip(texts, keys, noises, strict=True)
    ]
    table = table.assign(author=author[table["text"]], own_psi=np.concatenate(own))
    chance = [
        tracing.share_right(psi, book.n_users, book.n_base)
        for psi in stats.predicted_psi(table["grad_norm"], wm.sigma)
    ]
    return table.assign(right=table["user"] == table["author"], predicted=chance), plain


def by_length(table: pd.DataFrame, n_users: int, n_base: int) -> pd.DataFrame:
    """A row a length of :func:`attributed`'s table: mean ``psi`` under the own key, share named
    rightly with its interval over prompts and authors, ``runner_up`` (mean of the best other user),
    ``given_psi`` (the exact share at the ψ that were measured), ``predicted`` (from σ‖G‖).
    """
    rows = []
    for n_tokens, found in table.groupby("n_tokens"):
        of_author = found.assign(prompt=found.groupby("author").cumcount())
        right = stats.crossed_interval(
            np.mean, stats.matrix(of_author, "right", columns="author"), share=True
        )
        wrong = np.where(found["right"], found["runner_up"], found["psi"])
        given = np.mean([share_given(psi, n_users, n_base) for psi in found["own_psi"]])
        row = {
            "n_tokens": n_tokens,
            "psi": found["own_psi"].mean(),
            "runner_up": wrong.mean(),
            "given_psi": given,
        }
        rows.append(row | {"predicted": found["predicted"].mean()} | right.row())
    return pd.DataFrame(rows)


def right_between(table: pd.DataFrame, low: float, high: float) -> stats.Estimate:
    """Share named rightly of :func:`attributed`'s texts, each at its whole length, whose own ψ is
    from low to high; NaN where there are none.
    """
    whole = table[table["n_tokens"] == table.groupby("text")["n_tokens"].transform("max")]
    near = whole[whole["own_psi"].between(low, high)]
    return stats.rate(near["right"]) if len(near) else stats.Estimate(np.nan, np.nan, np.nan, 0)


def expected_right(psi: float, n_users: int, n_base: int) -> float:
    """What share of texts should be named rightly at least, where ψ is wanted: theory's at ψ − 1/2,
    rounded down to a multiple of 0.05.

    For texts whose own ψ lies within 1/2 of it, and for all together, whose own ψ is about N(ψ, 1).
    """
    below = psi - 0.5
    theory = (
        min(share_given(below, n_users, n_base), tracing.share_right(below, n_users, n_base))
        if below > 0
        else 0.0
    )
    return int(20 * theory) / 20


def share_given(own_psi: float, n_users: int, n_base: int) -> float:
    """The chance that a text with this ψ under its own key is named rightly: that no other user's ψ
    is larger, given it.
    """
    rest = np.sqrt(np.random.default_rng(0).chisquare(n_base - 1, 2000) + own_psi**2)
    return float(((1 - attribution.cosine_tail(own_psi / rest, n_base)) ** (n_users - 1)).mean())


def curve(psi: Sequence[float], n_users: int, bases: Sequence[int]) -> pd.DataFrame:
    """What theory says: ``n_base, psi, share`` named rightly, and ``nats``, the capacity at
    this ψ.
    """
    rows = [
        (m, p, tracing.share_right(p, n_users, m), tracing.capacity(p, m))
        for m in bases
        for p in psi
    ]
    return pd.DataFrame(rows, columns=["n_base", "psi", "share", "nats"])


def nobodys(
    lm: models.LM,
    human: Pairs,
    wm: Watermark,
    *,
    n_users: int,
    n_base: int,
    books_per_text: int,
    first_seed: int,
    **settings,
) -> pd.DataFrame:
    """Human texts under codebooks of their own, each pair once, so that all rows are independent:
    ``text, psi, p_family, bonferroni``.
    """
    wm, rows = wm.on(lm.model), []
    for found in score.gradients(lm.model, *human, wm, **settings):
        unit = found.unit()[None]
        for number in range(books_per_text):
            book = tracing.Codebook(
                perturb.Key.from_seed(first_seed + found.text * books_per_text + number),
                n_users,
                n_base,
            )
            _, [psi], _ = attribution.best(attribution.base_inner(unit, book), book)
            p, bound = (
                tracing.family_p(psi, n_users, n_base),
                min(1.0, n_users * tracing.family_p(psi, 1, n_base)),
            )
            rows.append({"text": found.text, "psi": psi, "p_family": p, "bonferroni": bound})
    return pd.DataFrame(rows).sort_values("text", kind="stable", ignore_index=True)


def costs(
    lm: models.LM,
    pair: Pairs,
    wm: Watermark,
    book: tracing.Codebook,
    n_users: Sequence[int],
    n_fresh: int,
) -> tuple[pd.DataFrame, float]:
    """Seconds to test one text for all users by the codebook (``n_users, seconds``, the gradient
    aside), and seconds a key with independent keys.
    """
    wm = wm.on(lm.model)
    [found] = score.gradients(lm.model, *pair, wm)
    unit, started = found.unit()[None], time.perf_counter()
    inner = attribution.base_inner(unit, book)
    base, rows = time.perf_counter() - started, []
    for n in n_users:
        started = time.perf_counter()
        attribution.best(inner, tracing.Codebook(book.master, n, book.n_base))
        rows.append({"n_users": n, "seconds": base + time.perf_counter() - started})
    started = time.perf_counter()
    for seed in range(n_fresh):
        score.statistic(
            found,
            perturb.noises(lm.model, wm, [perturb.Key.from_seed(seed)]).to(found.G.device),
            wm.sigma,
        )
    return pd.DataFrame(rows), (time.perf_counter() - started) / n_fresh


def break_even(seconds: pd.DataFrame, per_key: float) -> float:
    """The number of users from which on the codebook is faster than independent keys, infinite
    where it never is.

    The codebook takes a + b·N seconds (a line through :func:`costs`' table), independent keys
    ``per_key``·N: equal at N = a/(per_key − b).
    """
    per_user, base = np.polyfit(seconds["n_users"], seconds["seconds"], 1)
    return float(max(1.0, base / (per_key - per_user))) if per_key > per_user else np.inf


def authors(
    lm: models.LM,
    prompts: Texts,
    texts: Sequence[Texts],
    human: Pairs,
    wm: Watermark,
    noises: torch.Tensor,
    counts: Sequence[int],
    **settings,
) -> pd.DataFrame:
    """ψ of the first n texts of each user together, under the own key, under the next user's, and
    of as many human texts under the own one.

    Returns ``n_texts, kind, psi, predicted``: one row a user, n and kind; ``predicted`` is what ψ
    should be, σ‖Σ G_i‖ under the own key, the cosine of both users' noises times the own ψ under
    the other's, which shares base noises with it, and 0 for human texts.
    """
    wm, rows = wm.on(lm.model), []

    def gradients(pairs: Pairs) -> list:
        return sorted(
            score.gradients(lm.model, *pairs, wm, **settings), key=lambda found: found.text
        )

    plain = gradients(human)
    for number, own in enumerate(texts):
        marked, both = gradients((prompts, own)), noises[[number, (number + 1) % len(noises)]]
        z, other = both.flatten(1)
        cosine = float(torch.dot(z, other) / (z.norm() * other.norm()))
        for n in counts:
            whole, untouched = tracing.summed(marked[:n]), tracing.summed(plain[:n])
            psi, others = score.statistic(whole, both.to(whole.G.device), wm.sigma)
            [of_human] = score.statistic(untouched, both[:1].to(untouched.G.device), wm.sigma)
            kinds = {
                "own key": (psi, wm.sigma * whole.norm),
                "another user's key": (others, cosine * psi),
                "human texts": (of_human, 0.0),
            }
            rows += [
                {"n_texts": n, "kind": kind, "psi": value, "predicted": predicted}
                for kind, (value, predicted) in kinds.items()
            ]
    return pd.DataFrame(rows)
