"""The cards at the top of the tour's page."""

import pytest

from gaussmark_lib.runs import folder
from gaussmark_lib.sweeps import cards


def record(
    tmp_path,
    sentence: str,
    value: float,
    low: float,
    high: float,
    n: int,
    unit: str = "",
    **results,
) -> folder.Run:
    headline = {
        "sentence": sentence,
        "value": value,
        "low": low,
        "high": high,
        "n": n,
        "unit": unit,
    }
    return folder.Run(tmp_path, "id", {}, {"headline": headline} | results, {})


@pytest.fixture
def runs(tmp_path) -> dict[str, folder.Run]:
    pairs = "pairs of a fresh key and a text without a watermark that raise an alarm at level 0.05"
    return {
        "03_detectability": record(tmp_path, "texts detected", 0.9, 0.8, 1.0, 30, σ=0.1518),
        "05_quality": record(
            tmp_path,
            "rise of the cross-entropy",
            0.06,
            0.04,
            0.08,
            32,
            "nats a token",
            σ={"GaussMark": 0.1759, "other": 3.0},
        ),
        "02_level_check": record(tmp_path, pairs, 98 / 1920, 0.042, 0.062, 1920),
        "12_one_key_in_production": record(
            tmp_path, "source that one key calls marked", 0.75, 0.43, 0.95, 12
        ),
    }


def test_a_card_says_what_its_share_is_of_and_at_which_sigma(runs):
    found = cards.of(runs)
    assert [card.question for card in found] == [
        "Does it work?",
        "At what price?",
        "How often is an unmarked text called marked?",
    ]
    assert [(card.value, card.words) for card in found] == [
        ("90%", "of texts detected"),
        ("0.060 nats a token", "rise of the cross-entropy: about 6.2% more perplexity"),
        (
            "5.1%",
            "of pairs of a fresh key and a text without a watermark raise an alarm at level 0.05",
        ),
    ]
    assert [card.basis.partition(" · ")[2] for card in found] == [
        "at σ = 0.152",
        "at σ = 0.176",
        "",
    ]


def test_words_fit_other_numbers_too(tmp_path, runs):
    def words(*headline) -> str:
        return cards.of({"03_detectability": record(tmp_path, *headline)})[0].words

    assert (
        words("of texts that one key calls marked", 0.5, 0.4, 0.6, 10)
        == "of texts that one key calls marked"
    )
    assert (
        words("time of the one over the other", 0.873, 0.8, 0.9, 7)
        == "time of the one over the other"
    ), "a ratio is no share"
    assert (
        words("rise of the cross-entropy", -0.01, -0.02, 0.1, 7, "nats a token")
        == "rise of the cross-entropy: about 1% less perplexity"
    )


def test_what_one_key_can_do_stands_beside_the_level_where_the_records_show_it(tmp_path, runs):
    *others, level = cards.of(runs)
    assert [card.beside for card in others] == ["", ""]
    assert level.beside == "One fixed key can be far worse: 75% (43% to 95%), n = 12"
    assert level.elsewhere == "12_one_key_in_production"
    for other in ({}, {"12_one_key_in_production": record(tmp_path, "x", 0.25, 0.05, 0.57, 12)}):
        del runs["12_one_key_in_production"]
        runs |= other
        assert cards.of(runs)[-1].beside == ""
        runs["12_one_key_in_production"] = None
