"""How a scheme changes what is written: each measure of its texts, less that of plain texts to the same prompts.

=================  =================================================================================
``cross-entropy``  −(1/T) log p_θ(y | x) of the text under the *base* model, nats a token: how unlikely it finds it
``distinct-2``     share of a text's pairs of tokens that are new (``quality.diversity``)
``seq-rep-4``      share of its runs of four that are repetitions
=================  =================================================================================

The cross-entropy of sampled text is no divergence: it also rises where a scheme only makes the model less certain, and a scheme that always says the
likeliest word would lower it. ``written_and_scored.prices`` has the divergence.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from gaussmark_lib import likelihood, models, stats
from gaussmark_lib.quality import diversity
from gaussmark_lib.tokens import Texts

MEASURES = ("cross-entropy", "distinct-2", "seq-rep-4")


def measures(lm: models.LM, prompts: Texts, responses: Texts) -> pd.DataFrame:
    """One row a text, one column a measure."""
    varied = diversity.table(responses, ends=())
    nats = likelihood.cross_entropy(lm.model, responses, prompts=prompts)
    return pd.DataFrame(dict(zip(MEASURES, (nats, varied["distinct_2"], varied["seq_rep_4"]), strict=True)))


def against_plain(
    lm: models.LM, prompts: Texts, written: Sequence[tuple[str, Texts, Texts]], *, n_resamples: int = stats.N_RESAMPLES
) -> pd.DataFrame:
    """Mean change of each measure, prompt by prompt, with a 95% interval: ``scheme, measure, plain`` (its mean), ``value, low, high, n``.

    Args:
        written: for every scheme and key: the scheme's name, its responses, and plain ones. Give each key other plain texts: the random numbers of
            the same ones would shift all schemes alike, and the intervals over keys would not show it.
    """
    pairs = defaultdict(list)
    known: dict[int, pd.DataFrame] = {}  # plain texts come many times
    for name, own, plain in written:
        if id(plain) not in known:
            known[id(plain)] = measures(lm, prompts, plain)
        pairs[name].append((measures(lm, prompts, own), known[id(plain)]))
    rows = []
    for name, tables in pairs.items():
        for measure in MEASURES:
            marked, plain = (np.column_stack([pair[which][measure] for pair in tables]) for which in (0, 1))
            change = stats.crossed_interval(np.mean, marked - plain, n_resamples=n_resamples)
            rows.append({"scheme": name, "measure": measure, "plain": plain.mean()} | change.row())
    return pd.DataFrame(rows)
