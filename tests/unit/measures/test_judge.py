"""Win rates by judges with a favourite place; the n-gram judge against nltk's model; and the
endpoint judge against a local server that speaks the protocol: good and bad answers, what is asked
again, and where the key goes.
"""

import logging
import math

import numpy as np
import pytest
import tiny_models
import torch
from chat_server import ChatServer
from nltk.lm import WittenBellInterpolated

from gaussmark_experiments.measures import judge
from gaussmark_experiments.measures.judge import Answer, LikelihoodJudge, Ngram, Question
from gaussmark_lib.errors import ParameterError

V = 7
PROMPTS = [f"p{i}" for i in range(20)]
LONG, SHORT = ["long answer"] * 20, ["short"] * 20


class Favours:
    """A judge with a favourite place, which otherwise prefers the longer answer."""

    name = "biased"

    def __init__(self, bias, fails=()):
        self.bias, self.fails, self.asked = bias, fails, 0

    def ask(self, questions):
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
    table = judge.compare(Favours(bias), PROMPTS, ours, theirs)
    assert (table["score"] == score).all()
    assert (table["asked"] == 2).all()


def test_identical_answers_are_a_tie_and_nobody_is_asked():
    biased = Favours(100)
    table = judge.compare(biased, PROMPTS, LONG, LONG)
    assert biased.asked == table["asked"].sum() == 0
    assert (table["score"] == 0.5).all()


def test_failures_are_left_out_with_their_reason():
    table = judge.compare(Favours(0, fails=("p3", "p4")), PROMPTS, LONG, SHORT)
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

    def weight(history):
        return len(ours.after[history]) / (ours.total[history] + len(ours.after[history]))

    for history in [history for history in ours.after if len(history) == 2]:
        for token in ours.after[history]:
            count = theirs.counts[1][str(token)]
            q_1 = (count + kinds / V) / (total + kinds)
            by_nltk = theirs.score(str(token), [*map(str, history)])
            # both are linear in the unigram's probability, with the same slope
            slope = weight(history[1:]) * weight(history)
            expected = by_nltk + slope * (q_1 - count / total)
            assert ours._q(history, token) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_it_sums_to_one_after_any_history(texts, order):
    model = Ngram(texts, V, order=order)
    for history in ([], [0], [2, 6], [6, 6], [1, 2, 3]):
        q = [math.exp(model.log_q(history, [token])[0]) for token in range(V)]
        assert sum(q) == pytest.approx(1, rel=1e-12)


def test_the_judge_prefers_what_it_learnt_and_has_no_favourite_place():
    reader = LikelihoodJudge(Ngram([[1, 2, 3] * 50], V), lambda text: [int(c) for c in text])
    pairs = [("2312", "5432", 1.0), ("23", "23", 0.5), ("", "2", 0.0), ("", "", 0.5)]
    forth = reader.ask([Question("1", a, b) for a, b, _ in pairs])
    back = reader.ask([Question("1", b, a) for a, b, _ in pairs])
    assert [answer.preference for answer in forth] == [expected for *_, expected in pairs]
    assert [answer.preference for answer in back] == [1 - expected for *_, expected in pairs]


def test_a_language_model_prefers_what_it_finds_likelier_per_token(lm):
    reader = judge.ModelJudge(lm)
    answers = ["abc", "Z", "a longer answer", ""]
    questions = [Question("what?", a, b) for a in answers for b in answers]
    prompt = lm.prompt("what?")
    with torch.no_grad():
        means = [
            tiny_models.log_p(lm.model, prompt, lm.encode(answer)).mean().item()
            for answer in answers[:3]
        ]
    means.append(-math.inf)  # of no token
    expected = [(1 + np.sign(np.nan_to_num(a - b))) / 2 for a in means for b in means]
    assert [answer.preference for answer in reader.ask(questions)] == expected
    assert [answer.preference for answer in reader.ask(questions)] == expected, "read before"
    assert reader.ask([]) == []


KEY = "sk-do-not-write-this-anywhere-5f1c"
TRANSIENT = {"retry-after-ms": "1"}  # the client's own waits would be half a second and more
QUESTIONS = [Question(f"prompt {i}", f"good {i}", f"bad {i}") for i in range(3)]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def good_wins(text: str, attempt: int = 1) -> str:
    return "A" if text.index("good") < text.index("bad") else "B"


def ask(answer, questions=QUESTIONS, key=KEY, **settings):
    settings = {"timeout": 5.0, "retries": 2} | settings
    with ChatServer(answer).running() as server:
        return judge.EndpointJudge(server.url, "stand-in", key, **settings).ask(questions), server


def test_it_asks_as_the_protocol_says_and_understands_the_answer():
    answers, server = ask(good_wins, [*QUESTIONS, Question("p", "bad", "good"), QUESTIONS[0]])
    assert [answer.preference for answer in answers] == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert {(answer.tokens_in, answer.error) for answer in answers} == {(100, None)}
    assert len(server.requests) == 4, "the same question is asked once"
    request = server.requests[0]
    assert request["path"] == "/v1/chat/completions"
    assert (request["model"], request["temperature"]) == ("stand-in", 0)
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_a_passing_failure_is_tried_again():
    answers, server = ask(
        lambda text, attempt: (429, TRANSIENT, "{}") if attempt < 3 else good_wins(text)
    )
    assert [answer.preference for answer in answers] == [1.0] * 3
    assert len(server.requests) == 9


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((429, TRANSIENT, '{"error": {"message": "slow down"}}'), "RateLimitError"),
        ((401, {}, '{"error": {"message": "no such key"}}'), "AuthenticationError"),
        ((200, {}, "not json"), "JSON"),
        ((200, {"Content-Type": "text/plain"}, "not json"), "chat completion as JSON"),
        ((200, {}, '{"choices": []}'), "chat completion as JSON"),
        ((200, {}, '{"choices": [{"message": {"content": null}}]}'), "chat completion as JSON"),
        ("Both are fine, but A", "expected the answer A, B or T"),
        ("", "expected the answer A, B or T"),
    ],
)
def test_what_fails_is_recorded_and_the_rest_is_kept(reply, reason):
    answers, _ = ask(lambda text, attempt: reply if "prompt 1" in text else good_wins(text))
    assert [answer.preference for answer in answers if answer.error is None] == [1.0, 1.0]
    assert math.isnan(answers[1].preference)
    assert reason in answers[1].error


def test_rerun_asks_only_what_is_missing(tmp_path):
    broken = [True]

    def sometimes(text, attempt):
        return (400, {}, "{}") if broken[0] and "prompt 1" in text else good_wins(text)

    with ChatServer(sometimes).running() as server:
        made = judge.EndpointJudge(server.url, "stand-in", KEY, cache=tmp_path / "new" / "cache")
        first = made.ask(QUESTIONS)
        broken[0] = False
        second = made.ask(QUESTIONS)
        other = judge.EndpointJudge(server.url, "other", KEY, cache=made.cache).ask(QUESTIONS)
    assert [math.isnan(answer.preference) for answer in first] == [False, True, False]
    assert [answer.preference for answer in [*second, *other]] == [1.0] * 6
    assert len(server.requests) == 3 + 1 + 3, "another model is another judge"
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".py"]
    assert not any(b"prompt" in path.read_bytes() for path in files), "the cache holds no text"


def test_the_key_is_written_nowhere(tmp_path, caplog):
    """Not even where the server sends it back, with everything logged."""
    caplog.set_level(logging.DEBUG)
    echoes = [
        "A",
        f"your key is {KEY}",
        (401, {}, f'{{"error": {{"message": "Incorrect API key: {KEY}"}}}}'),
        (200, {}, f"{KEY}"),
    ]
    replies = iter(echoes)
    questions = [*QUESTIONS, Question("p", "good", "bad")]
    cache = tmp_path / "cache"
    answers, server = ask(lambda *_: next(replies), questions, cache=cache, retries=0, concurrent=1)
    made = judge.EndpointJudge(server.url, "m", KEY)
    assert sum(answer.error is not None for answer in answers) == 3
    files = [str(path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()]
    assert len(caplog.text) > 100, "the client does log"
    for text in (caplog.text, repr(made), str(made), made.name, repr(answers), *files):
        assert KEY not in text


def test_the_environment_describes_it(monkeypatch):
    for name in judge.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GAUSSMARK_JUDGE_MODEL", "m")
    missing = "GAUSSMARK_JUDGE_URL, GAUSSMARK_JUDGE_KEY in the environment"
    with pytest.raises(ParameterError, match=missing):
        judge.EndpointJudge.from_environment()
    monkeypatch.setenv("GAUSSMARK_JUDGE_URL", "https://user:pass@judge.example/v1?x=1")
    monkeypatch.setenv("GAUSSMARK_JUDGE_KEY", KEY)
    made = judge.EndpointJudge.from_environment(timeout=3.0)
    assert (made.name, made.timeout, made.key) == ("m at judge.example", 3.0, KEY)


@pytest.mark.parametrize(("text", "preference"), [("A", 1.0), ("**B**", 0.0), (" T\n", 0.5)])
def test_parse(text, preference):
    assert judge.parse(text) == preference
