"""The exchange rate on a tiny model: against differences taken one by one, and against the
curvature of the loss.
"""

import contextlib

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
import torch

from gaussmark_lib import likelihood, perturb, stats
from gaussmark_lib.experiments import exchange

WEIGHT = "model.layers.2.mlp.down_proj.weight"
KEYS = [perturb.Key.from_seed(i) for i in range(3)]


@pytest.fixture(scope="module")
def lm():
    return tiny_lm.build()


@pytest.fixture(scope="module")
def model(lm):
    return lm.model


@pytest.fixture(scope="module")
def passages():
    return tiny_models.random_ids(np.random.default_rng(0), 20, 15, 20, 9)


PROMPTS = tiny_models.random_ids(np.random.default_rng(1), 3, 4, 5, 6)


@pytest.fixture(scope="module")
def table(lm, passages):
    return exchange.measure(
        lm,
        PROMPTS,
        passages,
        [WEIGHT, "model.layers.1.self_attn.q_proj.weight"],
        [1.0, 2.0],
        KEYS,
        n_tokens=12,
    )


def test_cross_entropy_is_the_mean_over_tokens(model, passages):
    found = likelihood.cross_entropy(model, passages, batch_size=3)
    for nats, passage in zip(found, passages, strict=True):
        with torch.no_grad():
            log_p = (
                model(torch.tensor([[1, *passage]])).logits[0].double().log_softmax(-1)
            )  # 1 is its start token
        by_hand = -np.mean([log_p[t, token].item() for t, token in enumerate(passage)])
        assert nats == pytest.approx(by_hand, rel=1e-5)


def test_a_prompt_is_read_and_not_scored(model, passages):
    alone = likelihood.cross_entropy(model, passages, prompts=PROMPTS)
    for nats, prompt, passage in zip(alone, PROMPTS, passages, strict=True):
        with torch.no_grad():
            log_p = model(torch.tensor([prompt + passage])).logits[0].double().log_softmax(-1)
        by_hand = -np.mean(
            [log_p[len(prompt) - 1 + t, token].item() for t, token in enumerate(passage)]
        )
        assert nats == pytest.approx(by_hand, rel=1e-5)


def test_every_measurement_is_there(table):
    counts = table.groupby(["weight", "wanted", "kind"]).size()
    assert (counts.xs("psi", level="kind") == 4 * 3).all(), "one a prompt and key"
    assert (counts.xs("human", level="kind") == 4 * 3).all(), "one a prompt and key"
    assert (counts.xs("own", level="kind") == 4 * 3).all()
    assert np.isfinite(table["value"]).all()
    assert table[table["kind"] == "psi"].groupby("key_id")["item"].nunique().tolist() == [4, 4, 4]


def test_delta_is_the_mean_over_a_noise_and_its_negative(model, passages, table):
    cell = table[
        (table["weight"] == WEIGHT)
        & (table["wanted"] == 2.0)
        & (table["kind"] == "human")
        & (table["key_id"] == KEYS[1].key_id)
    ]
    wm = perturb.Watermark(WEIGHT, float(cell["sigma"].iloc[0]))
    base = likelihood.cross_entropy(model, passages, prompts=PROMPTS)
    with perturb.watermarked(model, wm, KEYS[1]):
        plus = likelihood.cross_entropy(model, passages, prompts=PROMPTS) - base
    parameter = dict(model.named_parameters())[WEIGHT]
    kept = parameter.data.clone()
    parameter.data.sub_(perturb.noise(model, wm, KEYS[1]))
    minus = likelihood.cross_entropy(model, passages, prompts=PROMPTS) - base
    parameter.data.copy_(kept)
    np.testing.assert_allclose(
        cell.sort_values("item")["value"], (plus + minus) / 2, rtol=1e-4, atol=1e-6
    )


def test_the_model_is_put_back(model, passages, table):
    fresh = tiny_models.build()
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True)
    )
    wm = perturb.Watermark(WEIGHT, 1.0)
    with (
        contextlib.suppress(ZeroDivisionError),
        perturb.moved(model, wm, torch.ones(wm.on(model).linear.shape)),
    ):
        assert not torch.equal(model.get_parameter(WEIGHT), fresh.get_parameter(WEIGHT))
        1 / 0  # noqa: B018
    assert torch.equal(model.get_parameter(WEIGHT), fresh.get_parameter(WEIGHT))


def test_delta_is_half_the_trace_of_the_hessian_over_many_keys():
    """E Δ = ½ σ² tr(H), the trace by second differences along each entry, in float64."""
    model = tiny_models.build(dtype=torch.float64)
    passages = tiny_models.random_ids(np.random.default_rng(3), 12, 12)
    weight, sigma, h = "model.layers.0.mlp.gate_proj.weight", 2e-3, 1e-2
    base = likelihood.cross_entropy(model, passages).mean()
    wm = perturb.Watermark(weight, sigma)
    keys = [perturb.Key.from_seed(i) for i in range(60)]
    found = (
        exchange.delta(
            model, [[], []], passages, likelihood.cross_entropy(model, passages), wm, keys
        )
        .groupby("key_id")["value"]
        .mean()
    )

    flat = model.get_parameter(weight).data.view(-1)
    directions = np.random.default_rng(4).choice(
        [-1.0, 1.0], size=(60, flat.numel())
    )  # Hutchinson: zᵀHz, z = ±1, has mean tr(H)
    curvature = []
    for z in torch.from_numpy(directions):
        ends = []
        for sign in (1, -1):
            flat.add_(sign * h / 10 * z)
            ends.append(likelihood.cross_entropy(model, passages).mean())
            flat.sub_(sign * h / 10 * z)
        curvature.append((sum(ends) - 2 * base) / (h / 10) ** 2)
    predicted = sigma**2 / 2 * np.mean(curvature)
    error = np.hypot(found.sem(), sigma**2 / 2 * np.std(curvature) / np.sqrt(len(curvature)))
    assert abs(found.mean() - predicted) < 3.3 * error
    assert abs(predicted) > 4 * error, "the test can fail"


def _made(psi, delta, n_tokens=100):
    rows = [{"kind": "psi", "item": i, "key_id": "k", "value": v} for i, v in enumerate(psi)]
    for kind, factor in (("human", 1), ("own", 2)):
        rows += [
            {"kind": kind, "item": i, "key_id": k, "value": v * factor}
            for k, values in delta.items()
            for i, v in enumerate(values)
        ]
    return pd.DataFrame(rows).assign(weight="w", wanted=2.0, sigma=0.1, n_tokens=n_tokens)


def test_rates_by_hand():
    row, own = exchange.rates(
        _made([1.0, 3.0], {"a": [0.01, 0.03], "b": [0.02, 0.04]}), n_resamples=50
    ).to_dict("records")
    assert (row["text"], own["text"]) == ("human", "own")
    assert own["rate"] == pytest.approx(2 * row["rate"])
    assert row["psi"] == pytest.approx(2.0)
    assert row["delta"] == pytest.approx(0.025)
    assert row["law"] == pytest.approx(stats.predicted_price(2.0, 100)) == pytest.approx(0.02)
    assert row["rate"] == pytest.approx(1.25)
    assert row["low"] <= row["rate"] <= row["high"]
    assert (row["n_texts"], row["n_keys"]) == (2, 2)


def test_the_rate_of_all_strengths_is_a_ratio_of_sums():
    weak, strong = (
        _made([1.0] * 5, {"a": [0.01] * 4}),
        _made([4.0] * 5, {"a": [0.08] * 4}).assign(wanted=4.0),
    )
    row, _ = exchange.rates(pd.concat([weak, strong]), by=("weight",), n_resamples=20).to_dict(
        "records"
    )
    assert row["rate"] == pytest.approx((0.01 + 0.08) / (1 / 200 + 16 / 200))
    assert row["low"] == pytest.approx(row["high"]), "no spread, no width"


@pytest.mark.slow
def test_the_interval_covers():
    rng, covered = np.random.default_rng(7), 0
    for trial in range(120):
        cell = _made(rng.normal(3, 1, 60), {k: rng.normal(0.045, 0.02, 40) for k in "abcd"})
        row, _ = exchange.rates(cell, n_resamples=100, seed=trial).to_dict("records")
        covered += row["low"] <= 1.0 <= row["high"]
    assert covered / 120 > 0.88, "95% less what 100 resamples and 4 keys cost"


def test_psi_is_of_each_texts_own_key_and_strength(model, table):
    from gaussmark_lib import generate, score

    plain = generate.sample(model, PROMPTS, 12)
    for number, wanted in enumerate([1.0, 2.0]):
        norms = [
            found.norm
            for found in score.gradients(model, PROMPTS, plain, perturb.Watermark(WEIGHT, 1.0))
        ]
        wm = perturb.Watermark(WEIGHT, stats.sigma_for_psi(norms, wanted))
        for k, key in enumerate(KEYS):
            with perturb.watermarked(model, wm, key):
                responses = generate.sample(model, PROMPTS, 12, seed=1 + 3 * number + k)
            expected = score.score(model, PROMPTS, responses, wm, [key])["psi"]
            rows = table[
                (table["weight"] == WEIGHT)
                & (table["wanted"] == wanted)
                & (table["kind"] == "psi")
                & (table["key_id"] == key.key_id)
            ]
            np.testing.assert_allclose(
                rows.sort_values("item")["value"], expected, rtol=1e-3, atol=1e-3
            )
