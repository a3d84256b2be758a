"""``gaussmark detect``, ``stream``, ``answer`` and ``trace`` of many texts: every good one gets its
answer, a broken one its reason, and an interrupted run goes on.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import tiny_lm
from command_lines import Terminal, answer, lines, refusal, rows

from gaussmark_lib import models, perturb, score
from gaussmark_lib.beyond import channel, joint, promise, tracing
from gaussmark_lib.beyond.tracing.authors import windows
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import cli, verdict
from gaussmark_lib.workbench.cli import answers, scoring, streaming

WM, KEY = Watermark(tiny_lm.WEIGHT, 0.2), Key.from_seed(1)
TEXTS = [
    "Returns the mean of the values.",
    "A list of all names.",
    "The first of them is used here.",
    "Values are read from a file.",
]


def psi(lm, text: str, key: Key = KEY, prompt: str = "") -> float:
    prompts = [lm.prompt(prompt) if prompt else []]
    [value] = score.score(lm.model, prompts, [lm.encode(text)], WM, [key])["psi"]
    return pytest.approx(value, rel=1e-3)


@pytest.fixture
def stream(keys) -> list[str]:
    return ["stream", "--key", keys[0]]


KINDS = [["detect"], ["trace", "--codebook", "50"], ["stream", "--state", "state"]]


def test_a_long_text_is_tested_in_windows(lm, keys, detect, stream, capsys, tmp_path):
    """As one: the same ψ alone, among others, and by the library."""
    text = "Returns the mean of the values. " * 5
    prompts, responses = windows(lm.model, [], lm.encode(text))
    of_keys = [KEY, Key.from_seed(2)]
    wanted = tracing.author(lm.model, prompts, responses, WM, of_keys)["psi"].tolist()
    both = [*detect, "--key", keys[1], "--text", text]
    code, found, _ = rows(capsys, *both)
    assert (code, [row["windows"] for row in found]) == (0, [len(prompts)] * 2)
    np.testing.assert_allclose([row["psi"] for row in found], wanted, rtol=0, atol=2e-5)
    assert 0 < found[0]["control_p_value"] < 1
    assert f"{len(lm.encode(text))} tokens in 4 windows" in answer(capsys, *both)[1]

    file = lines(tmp_path / "t.jsonl", [TEXTS[0], text, TEXTS[1]])
    found = rows(capsys, *detect, file)[1]
    alone = [psi(lm, TEXTS[0]), pytest.approx(wanted[0], rel=1e-3), psi(lm, TEXTS[1])]
    assert [row["psi"] for row in found] == alone
    assert ["windows" in row for row in found] == [False, True, False]
    assert rows(capsys, "trace", *detect[1:], file, "--codebook", "50")[1][1]["windows"] == 4
    code, _, err = rows(capsys, *stream, file, "--state", str(tmp_path / "state"))
    assert code == cli.answers.PARTLY, "a stream's law is that of uncut texts"
    assert "at most 64 tokens" in err


@pytest.mark.parametrize("share", ["0", "0.1"])
def test_allowing_for_edits_costs_no_further_pass(lm, detect, capsys, share):
    passes = []
    hook = lm.model.register_forward_hook(lambda *_: passes.append("forward"))
    code, found, _ = rows(capsys, *detect, "--text", TEXTS[0], "--edited", share)
    hook.remove()
    assert (code, found[0]["edited"]) == (0, float(share))
    assert len(passes) == 2, "the score's, and the promise's"


BROKEN = [b"{", b'{"txt": "a"}', b'{"text": 5}', b'{"text": "\xff"}', b'{"text": ""}', b'["text"]']


def test_broken_lines_are_named_by_number_and_the_others_are_scored(lm, detect, tmp_path, capsys):
    broken = dict(zip(range(2, 8), BROKEN, strict=True))
    file = lines(tmp_path / "t.jsonl", [TEXTS[0], *[""] * 6, TEXTS[1]], broken)
    code, found, err = rows(capsys, *detect, file, "--batch", "2")
    assert code == cli.answers.PARTLY
    assert [row["text"] for row in found] == [f"{file}:{number}" for number in range(1, 9)]
    assert [row.get("psi") for row in found] == [psi(lm, TEXTS[0]), *[None] * 6, psi(lm, TEXTS[1])]
    assumed = {"model", "weight", "edited", "prompt"}
    assert found[0].keys() == {"text", *assumed, *scoring.FIELDS, *verdict.FIELDS, "digest"}
    assert all(f"gaussmark: {file}:{number}: expected" in err for number in broken)
    assert "2 of 8 texts scored, 6 failed" in err


def test_files_folders_prompts_and_byte_order_marks(lm, detect, tmp_path, capsys, typed):
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbf" + TEXTS[0].encode())
    (folder / "deep" / "b.md").write_text(TEXTS[1])
    (folder / "ignored.py").write_text("x = 1")
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    row = json.dumps({"text": TEXTS[3], "prompt": "The function"})
    (tmp_path / "more.jsonl").write_bytes(b"\xef\xbb\xbf" + row.encode() + b"\n\n")
    typed("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[1:3]).encode())
    sources = ["--text", TEXTS[0], str(folder), str(tmp_path / "more.jsonl"), "-"]
    code, found, _ = rows(capsys, *detect, *sources, "--format", "jsonl")
    assert (code, "UTF-8" in found[3]["error"]) == (cli.answers.PARTLY, True)
    wanted = {
        "--text": psi(lm, TEXTS[0]),
        f"{folder}/a.txt": psi(lm, TEXTS[0]),
        f"{folder}/deep/b.md": psi(lm, TEXTS[1]),
        f"{folder}/latin.txt": None,
        f"{tmp_path}/more.jsonl:1": psi(lm, TEXTS[3], prompt="The function"),
        "-:1": psi(lm, TEXTS[1]),
        "-:2": psi(lm, TEXTS[2]),
    }
    assert [(row["text"], row.get("psi")) for row in found] == list(wanted.items())


def test_progress_is_for_terminals_and_no_answer_stands_behind_it(
    detect, tmp_path, capsys, monkeypatch
):
    file = lines(tmp_path / "t.jsonl", TEXTS[:3])
    words = [*detect, file, "--batch", "1"]
    _, out, err = answer(capsys, *words)
    assert err == "gaussmark: 3 of 3 texts scored, 0 failed\n"
    assert out.startswith(f"{file}:1: Too short to tell at level 0.05: p = ")
    monkeypatch.setattr(answers, "DELAY", 0)
    terminal = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", terminal)
    cli.main(words)
    assert "testing: " in terminal.getvalue()
    assert terminal.screen()[0] == "gaussmark: loading the model doclm …"
    assert terminal.screen()[1:4] == out.splitlines()


@pytest.mark.parametrize("words", KINDS)
def test_what_one_text_lacks_is_said_by_name(keys, tmp_path, capsys, typed, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    typed(b"")
    words = [*words, "--key", keys[0]]
    why = "expected at least one token to score, got none\n"
    for text, name in (
        (["empty.txt"], "empty.txt"),
        (["-"], "standard input"),
        (["--text", ""], "--text"),
    ):
        assert answer(capsys, *words, *text) == (cli.REFUSED, "", f"gaussmark: {name}: {why}")
    (tmp_path / "one.txt").write_text(TEXTS[0])
    err = answer(capsys, *words, "one.txt", "empty.txt")[2]
    assert "1 of 2 texts scored, 1 failed" in err


def test_one_text_after_its_prompt_from_words_files_or_standard_input(
    lm, keys, detect, tmp_path, capsys, typed
):
    """Its e-value is that of σ‖G‖, the strength that the key's own noise would give it."""
    words = [*detect, "--prompt", "A list", "--text", TEXTS[0]]
    _, [found], _ = rows(capsys, *words)
    texts = [lm.prompt("A list")], [lm.encode(TEXTS[0])]
    [row] = score.score(lm.model, *texts, WM, [KEY]).itertuples()
    expected = (KEY.key_id, row.n_tokens, None)
    assert (found["key_id"], found["n_tokens"], found["p_given"]) == expected
    for name in ("psi", "p_value", "log10_p"):
        assert found[name] == pytest.approx(getattr(row, name), rel=1e-3)
    shift = Key.load(keys[0]).binding.sigma_carried * row.grad_norm
    assert found["e_value"] == pytest.approx(np.exp(shift * row.psi - shift**2 / 2), rel=1e-2)
    sentence = answer(capsys, *words)[1]
    assert f"p = {row.p_value:.3g}" in sentence
    (tmp_path / "text.txt").write_text(TEXTS[0])
    (tmp_path / "prompt.txt").write_text("A list\n")
    words = [*detect, "--prompt-file", str(tmp_path / "prompt.txt")]
    assert answer(capsys, *words, str(tmp_path / "text.txt"))[1] == sentence
    typed(TEXTS[0].encode())
    assert answer(capsys, *words, "-")[1] == sentence


def test_several_keys_of_one_watermark(lm, keys, detect, tmp_path, capsys):
    words = [*detect, lines(tmp_path / "t.jsonl", TEXTS[:2]), "--key"]
    found = rows(capsys, *words, keys[1])[1]
    of_keys = [KEY, Key.from_seed(2)]
    assert [row["psi"] for row in found] == [
        psi(lm, text, key) for text in TEXTS[:2] for key in of_keys
    ]
    other = perturb.bind(lm.model, Watermark(WM.weight, 0.1), KEY).save(tmp_path / "other")
    assert "the key was made for 0.1, got 0.2" in refusal(capsys, *words, str(other))
    other = perturb.bind(lm.model, WM, Key.from_seed(2))
    other = channel.allowing(other, 0.3).save(tmp_path / "third")
    err = refusal(capsys, *words, str(other))
    assert "for the same share of replaced tokens, got [0.0, 0.3]" in err


def numbers(results: Path) -> str:
    """The last digit of each line's name."""
    return "".join(json.loads(line)["text"][-1] for line in results.read_bytes().splitlines())


def test_results_go_on_where_they_ended_whatever_was_cut_off(keys, detect, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    file = lines(tmp_path / "t.jsonl", [*TEXTS, TEXTS[0]], {3: b"{"})
    words = [*detect, "--key", keys[1], file, "--out", str(out), "--batch", "2"]
    assert answer(capsys, *words)[:2] == (cli.answers.PARTLY, "")
    complete = out.read_bytes()
    assert numbers(out) == "112234455"
    for end in range(0, len(complete), 211):
        out.write_bytes(complete[:end])
        answer(capsys, *words)
        assert numbers(out) == "112234455"
    code, _, err = answer(capsys, *words)
    assert code == cli.answers.PARTLY
    assert "5 texts were answered by an earlier run, 1 failed" in err


@pytest.mark.filterwarnings("ignore::gaussmark_lib.errors.GaussMarkWarning")
@pytest.mark.parametrize("other", [["--prompt", "Once"], ["--level", "0.01"], "key", "model"])
def test_results_of_another_question_are_not_gone_on_with(
    keys, detect, tmp_path, capsys, monkeypatch, other
):
    """Of another key above all, or of a fine-tune whose marked matrix is the same."""
    out = tmp_path / "out.jsonl"
    words = [lines(tmp_path / "a.jsonl", TEXTS), "--out", str(out)]
    answer(capsys, *detect, *words)
    before = out.read_bytes()
    if other == "model":
        tuned = tiny_lm.build()
        tuned.model.get_parameter("model.layers.0.mlp.up_proj.weight").data *= 1.5
        monkeypatch.setattr(models, "load", lambda name: tuned)
    key = keys[other == "key"]
    words += other if isinstance(other, list) else []
    err = refusal(capsys, "detect", "--key", key, *words)
    assert "expected results of these texts with this model" in err
    assert out.read_bytes() == before


@pytest.mark.parametrize(("place", "code"), [(1, cli.REFUSED), (2, cli.FAILED)])
def test_what_ends_after_the_first_answers_has_failed_and_was_not_refused(
    detect, tmp_path, capsys, monkeypatch, place, code
):
    calls, answer_of = [], scoring.Scoring.answer

    def fails_later(self, *batch):
        calls.append(batch)
        if len(calls) == place:
            raise GaussMarkError("no more")
        return answer_of(self, *batch)

    monkeypatch.setattr(scoring.Scoring, "answer", fails_later)
    file = lines(tmp_path / "t.jsonl", TEXTS)
    assert answer(capsys, *detect, file, "--batch", "2")[0] == code


def test_a_stream_remembers_what_it_answered(lm, keys, stream, tmp_path, capsys):
    file, state = lines(tmp_path / "t.jsonl", ["", *TEXTS], {1: b"{"}), tmp_path / "state"
    words = [*stream, file, "--state", str(state), "--batch", "1"]
    code, [_, *found], _ = rows(capsys, *words)
    assert (code, state.stat().st_mode & 0o777) == (cli.answers.PARTLY, 0o600)
    table = joint.sequence(lm.model, [[]] * 4, [lm.encode(text) for text in TEXTS], WM, [KEY])
    for name in ("psi", "p_given", "innovation", "residual", "log_e", "e_value"):
        values = [row[name] for row in found]
        assert values == pytest.approx(table[name].tolist(), rel=1e-3, abs=1e-6), name
    assert [row["control_p_value"] for row in found] == [None] * 4
    assert [row["verdict"] == "detected" for row in found] == [r["p_given"] <= 0.05 for r in found]
    again = lines(tmp_path / "again.jsonl", [TEXTS[2], "Something that was not said before."])
    words = ["stream", again, "--state", str(state), "--key"]
    _, [repeated, new], _ = rows(capsys, *words, keys[0])
    assert (repeated["repeats"], new["repeats"]) == (2, -1)
    assert [streaming.AGAIN in row["warnings"] for row in (repeated, new)] == [True, False]
    assert repeated["p_given"] == pytest.approx(found[2]["p_given"])
    assert joint.State.load(state).n_texts == 6
    before = state.read_bytes()
    assert "the keys of this state" in refusal(capsys, *words, keys[1])
    assert state.read_bytes() == before, "it was refused before a text was read"
    joint.State(budget=0).save(tmp_path / "full")
    words = [*stream, "--text", TEXTS[0], "--state", str(tmp_path / "full")]
    assert "memory is full" in refusal(capsys, *words)


def test_an_answer_that_was_counted_and_not_given_is_given_again(
    lm, stream, tmp_path, capsys, monkeypatch
):
    """The process dies between the state and the results: the same command gives the same answers,
    and asks nothing twice.
    """
    state, out = tmp_path / "state", tmp_path / "out.jsonl"
    words = [*stream, lines(tmp_path / "t.jsonl", TEXTS), "--batch", "2"]
    words += ["--state", str(state), "--out", str(out)]

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(answers, "_write", killed)
        assert answer(capsys, *words)[0] == cli.INTERRUPTED
    assert joint.State.load(state).n_texts == 2
    assert not out.exists(), "nothing is left of results without an answer"
    assert answer(capsys, *words)[0] == 0
    assert joint.State.load(state).n_texts == 4
    found = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [row["repeats"] for row in found] == [-1] * 4
    table = joint.sequence(lm.model, [[]] * 4, [lm.encode(text) for text in TEXTS], WM, [KEY])
    innovations = [row["innovation"] for row in found]
    assert innovations == pytest.approx(table["innovation"].tolist(), rel=1e-3, abs=1e-5)


def test_a_stream_answers_what_is_asked_and_not_what_was_asked_before(lm, stream, tmp_path, capsys):
    """The last answers wait in the state for who asks the same again: the same text under another
    level, prompt or share, or with other references, is another question.
    """
    (tmp_path / "m.txt").write_text(TEXTS[0])
    (tmp_path / "reference.txt").write_text(TEXTS[1])
    words = [*stream, str(tmp_path / "m.txt"), "--state", str(tmp_path / "st")]
    [first] = rows(capsys, *words)[1]
    assert rows(capsys, *words)[1] == [first]
    assert joint.State.load(tmp_path / "st").n_texts == 1
    others = [["--level", "1e-6"], ["--prompt", "Returns the"], ["--share", "0.5"]]
    others += [["--given", str(tmp_path / "reference.txt")]]
    strict, prompted, *more = [rows(capsys, *words, *other)[1][0] for other in others]
    assert strict["level"] == 1e-6
    assert prompted["psi"] == psi(lm, TEXTS[0], prompt="Returns the")
    assert joint.State.load(tmp_path / "st").n_texts == 5
    assert len({row["digest"] for row in (first, strict, prompted, *more)}) == 5


def test_untrusted_users_get_a_word_and_nothing_else(lm, keys, tmp_path, capsys):
    """By the level of its question; the same again, from the file, by windows where it is long."""
    of, *others = [TEXTS[1], TEXTS[0], TEXTS[2], TEXTS[3]]
    copies = [of, of + others[0], of + others[1], others[2] * 9, of]
    state, level = tmp_path / "state", 0.9
    file = lines(tmp_path / "t.jsonl", ["", *copies], {1: b"{"})
    options = ["--state", str(state), "--level", str(level)]
    words = ["answer", "--key", keys[1], file, *options]
    code, [broken, *found], _ = rows(capsys, *words)
    assert (code, broken.keys()) == (cli.answers.PARTLY, {"name", "error"})
    wanted, counts = [], (1, 2, 3, 1)
    scored = rows(capsys, "detect", "--key", keys[1], file)[1]
    for j, row in zip(counts, scored[1:5], strict=True):
        is_detected = row["p_value"] <= joint.public.level_of(j, level)
        wanted.append("detected" if is_detected else "not detected")
    wanted.append(wanted[0])
    names = [f"{file}:{number}" for number in range(2, 7)]
    assert found == [{"name": n, "verdict": w} for n, w in zip(names, wanted, strict=True)]
    assert len(set(wanted)) == 2, "otherwise this tests nothing"
    assert rows(capsys, *words, "--batch", "1")[1][1:] == found
    last = ["answer", "--text", of, *options, "--key"]
    assert answer(capsys, *last, keys[1])[:2] == (0, f"{wanted[0]}\n")
    for other, why in (("--level 0.1", "level: the state has"), ("--edited 0.3", "edited")):
        assert why in refusal(capsys, *last, keys[1], *other.split())
    assert "the keys of this state" in refusal(capsys, *last, keys[0])


def test_given_reference_texts(lm, stream, tmp_path, capsys):
    state = tmp_path / "state"
    words = [*stream, "--state", str(state), "--text", TEXTS[0], "--given"]
    reference = lines(tmp_path / "reference.jsonl", TEXTS[1:])
    given = ([[]] * 3, [lm.encode(text) for text in TEXTS[1:]])
    texts = lm.model, [[]], [lm.encode(TEXTS[0])], WM, [KEY]
    [wanted] = joint.sequence(*texts, given=given)["p_given"]
    assert rows(capsys, *words, reference)[1][0]["p_given"] == pytest.approx(wanted, rel=1e-3)
    state.unlink()
    assert f"p = {wanted:.3g} given earlier answers" in answer(capsys, *words, reference)[1]
    err = refusal(capsys, *words, lines(tmp_path / "b.jsonl", TEXTS[:2], {1: b"{"}))
    assert f"--given: {tmp_path}/b.jsonl:1: expected" in err


def test_the_user_is_named(lm, keys, tmp_path, capsys):
    path = str(tmp_path / "book.json")
    words = ["key", "users", path, "--key", keys[0], "--users", "30", "--base", "4"]
    assert answer(capsys, *words)[0] == 0
    book = tracing.Codebook(Key.load(keys[0]), 30, 4)
    ids = [lm.encode(text) for text in (TEXTS[0], *TEXTS[2:])]
    named = tracing.attribute(lm.model, [[]] * 3, ids, WM, book)
    trace = ["trace", "--key", keys[0], "--codebook"]
    file = lines(tmp_path / "t.jsonl", TEXTS, {2: b"{"})
    code, found, _ = rows(capsys, *trace, path, file)
    found = [row for row in found if "error" not in row]
    assert (code, [row["user"] for row in found]) == (cli.answers.PARTLY, named["user"].tolist())
    p_values = [row["p_value"] for row in found]
    assert p_values == pytest.approx(named["p_family"].tolist(), rel=1e-3)
    assert answer(capsys, *trace, "30", "--text", TEXTS[0])[1].startswith("user ")


def test_a_checkpoint_is_written(keys, tmp_path, capsys):
    folder = str(tmp_path / "marked")
    words = ["export", folder, "--key", keys[0], "--codebook", "30", "--user", "7"]
    code, out, _ = answer(capsys, *words)
    user = tracing.Codebook(Key.load(keys[0]), 30).key(7)
    assert (code, user.key_id in out) == (0, True)
    config = json.loads((tmp_path / "marked" / "config.json").read_text())
    assert config["gaussmark"]["key_id"] == user.key_id
    assert answer(capsys, *words)[0] == cli.REFUSED, "nothing is overwritten"


def test_a_state_is_one_process_s_alone_whatever_name_it_has(stream, tmp_path, capsys):
    """Of two that answer with it, each would forget what the other gave away."""
    state, link = tmp_path / "state", tmp_path / "link"
    words = [*stream, "--text", TEXTS[0], "--state"]
    link.symlink_to(state)
    with answers.alone(state):
        for name in (state, link, tmp_path / "." / "link"):
            assert "another process is using this file" in refusal(capsys, *words, str(name))
    answer(capsys, *words, str(state))
    assert answer(capsys, *words, str(link))[0] == 0
    assert sorted(tmp_path.glob("*st*")) == [tmp_path / ".state.lock", state], "the link stays one"
    os.link(state, tmp_path / "twin")
    assert "expected a state with one name" in refusal(capsys, *words, str(state))


@pytest.mark.parametrize("batch", ["1", "64"])
@pytest.mark.parametrize("words", KINDS)
def test_texts_without_a_gradient_are_named_and_the_run_goes_on(
    lm, tmp_path, capsys, monkeypatch, words, batch
):
    """The logits of this model are 0 whatever its weights."""
    monkeypatch.chdir(tmp_path)
    lm.model.lm_head.weight.data.zero_()
    key = perturb.bind(lm.model, WM, KEY).save(tmp_path / "key")
    words = [*words, "--key", str(key), "--prompt", "A"]
    file = lines(tmp_path / "t.jsonl", [*TEXTS[:2], "", "Returns the mean. " * 5])
    code, found, err = rows(capsys, *words, file, "--batch", batch)
    assert (code, len(found)) == (cli.answers.PARTLY, 4)
    assert all("non-zero gradient" in row["error"] for row in found[:2])
    assert "0 of 4 texts scored, 4 failed" in err
    assert "non-zero gradient" in refusal(capsys, *words, "--text", TEXTS[0])


def test_a_chat_template_that_raises_is_the_error_of_its_text(lm, detect, tmp_path, capsys):
    texts = [{"text": TEXTS[0], "prompt": "A list"}, {"text": TEXTS[1]}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    lm.tokenizer.chat_template = "{{ raise_exception('no') }}"
    code, [bad, good], _ = rows(capsys, *detect, str(tmp_path / "t.jsonl"))
    assert (code, "psi" in good) == (cli.answers.PARTLY, True)
    assert "tiny: expected a chat template that takes a user's turn" in bad["error"]


def test_an_unusual_text_has_a_caution_also_among_others(lm, detect, tmp_path, capsys, monkeypatch):
    """Of enough tokens; and every row has the power of one formula, or None."""
    monkeypatch.setattr(verdict, "STRANGE_OF_FEW", 0.0)  # the tiny model finds no text very strange
    text = "Something that was not said before."
    short = lm.decode(lm.encode(text)[: promise.FEW - 1])
    said = [answer(capsys, *detect, "--text", words)[1] for words in (text, short)]
    assert [verdict.UNUSUAL in one for one in said] == [True, False]
    _, found, _ = rows(capsys, *detect, lines(tmp_path / "t.jsonl", [text, short]))
    assert [row["power"] is None for row in found] == [True, False]
    texts = lm.model, [[]], [lm.encode(short)], WM
    [promised] = promise.table(*texts, unknown_prompt=[]).to_dict("records")
    [scores] = score.score(*texts, [KEY]).to_dict("records")
    wanted = verdict.of(scores | promised, WM.sigma)
    assert found[1]["power"] == pytest.approx(wanted["power"], rel=1e-3)
    assert found[1]["temperature"] == 1


def test_a_word_never_goes_on_behind_numbers(keys, detect, tmp_path, capsys):
    """A file of scores is not taken for a file of words, or its scores would be given away."""
    out = tmp_path / "out.jsonl"
    words = ["--text", TEXTS[0], "--out", str(out)]
    assert answer(capsys, *detect, *words)[0] == 0
    before = out.read_bytes()
    asked = ["answer", "--key", keys[0], "--state", str(tmp_path / "state"), *words]
    assert "name another file" in refusal(capsys, *asked)
    assert out.read_bytes() == before
