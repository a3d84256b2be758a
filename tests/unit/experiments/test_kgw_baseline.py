"""Changes of sampled text: against measuring each text by itself, and nothing where nothing was changed."""

import numpy as np
import pytest
import tiny_lm
import tiny_models

from gaussmark_lib import likelihood, schemes
from gaussmark_lib.experiments import kgw_baseline
from gaussmark_lib.kgw import KGW
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.quality import diversity

LM = tiny_lm.build()
KEY = Key.from_seed(0)
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), *[5] * 4)
PLAIN = tiny_models.random_ids(np.random.default_rng(1), *[20] * 4)
NAMES = [KGW(2.0, KEY).name, KGW(2.0, KEY).name, schemes.GaussMark(Watermark(tiny_lm.WEIGHT, 0.1), KEY).name]


def test_a_change_is_the_mean_over_texts_of_its_measure_less_that_of_the_plain_text():
    texts = [tiny_models.random_ids(np.random.default_rng(seed), *[20] * 4) for seed in (2, 3)] + [PLAIN]
    found = kgw_baseline.against_plain(LM, PROMPTS, [(name, own, PLAIN) for name, own in zip(NAMES, texts, strict=True)], n_resamples=20)
    found = found.set_index(["scheme", "measure"])
    assert len(found) == 2 * 3
    pairs = [(x, y, z) for own in texts[:2] for x, y, z in zip(PROMPTS, own, PLAIN, strict=True)]
    nats = [np.subtract(*(likelihood.cross_entropy(LM.model, [text], prompts=[x])[0] for text in (y, z))) for x, y, z in pairs]
    assert found.loc[("KGW-2", "cross-entropy"), "value"] == pytest.approx(np.mean(nats), rel=1e-5)
    distinct = [diversity.distinct(y, 2) - diversity.distinct(z, 2) for _, y, z in pairs]
    assert found.loc[("KGW-2", "distinct-2"), "value"] == pytest.approx(np.mean(distinct))
    assert found.loc[("KGW-2", "cross-entropy"), "plain"] == pytest.approx(likelihood.cross_entropy(LM.model, PLAIN, prompts=PROMPTS).mean())
    assert (found["low"] <= found["value"]).all()
    assert (found["value"] <= found["high"]).all()
    assert (found.loc["KGW-2", "n"] == len(PROMPTS) * 2).all()
    assert (found.loc["GaussMark", ["value", "low", "high"]] == 0).all(axis=None)


def test_repetition_is_seen():
    [row] = kgw_baseline.measures(LM, [[5]], [[7, 8, 9, 10] * 5]).itertuples(index=False)
    assert row[1] == pytest.approx(4 / 19)
    assert row[2] == pytest.approx(1 - 4 / 17)
