"""What detection survives: every scheme × every corruption (paper, Sec. "Is GaussMark robust?").

Texts are written once (``written_and_scored.written``) and then corrupted more and more; plain
texts too, as the negative control and for the ROC. Schemes are compared by their p-values, which
are exact. A corruption does not know the key, so the level holds; what falls is the power.

The level holds over keys. Under one key, texts that were edited in one way may share a direction u
= mean of G/‖G‖, and then their ψ rise and fall together: the mean ψ of n texts is N(0, ‖u‖²) over
keys, with ‖u‖ = 1/√n only where gradients are orthogonal (:func:`one_key`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from scipy.stats import binom

from gaussmark_lib import models, perturb, schemes, score, stats
from gaussmark_lib.corrupt import Change, Pairs
from gaussmark_lib.experiments import crossed
from gaussmark_lib.experiments.crossed import LEVELS
from gaussmark_lib.experiments.written_and_scored import OWN, PLAIN, labelled
from gaussmark_lib.scheme import Scheme
from gaussmark_lib.tokens import Texts

STRENGTH = ["corruption", "fraction"]
COLUMNS = [
    "scheme",
    "key_id",
    *STRENGTH,
    "kind",
    "prompt",
    "n_tokens",
    "statistic",
    "p_value",
    "log10_p",
    "grad_norm",
]


def candidates(
    names: Sequence[str],
    wm: perturb.Watermark,
    key: perturb.Key,
    *,
    others: Mapping[str, perturb.Watermark] | None = None,
    dtype: str | None = None,
) -> dict[str, Scheme]:
    """The registered schemes of these names, each with its watermark of ``others`` or else ``wm``;
    GaussMark is scored in ``dtype``.
    """
    made = {name: schemes.named((others or {}).get(name, wm), key, [name])[name] for name in names}
    return {
        name: replace(scheme, dtype=dtype) if isinstance(scheme, schemes.GaussMark) else scheme
        for name, scheme in made.items()
    }


def measure(
    lm: models.LM,
    keyed: Sequence[Scheme],
    prompts: Texts,
    texts: Sequence[Texts],
    plain: Texts,
    chosen: dict[str, Change],
    fractions: Sequence[float],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """Corrupts the texts of each keyed scheme, and plain texts, and tests them for their key.

    Args:
        texts: from ``written_and_scored.written``. plain: an unwatermarked response to each prompt.
        chosen: from ``corrupt.named``, or like them. At strength 0 none changes anything, so this
            is measured once.

    Returns:
        ``COLUMNS``, a row a corruption × fraction × scheme × key × kind (``OWN`` or ``PLAIN``) ×
        prompt. ``grad_norm`` may be NaN.
    """
    tables, done = [], {}
    for name, fraction in product(chosen, fractions):
        which = (name if fraction else None, fraction)
        if which not in done:
            done[which] = _cell(
                lm,
                keyed,
                prompts,
                texts,
                plain,
                partial(chosen[name], fraction=fraction, seed=seed),
            )
        tables.append(done[which].assign(corruption=name, fraction=fraction))
    return pd.concat(tables, ignore_index=True)[COLUMNS]


def _cell(
    lm: models.LM,
    keyed: Sequence[Scheme],
    prompts: Texts,
    texts: Sequence[Texts],
    plain: Texts,
    change: Callable[[Texts, Texts], Pairs],
) -> pd.DataFrame:
    """All schemes and keys after one corruption; plain texts are corrupted once, and tested for all
    keys.
    """
    controls = schemes.scores(lm.model, *change(prompts, plain), keyed)
    tables = []
    for scheme, own, control in zip(keyed, texts, controls, strict=True):
        scores = scheme.score(lm.model, *change(prompts, own))
        tables += [
            labelled(scheme, scores).assign(kind=OWN),
            labelled(scheme, control).assign(kind=PLAIN),
        ]
    columns = [column for column in COLUMNS if column not in STRENGTH]
    return pd.concat(
        [table.reindex(columns=columns).astype({"grad_norm": float}) for table in tables],
        ignore_index=True,
    )


def by_fraction(table: pd.DataFrame, *, n_resamples: int = stats.N_RESAMPLES) -> pd.DataFrame:
    """Each figure of ``crossed.detection`` at each strength, with its 95% interval: ``scheme,
    corruption, fraction, figure, value, low, high, n``.
    """
    rows = []
    for (scheme, name, fraction), cell in table.groupby(
        ["scheme", "corruption", "fraction"], sort=False
    ):
        own, plain = (stats.matrix(cell[cell["kind"] == kind], "log10_p") for kind in (OWN, PLAIN))
        figures = crossed.detection(
            own, plain, lambda log10_p: 10 ** np.median(log10_p), n_resamples=n_resamples
        )
        rows += [
            {"scheme": scheme, "corruption": name, "fraction": fraction} | figure
            for figure in figures
        ]
    return pd.DataFrame(rows)


def change(
    table: pd.DataFrame, name: str, base: str, *, n_resamples: int = stats.N_RESAMPLES
) -> stats.Estimate:
    """The mean statistic of one scheme's own texts after the corruption ``name`` less that after
    ``base``, over all strengths in the table.

    The same texts before both; the interval is over prompts and keys.
    """
    own = (
        table[table["kind"] == OWN]
        .groupby(["corruption", "prompt", "key_id"], sort=False)["statistic"]
        .mean()
        .reset_index()
    )
    ours, theirs = (
        stats.matrix(own[own["corruption"] == which], "statistic") for which in (name, base)
    )
    return stats.crossed_interval(
        lambda a, b: float(np.mean(a - b)), ours, theirs, n_resamples=n_resamples
    )


def one_key(
    lm: models.LM,
    prompts: Texts,
    plain: Texts,
    chosen: dict[str, Change],
    fraction: float,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    *,
    seed: int = 0,
    dtype: str | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What one key says of all of these plain texts, unedited (``unedited``) and after each
    corruption.

    Returns:
        A row a corruption × key: ``corruption, key_id, mean_psi`` over the texts, ``alarms`` (their
        share at level 0.05).
        A row a corruption: ``corruption, sd`` (‖u‖, what ``mean_psi`` varies by over keys), and the
        mean cosine of two texts' gradients, ``value, low, high, n``, from disjoint pairs of texts.
    """
    by_key, shared = [], []
    versions = {"unedited": (prompts, plain)} | {
        name: change(prompts, plain, fraction, seed) for name, change in chosen.items()
    }
    for name, (x, y) in versions.items():
        units = np.stack(
            [
                found.unit().float().cpu().numpy()
                for found in score.gradients(lm.model, x, y, wm, dtype=dtype)
            ]
        )
        for key in keys:  # one noise at a time: a large weight has room for no more
            psi = units @ perturb.noise(lm.model, wm, key).flatten().numpy() / wm.sigma
            by_key.append(
                {
                    "corruption": name,
                    "key_id": key.key_id,
                    "mean_psi": float(psi.mean()),
                    "alarms": (psi >= stats.threshold(0.05)).mean(),
                }
            )
        half = len(units) // 2
        cosines = stats.mean((units[:half] * units[half : 2 * half]).sum(1))
        shared.append(
            {"corruption": name, "sd": float(np.linalg.norm(units.mean(0)))} | cosines.row()
        )
    return pd.DataFrame(by_key), pd.DataFrame(shared)


def null_levels(
    lm: models.LM,
    candidates: Sequence[Scheme],
    prompts: Texts,
    human: Texts,
    chosen: dict[str, Change],
    fraction: float,
    *,
    keys_per_text: int = 1,
    first_seed: int = 0,
    confidence: float = 0.99,
) -> pd.DataFrame:
    """The realised level of each scheme after each corruption of unwatermarked texts, under fresh
    keys that no other text shares.

    Each fresh key gives a false alarm on any text independently, with probability equal to the
    level (or less, for a discrete test). So the count over the pairs of a row is binomial. Rows
    share texts and keys, and are not independent of each other.

    Returns:
        ``scheme, corruption, level, value, low, high, n`` (exact interval), ``exceeds`` (the
        nominal level lies below the interval), and ``p_excess`` = P(Binomial(n, level) ≥ alarms).
    """
    versions = {
        name: change(prompts, human, fraction, first_seed) for name, change in chosen.items()
    }
    rows = []
    for scheme in candidates:
        p_values = []
        for i in range(len(human)):
            fresh = [
                scheme.rekeyed(first_seed + i * keys_per_text + j) for j in range(keys_per_text)
            ]
            x, y = ([texts[which][i] for texts in versions.values()] for which in (0, 1))
            p_values += [
                table["p_value"].to_numpy() for table in schemes.scores(lm.model, x, y, fresh)
            ]
        for name, p in zip(versions, np.transpose(p_values), strict=True):
            rows += [
                {"scheme": scheme.name, "corruption": name, "level": level}
                | _realised(p, level, confidence)
                for level in LEVELS
            ]
    return pd.DataFrame(rows)


def _realised(p: np.ndarray, level: float, confidence: float) -> dict[str, float]:
    realised = stats.rate(p <= level, confidence)
    return realised.row() | {
        "exceeds": realised.low > level,
        "p_excess": float(binom.sf((p <= level).sum() - 1, p.size, level)),
    }
