"""What an edit takes from a watermark, and why (paper, Sec. "Is GaussMark robust?").

    ψ = ⟨ξ, G⟩ / (σ‖G‖):   signal  = ⟨ξ, G⟩/σ = ψ‖G‖,   norm = ‖G‖

A deleted token takes its part of both with it. If all tokens were alike and context did not matter,
deleting a share f of them would leave 1 − f of the signal and √(1 − f) of the norm and of ψ. An
inserted random token adds nothing to the signal; but it is very unlikely, so its gradient is large
and adds to the norm. It also changes the context of every token after it.

An edit does not know the key, so the level holds over keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from scipy.stats import binom

from gaussmark_lib import corrupt, models, score, stats
from gaussmark_lib.beyond import schemes
from gaussmark_lib.beyond.schemes import GaussMark
from gaussmark_lib.corrupt import Change
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.scheme import Scheme
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench import (
    record,
    rewrite,  # noqa: F401 - registers edits that need a model
)
from gaussmark_lib.workbench.begin import solved
from gaussmark_lib.workbench.pairs import Pairs, shares
from gaussmark_lib.workbench.plots.panels import panels

UNEDITED, LOST = "unedited", "predicted"
PARTS = {"signal": "signal ⟨ξ, G⟩/σ", "norm": "norm ‖G‖", "psi": "ψ"}
LEVELS = (0.05, 0.01)
PEOPLE = ("retokenise", "resample spans", "substitute own tokens")  # edits that people make


def unedited(prompts: Texts, responses: Texts, fraction: float, seed: int) -> corrupt.Pairs:
    """The corruption that does nothing."""
    return prompts, responses


def quoted(hosts: Texts) -> Change:
    """A corruption: each response stands unchanged in a gap of a human text, its host; the given
    fraction of the result is the host's, which must be long enough.
    """

    def change(prompts: Texts, responses: Texts, fraction: float, seed: int) -> corrupt.Pairs:
        out = []
        for i, (response, host) in enumerate(zip(responses, hosts, strict=True)):
            n = round(len(response) * fraction / (1 - fraction))
            at = int(torch.randint(n + 1, (1,), generator=corrupt.generator(seed, i)))
            out.append([*host[:at], *response, *host[at:n]])
        return [list(ids) for ids in prompts], out

    return change


def candidates(
    lm: models.LM,
    names: Sequence[str],
    wm: Watermark,
    pairs: Pairs,
    n_tokens: int,
    *,
    psi: float,
    rank_dropped: int | None = None,
    dtype: str | None = None,
    **options,
) -> dict[str, Scheme]:
    """The registered schemes of these names. The rank-reduced one, by default without half of all
    directions, has a σ for the same ψ; token keys mark a small late matrix.
    """
    small = models.default_weight(lm.model, block=-1, small=True)
    marks = {name: Watermark(small, wm.sigma) for name in names if name.startswith("token keys")}
    if "rank-reduced" in names:
        k = rank_dropped or min(wm.on(lm.model).linear.shape) // 2
        reduced = replace(wm, rank_dropped=k)
        marks["rank-reduced"] = solved(lm, pairs.prompts, n_tokens, reduced, psi, **options)
    made = {}
    for name in names:
        scheme = schemes.named(marks.get(name, wm), pairs.keys[0], [name])[name]
        made[name] = replace(scheme, dtype=dtype) if isinstance(scheme, GaussMark) else scheme
    return made


def edited(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    pairs: Pairs,
    texts: Mapping[str, Texts],
    changes: Mapping[str, Change],
    fractions: Sequence[float],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """Each scheme's test of its own texts under their keys, after each edit at each strength:
    ``scheme, edit, fraction, pair, p_value, psi`` (the scheme's statistic), ``norm`` and ``signal``
    (NaN where a scheme has none). Without an edit, the fraction is 0 and the edit ``UNEDITED``.
    """
    tables = []
    every = {UNEDITED: unedited, **changes}
    strengths = [(UNEDITED, 0.0), *product(changes, fractions)]
    for (name, scheme), (edit, fraction) in product(tried.items(), strengths):
        x, y = every[edit](pairs.prompts, texts[name], fraction, seed)
        table = scheme.score(lm.model, x, y, pairs.keys)
        norm = table.get("grad_norm", np.nan)
        columns = {"scheme": name, "edit": edit, "fraction": fraction, "pair": range(pairs.n)}
        columns |= {"p_value": table["p_value"], "psi": table["statistic"]}
        tables.append(pd.DataFrame(columns).assign(norm=norm, signal=table["statistic"] * norm))
    return pd.concat(tables, ignore_index=True)


def with_start(table: pd.DataFrame) -> pd.DataFrame:
    """The unedited texts as fraction 0 of each edit, for lines that begin there."""
    start = table[table["edit"] == UNEDITED]
    edits = [edit for edit in table["edit"].unique() if edit != UNEDITED]
    starts = [start.assign(edit=edit) for edit in edits]
    return pd.concat([*starts, table[table["edit"] != UNEDITED]], ignore_index=True)


def power_figure(
    table: pd.DataFrame, name: str, x: str, caption: str, title: str, **options
) -> Figure:
    """The share of texts detected at level 0.05 against the column x, kept in the record as
    ``name``; options are those of ``panels``.
    """
    drawn = panels(
        shares(table, ["scheme", "edit", "fraction"], 0.05),
        x,
        at={"level": 0.05},
        ylabel="texts detected at level 0.05",
        ylim=(-0.03, 1.03),
        title=title,
        caption=caption,
        **options,
    )
    return record.save_figure(drawn, name)


def parts(table: pd.DataFrame) -> pd.DataFrame:
    """Mean signal, norm and ψ of one scheme's texts over their means without an edit: ``edit,
    fraction, part, value, low, high, n``; and what they would be if tokens were lost and nothing
    else happened.
    """
    rows = []
    start = table[table["edit"] == UNEDITED]
    for (edit, fraction), after in with_start(table).groupby(["edit", "fraction"], sort=False):
        for part, label in PARTS.items():
            share = stats.ratio(after[part].to_numpy(), start[part].to_numpy())
            rows.append({"edit": edit, "fraction": fraction, "part": label} | share.row())
    for fraction, (part, label) in product(sorted({0.0, *table["fraction"]}), PARTS.items()):
        left = (1 - fraction) ** (1 if part == "signal" else 0.5)
        rows.append({"edit": LOST, "fraction": fraction, "part": label, "value": left})
    return pd.DataFrame(rows)


def toy(lost: float, added: float, surprise: float) -> float:
    """ψ after over ψ before, of a toy text of 100 tokens: each token's gradient is a random vector,
    the key's noise leans as much towards each of them, and contexts do not exist.

    A share ``lost`` of the tokens is taken away, and ``added`` · 100 others are put in, which the
    noise does not know, with squared norms ``surprise`` times as large.
    """
    n_tokens, dimension, rng = 100, 20_000, np.random.default_rng(0)
    own = rng.normal(size=(n_tokens, dimension)) / dimension**0.5
    others = rng.normal(size=(round(added * n_tokens), dimension)) * (surprise / dimension) ** 0.5
    xi, before = own.sum(0), own.sum(0)
    after = own[round(lost * n_tokens) :].sum(0) + others.sum(0)
    return float((xi @ after) / np.linalg.norm(after) / (xi @ before) * np.linalg.norm(before))


def false_alarms(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    prompts: Texts,
    human: Texts,
    changes: Mapping[str, Change],
    fraction: float,
    *,
    keys_per_text: int = 1,
    seed: int = 0,
) -> pd.DataFrame:
    """The realised level after each edit of unwatermarked texts, under keys that no other text
    has. Given the text, each key is an independent coin, so the count over all pairs is binomial.

    Returns:
        ``scheme, edit, level, value, low, high, n`` (exact 99% interval), and ``p_excess`` =
        P(Binomial(n, level) ≥ alarms). Rows share texts and keys.
    """
    versions = {edit: change(prompts, human, fraction, seed) for edit, change in changes.items()}
    rows = []
    for name, scheme in tried.items():
        found = []
        for i in range(len(human)):
            x, y = ([texts[which][i] for texts in versions.values()] for which in (0, 1))
            first = 1_000_000 * seed + 500_000 + i * keys_per_text
            fresh = [Key.from_seed(first + j) for j in range(keys_per_text)]
            found.append(p_values(lm, scheme, x, y, fresh))
        for edit, p in zip(versions, np.concatenate(found, axis=1), strict=True):
            for level in LEVELS:
                alarms = p <= level
                excess = binom.sf(alarms.sum() - 1, alarms.size, level)
                row = {"scheme": name, "edit": edit, "level": level, "p_excess": excess}
                rows.append(row | stats.interval(alarms.ravel(), confidence=0.99).row())
    return pd.DataFrame(rows)


def p_values(
    lm: models.LM, scheme: Scheme, prompts: Texts, responses: Texts, keys: Sequence[Key]
) -> np.ndarray:
    """(texts, keys); GaussMark's keys share the gradients."""
    if isinstance(scheme, GaussMark):
        table = score.score(lm.model, prompts, responses, scheme.wm, keys, dtype=scheme.dtype)
        return table["p_value"].to_numpy().reshape(len(responses), len(keys))
    n, k = len(responses), len(keys)
    of_each = [key for key in keys for _ in range(n)]  # all texts of a key together
    table = scheme.score(lm.model, list(prompts) * k, list(responses) * k, of_each)
    return table["p_value"].to_numpy().reshape(k, n).T
