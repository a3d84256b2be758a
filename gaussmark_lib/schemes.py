"""Watermarks of different kinds behind one face, so that one experiment can compare them on the same prompts with the same luck.

A scheme can ``generate`` with its key, ``score`` texts for it, and be ``rekeyed``. Another one needs those three and a name; nothing else
in the library has to know of it. Its table has a row a text with at least the columns ``COLUMNS``, where ``statistic`` is its own (ψ, z, …)
and ``p_value`` is exact, so that schemes are compared by p-values only.

==================  =============================================================
``GaussMark``       noise on one weight; vanilla, or rank-reduced by its watermark
``kgw.KGW``         green lists (Kirchenbauer et al., arXiv:2301.10226)
``synthid.SynthID`` tournament sampling (Dathathri et al., Nature 634, 2024)
``token_keys``      ``TokenKeys``: a fresh noise for each token (paper, Algs. 3 and 4)
==================  =============================================================
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import generate, perturb, score

COLUMNS = ["text", "n_tokens", "statistic", "p_value", "log10_p"]
Texts = Sequence[Sequence[int]]


class Scheme(Protocol):
    """What an experiment asks of a watermark."""

    name: str

    def generate(self, model: PreTrainedModel, prompts: Texts, n_tokens: int, *, seed: int = 0) -> list[list[int]]:
        """Watermarked continuations at temperature 1, one a prompt; the same seed gives every scheme the same luck."""

    def score(self, model: PreTrainedModel, prompts: Texts, responses: Texts) -> pd.DataFrame:
        """One row a text, in order, with ``COLUMNS`` and perhaps more. The base model's own."""

    def rekeyed(self, seed: int) -> Self:
        """The same scheme under another, guessable key."""


@dataclass(frozen=True)
class GaussMark:
    """The paper's scheme as a ``Scheme``: ``statistic`` is ψ."""

    wm: perturb.Watermark
    key: perturb.Key
    name: str = "GaussMark"

    def generate(self, model: PreTrainedModel, prompts: Texts, n_tokens: int, *, seed: int = 0) -> list[list[int]]:
        with perturb.watermarked(model, self.wm, self.key):
            return generate.sample(model, prompts, n_tokens, seed=seed)

    def score(self, model: PreTrainedModel, prompts: Texts, responses: Texts) -> pd.DataFrame:
        return score.score(model, prompts, responses, self.wm, [self.key]).rename(columns={"psi": "statistic"})

    def rekeyed(self, seed: int) -> Self:
        return replace(self, key=perturb.Key.from_seed(seed))


def scores(schemes: Sequence[Scheme], model: PreTrainedModel, prompts: Texts, responses: Texts) -> list[pd.DataFrame]:
    """What each scheme's ``score`` says of the same texts. Keys of one Gaussian watermark share the gradients, which are nearly all of the work."""
    found: dict[int, pd.DataFrame] = {}
    sharing = defaultdict(list)
    for place, scheme in enumerate(schemes):
        if isinstance(scheme, GaussMark):
            sharing[scheme.wm].append(place)
        else:
            found[place] = scheme.score(model, prompts, responses)
    for wm, places in sharing.items():
        table = score.score(model, prompts, responses, wm, [schemes[place].key for place in places]).rename(columns={"psi": "statistic"})
        for j, place in enumerate(places):  # a text's rows are in the order of the keys
            found[place] = table.iloc[j :: len(places)].reset_index(drop=True)
    return [found[place] for place in range(len(schemes))]
