"""Each row of the tables of 16 is what the toys' functions give for its point."""

from gaussmark_experiments import theory_in_full as theory
from gaussmark_experiments.toys import softmax
from gaussmark_lib.stats import threshold

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
