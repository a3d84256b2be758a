"""Pairs, not grids: n pairs of a fresh prompt and a fresh key, so that the rows of a table are
independent and every interval is a plain one.

All functions pass on the same table: ``text, prompt, key_id, scheme, n_tokens, psi, p_value,
kind``. A marked text under the key that wrote it has the kind ``OWN``. The same text under the next
pair's key has the kind ``WRONG``, and a text of the base model ``PLAIN``. These are the positive
control and two negative controls.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from gaussmark_lib.weights import PlacedWatermark, require_single

# kinds of rows: the positive control, and two negative controls
OWN = "own key"
WRONG = "wrong key"
PLAIN = "plain"
# a column of pooled records: the document that a pair's prompt came from
DOCUMENT = "document"
# the tables of a record, by name
Tables = Mapping[str, pd.DataFrame]


class Pairs(NamedTuple):
    """Prompt i belongs to key i."""

    prompts: list[list[int]]
    keys: list[Key]

    @property
    def n(self) -> int:
        return len(self.keys)

    def first(self, n: int) -> "Pairs":
        """Return the first n pairs."""
        return Pairs(self.prompts[:n], self.keys[:n])


def draw(
    lm: models.LM,
    kind: str | Path,
    n: int,
    prompt_tokens: int,
    seed: int = 0,
    split: str = "heldout",
) -> Pairs:
    """Draw n prompts of ``prompt_tokens`` tokens (``texts.prompts``), each with a demonstration
    key. The seed decides both. Prompts and keys of the split ``"pilot"`` are the same for every
    seed, and no seed reaches them.
    """
    prompts = texts.prompts(lm, kind, n, prompt_tokens, split=split, seed=seed)
    keys = pilot_keys(n) if split == "pilot" else demonstration_keys(n, seed)
    return Pairs(prompts, keys)


def demonstration_keys(n: int, seed: int) -> list[Key]:
    """Return a key for each of n pairs. No seed reaches the keys of :func:`pilot_keys`."""
    require_int(seed, "seed", least=0)
    # a million numbers per seed: the keys of two seeds never meet
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
    """Return n human passages, each cut into a prompt and its author's continuation: (prompts,
    responses). ``texts.sources`` with the same arguments, and with ``prompt_tokens + n_tokens``
    tokens, names the document of each passage.
    """
    whole = texts.human(
        lm,
        kind,
        n,
        prompt_tokens + n_tokens,
        split=split,
        seed=seed,
    )
    prompts = [ids[:prompt_tokens] for ids in whole]
    responses = [ids[prompt_tokens:] for ids in whole]
    return prompts, responses


def marked_and_plain(
    lm: models.LM, pairs: Pairs, wm: Watermark, n_tokens: int, seed: int = 0, **sampling
) -> tuple[list[list[int]], list[list[int]]]:
    """Write two texts for each pair, one under its key and one by the base model, all in one batch:
    (marked, plain). Sampling is ``top_p, temperature, until_end, batch_size`` of
    ``generate.sample``.
    """
    marks_of_keys = [(wm, key) for key in pairs.keys]
    no_marks = [None] * pairs.n
    responses = generate.sample(
        lm.model,
        [*pairs.prompts, *pairs.prompts],
        n_tokens,
        marks=[*marks_of_keys, *no_marks],
        seed=seed,
        **sampling,
    )
    marked = responses[: pairs.n]
    plain = responses[pairs.n :]
    return marked, plain


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
    """Write a text of each pair by each watermark (all on one weight), in one batch, and test it
    with its own key. Return the texts, and ``score.score``'s table with ``weight, sigma`` and
    ``prompt`` (the pair's number). Sampling as in :func:`marked_and_plain`.

    Raise InvalidWatermarkError if a watermark is on several weights.
    """
    for wm in wms:
        require_single(wm, "a column of σ")
    # texts in order: all pairs under the first watermark, then all under the second, …
    prompts = pairs.prompts * len(wms)
    keys = pairs.keys * len(wms)
    marks = [(wm, key) for wm in wms for key in pairs.keys]
    responses = generate.sample(
        lm.model,
        prompts,
        n_tokens,
        marks=marks,
        seed=seed,
        **sampling,
    )
    # σ cancels in ψ, so any of the watermarks will do
    table = score.score(
        lm.model,
        prompts,
        responses,
        wms[0],
        keys,
        paired=True,
        dtype=dtype,
    )
    wm_number, pair_number = np.divmod(table["text"], pairs.n)
    sigmas = np.array([wm.sigma for wm in wms])
    table = table.assign(
        weight=wms[0].weight,
        sigma=sigmas[wm_number],
        prompt=pair_number,
    )
    return responses, table


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
    """Test each marked text with its own key and with the next pair's key, and each plain text with
    its pair's key: one row per pair, kind and length. There may be no plain texts. Options are
    ``dtype, batch_size`` of ``score.gradients``.

    The columns are those of ``score.score``, with ``prompt`` (the pair's number), ``scheme`` and
    ``kind``; ``text`` counts marked texts first, then plain texts.
    """
    placed, _ = perturb.ready(lm.model, wm, pairs.keys)
    next_keys = pairs.keys[1:] + pairs.keys[:1]
    keys_of_marked = list(zip(pairs.keys, next_keys, strict=True))
    keys_of_plain = [(key,) for key in pairs.keys]
    keys_of_texts = keys_of_marked + keys_of_plain
    gradients = score.gradients(
        lm.model,
        [*pairs.prompts, *pairs.prompts[: len(plain)]],
        [*marked, *plain],
        wm,
        lengths=lengths,
        **options,
    )
    # of each text: two of a marked text, and one of a plain text
    key_ids = [[key.key_id for key in keys] for keys in keys_of_texts]
    table = score.table(_tested(gradients, placed, keys_of_texts), key_ids)
    table = table.assign(
        prompt=table["text"] % pairs.n,
        scheme="rank-reduced" if wm.rank_dropped else "GaussMark",
    )

    is_plain = table["text"] >= pairs.n
    # a marked text has two rows per length: under its own key, and under the next
    is_second = table.groupby(["text", "n_tokens"]).cumcount() == 1
    own_rows = table[~is_plain & ~is_second].assign(kind=OWN)
    wrong_rows = table[is_second].assign(kind=WRONG)
    plain_rows = table[is_plain].assign(kind=PLAIN)
    return pd.concat([own_rows, wrong_rows, plain_rows], ignore_index=True)


def _tested(
    gradients: Iterable[TextGradient], wm: PlacedWatermark, keys: Sequence[Sequence[Key]]
) -> Iterator[tuple[TextGradient, np.ndarray]]:
    """Each gradient and its ψ under the keys of its text. The keys' noises are drawn once for all
    lengths of a text.
    """
    for text, group in groupby(gradients, key=attrgetter("text")):
        gradients_of_text = list(group)  # one per length
        psis = score.psi(gradients_of_text, wm, keys[text])
        yield from zip(gradients_of_text, psis, strict=True)


def numbering(table: pd.DataFrame, column: str) -> list[str]:
    """Return the columns that name a pair: its number, and in a pooled record its document too."""
    return [column, DOCUMENT] if _names_documents(table) else [column]


def _names_documents(table: pd.DataFrame) -> bool:
    return DOCUMENT in table and bool(table[DOCUMENT].notna().all())


def over_pairs(
    rows: pd.Series | pd.DataFrame, statistic: Callable | None = None, **options
) -> stats.Estimate:
    """Estimate from one row per pair (``stats.interval``), where the index is :func:`numbering`.

    The pairs of one run count as independent. In a pooled record, several seeds took prompts from
    the same documents. The interval is over documents there, or over pairs if that is wider; n
    always counts pairs.
    """
    values = rows.to_numpy()
    documents = _documents(rows)
    over_rows = stats.interval(values, statistic, **options)
    if documents is None:
        return over_rows
    over_documents = stats.interval(values, statistic, cluster=documents, **options)
    wider = max(over_rows, over_documents, key=_width)
    return replace(wider, n=len(rows))


def ratio_over_pairs(numerator: pd.Series, denominator: pd.Series) -> stats.Estimate:
    """Divide two means (``stats.ratio``) over pairs, as :func:`over_pairs` does."""
    both_columns = pd.DataFrame({"numerator": numerator, "denominator": denominator})
    return over_pairs(both_columns, stats.ratio_of_means)


def _width(estimate: stats.Estimate) -> float:
    return estimate.high - estimate.low


def times_wider(numbers: pd.Series) -> float:
    """Return how many times as wide the interval of a mean is because pairs share documents: at
    least 1, and 1 where no documents are named.
    """
    documents = _documents(numbers)
    if documents is None:
        return 1.0
    by_documents = stats.mean(numbers, cluster=documents)
    by_pairs = stats.mean(numbers)
    return float(
        np.fmax(_width(by_documents) / _width(by_pairs), 1.0)
    )  # NaN where all numbers agree


def _documents(rows: pd.Series | pd.DataFrame) -> pd.Index | None:
    return rows.index.get_level_values(DOCUMENT) if DOCUMENT in rows.index.names else None


def means(
    table: pd.DataFrame, by: Sequence[str], column: str, cluster: str | None = None, **options
) -> pd.DataFrame:
    """Return the mean of a column, or the share of True, in each cell of the columns ``by``. The
    table has these columns and ``value, low, high, n``.

    The rows of a cell are independent, or the column ``cluster`` names independent clusters. In a
    pooled record, the interval is over documents, and n counts rows (:func:`over_pairs`).
    ``options`` are those of ``stats.interval``.
    """
    rows = []
    for values, cell in table.groupby(list(by), sort=False):
        if cluster is None and _names_documents(cell):
            estimate = over_pairs(cell.set_index(DOCUMENT)[column], **options)
        else:
            labels = cell[cluster] if cluster else None  # None: rows are independent
            estimate = stats.interval(cell[column], cluster=labels, **options)
        cell_name = dict(zip(by, values, strict=True))
        rows.append(cell_name | estimate.row())
    return pd.DataFrame(rows)


def shares(table: pd.DataFrame, by: Sequence[str], level: float) -> pd.DataFrame:
    """Return the share of texts with p ≤ level in each cell of the columns ``by``."""
    is_detected = table["p_value"] <= level
    return means(table.assign(detected=is_detected), by, "detected")
