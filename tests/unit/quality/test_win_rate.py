"""Win rates by judges with a favourite place, and the n-gram judge against nltk's model."""

import math

import numpy as np
import pytest
from nltk.lm import WittenBellInterpolated

from gaussmark_lib.quality import win_rate
from gaussmark_lib.quality.win_rate import Answer, LikelihoodJudge, Ngram, Question

V = 7
PROMPTS = [f"p{i}" for i in range(20)]
LONG, SHORT = ["long answer"] * 20, ["short"] * 20


class Favours:
    """A judge with a favourite place, which otherwise prefers the longer answer."""

    name = "biased"

    def __init__(self, bias, fails=()):
        self.bias, self.fails, self.asked = bias, fails, 0

    def ask(self, questions, *, progress=False):
        self.asked += len(questions)
        return [self._one(question) for question in questions]

    def _one(self, question):
        if question.prompt in self.fails:
            return Answer(math.nan, "down")
        return Answer(float(len(question.first) + self.bias >= len(question.second)))


@pytest.mark.parametrize(
    ("bias", "ours", "theirs", "score"),
    [(100, LONG, SHORT, 0.5), (0, LONG, SHORT, 1.0), (0, SHORT, LONG, 0.0)],
)
def test_a_favourite_place_cancels_and_the_better_wins(bias, ours, theirs, score):
    table = win_rate.compare(Favours(bias), PROMPTS, ours, theirs)
    assert (table["score"] == score).all()
    assert (table["asked"] == 2).all()


def test_identical_answers_are_a_tie_and_nobody_is_asked():
    judge = Favours(100)
    table = win_rate.compare(judge, PROMPTS, LONG, LONG)
    assert judge.asked == table["asked"].sum() == 0
    assert (table["score"] == 0.5).all()


def test_failures_are_left_out_with_their_reason():
    table = win_rate.compare(Favours(0, fails=("p3", "p4")), PROMPTS, LONG, SHORT)
    assert table["score"].isna().sum() == table["error"].notna().sum() == 2
    assert table.loc[3, "error"] == "down"


@pytest.fixture
def texts():
    rng = np.random.default_rng(0)
    return [rng.integers(V - 1, size=n).tolist() for n in (30, 1, 12, 40)]  # without the last id


def test_after_known_histories_it_is_nltks_model(texts):
    """nltk ends its recursion at the share of a token, not at 1/V: so a unigram model that ends
    there is interpolated by hand.
    """
    ours, theirs = Ngram(texts, V), WittenBellInterpolated(3)
    grams = [
        tuple(map(str, padded[i : i + n]))
        for text in texts
        for padded in [[0, 0, *text]]
        for n in (1, 2, 3)
        for i in range(3 - n, len(padded) - n + 1)
    ]
    theirs.fit([grams], vocabulary_text=map(str, range(V)))
    total, kinds = ours.total[()], len(ours.after[()])
    for history, counts in ours.after.items():
        if len(history) == 2:
            for token in counts:
                share = theirs.counts[1][str(token)] / total
                q_1 = (theirs.counts[1][str(token)] + kinds / V) / (total + kinds)
                by_nltk = theirs.score(str(token), [*map(str, history)])
                # both are linear in the unigram's probability, with the same slope
                slope = np.prod(
                    [
                        len(ours.after[h]) / (ours.total[h] + len(ours.after[h]))
                        for h in (history[1:], history)
                    ]
                )
                expected = by_nltk + slope * (q_1 - share)
                assert ours._q(history, token) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_it_sums_to_one_after_any_history(texts, order):
    model = Ngram(texts, V, order=order)
    for history in ([], [0], [2, 6], [6, 6], [1, 2, 3]):
        q = [math.exp(model.log_q(history, [token])[0]) for token in range(V)]
        assert sum(q) == pytest.approx(1, rel=1e-12)


def test_the_judge_prefers_what_it_learnt_and_has_no_favourite_place():
    judge = LikelihoodJudge(Ngram([[1, 2, 3] * 50], V), lambda text: [int(c) for c in text])
    pairs = [("2312", "5432", 1.0), ("23", "23", 0.5), ("", "2", 0.0), ("", "", 0.5)]
    forth = judge.ask([Question("1", a, b) for a, b, _ in pairs])
    back = judge.ask([Question("1", b, a) for a, b, _ in pairs])
    assert [answer.preference for answer in forth] == [expected for *_, expected in pairs]
    assert [answer.preference for answer in back] == [1 - expected for *_, expected in pairs]
