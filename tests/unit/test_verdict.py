"""The verdict on a text: its three outcomes at the right power, and sentences that are true at any
size of p.
"""

import math

import pytest
from scipy.stats import norm

from gaussmark_lib.beyond import promise
from gaussmark_lib.workbench import verdict

ROW = {"key_id": "ab", "psi": 1.0, "p_value": 0.2, "log10_p": math.log10(0.2), "grad_norm": 10.0}
ROW["n_tokens"] = 7
ROW |= {"temperature": 1.0, "excess": 0.0, "information": 100.0}  # F = ‖G‖², so that E ψ = σ‖G‖


@pytest.mark.parametrize(
    ("change", "sigma", "outcome"),
    [
        ({"p_value": 0.05}, 0.01, "detected"),
        ({}, 0.16, "too short to tell"),
        ({"n_tokens": 1}, 0.16, "too short to tell"),
        ({}, 0.17, "not detected"),
        ({"p_given": 0.01}, 0.17, "detected"),
        ({"p_value": 0.01, "p_given": 0.3}, 0.17, "not detected"),
    ],
)
def test_outcomes(change, sigma, outcome):
    said = verdict.of(ROW | change, sigma)
    assert said["verdict"] == outcome
    assert said["power"] == pytest.approx(norm.cdf(sigma * 10 - norm.isf(0.05)))
    length = "1 token" if "n_tokens" in change else "7 tokens"
    short = [f"{length}: power {said['power']:.2f} at this length, at level 0.05"]
    assert said["warnings"] == (short if said["power"] < 0.5 else [])
    assert said.keys() == set(verdict.FIELDS)


def test_the_power_is_that_of_the_texts_own_information():
    """Half of F/τ, half of the mean; neither ‖G‖ nor the key's own score stands in for it."""
    cold = ROW | {"information": 50.0, "temperature": 0.5}
    assert verdict.of(cold, 0.6)["power"] == pytest.approx(norm.cdf(3.0 - norm.isf(0.05)))
    assert verdict.of(cold | {"psi": 9.0}, 0.6)["power"] == verdict.of(cold, 0.6)["power"]
    assert verdict.of(cold, 0.6)["temperature"] == 0.5


@pytest.mark.parametrize(
    ("change", "caution"),
    [
        ({"excess": 2.0}, verdict.UNUSUAL),
        ({"temperature": 0.1}, verdict.PREDICTABLE),
        ({"excess": 2.0, "temperature": 0.1}, verdict.UNUSUAL),
    ],
)
def test_a_text_that_the_model_would_not_write_gets_a_caution_and_no_promise(change, caution):
    row = ROW | {"n_tokens": promise.FEW} | change
    row |= verdict.of(row, 0.16)
    assert (row["power"], row["verdict"], row["warnings"]) == (None, "not detected", [caution])
    assert verdict.sentences(row)[2:] == [caution]
    few = row | {"n_tokens": promise.FEW - 1}
    assert verdict.of(few, 0.16)["power"] is not None, "of few tokens too little is known"


def test_sentences_name_the_level_the_power_and_the_control():
    row = ROW | verdict.of(ROW, 0.16, level=0.01, control=0.5)
    about = {"model": "m", "weight": "w", "edited": 0.1, "prompt": ""}
    first, meaning, expected, control, assumed = verdict.sentences(row | about)
    assert first == (
        "Too short to tell at level 0.01: p = 0.2  (ψ = 1.000, log10 p = -0.70, 7 tokens, key ab)"
    )
    assert meaning.endswith("a score this high has a probability of 20%.")
    assert expected.endswith("with probability 0.23; edits weaken the watermark.")
    assert control.endswith("gives p = 0.5.")
    assert assumed.startswith("Assumed: m wrote it with noise on w, with an unknown prompt.")
    assert " tuned for 10% replaced tokens (--edited)" in assumed
    given = ROW | {"p_given": 0.04, "windows": 3} | verdict.of(ROW | {"p_given": 0.04}, 0.3)
    first, _, expected = verdict.sentences(given)
    assert first.startswith("Detected at level 0.05: p = 0.04 given earlier answers; alone")
    assert "7 tokens in 3 windows" in first
    assert "unrelated key" not in expected
    strange = given | {"warnings": ["Caution"]}
    assert verdict.sentences(strange)[2:] == ["Caution"], "of a strange text nothing is promised"
    row["warnings"] = [*row["warnings"], "Caution"]
    assert verdict.sentences(row)[2:4] == row["warnings"], "and that it is short is said"


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (0.98, "98%"),
        (0.05, "about one in 20"),
        (6.5e-4, "about one in 1,500"),
        (1 / 15_436_881, "about one in 15 million"),
        (1.002e-9, "about one in 1e9"),
        (2.85e-11, "about one in 3.5e10"),
        (1e-12, "about one in 1e12"),
    ],
)
def test_odds(p, words):
    assert verdict.odds(math.log10(p)) == words
