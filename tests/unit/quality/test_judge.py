"""The endpoint judge against a local server that speaks the protocol: good and bad answers, what is
asked again, and where the key goes.
"""

import logging
import math
import threading

import pytest
from chat_server import ChatServer

from gaussmark_lib.errors import JudgeError
from gaussmark_lib.quality import judge, win_rate
from gaussmark_lib.quality.win_rate import Question

KEY = "sk-do-not-write-this-anywhere-5f1c"
TRANSIENT = {"retry-after-ms": "1"}  # the client's own waits would be half a second and more
QUESTIONS = [Question(f"prompt {i}", f"good {i}", f"bad {i}") for i in range(3)]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def good_wins(text: str, attempt: int = 1) -> str:
    return "A" if text.index("good") < text.index("bad") else "B"


def ask(answer, questions=QUESTIONS, **settings):
    with ChatServer(answer).running() as server:
        made = judge.EndpointJudge(
            server.url, "stand-in", KEY, **{"timeout": 5.0, "retries": 2} | settings
        )
        return made.ask(questions), server


def test_it_asks_as_the_protocol_says_and_understands_the_answer():
    answers, server = ask(good_wins, [*QUESTIONS, Question("p", "bad", "good")])
    assert [answer.preference for answer in answers] == [1.0, 1.0, 1.0, 0.0]
    assert all(
        (answer.tokens_in, answer.tokens_out, answer.retries, answer.error) == (100, 1, 0, None)
        for answer in answers
    )
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
    assert [answer.retries for answer in answers] == [2] * 3
    assert len(server.requests) == 9


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((429, TRANSIENT, '{"error": {"message": "slow down"}}'), "RateLimitError"),
        ((401, {}, '{"error": {"message": "no such key"}}'), "AuthenticationError"),
        ((200, {}, "not json"), "chat completion as JSON"),
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


def test_a_slow_judge_times_out():
    def slow(text, attempt):
        if "prompt 1" in text:
            server.released.wait(30)
        return good_wins(text)

    with ChatServer(slow).running() as server:
        answers = judge.EndpointJudge(server.url, "stand-in", KEY, timeout=0.3, retries=0).ask(
            QUESTIONS
        )
    assert [answer.error is None for answer in answers] == [True, False, True]
    assert "APITimeoutError" in answers[1].error


def test_a_judge_that_is_down_is_left_alone():
    many = [Question(f"prompt {i}", "good", "bad") for i in range(40)]
    answers, server = ask(lambda *_: (401, {}, "{}"), many, concurrent=2, give_up=3, retries=0)
    assert all(math.isnan(answer.preference) for answer in answers)
    assert len(server.requests) < 20
    assert (
        "not asked: 3 questions in a row had failed, the last with: AuthenticationError"
        in answers[-1].error
    )


def test_rerun_asks_only_what_is_missing(tmp_path):
    broken = [True]

    def sometimes(text, attempt):
        return (400, {}, "{}") if broken[0] and "prompt 1" in text else good_wins(text)

    with ChatServer(sometimes).running() as server:
        made = judge.EndpointJudge(server.url, "stand-in", KEY, cache=tmp_path / "new" / "cache")
        first = made.ask(QUESTIONS)
        broken[0] = False
        second = made.ask(QUESTIONS)
        other = judge.EndpointJudge(server.url, "another model", KEY, cache=made.cache).ask(
            QUESTIONS
        )
    assert [math.isnan(answer.preference) for answer in first] == [False, True, False]
    assert [answer.preference for answer in second] == [1.0] * 3
    assert [answer.cached for answer in second] == [True, False, True]
    assert [answer.tokens_in for answer in second] == [0, 100, 0], "a cached answer costs nothing"
    assert not any(answer.cached for answer in other), "another model is another judge"
    assert len(server.requests) == 3 + 1 + 3


def test_the_same_question_twice_is_asked_once():
    answers, server = ask(good_wins, [QUESTIONS[0], QUESTIONS[0]])
    assert [answer.preference for answer in answers] == [1.0, 1.0]
    assert len(server.requests) == 1


def test_the_key_is_written_nowhere(tmp_path, caplog):
    """Not even where the server sends it back, with everything logged."""
    caplog.set_level(logging.DEBUG)
    replies = iter(
        [
            "A",
            f"your key is {KEY}",
            (401, {}, f'{{"error": {{"message": "Incorrect API key: {KEY}"}}}}'),
            (200, {}, f"{KEY}"),
        ]
    )
    lock = threading.Lock()

    def echo(text, attempt):
        with lock:
            return next(replies)

    with ChatServer(echo).running() as server:
        made = judge.EndpointJudge(
            server.url, "stand-in", KEY, cache=tmp_path / "cache", retries=0, concurrent=1
        )
        questions = [*QUESTIONS, Question("p", "good", "bad")]
        table = win_rate.compare(
            _Once(made), *zip(*[(q.prompt, q.first, q.second) for q in questions], strict=True)
        )
    assert table["error"].notna().sum() == 3
    assert table["error"].str.contains("•••").sum() == 3
    everything = [
        caplog.text,
        repr(made),
        str(made),
        made.name,
        table.to_csv(),
        *(str(path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()),
    ]
    assert len(caplog.text) > 100, "the client does log"
    assert not any(KEY in text for text in everything)


class _Once:
    """Asks in one order only, so that each reply above is used once."""

    def __init__(self, inner):
        self.inner, self.name = inner, inner.name

    def ask(self, questions, *, progress=False):
        half = self.inner.ask(questions[: len(questions) // 2])
        return [*half, *half]


def test_the_environment_describes_it(monkeypatch):
    for name in judge.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GAUSSMARK_JUDGE_MODEL", "m")
    with pytest.raises(
        JudgeError, match="GAUSSMARK_JUDGE_URL, GAUSSMARK_JUDGE_KEY in the environment"
    ):
        judge.EndpointJudge.from_environment()
    monkeypatch.setenv("GAUSSMARK_JUDGE_URL", "https://user:pass@judge.example/v1?x=1")
    monkeypatch.setenv("GAUSSMARK_JUDGE_KEY", KEY)
    made = judge.EndpointJudge.from_environment(timeout=3.0)
    assert (made.name, made.timeout, made.key) == ("m at judge.example", 3.0, KEY)


@pytest.mark.parametrize("key", ["sk-äöü", "sk-a\nb"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key):
    with pytest.raises(JudgeError, match="printable ASCII") as refused:
        judge.EndpointJudge("http://judge.example", "m", key)
    assert key not in str(refused.value)


def test_the_key_is_taken_out_before_an_answer_is_cut_or_quoted():
    """So that no half of it is left, and nothing that quoting changes."""
    for key in (KEY, "sk-a'b\\c"):
        for reply in ((200, {}, "x" * 60 + key), "x" * 40 + key):
            with ChatServer(lambda *_, reply=reply: reply).running() as server:
                [answer] = judge.EndpointJudge(server.url, "m", key, retries=0).ask(QUESTIONS[:1])
            assert not any(
                key[:n] in answer.error or repr(key[:n])[1:-1] in answer.error
                for n in range(5, len(key) + 1)
            )


def test_half_a_character_in_a_question_is_its_own_failure():
    answers, _ = ask(good_wins, [Question("p", "good \ud800", "bad"), QUESTIONS[0]], retries=0)
    assert "UnicodeEncodeError" in answers[0].error
    assert answers[1].preference == 1.0


@pytest.mark.parametrize(
    "url",
    [
        "judge.example/v1",
        "ftp://judge.example",
        "http://",
        "http://[bad/v1",
        "http://judge.example:abc",
    ],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(JudgeError, match="http"):
        judge.EndpointJudge(url, "m", KEY)


@pytest.mark.parametrize(
    ("text", "preference"),
    [
        ("A", 1.0),
        ("**B**", 0.0),
        (" T\n", 0.5),
        ("(A)", 1.0),
        ("AB", None),
        ("a", None),
        ("A is better", None),
        ("C", None),
    ],
)
def test_parse(text, preference):
    assert judge.parse(text) == preference


def test_a_cache_holds_no_text_and_one_that_is_a_file_is_refused(tmp_path):
    ask(good_wins, cache=tmp_path / "c")
    files = [path for path in (tmp_path / "c").rglob("*") if path.is_file()]
    assert sum(path.name == "output.pkl" for path in files) == 3
    assert not any(b"prompt" in path.read_bytes() for path in files if path.suffix != ".py")
    (tmp_path / "taken").touch()
    with pytest.raises(JudgeError, match=r"cannot use the judge's cache .*expected a folder"):
        ask(good_wins, cache=tmp_path / "taken")
