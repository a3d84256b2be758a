"""Does the watermark make text repeat itself, or end sooner?

distinct-n  = different n-grams / n-grams                      (Li et al. 2016)
seq-rep-n   = 1 − distinct-n                                   (Welleck et al. 2020)
length      = tokens before the first end token, or all of them
"""

from collections.abc import Collection, Sequence

import pandas as pd

from gaussmark_lib.tokens import Texts


def distinct(response: Sequence[int], n: int) -> float:
    """Share of a text's n-grams that differ from all before them; nan for a text shorter than n.

    >>> distinct([5, 6, 5, 6, 5], 2)
    0.5
    """
    grams = [tuple(response[i : i + n]) for i in range(len(response) - n + 1)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def until_end(response: Sequence[int], ends: Collection[int]) -> list[int]:
    """The tokens before the first end token; all of them where there is none.

    >>> until_end([7, 8, 0, 9], {0})
    [7, 8]
    """
    stop = next((i for i, token in enumerate(response) if token in ends), len(response))
    return list(response[:stop])


def table(responses: Texts, ends: Collection[int]) -> pd.DataFrame:
    """One row per text: ``distinct_1, distinct_2, seq_rep_4`` over the whole response, ``length``
    and ``ended`` at its first end token.

    Give responses of one length, sampled through their end tokens: distinct-n falls with length.
    """
    rows = []
    for response in responses:
        length = len(until_end(response, ends))
        one, two, four = (distinct(response, n) for n in (1, 2, 4))
        rows.append([one, two, 1 - four, length, length < len(response)])
    return pd.DataFrame(rows, columns=["distinct_1", "distinct_2", "seq_rep_4", "length", "ended"])
