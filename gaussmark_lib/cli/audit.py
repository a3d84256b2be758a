"""The calibration card of a key: what its owner should know before using it. It holds nothing that
gives the key away.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from gaussmark_lib import joint, models, score, stats, texts, verdict
from gaussmark_lib.keys import Key

KINDS = ["docs", "licences", "source"]
N_PROMPT = 32  # tokens before each text
COLUMNS = {
    "this key, ψ": "share of the kind's texts that this key calls marked, each by its own ψ",
    "this key, r": "the same by innovations: what each text says that the ones before it had not",
    "n": "texts of the kind",
    "keys": "other keys, drawn at random; mean, sd, q95 and max are over them",
    "mean": "mean over the other keys of the share that one key calls marked by ψ",
    "sd": "its standard deviation",
    "sd binomial": "that standard deviation if tests were independent",
    "q95 ψ": "its 95th percentile",
    "max ψ": "its greatest value",
    "q95 r": "95th percentile over the other keys of the share by innovations",
    "max r": "its greatest value",
}


def card(
    key_file: str, model: str, kinds: Sequence[str], n_texts: int, n_tokens: int, n_keys: int
) -> dict[str, Any]:
    """Power by length and false alarms by kind of human text, as data."""
    key = Key.load(key_file)
    wm = key.watermark  # refuses an unbound key before the model is loaded
    lm = models.load(model)
    lengths = sorted({n_tokens // 4, n_tokens // 2, n_tokens})
    keys, rows, power = [key, *map(Key.from_seed, range(n_keys))], {}, {}
    for kind in tqdm(kinds, desc="auditing", file=sys.stderr, leave=False, disable=None):
        human = texts.human(lm, kind, n_texts, N_PROMPT + n_tokens)
        pairs = [ids[:N_PROMPT] for ids in human], [ids[N_PROMPT:] for ids in human]
        rows[kind] = of_kind(joint.sequence(lm.model, *pairs, wm, keys))
        if not power:
            by_length = score.score(lm.model, *pairs, wm, [key], lengths=lengths)
            for n, norms in by_length.groupby("n_tokens")["grad_norm"]:
                power[str(n)] = stats.predicted_power(norms, wm.sigma, verdict.LEVEL)
    about = {"key_id": key.key_id, "weight": wm.weight, "sigma": wm.sigma, "level": verdict.LEVEL}
    return about | {"power by tokens": power, "columns": COLUMNS, "kinds": rows}


def of_kind(table: pd.DataFrame) -> dict[str, float]:
    """What the first key does to texts of a kind, and beside it what the other keys do; ``table``
    is ``joint.sequence``'s of the texts and all keys.
    """
    n = table["text"].nunique()
    marked = table[["psi", "innovation"]].to_numpy() >= stats.threshold(verdict.LEVEL)
    before, after = marked.reshape(n, -1, 2).mean(0).T  # a share of texts for each key
    return {
        "this key, ψ": float(before[0]),
        "this key, r": float(after[0]),
        "n": n,
        "keys": len(before) - 1,
        "mean": float(before[1:].mean()),
        "sd": float(before[1:].std()),
        "sd binomial": float(np.sqrt(verdict.LEVEL * (1 - verdict.LEVEL) / n)),
        "q95 ψ": float(np.quantile(before[1:], 0.95)),
        "max ψ": float(before[1:].max()),
        "q95 r": float(np.quantile(after[1:], 0.95)),
        "max r": float(after[1:].max()),
    }


def headline(card: dict[str, Any]) -> str:
    kind, worst = max(card["kinds"].items(), key=lambda item: item[1]["this key, ψ"])
    return (
        f"key {card['key_id']} calls {worst['this key, ψ']:.0%} of {kind} marked at level"
        f" {card['level']}, and {worst['this key, r']:.0%} of them as a stream (`detect --stream`)"
    )
