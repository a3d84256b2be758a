"""The calibration card of a key: how often it calls human texts marked, kind by kind, and at which
p it holds the level on each. It holds nothing that gives the key away.

Of n texts of a kind let p_(k) be the k-th smallest p-value under this key. A further text of the
kind has p < p_(k) with probability at most k/(n + 1), over all n + 1 texts, and for these n texts
this probability is Beta(k, n + 1 − k). So the threshold for a level α is the p_(k) with
k = ⌊α(n + 1)⌋, or α itself if that is smaller; then the false alarms are those that were measured.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import beta, norm
from tqdm import tqdm

from gaussmark_lib import models, stats, texts
from gaussmark_lib.beyond import joint, schemes
from gaussmark_lib.engine import packages
from gaussmark_lib.keys import Key
from gaussmark_lib.workbench import verdict, words

KINDS = ["docs", "licences", "source"]
OURS = "GaussMark"
N_PROMPT = 32  # tokens before each text
COLUMNS = {
    "this key": "share of the kind's texts that this key calls marked at the level, with its"
    " interval over texts",
    "threshold": "the level is held on texts of this kind by p below it; 0: too few texts to say",
    "level there": "false alarms below the threshold on further texts of the kind: expected, with"
    " 95% of what these texts allow",
    "this key, stream": "the same share by innovations: what each text says that the ones before it"
    " had not (`gaussmark stream`)",
    "ψ for one in a million": "mean + 4.75 standard deviations of this key's ψ, if ψ is normal over"
    " texts of the kind; 4.75 over keys",
    "keys": "other keys, drawn at random, of which the rest speaks",
    "mean": "mean over them of the share that one key calls marked",
    "sd": "its standard deviation",
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
    """False alarms of a key by kind of human text, as data."""
    key = Key.load(key_file)
    wm = key.watermark  # refuses an unbound key before the model is loaded
    [tested] = schemes.named(wm, key, [scheme]).values()
    lm = models.load(model)
    keys, rows = [key, *map(Key.from_seed, range(n_keys))], {}
    for kind in tqdm(
        kinds or default_kinds(lm), desc="auditing", file=sys.stderr, leave=False, disable=None
    ):
        human = texts.human(lm, kind, n_texts, N_PROMPT + n_tokens)
        pairs = [ids[:N_PROMPT] for ids in human], [ids[N_PROMPT:] for ids in human]
        if scheme == OURS:
            rows[kind] = of_kind(joint.sequence(lm.model, *pairs, wm, keys))
        else:
            rows[kind] = of_key(tested.score(lm.model, *pairs)["p_value"])
    about = {"key_id": key.key_id, "scheme": scheme, "level": verdict.LEVEL, "tokens": n_tokens}
    about |= {"model": lm.name, "weight": wm.weight, "sigma": wm.sigma} if scheme == OURS else {}
    shown = {name: COLUMNS[name] for row in rows.values() for name in row}
    return about | {"columns": shown, "kinds": rows}


def default_kinds(lm: models.LM) -> list[str]:
    """The kinds of human text that suit a model where nobody names any."""
    if lm.name == models.EMBEDDED:
        return KINDS
    entries = packages.TEXTS.values()
    return [*(entry.name for entry in entries if packages.is_installed(entry)), *KINDS]


def of_key(p: pd.Series) -> dict[str, Any]:
    """What a key does to texts of a kind, from their p-values."""
    n, level = len(p), verdict.LEVEL
    k = int(level * (n + 1) + 1e-9)
    ends = beta.ppf([0.025, 0.975], k, n + 1 - k) if k else (0.0, 1.0)
    own = stats.interval(p.to_numpy() <= level)
    kth = sorted(p)[k - 1] if k else 0.0
    there = own if kth > level else stats.Estimate(k / (n + 1), *ends, n)
    return {"this key": own.row(), "threshold": min(level, kth), "level there": there.row()}


def of_kind(table: pd.DataFrame) -> dict[str, Any]:
    """The same of a GaussMark key, the first, and beside it what the other keys do; ``table`` is
    ``joint.sequence``'s of the texts and all keys.
    """
    n = table["text"].nunique()
    marked = table[["psi", "innovation"]].to_numpy() >= stats.threshold(verdict.LEVEL)
    by_psi, by_innovation = marked.reshape(n, -1, 2).transpose(2, 1, 0)  # (keys, texts) each
    own = table[table["key_id"] == table["key_id"].iloc[0]]
    others = by_psi[1:].mean(1)  # a share of texts for each key
    return of_key(own["p_value"]) | {
        "this key, stream": stats.interval(by_innovation[0]).row(),
        "ψ for one in a million": own["psi"].mean() + norm.isf(1e-6) * own["psi"].std(),
        "keys": len(others),
        "mean": others.mean(),
        "sd": others.std(),
        "sd binomial": np.sqrt(verdict.LEVEL * (1 - verdict.LEVEL) / n),
    }


def headline(card: Mapping[str, Any]) -> str:
    n = len(card["kinds"])
    of_all = f": the worst of {n} kinds" if n > 1 else ""
    kind, worst = max(card["kinds"].items(), key=lambda item: item[1]["this key"]["value"])
    return (
        f"{card['scheme']}'s key {card['key_id']} calls {_share(worst['this key'])} of human {kind}"
        f" marked at level {card['level']}{of_all}"
    )


def table(card: Mapping[str, Any]) -> list[dict[str, str]]:
    """The card's first columns, for a terminal."""
    return [
        {
            "kind": kind,
            "texts": str(row["this key"]["n"]),
            "called marked": _share(row["this key"]),
            "level held by p below": f"{row['threshold']:.2g}",
            "false alarms expected there": _share(row["level there"]),
        }
        | ({"as a stream": _share(row["this key, stream"])} if "this key, stream" in row else {})
        for kind, row in card["kinds"].items()
    ]


def _share(estimate: Mapping[str, Any]) -> str:
    value, basis = words.estimate(estimate, as_percent=True)
    return f"{value} {basis.partition(', n')[0]}"
