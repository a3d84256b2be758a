"""Each row of the tables of 16 is what the toys' functions give for its point."""

import pytest

from gaussmark_lib.experiments import theory_in_full as theory
from gaussmark_lib.stats import threshold
from gaussmark_lib.toys import softmax

MODEL, KEYS = softmax.random_model(20, 3, seed=1), softmax.unit_noises(3, 256, 0)


def value(table, **point):
    for column, wanted in point.items():
        table = table[table[column] == wanted]
    [row] = table["value"]
    return row


def test_the_softmax_tables():
    power = theory.softmax_power({"m": (MODEL, KEYS)}, [0.5, 1.0], 400, 0.05, seed=3)
    assert value(power, curve="m", sigma=1.0) == softmax.power(MODEL, 1.0, 0.05, KEYS)
    hits = softmax.simulate_psi(MODEL, 1.0, 400, seed=4) >= threshold(0.05)
    assert value(power, curve="m, simulated", sigma=1.0) == hits.mean()
    warm = theory.by_temperature([0.1, 1.0], 0.7, 0.05, KEYS, seed=2)
    model = softmax.random_model(64, 3, 1.0, seed=2)
    point = {"quantity": "mean ψ", "entropy": model.entropy}
    assert value(warm, curve="exact", **point) == softmax.expected_psi(model, 0.7, KEYS)
    assert value(warm, curve="predicted", **point) == 0.7 * model.expected_norm


def test_three_models_start_on_the_law_of_strength_and_price():
    law = theory.linear_regime(MODEL, softmax.unit_noises(3, 2**13, 0), 200, [0.05, 10.0])
    strength = law[law["quantity"] == "mean ψ"].pivot(index="predicted", columns="curve")["value"]
    assert strength.loc[0.05].to_numpy() == pytest.approx([0.05] * 4, rel=0.02)
    assert (strength.loc[10.0].drop("predicted") < 8.5).all()
    price = law[law["quantity"] != "mean ψ"].pivot(index="predicted", columns="curve")["value"]
    spread = (MODEL.base_p @ MODEL.grad_norms**2) / MODEL.expected_norm**2
    expected = 0.05**2 / 2 * price.loc[0.05].to_numpy() ** 0
    expected[list(price.columns).index("linear softmax")] *= spread
    assert price.loc[0.05].to_numpy() == pytest.approx(expected, rel=0.02)
