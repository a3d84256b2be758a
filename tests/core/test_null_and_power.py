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
KINDS = {"random": RANDOM, "one token": RANDOM[:1], "one token repeated": [5] * 40}


@pytest.mark.parametrize(
    ("architecture", "dtype", "rank_dropped"),
    [
        ("llama", torch.float32, 0),
        ("llama", torch.float32, 6),
        ("llama", torch.bfloat16, 0),
        ("gpt2", torch.float32, 0),
    ],
    ids=["vanilla", "rank reduced", "half precision", "Conv1D"],
)
def test_null_is_standard_normal_over_keys(architecture, dtype, rank_dropped):
    model, wm = (
        tiny_models.build(architecture, dtype),
        Watermark(tiny_models.ONE_WEIGHT[architecture], 0.05, rank_dropped),
    )
    keys = [Key.from_seed(10_000 + i) for i in range(N_KEYS)]
    table = score.score(model, [PROMPT] * len(KINDS), list(KINDS.values()), wm, keys)
    for text, kind in enumerate(KINDS):
        psi = table.loc[table["text"] == text, "psi"].to_numpy()
        assert len(psi) == N_KEYS
        assert scipy_stats.kstest(psi, "norm").pvalue > 1e-3, kind
        assert abs(psi.mean()) < 3.3 / N_KEYS**0.5, kind  # 99.9%
        assert abs(psi.std() - 1) < 3.3 / (2 * N_KEYS) ** 0.5, kind
        for level in (0.05, 0.01):
            realised = stats.tpr(psi, level, confidence=0.999)
            assert realised.low <= level <= realised.high, (kind, realised)


class Marked:
    """Texts of a model whose ψ should be near 3: σ is solved for, on plain text, and the samples
    carry one key.
    """

    n, n_tokens, wanted = 60, 50, 3.0

    def __init__(self):
        self.model = tiny_models.build("llama", seed=3)
        self.prompts = tiny_models.random_ids(np.random.default_rng(1), *[4] * self.n)
        plain = generate.sample(self.model, self.prompts, self.n_tokens, seed=1)
        grad_norm = score.score(self.model, self.prompts, plain, WM, [Key.from_seed(0)])[
            "grad_norm"
        ]
        self.wm = Watermark(WM.weight, stats.sigma_for_psi(grad_norm, self.wanted))
        self.plain, self.key = plain, Key.from_seed(77)
        with perturb.watermarked(self.model, self.wm, self.key):
            self.responses = generate.sample(self.model, self.prompts, self.n_tokens, seed=2)

    def psi(self, prompts, responses, key=None, wm=None, model=None) -> np.ndarray:
        return score.score(
            model or self.model, prompts, responses, wm or self.wm, [key or self.key]
        )["psi"].to_numpy()


@pytest.fixture(scope="module")
def marked() -> Marked:
    return Marked()


def test_watermarked_text_has_the_predicted_mean(marked):
    psi = marked.psi(marked.prompts, marked.responses)
    estimate = stats.mean(psi, confidence=0.999)
    low, high = estimate.low, estimate.high
    assert low > 0.7 * marked.wanted
    assert high < 1.3 * marked.wanted
    assert stats.tpr(psi, 0.05).value > 0.65


def is_null(psi: np.ndarray) -> bool:
    """No more hits at .05 than the exact binomial allows at 99.9%, and a mean within the
    normal's.
    """
    hits = (psi >= stats.threshold(0.05)).sum()
    return (
        scipy_stats.binom.sf(hits - 1, len(psi), 0.05) > 1e-3
        and abs(psi.mean()) < 3.3 / len(psi) ** 0.5
    )


def test_the_wrong_keys_find_nothing(marked):
    keys = [Key.from_seed(1000 + i) for i in range(marked.n)]
    table = score.score(marked.model, marked.prompts, marked.responses, marked.wm, keys)
    own = table[
        table["key_id"].to_numpy() == np.array([key.key_id for key in keys])[table["text"]]
    ]  # a key a text: independent
    assert len(own) == marked.n
    assert is_null(own["psi"].to_numpy())
    assert not is_null(marked.psi(marked.prompts, marked.responses))  # the criterion can fail


def test_text_under_minus_xi_leans_the_other_way(marked):
    """A sign error in noise or statistic would pass every test of spread."""
    linear, xi = (
        marked.wm.on(marked.model).linear,
        perturb.noise(marked.model, marked.wm, marked.key),
    )
    theta = linear.parameter.data
    linear.parameter.data = theta - xi
    responses = generate.sample(marked.model, marked.prompts, marked.n_tokens, seed=2)
    linear.parameter.data = theta
    assert marked.psi(marked.prompts, responses).mean() < -0.7 * marked.wanted
