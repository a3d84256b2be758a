"""How a scheme changes what is written: each measure of its texts, less that of plain texts to the same prompts.

=================  =================================================================================
``cross-entropy``  −(1/T) log p_θ(y | x) of the text under the *base* model, nats a token: how unlikely it finds it
``distinct-2``     share of a text's pairs of tokens that are new (``quality.diversity``)
``seq-rep-4``      share of its runs of four that are repetitions
=================  =================================================================================

The cross-entropy of sampled text is no divergence: a scheme that only ever says the likeliest word would lower it. But it is the same measure for
schemes that change weights and for those that change sampling, and needs neither key nor scheme.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from gaussmark_lib import likelihood, models, stats
from gaussmark_lib.quality import diversity
from gaussmark_lib.schemes import Scheme, Texts


def measures(lm: models.LM, prompts: Texts, responses: Texts) -> pd.DataFrame:
    """One row a text, one column a measure."""
    varied = diversity.table(responses, ends=())
    nats = likelihood.cross_entropy(lm.model, responses, prompts=prompts)
    return pd.DataFrame({"cross-entropy": nats, "distinct-2": varied["distinct_2"], "seq-rep-4": varied["seq_rep_4"]})


def against_plain(
    keyed: Sequence[tuple[int, Scheme]], lm: models.LM, prompts: Texts, texts: Sequence[Texts], plain: Texts, *, n_resamples: int = 500, seed: int = 0
) -> pd.DataFrame:
    """Mean change of each measure, prompt by prompt, with a 95% interval over prompts and keys.

    Args:
        texts: the responses of each keyed scheme. plain: those of no scheme, one a prompt.

    Returns:
        One row a scheme × measure: ``scheme, measure, plain`` (mean of plain texts), ``value, low, high, n_prompts, n_keys``.
    """
    base = measures(lm, prompts, plain)
    changed = defaultdict(list)
    for (_, scheme), own in zip(keyed, texts, strict=True):
        changed[scheme.name].append(measures(lm, prompts, own) - base)
    rows = []
    for name, tables in changed.items():
        for measure in base:
            change = np.column_stack([table[measure] for table in tables])
            interval = stats.crossed_interval(np.mean, change, n_resamples=n_resamples, seed=seed)
            rows.append({"scheme": name, "measure": measure, "plain": base[measure].mean()} | interval)
    return pd.DataFrame(rows)
