"""The joint test of several texts against the sum of gradients, one text's autograd after
another.
"""

import numpy as np
import pytest
import tiny_models
from scipy import stats

from gaussmark_lib import gradients, perturb, score, tracing
from gaussmark_lib.perturb import Key, Watermark

KEYS = [Key.from_seed(i) for i in range(4)]
WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.05)


def texts(seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    rng = np.random.default_rng(seed)
    return tiny_models.random_ids(rng, 3, 1, 6), tiny_models.random_ids(rng, 8, 12, 5)


@pytest.mark.parametrize("rank_dropped", [0, 3])
def test_it_is_the_test_of_the_summed_gradient(model, rank_dropped):
    wm = Watermark(WM.weight, WM.sigma, rank_dropped)
    prompts, responses = texts()
    table = tracing.author(model, prompts, responses, wm, KEYS)
    total = sum(one.G.double() for one in gradients.gradients(model, prompts, responses, wm))
    alone = score.score(model, prompts, responses, wm, KEYS)
    for key, row in zip(KEYS, table.itertuples(), strict=True):
        xi = perturb.noise(model, wm, key).double()
        assert row.psi == pytest.approx(
            ((xi * total).sum() / (wm.sigma * total.norm())).item(), rel=1e-4
        )
        of_key = alone[alone["key_id"] == key.key_id]
        by_parts = (of_key["psi"] * of_key["grad_norm"]).sum() / row.grad_norm
        assert row.psi == pytest.approx(by_parts, rel=1e-4), "each text's ψ by its norm"
        assert row.p_value == pytest.approx(stats.norm.sf(row.psi))
        assert (row.key_id, row.n_texts, row.n_tokens) == (key.key_id, 3, 25)
        assert row.log_lik == pytest.approx(of_key["log_lik"].sum())


def test_one_text_alone_is_its_own_score(model):
    prompts, responses = texts()
    table = tracing.author(model, prompts[:1], responses[:1], WM, KEYS).drop(columns="n_texts")
    expected = score.score(model, prompts[:1], responses[:1], WM, KEYS).drop(columns="text")
    assert table["key_id"].equals(expected["key_id"])
    assert table.drop(columns="key_id").to_numpy() == pytest.approx(
        expected.drop(columns="key_id").to_numpy(float), rel=1e-6, abs=1e-6
    )


def test_over_keys_it_is_standard_normal_also_where_texts_repeat(model):
    """The same text twice, and another: sums of ψ would not be N(0, n), this is N(0, 1)."""
    prompts, responses = texts()
    found = tracing.author(
        model,
        [prompts[0]] * 2 + prompts,
        [responses[0]] * 2 + responses,
        WM,
        [Key.from_seed(i) for i in range(600)],
    )
    assert stats.kstest(found["psi"], "norm").pvalue > 1e-3
