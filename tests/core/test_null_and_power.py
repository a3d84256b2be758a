"""What the statistic is for. Under the null ψ is N(0, 1) over fresh keys for any text; on
watermarked text its mean is near σ‖G‖.
"""

import numpy as np
import pytest
import tiny_models
import torch
from scipy import stats as scipy_stats

from gaussmark_lib import generate, perturb, score, stats
from gaussmark_lib.perturb import Key, Watermark

N_KEYS = 2000
WM = Watermark(tiny_models.ONE_WEIGHT["llama"], 0.05)
PROMPT, RANDOM = tiny_models.random_ids(np.random.default_rng(0), 6, 40)
KINDS = {  # prompt and text, odd ones too
    "random": (PROMPT, RANDOM),
    "one token": (PROMPT, RANDOM[:1]),
    "one token repeated": (PROMPT, [5] * 40),
    "no prompt": ([], RANDOM),
    "the whole context": (PROMPT, (RANDOM * 2)[: tiny_models.CONTEXT - len(PROMPT)]),
}


MARKED = {  # architecture, dtype and directions dropped
    "vanilla": ("llama", torch.float32, 0),
    "rank reduced": ("llama", torch.float32, 6),
    "bfloat16": ("llama", torch.bfloat16, 0),
    "float16": ("llama", torch.float16, 0),
    "Conv1D": ("gpt2", torch.float32, 0),
}


@pytest.mark.parametrize("case", MARKED)
def test_null_is_standard_normal_over_keys(case):
    model, wm = tiny_models.marked(*MARKED[case])
    keys = [Key.from_seed(10_000 + i) for i in range(N_KEYS)]
    table = score.score(model, *map(list, zip(*KINDS.values(), strict=True)), wm, keys)
    for text, kind in enumerate(KINDS):
        psi = table.loc[table["text"] == text, "psi"].to_numpy()
        assert len(psi) == N_KEYS
        assert scipy_stats.kstest(psi, "norm").pvalue > 1e-3, kind
        assert abs(psi.mean()) < 3.3 / N_KEYS**0.5, kind  # 99.9%
        assert abs(psi.std() - 1) < 3.3 / (2 * N_KEYS) ** 0.5, kind
        for level in (0.05, 0.01):
            realised = stats.tpr(psi, level, confidence=0.999)
            assert realised.low <= level <= realised.high, (kind, realised)


def is_null(psi: np.ndarray) -> bool:
    """No more hits at .05 than the exact binomial allows at 99.9%, and a mean within the
    normal's.
    """
    hits = (psi >= stats.threshold(0.05)).sum()
    too_many = scipy_stats.binom.sf(hits - 1, len(psi), 0.05) <= 1e-3
    return not too_many and abs(psi.mean()) < 3.3 / len(psi) ** 0.5


def test_marked_text_has_the_predicted_mean_and_nothing_else_has():
    """σ is solved for a mean ψ of 3 on plain text; the text that −ξ writes leans the other way,
    since a sign error in noise or statistic would pass every test of spread.
    """
    model, key, n = tiny_models.build("llama", seed=3), Key.from_seed(77), 60
    prompts = tiny_models.random_ids(np.random.default_rng(1), *[4] * n)
    plain = generate.sample(model, prompts, 50, seed=1)
    norms = score.score(model, prompts, plain, WM, [key])["grad_norm"]
    wm = Watermark(WM.weight, stats.sigma_for_psi(norms, 3.0))
    with perturb.watermarked(model, wm, key):
        marked = generate.sample(model, prompts, 50, seed=2)
    parameter = model.get_parameter(wm.weight)
    theta = parameter.data
    parameter.data = theta - perturb.noise(model, wm, key)
    mirrored = generate.sample(model, prompts, 50, seed=2)
    parameter.data = theta

    def psi(texts, keys=(key,) * n) -> np.ndarray:
        return score.score(model, prompts, texts, wm, list(keys), paired=True)["psi"].to_numpy()

    estimate = stats.interval(psi(marked), confidence=0.999)
    assert 2.1 < estimate.low < estimate.high < 3.9
    assert stats.tpr(psi(marked), 0.05).value > 0.65
    assert psi(mirrored).mean() < -2.1
    assert not is_null(psi(marked)), "the criterion can fail"
    for text in (marked, plain):
        assert is_null(psi(text, [Key.from_seed(1000 + i) for i in range(n)])), "wrong keys"
