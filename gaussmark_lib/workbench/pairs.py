"""Pairs, not grids: n pairs of a fresh prompt and a fresh key, so that the rows of a table are
independent and every interval is a plain one.

One table crosses every boundary: ``text, prompt, key_id, scheme, n_tokens, psi, p_value, kind``. A
marked text under the key that wrote it is of the kind ``OWN``; the same text under the next pair's
key is ``WRONG``, and a text of the base model ``PLAIN``: the positive and two negative controls.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from gaussmark_lib import generate, models, perturb, score, stats, texts
from gaussmark_lib.errors import require_int
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import PlacedWatermark

OWN, WRONG, PLAIN = "own key", "wrong key", "plain"


class Pairs(NamedTuple):
    """Prompt i belongs to key i."""

    prompts: list[list[int]]
    keys: list[Key]

    @property
    def n(self) -> int:
        return len(self.keys)

    def first(self, n: int) -> "Pairs":
        return Pairs(self.prompts[:n], self.keys[:n])


def draw(
    lm: models.LM,
    kind: str | Path,
    n: int,
    prompt_tokens: int,
    seed: int = 0,
    split: str = "heldout",
) -> Pairs:
    """n prompts of ``prompt_tokens`` tokens (``texts.prompts``), each with a demonstration key. The
    seed decides both. Prompts and keys of the split ``"pilot"`` are the same for every seed, and
    no seed reaches them.
    """
    prompts = texts.prompts(lm, kind, n, prompt_tokens, split=split, seed=seed)
    keys = pilot_keys(n) if split == "pilot" else demonstration_keys(n, seed)
    return Pairs(prompts, keys)


def demonstration_keys(n: int, seed: int) -> list[Key]:
    """Return a key for each of n pairs. No seed reaches those of :func:`pilot_keys`."""
    require_int(seed, "seed", least=0)
    return [Key.from_seed(1_000_000 * seed + i) for i in range(n)]


def pilot_keys(n: int) -> list[Key]:
    """Return n demonstration keys that are reserved for the pilot."""
    return [Key.from_seed(-1 - i) for i in range(n)]


def passages(
    lm: models.LM,
    kind: str | Path,
    n: int,
    prompt_tokens: int,
    n_tokens: int,
    seed: int = 0,
    split: str = "heldout",
) -> tuple[list[list[int]], list[list[int]]]:
    """n human passages, each cut into a prompt and how its author went on: (prompts, responses).
    ``texts.sources`` of the same arguments, with ``prompt_tokens + n_tokens``, says which document
    each comes from.
    """
    passage = texts.human(lm, kind, n, prompt_tokens + n_tokens, split=split, seed=seed)
    return [ids[:prompt_tokens] for ids in passage], [ids[prompt_tokens:] for ids in passage]


def marked_and_plain(
    lm: models.LM, pairs: Pairs, wm: Watermark, n_tokens: int, seed: int = 0, **sampling
) -> tuple[list[list[int]], list[list[int]]]:
    """For each pair a text under its key and one of the base model, all in one batch: (marked,
    plain). Sampling is ``top_p, temperature, until_end, batch_size`` of ``generate.sample``.
    """
    marks = [(wm, key) for key in pairs.keys] + [None] * pairs.n
    responses = generate.sample(
        lm.model, pairs.prompts * 2, n_tokens, marks=marks, seed=seed, **sampling
    )
    return responses[: pairs.n], responses[pairs.n :]


def under_own_keys(
    lm: models.LM,
    pairs: Pairs,
    wms: Sequence[Watermark],
    n_tokens: int,
    *,
    seed: int = 0,
    dtype: str | None = None,
    **sampling,
) -> tuple[list[list[int]], pd.DataFrame]:
    """A text of each pair by each watermark (of one weight), all in one batch, tested with its own
    key: the texts, and ``score.score``'s table with ``weight, sigma`` and ``prompt`` (the pair's
    number). Sampling as in :func:`marked_and_plain`.
    """
    prompts, keys = pairs.prompts * len(wms), pairs.keys * len(wms)
    marks = [(wm, key) for wm in wms for key in pairs.keys]
    texts = generate.sample(lm.model, prompts, n_tokens, marks=marks, seed=seed, **sampling)
    table = score.score(lm.model, prompts, texts, wms[0], keys, paired=True, dtype=dtype)
    number, pair = np.divmod(table["text"], pairs.n)  # σ cancels in ψ
    sigmas = np.array([wm.sigma for wm in wms])
    return texts, table.assign(weight=wms[0].weight, sigma=sigmas[number], prompt=pair)


def scored(
    lm: models.LM,
    pairs: Pairs,
    marked: Texts,
    plain: Texts,
    wm: Watermark,
    *,
    lengths: Sequence[int] | None = None,
    **options,
) -> pd.DataFrame:
    """Tests each marked text with its own key and with the next pair's, and each plain text with
    its pair's key: one row per pair, kind and length. There may be no plain texts. Options are
    ``dtype, batch_size`` of ``score.gradients``.

    The columns are those of ``score.score``, with ``prompt`` (the pair's number), ``scheme`` and
    ``kind``; ``text`` counts marked texts first, then plain ones.
    """
    placed, _ = perturb.ready(lm.model, wm, pairs.keys)
    next_keys = pairs.keys[1:] + pairs.keys[:1]
    keys = [*zip(pairs.keys, next_keys, strict=True), *zip(pairs.keys, strict=True)]
    gradients = score.gradients(
        lm.model,
        [*pairs.prompts, *pairs.prompts[: len(plain)]],
        [*marked, *plain],
        wm,
        lengths=lengths,
        **options,
    )
    key_ids = [[key.key_id for key in of_text] for of_text in keys]
    table = score.table(_tested(gradients, placed, keys), key_ids)
    scheme = "GaussMark" if not wm.rank_dropped else "rank-reduced"
    table = table.assign(prompt=table["text"] % pairs.n, scheme=scheme)

    is_plain = table["text"] >= pairs.n
    # a marked text has two rows per length: under its own key, and under the next
    is_second = table.groupby(["text", "n_tokens"]).cumcount() == 1
    of_kinds = {OWN: ~is_plain & ~is_second, WRONG: is_second, PLAIN: is_plain}
    rows = [table[is_kind].assign(kind=kind) for kind, is_kind in of_kinds.items()]
    return pd.concat(rows, ignore_index=True)


def _tested(
    gradients: Iterable[TextGradient], wm: PlacedWatermark, keys: Sequence[Sequence[Key]]
) -> Iterator[tuple[TextGradient, np.ndarray]]:
    """Each gradient and its ψ under the keys of its text, whose noises are drawn once for all
    lengths.
    """
    for text, group in groupby(gradients, key=attrgetter("text")):
        lengths = list(group)
        yield from zip(lengths, score.psi(lengths, wm, keys[text]), strict=True)


def means(
    table: pd.DataFrame, by: Sequence[str], column: str, cluster: str | None = None, **options
) -> pd.DataFrame:
    """The mean of a column, or the share of True, in each cell of the columns ``by``: these and
    ``value, low, high, n``. A cell's rows are independent, or the clusters that a column names.
    ``options`` are those of ``stats.interval``.
    """
    rows = []
    for name, cell in table.groupby(list(by), sort=False):
        options["cluster"] = cell[cluster] if cluster else None
        rows.append(
            dict(zip(by, name, strict=True)) | stats.interval(cell[column], **options).row()
        )
    return pd.DataFrame(rows)


def shares(table: pd.DataFrame, by: Sequence[str], level: float) -> pd.DataFrame:
    """The share of texts with p ≤ level in each cell of the columns ``by``."""
    return means(table.assign(hit=table["p_value"] <= level), by, "hit")
