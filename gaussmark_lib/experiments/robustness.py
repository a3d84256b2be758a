"""What detection survives: every scheme × every corruption (paper, Sec. "Is GaussMark robust?").

Texts are written once (``written_and_scored.written``) and then corrupted more and more; plain texts too, as the negative control and for the ROC.
Schemes are compared by their p-values, which are exact. A corruption does not know the key, so the level holds; what falls is the power.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from scipy.stats import binom

from gaussmark_lib import models, schemes, stats
from gaussmark_lib.corrupt import Change, Pairs
from gaussmark_lib.experiments import crossed
from gaussmark_lib.experiments.crossed import LEVELS
from gaussmark_lib.experiments.written_and_scored import OWN, PLAIN, labelled
from gaussmark_lib.scheme import Scheme
from gaussmark_lib.tokens import Texts

STRENGTH = ["corruption", "fraction"]
COLUMNS = ["scheme", "key_id", *STRENGTH, "kind", "prompt", "n_tokens", "statistic", "p_value", "log10_p", "grad_norm"]


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
        chosen: from ``corrupt.named``, or like them. At strength 0 none changes anything, so this is measured once.

    Returns:
        ``COLUMNS``, a row a corruption × fraction × scheme × key × kind (``OWN`` or ``PLAIN``) × prompt. ``grad_norm`` may be NaN.
    """
    tables, done = [], {}
    for name, fraction in product(chosen, fractions):
        which = (name if fraction else None, fraction)
        if which not in done:
            done[which] = _cell(lm, keyed, prompts, texts, plain, partial(chosen[name], fraction=fraction, seed=seed))
        tables.append(done[which].assign(corruption=name, fraction=fraction))
    return pd.concat(tables, ignore_index=True)[COLUMNS]


def _cell(
    lm: models.LM, keyed: Sequence[Scheme], prompts: Texts, texts: Sequence[Texts], plain: Texts, change: Callable[[Texts, Texts], Pairs]
) -> pd.DataFrame:
    """All schemes and keys after one corruption; plain texts are corrupted once, and tested for all keys."""
    controls = schemes.scores(lm.model, *change(prompts, plain), keyed)
    tables = []
    for scheme, own, control in zip(keyed, texts, controls, strict=True):
        scores = scheme.score(lm.model, *change(prompts, own))
        tables += [labelled(scheme, scores).assign(kind=OWN), labelled(scheme, control).assign(kind=PLAIN)]
    columns = [column for column in COLUMNS if column not in STRENGTH]
    return pd.concat([table.reindex(columns=columns).astype({"grad_norm": float}) for table in tables], ignore_index=True)


def by_fraction(table: pd.DataFrame, *, n_resamples: int = stats.N_RESAMPLES) -> pd.DataFrame:
    """Each figure of ``crossed.detection`` at each strength, with its 95% interval: ``scheme, corruption, fraction, figure, value, low, high, n``."""
    rows = []
    for (scheme, name, fraction), cell in table.groupby(["scheme", "corruption", "fraction"], sort=False):
        own, plain = (stats.matrix(cell[cell["kind"] == kind], "log10_p") for kind in (OWN, PLAIN))
        figures = crossed.detection(own, plain, lambda log10_p: 10 ** np.median(log10_p), n_resamples=n_resamples)
        rows += [{"scheme": scheme, "corruption": name, "fraction": fraction} | figure for figure in figures]
    return pd.DataFrame(rows)


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
    """The realised level of each scheme after each corruption of unwatermarked texts, under fresh keys that no other text shares.

    Each fresh key gives a false alarm on any text independently, with probability equal to the level (or less, for a discrete test). So the count
    over the pairs of a row is binomial. Rows share texts and keys, and are not independent of each other.

    Returns:
        ``scheme, corruption, level, value, low, high, n`` (exact interval), ``exceeds`` (the nominal level lies below the interval), and
        ``p_excess`` = P(Binomial(n, level) ≥ alarms).
    """
    versions = {name: change(prompts, human, fraction, first_seed) for name, change in chosen.items()}
    rows = []
    for scheme in candidates:
        p_values = []
        for i in range(len(human)):
            fresh = [scheme.rekeyed(first_seed + i * keys_per_text + j) for j in range(keys_per_text)]
            x, y = ([texts[which][i] for texts in versions.values()] for which in (0, 1))
            p_values += [table["p_value"].to_numpy() for table in schemes.scores(lm.model, x, y, fresh)]
        for name, p in zip(versions, np.transpose(p_values), strict=True):
            rows += [{"scheme": scheme.name, "corruption": name, "level": level} | _realised(p, level, confidence) for level in LEVELS]
    return pd.DataFrame(rows)


def _realised(p: np.ndarray, level: float, confidence: float) -> dict[str, float]:
    realised = stats.rate(p <= level, confidence)
    return realised.row() | {"exceeds": realised.low > level, "p_excess": float(binom.sf((p <= level).sum() - 1, p.size, level))}
