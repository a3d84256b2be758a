"""Where in a long text is the watermark? A scan over spans, with an exact p-value over all spans.

The response is cut into blocks of a few tokens, with gradients G_1 … G_B that add up to G. A span
I of consecutive blocks has

    ψ_I = ⟨ξ, G_I⟩ / (σ‖G_I‖),    G_I = Σ_{b∈I} G_b

For a text that does not depend on the key, all ψ_I are jointly N(0, R). R follows from the Gram
matrix of the blocks, K_bc = ⟨G_b, G_c⟩, which does not depend on the key. The p-value is
P(max_I ψ_I ≥ t) under this law, where t is the largest ψ_I of the text. Bonferroni's bound, (number
of spans)·(1 − Φ(t)), ignores that spans share most of their blocks, and is several times as large.

The probability is simulated by importance sampling (Owen, Maximov and Chertkov, Electron. J. Stat.
13, 2019): choose a span at random, draw all ψ given that the ψ of this span is at least t, and
count the number S ≥ 1 of spans whose ψ is at least t. With Bonferroni's B = (number of
spans)·(1 − Φ(t)), which may exceed 1, the mean of B·mean(1/S) is p at every t. Since 0 < 1/S ≤ 1,
its relative standard deviation is at most √((B/p − 1)/n) however small p is, while a plain
simulation of n draws ends at 1/n. If spans have almost the same direction, as in a text that
repeats one token, B/p is large and the p-value is rough.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy.stats import norm
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import perturb
from gaussmark_lib.beyond.joint.directions import inner
from gaussmark_lib.errors import DegenerateScoreError, require_int
from gaussmark_lib.gradients import of_pairs
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark

N_DRAWS = 2000


def scan(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    keys: Sequence[Key],
    *,
    block: int = 10,
    shortest: int | None = None,
    longest: int | None = None,
    n_draws: int = N_DRAWS,
    seed: int = 0,
    dtype: str | torch.dtype | None = None,
) -> pd.DataFrame:
    """Find the span of each response with the largest ψ, for each key.

    Args:
        block: tokens per block; spans begin and end at the ends of blocks. Each block costs a
            backward pass below the head, and memory for its gradient.
        shortest, longest: length of a span in tokens, rounded up to whole blocks; the last block
            may be shorter. By default one block, and the whole text. Equal values give a fixed
            window.
        n_draws: simulated draws per p-value. With 2,000 the p-value is as good as exact; with 50,
            6.4% of texts have a p-value of at most .05.
        seed: of the draws. The draws for a key do not depend on the other keys.

    Returns:
        One row per text and key: ``text``, ``key_id``; the span, ``start`` ≤ token < ``end``; its
        ``psi``; ``p_value``, exact over all spans; ``bonferroni``, the upper bound on it;
        ``whole_psi`` and ``whole_p`` of the whole text; ``n_tokens``.

    Raises:
        The errors of ``score.score``, and InvalidTextError for ``longest`` below ``shortest`` or a
        number below 1.
    """
    require_int(block, "block")
    require_int(n_draws, "n_draws")
    shortest = require_int(block if shortest is None else shortest, "shortest")
    if longest is not None:
        require_int(longest, "longest", least=shortest)
    wm, keys = perturb.ready(model, wm, keys)
    rows: list[dict] = []
    for text, pair in wm.reader.pairs(prompts, responses).items():
        _, response = pair
        ends = [*range(block, len(response), block), len(response)]
        n_shortest = math.ceil(shortest / block)
        n_longest = math.ceil(longest / block) if longest else None
        spans = intervals(len(ends), n_shortest, n_longest)
        G = of_blocks(pair, wm, ends, dtype=dtype)
        rows += _rows(text, G, spans, ends, wm, keys, seed, n_draws)
    return pd.DataFrame(rows)


def _rows(
    text: int,
    G: Float[Tensor, "blocks d"],
    spans: Int[np.ndarray, "spans 2"],
    ends: list[int],
    wm: PlacedWatermark,
    keys: Sequence[Key],
    seed: int,
    n_draws: int,
) -> Iterator[dict]:
    """The rows of a text, one per key."""
    K = inner(G, G)
    is_finite = np.isfinite(K).all()
    if is_finite:
        A, spans = loadings(K, spans)
    if not is_finite or not len(spans):
        raise DegenerateScoreError(
            f"text {text}: expected a gradient that is finite and not zero in some span, got none;"
            " score it in a wider dtype"
        )
    for key in keys:
        noise = _unit_noise(wm, key)  # (1, d)
        products = inner(G, noise)[:, 0] / wm.sigmas[0]  # ⟨ξ, G_b⟩/σ of each block
        psi = _sums(products, spans) / _norms(K, spans)
        largest = psi.max()
        first, last = spans[psi.argmax()]
        # A text's draws for a key are the same, whatever other texts and keys there are.
        rng = np.random.default_rng([seed, text, int(key.fingerprint, 16)])
        whole = products.sum() / np.sqrt(K.sum())
        yield {
            "text": text,
            "key_id": key.key_id,
            "start": ends[first - 1] if first else 0,
            "end": ends[last - 1],
            "psi": largest,
            "p_value": maximum_p(largest, A, rng, n_draws),
            "bonferroni": float(min(1.0, len(spans) * norm.sf(largest))),
            "whole_psi": whole,
            "whole_p": norm.sf(whole),
            "n_tokens": ends[-1],
        }


def of_blocks(
    pair: Pair, wm: PlacedWatermark, ends: Sequence[int], *, dtype: str | torch.dtype | None = None
) -> Float[Tensor, "blocks d"]:
    """Return G_b of the blocks of a response, or PG_b if rank_dropped > 0.

    Block b ends after ``ends[b]`` tokens. Its gradient is the difference of the gradients of two
    beginnings of the response. For several weights it is (G_1, (σ_2/σ_1) G_2, …) in one row.
    """
    blocks = []
    shorter = 0.0
    for beginning in of_pairs(wm, {0: pair}, lengths=ends, dtype=dtype):
        scaled = [
            scale * G.flatten()
            for scale, G in zip(beginning.scales, beginning.matrices, strict=True)
        ]
        longer = torch.cat(scaled)
        blocks.append(longer - shorter)
        shorter = longer
    return torch.stack(blocks)


def _unit_noise(wm: PlacedWatermark, key: Key) -> Float[Tensor, "1 d"]:
    """Return ξ of the key with the σ of the first weight in all weights, in one row."""
    first_sigma = wm.sigmas[0]
    xis = perturb.drawn(wm, [key])  # (1, d_out, d_in) of each weight
    rows = [xi.flatten(1) * (first_sigma / sigma) for xi, sigma in zip(xis, wm.sigmas, strict=True)]
    return torch.cat(rows, dim=1)


def intervals(n_blocks: int, least: int = 1, most: int | None = None) -> Int[np.ndarray, "spans 2"]:
    """Return all spans of ``least`` to ``most`` consecutive blocks.

    A span is given by its first block and the block after its last.

    >>> intervals(3, least=2).tolist()
    [[0, 2], [0, 3], [1, 3]]
    """
    first, last = np.triu_indices(n_blocks)
    size = last + 1 - first
    # A text of fewer than ``least`` blocks is one span.
    is_allowed = (size >= min(least, n_blocks)) & (size <= (most or n_blocks))
    return np.stack([first, last + 1], axis=1)[is_allowed]


def loadings(
    K: Float[np.ndarray, "blocks blocks"], spans: Int[np.ndarray, "spans 2"]
) -> tuple[Float[np.ndarray, "kept rank"], Int[np.ndarray, "kept 2"]]:
    """Return A with ψ = A·n for n ~ N(0, I), whose rows have length 1, and the spans of its rows.

    Spans whose gradient is zero up to rounding have no ψ and are left out.
    """
    norms = _norms(K, spans)
    largest_block = np.sqrt(K.diagonal().max(initial=0))
    spans = spans[norms > 1e-6 * largest_block]
    values, vectors = np.linalg.eigh(K)
    roots = vectors * np.sqrt(np.maximum(values, 0))
    A = _sums(roots, spans)
    return A / np.linalg.norm(A, axis=1, keepdims=True), spans


def maximum_p(
    t: float, A: Float[np.ndarray, "spans rank"], rng: np.random.Generator, n_draws: int = N_DRAWS
) -> float:
    """Return P(max A·n ≥ t) for n ~ N(0, I) and unit rows of A, by importance sampling (see above).

    >>> round(maximum_p(1.0, np.eye(1), np.random.default_rng(0), 10), 4)
    0.1587
    """
    chosen = A[rng.integers(len(A), size=n_draws)]
    beyond = norm.isf(rng.random(n_draws) * norm.sf(t))  # N(0, 1) given that it is at least t
    if not np.isfinite(beyond).all():  # t is beyond 38, where 1 − Φ(t) is 0 in float64
        return 0.0
    n = rng.standard_normal(chosen.shape)
    n += chosen * (beyond - (n * chosen).sum(1))[:, None]
    is_beyond = n @ A.T >= t - 1e-9  # (draws, spans)
    counts = np.maximum(is_beyond.sum(1), 1)  # S
    return float(min(1.0, len(A) * norm.sf(t) * (1 / counts).mean()))


def _sums(values: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Σ over the blocks of each span."""
    total = np.concatenate([np.zeros_like(values[:1]), values.cumsum(0)])
    return total[spans[:, 1]] - total[spans[:, 0]]


def _norms(K: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """‖G_I‖ of each span: the root of the sum of its part of K."""
    by_row = _sums(K, spans)  # (spans, blocks)
    total = np.concatenate([np.zeros((len(spans), 1)), by_row.cumsum(1)], axis=1)
    rows = np.arange(len(spans))
    squares = total[rows, spans[:, 1]] - total[rows, spans[:, 0]]
    return np.sqrt(np.maximum(squares, 0))
