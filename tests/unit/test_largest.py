"""The largest of several ψ of one text: exact over keys, and near the better of two."""

import numpy as np
import pytest
import tiny_models
import torch
from scipy.stats import binom, norm

from gaussmark_lib import gradients, models, perturb, score, tokens
from gaussmark_lib.beyond import channel, largest
from gaussmark_lib.perturb import Key, Watermark

RNG = np.random.default_rng(8)
PROMPTS, RESPONSES = tiny_models.random_ids(RNG, 4, 2, 5), tiny_models.random_ids(RNG, 9, 7, 12)
KEYS = [Key.from_seed(i) for i in range(3)]


def of_two(model, prompts: tokens.Texts, responses: tokens.Texts, wm: Watermark, f: float = 0.4):
    """The gradients of each text as it stands, and where a share f was exchanged."""
    weighings = [None, channel.weights(model, f)]
    return gradients.gradients(model, prompts, responses, wm, token_weights=weighings)


@pytest.mark.parametrize("weighings", [(0.0,), (0.4,), (0.0, 0.4)])
def test_several_directions_give_one_exact_p_value(weighings):
    """Over 10,000 keys, against the exact 99% interval of each level, Bonferroni over nine."""
    model, wm = tiny_models.marked()
    n = 10_000
    keys = [Key.from_seed(i) for i in range(n)]
    weights = [channel.weights(model, f) for f in weighings]
    each = gradients.gradients(model, PROMPTS[2:], RESPONSES[2:], wm, token_weights=weights)
    p_values = largest.score(each, wm.on(model), keys)["p_value"]
    assert len(p_values) == n
    for level in (0.05, 0.01, 0.001):
        alarms = (p_values <= level).sum()
        tails = binom.cdf(alarms, n, level), binom.sf(alarms - 1, n, level)
        assert min(tails) > 0.01 / 2 / 9, (level, alarms)


def test_the_largest_is_near_the_better_of_both():
    model, wm = tiny_models.marked()
    texts = model, PROMPTS, RESPONSES, wm
    weighings = [None, channel.weights(model, 0.4)]
    alone = [score.score(*texts, KEYS, token_weights=weigh) for weigh in weighings]
    best = np.maximum(*[table["psi"].to_numpy() for table in alone])
    for paired in (False, True):
        both = largest.score(of_two(*texts), wm.on(model), KEYS, paired=paired)
        assert both["text"].is_monotonic_increasing, "rows are in the order of the texts"
        top = best.reshape(3, 3).diagonal() if paired else best
        assert (both["psi"] < top + 1e-5).all(), "a maximum is less telling than one ψ alone"
        assert (both["p_value"] < 2 * norm.sf(top) + 1e-6).all(), "and at most half as telling"
        names = [key.key_id for key in KEYS]
        assert both["key_id"].tolist() == (names if paired else 3 * names)
    for column in ("grad_norm", "log_lik"):
        assert both[column].tolist() == pytest.approx(alone[0][column][::3].tolist())


def test_each_length_of_a_text_has_a_largest_of_its_own():
    model, wm = tiny_models.marked("llama", torch.float64)
    weighings = [None, channel.weights(model, 0.4)]
    settings = {"token_weights": weighings, "lengths": [4, 7]}
    each = gradients.gradients(model, PROMPTS, RESPONSES, wm, **settings)
    table = largest.score(each, wm.on(model), KEYS)
    assert table["n_tokens"].tolist() == 3 * (3 * [4] + 3 * [7])
    for n, rows in table.groupby("n_tokens"):
        cut = [ids[:n] for ids in RESPONSES]
        alone = largest.score(of_two(model, PROMPTS, cut, wm), wm.on(model), KEYS)
        assert rows["psi"].to_numpy() == pytest.approx(alone["psi"].to_numpy(), rel=1e-6)


def test_the_shortest_texts_of_the_embedded_model_have_a_largest():
    """Their gradients' sums are the least even: a norm in float32 is off by 2e-5."""
    model = models.load("doclm").model
    wm = Watermark(models.default_weight(model), 0.1)
    texts = [[10 + i, 300 - i] for i in range(20)]
    table = largest.score(of_two(model, [[]] * 20, texts, wm, f=0.1), wm.on(model), KEYS)
    assert table["psi"].notna().all()


def test_a_direction_beside_itself_changes_nothing():
    model, wm = tiny_models.marked()
    placed = wm.on(model)
    [gradient] = gradients.gradients(model, PROMPTS[:1], RESPONSES[:1], wm)
    psi = score.psi([gradient], placed, KEYS)
    twice = largest.psi_of_largest([gradient, gradient], np.concatenate([psi, psi]))
    assert twice == pytest.approx(psi[0], abs=1e-3)
    assert perturb.ready(model, wm, KEYS), "the model is as it was"
