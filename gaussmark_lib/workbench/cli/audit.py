"""The calibration card of a key: its false-alarm rate on human texts of each kind, and a p-value
threshold for each kind. The card reveals nothing about the key.

Let p_(k) be the k-th smallest p-value of n texts of a kind under this key. A further text of the
kind has p < p_(k) with probability at most k/(n + 1), over all n + 1 texts. Given these n texts,
this probability is Beta(k, n + 1 − k). So the threshold for a level α is p_(k) with
k = ⌊α(n + 1)⌋. If α itself is smaller, α is the threshold, and the false-alarm rate is the measured
one.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import beta, norm
from tqdm import tqdm

from gaussmark_lib import models, stats, texts
from gaussmark_lib.beyond import joint, schemes
from gaussmark_lib.engine import packages
from gaussmark_lib.engine.blocks import in_lists
from gaussmark_lib.keys import Key
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.workbench import verdict, words

KINDS = ["docs", "licences", "source"]
OURS = "GaussMark"
N_PROMPT = 32  # tokens before each text
COLUMNS = {
    "this key": "share of the kind's texts that this key flags at the level, with its interval over"
    " texts",
    "threshold": "p-value threshold that holds the level on texts of this kind; 0: too few texts",
    "level there": "expected false-alarm rate at the threshold on further texts of the kind, with"
    " its 95% interval given these texts",
    "this key, stream": "the same share, if each text is tested only for new evidence (`gaussmark"
    " stream`)",
    "ψ for one in a million": "mean + 4.75 standard deviations of this key's ψ, if ψ is normal over"
    " texts of the kind; over keys it is 4.75",
    "keys": "number of random comparison keys, described by the remaining columns",
    "mean": "mean over these keys of the share of texts that a key flags",
    "sd": "standard deviation of this share over these keys",
    "sd binomial": "that standard deviation if tests were independent",
}


def card(
    key_file: Path,
    model: str,
    kinds: Sequence[str],
    n_texts: int,
    n_tokens: int,
    n_keys: int,
    scheme: str = OURS,
) -> dict[str, Any]:
    """Measure the false alarms of a key on each kind of human text."""
    key = Key.load(key_file)
    wm = key.watermark  # refuses an unbound key before the model is loaded
    [(scheme, tested)] = schemes.named(wm, key, [scheme]).items()  # without its module
    lm = models.load(model)
    keys = [key, *map(Key.from_seed, range(n_keys))]
    rows = {}
    for kind in kinds or default_kinds(lm):
        human = texts.human(lm, kind, n_texts, N_PROMPT + n_tokens)
        with tqdm(human, f"auditing {kind}", unit=" texts", leave=False, disable=None) as bar:
            if scheme == OURS:
                rows[kind] = of_kind(as_stream(lm, bar, wm, keys))
                continue
            prompts = [ids[:N_PROMPT] for ids in human]
            responses = [ids[N_PROMPT:] for ids in human]
            rows[kind] = of_key(tested.score(lm.model, prompts, responses)["p_value"])
    about = {"key_id": key.key_id, "scheme": scheme, "level": verdict.LEVEL, "tokens": n_tokens}
    if scheme == OURS:
        about |= {"model": lm.name, "weight": wm.weight, "sigma": wm.sigma}
    columns = {name: COLUMNS[name] for row in rows.values() for name in row}
    return about | {"columns": columns, "kinds": rows}


def as_stream(
    lm: models.LM, human: Iterable[list[int]], wm: Watermark, keys: Sequence[Key]
) -> pd.DataFrame:
    """Return the table of ``joint.sequence`` for the texts. They are read a few at a time, so that
    a bar over them moves.
    """
    state = joint.State()
    tables = []
    for few in in_lists(human, joint.stream.AT_ONCE):
        prompts = [ids[:N_PROMPT] for ids in few]
        responses = [ids[N_PROMPT:] for ids in few]
        n_before = state.n_texts
        table = joint.sequence(lm.model, prompts, responses, wm, keys, state=state)
        tables.append(table.assign(text=table["text"] + n_before))
    return pd.concat(tables, ignore_index=True)


def default_kinds(lm: models.LM) -> list[str]:
    """Return the default kinds of human text for a model."""
    if lm.name == models.EMBEDDED:
        return KINDS
    installed = [entry.name for entry in packages.TEXTS.values() if packages.is_installed(entry)]
    return [*installed, *KINDS]


def of_key(p: pd.Series) -> dict[str, Any]:
    """Return the columns that describe a key, given the p-values of texts of a kind."""
    n = len(p)
    level = verdict.LEVEL
    measured = stats.interval(p.to_numpy() <= level)
    k = int(level * (n + 1) + 1e-9)
    kth = sorted(p)[k - 1] if k else 0.0  # p_(k)
    if kth > level:  # α itself is the threshold
        at_threshold = measured
    else:
        low, high = beta.ppf([0.025, 0.975], k, n + 1 - k) if k else (0.0, 1.0)
        at_threshold = stats.Estimate(k / (n + 1), low, high, n)
    return {
        "this key": measured.row(),
        "threshold": min(level, kth),
        "level there": at_threshold.row(),
    }


def of_kind(table: pd.DataFrame) -> dict[str, Any]:
    """Return the columns that describe the first key, and compare it with the other keys.

    ``table`` is that of ``joint.sequence`` for the texts of a kind and all keys.
    """
    n = table["text"].nunique()
    is_flagged = table[["psi", "innovation"]].to_numpy() >= stats.threshold(verdict.LEVEL)
    by_psi, by_innovation = is_flagged.reshape(n, -1, 2).transpose(2, 1, 0)  # (keys, texts) each
    of_first = table[table["key_id"] == table["key_id"].iloc[0]]
    psi = of_first["psi"]
    shares = by_psi[1:].mean(1)  # of texts, for each of the other keys
    return of_key(of_first["p_value"]) | {
        "this key, stream": stats.interval(by_innovation[0]).row(),
        "ψ for one in a million": psi.mean() + norm.isf(1e-6) * psi.std(),
        "keys": len(shares),
        "mean": shares.mean(),
        "sd": shares.std(),
        "sd binomial": np.sqrt(verdict.LEVEL * (1 - verdict.LEVEL) / n),
    }


def headline(card: Mapping[str, Any]) -> str:
    """Return the largest false-alarm rate of the card in a sentence."""
    n = len(card["kinds"])
    comparison = f": the largest rate of {n} kinds" if n > 1 else ""
    kind, worst = max(card["kinds"].items(), key=lambda item: item[1]["this key"]["value"])
    return (
        f"{card['scheme']}'s key {card['key_id']} flags {_share(worst['this key'])} of human {kind}"
        f" at level {card['level']}{comparison}"
    )


def table(card: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the card's first columns, for a terminal."""
    lines = []
    for kind, row in card["kinds"].items():
        line = {
            "kind": kind,
            "texts": str(row["this key"]["n"]),
            "flagged": _share(row["this key"]),
            "p-value threshold": f"{row['threshold']:.2g}",
            "false alarms there": _share(row["level there"]),
        }
        if "this key, stream" in row:
            line["as a stream"] = _share(row["this key, stream"])
        lines.append(line)
    return lines


def _share(estimate: Mapping[str, Any]) -> str:
    value, basis = words.estimate(estimate, as_percent=True)
    return f"{value} {basis.partition(', n')[0]}"
