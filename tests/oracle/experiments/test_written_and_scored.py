"""The loop that the experiments share: every row against the text written and tested alone."""

import numpy as np
import pytest
import tiny_lm
import tiny_models

from gaussmark_lib import generate, perturb, schemes, score
from gaussmark_lib.experiments import written_and_scored
from gaussmark_lib.experiments.written_and_scored import OWN, PLAIN, WRONG
from gaussmark_lib.perturb import Key, Watermark

LM = tiny_lm.build()
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 6)
KEYS = [Key.from_seed(i) for i in (5, 1, 8)]
WMS = [Watermark(tiny_lm.WEIGHT, 0.4), Watermark(tiny_lm.WEIGHT, 0.5, 4)]


def test_every_text_is_tested_for_every_key_by_the_projection_of_its_own_watermark():
    cells = [(WMS[0], KEYS[0]), None, (WMS[1], KEYS[1]), (WMS[0], KEYS[2])]
    table, responses = written_and_scored.of_cells(
        LM, PROMPTS, cells, KEYS, 12, seeds=[3, 4, 5, 6], lengths=[6, 12]
    )
    assert len(table) == 4 * 2 * 2 * 3
    assert responses[1] == generate.sample(LM.model, PROMPTS, 12, seed=4)
    for number, cell in enumerate(cells):
        wm, key_id = (cell[0], cell[1].key_id) if cell else (WMS[0], None)
        alone = score.score(LM.model, PROMPTS, responses[number], wm, KEYS, lengths=[6, 12])
        rows = table[table["text"] // 2 == number]
        np.testing.assert_allclose(rows["psi"], alone["psi"], rtol=1e-4, atol=1e-4)
        assert rows["prompt"].tolist() == alone["text"].tolist()
        assert (rows["sigma"] == wm.sigma).all()
        assert (rows["rank_dropped"] == wm.rank_dropped).all()
        expected = [
            PLAIN if cell is None else OWN if tested == key_id else WRONG
            for tested in alone["key_id"]
        ]
        assert rows["kind"].tolist() == expected


def test_the_wrong_key_is_the_next_of_the_list():
    cells = [(WMS[0], key) for key in KEYS]
    table, _ = written_and_scored.of_cells(LM, PROMPTS, cells, KEYS, 8, seeds=[0, 1, 2])
    own = written_and_scored.own_rows(table, KEYS)
    assert own["key_id"].tolist() == [key.key_id for key in KEYS for _ in PROMPTS]
    psi = table.set_index(["text", "key_id"])["psi"]
    assert own["wrong_psi"].tolist() == [psi[i, KEYS[(i // 2 + 1) % 3].key_id] for i in range(6)]
    [alone] = {len(written_and_scored.own_rows(table[table["key_id"] == KEYS[0].key_id], KEYS[:1]))}
    assert alone == 2


def test_a_scheme_under_the_same_key_has_the_same_random_numbers():
    keyed = written_and_scored.rekeyed(
        [schemes.GaussMark(WMS[0], KEYS[0]), schemes.KGW(2.0, KEYS[0])], 2, first_seed=30
    )
    assert written_and_scored.key_numbers(keyed) == [0, 1, 0, 1]
    texts = written_and_scored.written(LM, keyed, PROMPTS, 8, seed=7)
    for scheme, own, number in zip(keyed, texts, [0, 1, 0, 1], strict=True):
        assert own == scheme.generate(LM.model, PROMPTS, 8, seed=7 + number)
    scores = written_and_scored.own_scores(LM, keyed, PROMPTS, texts)
    price = written_and_scored.prices(LM, keyed, PROMPTS, texts)
    for i, (scheme, own) in enumerate(zip(keyed, texts, strict=True)):
        rows = slice(2 * i, 2 * i + 2)
        assert (
            scores["statistic"][rows].tolist()
            == scheme.score(LM.model, PROMPTS, own)["statistic"].tolist()
        )
        assert price["price"][rows].to_numpy() == pytest.approx(
            scheme.divergences(LM.model, PROMPTS, own) / 8
        )
        assert (price["key_id"][rows] == scheme.key.key_id).all()
    assert perturb.Key.from_seed(31).key_id == keyed[1].key.key_id
