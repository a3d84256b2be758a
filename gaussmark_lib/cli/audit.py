"""The calibration card of a key: what its owner should know before using it. It holds nothing that
gives the key away.
"""

import json
import os
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from gaussmark_lib import joint, models, score, stats, texts, verdict
from gaussmark_lib.errors import GaussMarkError
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


def new_files(name: str) -> list[Path]:
    """The card's two files: they are new, and can be written."""
    if not os.path.basename(name):
        raise GaussMarkError(f"expected a name for the card, got {name!r}")
    files = [Path(f"{name}.{ending}") for ending in ("json", "html")]
    if existing := [str(file) for file in files if os.path.lexists(file)]:
        raise GaussMarkError(f"{existing[0]} exists; expected a new name for the card")
    for file in files:
        try:
            file.touch()
            file.unlink()
        except OSError as error:
            raise GaussMarkError(
                f"cannot write {file}: {error.strerror}; expected a name in a folder that can be"
                " written to"
            ) from None
    return files


def card(
    key_file: str, model: str, kinds: Sequence[str], n_texts: int, n_tokens: int, n_keys: int
) -> dict[str, Any]:
    """Power by length and false alarms by kind of human text, as data."""
    key = Key.load(key_file)
    wm = key.watermark  # refuses an unbound key before the model is loaded
    lm = models.load(model)
    lengths = sorted({max(1, n_tokens // 4), max(1, n_tokens // 2), n_tokens})
    keys, rows, power = [key, *map(Key.from_seed, range(n_keys))], {}, {}
    for kind in tqdm(kinds, desc="auditing", file=sys.stderr, leave=False, disable=None):
        human = texts.human(lm, kind, n_texts, N_PROMPT + n_tokens)
        pairs = [ids[:N_PROMPT] for ids in human], [ids[N_PROMPT:] for ids in human]
        rows[kind] = of_kind(joint.sequence(lm.model, *pairs, wm, keys), wm.sigma)
        if not power:
            by_length = score.score(lm.model, *pairs, wm, [key], lengths=lengths)
            for n, of_length in by_length.groupby("n_tokens"):
                power[str(n)] = stats.predicted_power(
                    of_length["grad_norm"], wm.sigma, verdict.LEVEL
                )
    about = {"key_id": key.key_id, "weight": wm.weight, "sigma": wm.sigma, "level": verdict.LEVEL}
    return about | {"power by tokens": power, "columns": COLUMNS, "kinds": rows}


def of_kind(table: pd.DataFrame, sigma: float) -> dict[str, float]:
    """What the first key does to texts of a kind, and beside it what the other keys do; ``table``
    is ``joint.sequence``'s of the texts and all keys.
    """
    n = table["text"].nunique()
    own = table.iloc[:: len(table) // n].drop(columns="p_given").to_dict("records")
    outcomes = [verdict.of(row, sigma)["verdict"] for row in own]
    marked = table[["psi", "innovation"]].to_numpy() >= stats.threshold(verdict.LEVEL)
    before, after = marked.reshape(n, -1, 2).mean(0).T  # a share of texts for each key
    return {
        "this key, ψ": outcomes.count("detected") / n,
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


def page(card: dict[str, Any]) -> str:
    """The card as a page of HTML that needs nothing else."""
    kinds = pd.DataFrame(card["kinds"]).T.to_html(float_format="{:.3f}".format)
    power = pd.Series(card["power by tokens"], name="predicted power").to_frame()
    title = f"Key {card['key_id']}: false alarms of this key, and of others, on human text"
    about = f"{escape(card['weight'])}, σ = {card['sigma']:.3g}, level {card['level']}"
    columns = "".join(f"<dt>{name}</dt><dd>{what}</dd>" for name, what in card["columns"].items())
    return (
        f"<!doctype html><html><head><meta charset='utf-8'><title>{title}</title></head><body>"
        f"<h1>{title}</h1><p>{about}</p>"
        f"{power.rename_axis('tokens').to_html(float_format='{:.2f}'.format)}{kinds}"
        f"<dl>{columns}</dl></body></html>"
    )


def write(files: Sequence[Path], card: dict[str, Any]) -> None:
    """Both files, or none where the disk is full."""
    try:
        for file, text in zip(files, (json.dumps(card, indent=1), page(card)), strict=True):
            file.write_text(text, encoding="utf-8")
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        raise


def headline(card: dict[str, Any]) -> str:
    kind, worst = max(card["kinds"].items(), key=lambda item: item[1]["this key, ψ"])
    return (
        f"key {card['key_id']} calls {worst['this key, ψ']:.0%} of {kind} marked at level"
        f" {card['level']}, and {worst['this key, r']:.0%} of them as a stream (`detect --stream`)"
    )
