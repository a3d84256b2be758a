"""One test of several directions of a text: the p-value of the largest ψ.

Each direction u_i = G_i/‖G_i‖ has its ψ_i = ⟨z, u_i⟩ with z ~ N(0, I) over keys, and jointly

    (ψ_1, …, ψ_n) ~ N(0, K),   K_ij = ⟨u_i, u_j⟩

The p-value is that of the largest ψ_i under this law. It is exact for any directions that do not
depend on the key. For two directions it lies between the smaller p-value and twice that value.

A text that may have been edited has two directions, one without and one with the token weights of
``channel``. Both come from one forward pass::

    weights = [channel.weights(model, exchanged) for exchanged in (0, 0.1)]
    gradients_of_texts = gradients.gradients(model, prompts, responses, wm, token_weights=weights)
    table = largest.score(gradients_of_texts, wm.on(model), keys)
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import pandas as pd
from jaxtyping import Float

from gaussmark_lib import stats
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.keys import Key
from gaussmark_lib.score import Tested, statistics, table
from gaussmark_lib.weights import PlacedWatermark


def score(
    gradients: Iterable[TextGradient],
    wm: PlacedWatermark,
    keys: Sequence[Key],
    *,
    paired: bool = False,
) -> pd.DataFrame:
    """Return the table of ``score.score``, where ``psi`` is Φ⁻¹(1 − p) of the largest ψ.

    ``gradients`` holds all directions of the first text, then all directions of the second text,
    and so on. ``grad_norm`` and ``log_lik`` are those of a text's first direction.
    """
    of_directions = statistics(gradients, wm, keys, paired=paired)
    tested = _largest(of_directions)
    names = [key.key_id for key in keys]
    key_ids = [[name] for name in names] if paired else defaultdict(lambda: names)
    return table(tested, key_ids)


def psi_of_largest(
    directions: Sequence[TextGradient], psi: Float[np.ndarray, "n *k"]
) -> Float[np.ndarray, " *k"] | float:
    """Return Φ⁻¹(1 − p) for each key, where p is the p-value of the largest ψ of all directions."""
    K = [[u.cosine(v) for v in directions] for u in directions]
    return stats.psi_of_log_p(stats.log_p_of_max(np.max(psi, axis=0), K))


def _largest(tested: Iterable[Tested]) -> Iterator[Tested]:
    """The first direction of each text, with Φ⁻¹(1 − p) of its largest ψ."""
    # A text that is tested at several lengths has several directions for each length.
    for _, of_text in groupby(tested, lambda pair: (pair[0].text, pair[0].n_tokens)):
        directions, psi = zip(*of_text, strict=True)
        yield directions[0], psi_of_largest(directions, np.array(psi))
