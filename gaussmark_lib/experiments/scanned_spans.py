"""The marked span of a longer text: texts with one, what four tests find in them, and where.

Everything is measured on human texts of which a middle part was written by a model under a known
key, beside untouched ones.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import norm

from gaussmark_lib import generate, models, perturb, stats, tokens
from gaussmark_lib.corrupt import Pairs
from gaussmark_lib.tokens import Texts
from gaussmark_lib.tracing import blocks, spans
from gaussmark_lib.watermark import Watermark

LEVEL = 0.05
SCAN, BOUND, WINDOW, WHOLE = "scan, exact", "scan, Bonferroni", "fixed window", "whole text"


def marked_span(n_tokens: int, share: float, block: int) -> tuple[int, int]:
    """Start and end of a marked span of at least a block, about the middle of a text, that begins
    half a block off the scan's grid.

    On the grid the scan could find it to the token, which no real span promises.
    """
    n_marked = min(n_tokens, max(block, round(share * n_tokens)))
    start = min((n_tokens - n_marked) // 2 // block * block + block // 2, n_tokens - n_marked)
    return start, start + n_marked


def spliced(
    lm: models.LM,
    human: Pairs,
    wm: Watermark,
    keys: Sequence[perturb.Key],
    start: int,
    n_marked: int,
    *,
    seed: int = 0,
    **sampling,
) -> Texts:
    """Each human text with the tokens from ``start`` on replaced by ``n_marked`` that the model
    writes under this text's own key.
    """
    texts = []
    for number, (prompt, response, key) in enumerate(zip(*human, keys, strict=True)):
        with perturb.watermarked(lm.model, wm, key):
            [own] = generate.sample(
                lm.model, [[*prompt, *response[:start]]], n_marked, seed=seed + number, **sampling
            )
        texts.append([*response[:start], *own, *response[start + n_marked :]])
    return texts


def scanned(
    lm: models.LM,
    pairs: Pairs,
    wm: Watermark,
    keys: Sequence[Sequence[perturb.Key]],
    *,
    block: int,
    window: int,
    seed: int = 0,
    dtype: str | None = None,
) -> pd.DataFrame:
    """Each text under its own keys by four tests that share its gradients: a row a pair with
    ``text, start, end`` (of the exact scan), ``psi``, and a column of p-values for each of ``SCAN,
    BOUND, WINDOW, WHOLE``. ``window``: tokens of the fixed window, rounded up to whole blocks.
    """
    wm, rows = wm.on(lm.model), []
    for text, pair in tokens.checked_pairs(lm.model, *pairs).items():
        ends = [*range(block, len(pair[1]), block), len(pair[1])]
        G = blocks.gradients(pair, wm, ends, dtype=dtype)
        K, size = (G @ G.T).double().cpu().numpy(), min(-(-window // block), len(ends))
        free, fixed = (
            spans.loadings(K, spans.intervals(len(ends), *sizes))
            for sizes in ((1, None), (size, size))
        )
        for key in keys[text]:
            rng, inner = np.random.default_rng([seed, text]), spans.inner_products(G, wm, key)
            first, last, psi, p, bound = spans.strongest(inner, K, *free, rng)
            found = {
                SCAN: p,
                BOUND: bound,
                WINDOW: spans.strongest(inner, K, *fixed, rng)[3],
                WHOLE: norm.sf(inner.sum() / np.sqrt(K.sum())),
            }
            rows.append(
                {
                    "text": text,
                    "start": ends[first - 1] if first else 0,
                    "end": ends[last - 1],
                    "psi": psi,
                }
                | found
            )
    return pd.DataFrame(rows)


def rates(tables: Mapping[str, pd.DataFrame], level: float = LEVEL) -> pd.DataFrame:
    """The share of pairs whose p is at most the level, by kind of text and test: ``kind, test,
    value, low, high, n``.
    """
    found = [
        (kind, test, stats.rate(table[test] <= level))
        for kind, table in tables.items()
        for test in (SCAN, BOUND, WINDOW, WHOLE)
    ]
    return pd.DataFrame(
        [{"kind": kind, "test": test} | estimate.row() for kind, test, estimate in found]
    )


def overlap(table: pd.DataFrame, start: int, end: int) -> np.ndarray:
    """Of each span that was found and the true one: the tokens in both over those in either."""
    both = (np.minimum(table["end"], end) - np.maximum(table["start"], start)).clip(lower=0)
    return (both / (np.maximum(table["end"], end) - np.minimum(table["start"], start))).to_numpy()
