"""P(p ≤ α) ≤ α over keys: every registered scheme that calls itself exact, on text under every
registered corruption.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
from scipy.stats import binom

from gaussmark_lib import corrupt, generate
from gaussmark_lib.beyond import schemes
from gaussmark_lib.beyond.schemes import GaussMark, Scheme
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import rewrite  # noqa: F401 - registers edits that need a model

pytestmark = pytest.mark.usefixtures("no_table_of_selfhash")
LM = tiny_lm.build()
WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.2, rank_dropped=4)
SCHEMES = schemes.named(WM, Key.from_seed(0))
CORRUPTIONS = ["none", *corrupt.named(LM)]
EXACT = [name for name, scheme in SCHEMES.items() if scheme.exact]
LEVELS = (0.5, 0.1, 0.02)
N_TEXTS, KEYS_PER_TEXT, N_TOKENS, FRACTION = 2, 15, 20, 0.3
ALLOWED = 1e-3 / (len(EXACT) * len(CORRUPTIONS) * len(LEVELS))  # 99.9% that no cell fails by chance


@cache
def texts(corruption: str) -> corrupt.Pairs:
    prompts = tiny_models.random_ids(np.random.default_rng(0), *[5] * N_TEXTS)
    plain = generate.sample(LM.model, prompts, N_TOKENS, seed=1)
    if corruption == "none":
        return prompts, plain
    return corrupt.named(LM, [corruption])[corruption](prompts, plain, FRACTION, 2)


def p_values(scheme: Scheme, corruption: str, first_seed: int) -> np.ndarray:
    """One per text and key. No two share a key, so that they are independent."""
    prompts, responses = (
        [ids for ids in part for _ in range(KEYS_PER_TEXT)] for part in texts(corruption)
    )
    keys = [Key.from_seed(first_seed + i) for i in range(len(prompts))]
    return scheme.score(LM.model, prompts, responses, keys)["p_value"].to_numpy()


def exceeded(p: np.ndarray) -> list[float]:
    """The levels at which the p-values are at most α more often than a binomial with probability α
    allows.
    """
    return [level for level in LEVELS if binom.sf((p <= level).sum() - 1, len(p), level) < ALLOWED]


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("name", EXACT)
def test_no_exact_scheme_exceeds_its_level(name, corruption):
    cell = EXACT.index(name) * len(CORRUPTIONS) + CORRUPTIONS.index(corruption)
    p = p_values(SCHEMES[name], corruption, first_seed=10_000 * (cell + 1))
    assert len(p) == N_TEXTS * KEYS_PER_TEXT
    assert ((p > 0) & (p <= 1)).all()
    assert exceeded(p) == []


def test_every_scheme_but_the_z_test_is_exact():
    assert set(SCHEMES) - set(EXACT) == {"KGW-2 z-test"}


@dataclass(frozen=True)
class Halved(GaussMark):
    """A scheme with a mistake: its p-values are half of what they should be."""

    def score(self, model, prompts, responses, keys=None) -> pd.DataFrame:
        table = super().score(model, prompts, responses, keys)
        return table.assign(p_value=table["p_value"] / 2)


def test_a_p_value_that_is_too_small_by_half_is_caught():
    assert exceeded(p_values(Halved(WM, Key.from_seed(0)), "none", first_seed=0)) != []
    assert exceeded(p_values(GaussMark(WM, Key.from_seed(0)), "none", first_seed=0)) == []
