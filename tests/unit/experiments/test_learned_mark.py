"""A trained watermark: the gradient of its aim, and that training comes nearer to the aim."""

import pytest
import tiny_lm

from gaussmark_experiments import learned_mark
from gaussmark_lib import divergence, generate, perturb, score
from gaussmark_lib.keys import Key
from gaussmark_lib.weights import Watermark

MODEL = tiny_lm.build().model
WM, KEY, PROMPTS = Watermark(tiny_lm.WEIGHT, 0.3), Key.from_seed(1), [[5, 6], [8], [9, 3, 4]]
KEYS = [KEY, Key.from_seed(2), Key.from_seed(3)]


def aim(mark, xi, texts):
    """KL(q ‖ p) − E_q r, mean over positions, text by text."""
    total = 0.0
    for pair in zip(PROMPTS, texts, strict=True):
        inputs, is_token = divergence.laid_out(MODEL, [pair])
        logits = [divergence.logits(MODEL, inputs, 6).log_softmax(-1)]
        for moved in (mark, 0.1 * xi, -0.1 * xi):
            with perturb.moved(WM.on(MODEL), [moved]):
                logits.append(divergence.logits(MODEL, inputs, 6).log_softmax(-1))
        p, q, above, below = logits
        reward = (q.exp() * (above - below)).sum().item() / 0.2
        total += divergence.summed(q, p, is_token)[0] - reward
    return total / 18


def test_the_gradient_is_that_of_the_aim_and_training_comes_nearer_to_it():
    xi = perturb.noise(MODEL, WM, KEY)
    texts = generate.sample(MODEL, PROMPTS, 6, marks=[(WM, KEY)] * 3, seed=0)
    slope = learned_mark.gradient(MODEL, WM.on(MODEL), xi, xi, PROMPTS, texts)
    step = 0.02 * slope / slope.norm()
    rise = aim(xi + step, xi, texts) - aim(xi - step, xi, texts)
    assert rise == pytest.approx(0.04 * float(slope.norm()), rel=0.02)
    mark = learned_mark.trained(MODEL, WM, KEY, PROMPTS, 6, n_steps=20, batch_size=3, rate=0.02)
    assert aim(mark, xi, texts) < aim(xi, xi, texts)


def test_plain_noise_and_the_trained_mark_are_compared_at_the_same_price():
    size = {"n_training": 3, "n_steps": 2, "seed": 4}
    table = learned_mark.of_keys(MODEL, WM, KEYS, [*PROMPTS, *PROMPTS], 6, **size)
    plain = table[
        (table["mark"] == learned_mark.NOISE) & (table["scale"] == 1) & table["key"].eq(1)
    ]
    texts = generate.sample(MODEL, PROMPTS, 6, marks=[(WM, KEYS[1])] * 3, seed=9)
    nats = divergence.per_text(MODEL, PROMPTS, texts, marks=[(WM, KEYS[1])] * 3)
    assert plain["nats"].to_numpy() == pytest.approx(nats / 6, rel=1e-4)
    psi = score.score(MODEL, PROMPTS, texts, WM, [KEYS[1], KEY])["psi"].to_numpy()
    assert plain[["psi", "wrong"]].to_numpy().ravel() == pytest.approx(psi, abs=1e-4)
    price = table.groupby(["mark", "scale"])["nats"].transform("mean")
    table["psi"] = price**0.5 * table["mark"].map({learned_mark.NOISE: 2, learned_mark.TRAINED: 3})
    assert learned_mark.gain(table).value == pytest.approx(1.5)
