"""The n-gram model against dictionaries, and as a probability."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from gaussmark_lib.quality.offline_judge import LikelihoodJudge, Ngram
from gaussmark_lib.quality.win_rate import Question

V = 7


def slow(texts, prompt, response, order, start=0):
    """Witten and Bell's recursion, one dictionary a history."""
    follows = defaultdict(Counter)
    for text in texts:
        ids = [start] * (order - 1) + list(text)
        for t in range(order - 1, len(ids)):
            for n in range(order):
                follows[tuple(ids[t - n : t])][ids[t]] += 1

    def q(history, token):
        lower = 1 / V if not history else q(history[1:], token)
        if history not in follows:
            return lower
        counts = follows[history]
        return (counts[token] + len(counts) * lower) / (counts.total() + len(counts))

    ids = [start] * (order - 1) + list(prompt) + list(response)
    return [
        math.log(q(tuple(ids[t - order + 1 : t]), ids[t]))
        for t in range(len(ids) - len(response), len(ids))
    ]


@pytest.fixture
def texts():
    rng = np.random.default_rng(0)
    return [
        rng.integers(V - 1, size=n).tolist() for n in (30, 1, 12, 40)
    ]  # the last id never occurs


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_it_is_the_recursion(texts, order):
    model = Ngram(texts, V, order=order)
    for prompt, response in [([], [1, 2, 3]), ([4, 5], [6, 0, 1, 1]), ([3], [6])]:
        np.testing.assert_allclose(
            model.log_q(prompt, response), slow(texts, prompt, response, order), rtol=1e-12
        )


def test_it_sums_to_one_after_any_history(texts):
    model = Ngram(texts, V)
    for history in ([], [0], [2, 6], [6, 6], [1, 2, 3]):
        assert np.exp(
            [model.log_q(history, [token])[0] for token in range(V)]
        ).sum() == pytest.approx(1, rel=1e-12)


def test_it_learns(texts):
    rng = np.random.default_rng(1)
    model = Ngram([[1, 2, 3] * 50], V)
    assert (
        model.log_q([], [1, 2, 3] * 4).mean()
        > model.log_q([], rng.permutation([1, 2, 3] * 4)).mean() + 1
    )


def test_limits_are_errors():
    with pytest.raises(ValueError, match="2\\^63"):
        Ngram([[1]], 2**22)
    with pytest.raises(ValueError, match="at least one token"):
        Ngram([[]], V)
    assert Ngram([[1, 2]], V).log_q([1], []).shape == (0,)


def test_the_judge_has_no_favourite_place():
    judge = LikelihoodJudge(Ngram([[1, 2, 3] * 50], V), lambda text: [int(c) for c in text])
    forth = judge.ask(
        [
            Question("1", "2312", "5432"),
            Question("1", "23", "23"),
            Question("1", "", "2"),
            Question("1", "", ""),
        ]
    )
    back = judge.ask(
        [
            Question("1", "5432", "2312"),
            Question("1", "23", "23"),
            Question("1", "2", ""),
            Question("1", "", ""),
        ]
    )
    assert [answer.preference for answer in forth] == [1.0, 0.5, 0.0, 0.5]
    assert [answer.preference for answer in back] == [0.0, 0.5, 1.0, 0.5]
