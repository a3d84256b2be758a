"""``gaussmark detect`` of many texts: every good one gets its answer, a broken one its reason, and
an interrupted run goes on.
"""

import gzip
import json
import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest
import tiny_lm
from command_lines import Terminal, lines
from tqdm import tqdm

from gaussmark_lib import cli, joint, models, perturb, score, tracing, verdict
from gaussmark_lib.cli import answers, inputs, scoring
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tracing.authors import windows

WM = Watermark(tiny_lm.WEIGHT, 0.2)
TEXTS = [
    "Returns the mean of the values.",
    "A list of all names.",
    "The first of them is used here.",
    "Values are read from a file.",
]


@pytest.fixture(scope="module")
def lm():
    return tiny_lm.build()


@pytest.fixture
def keys(lm, tmp_path, monkeypatch) -> list[str]:
    """Key files of the tiny model, which stands for whatever ``--model`` names."""
    monkeypatch.setattr(models, "load", lambda name: lm)
    return [
        str(perturb.bind(lm.model, WM, Key.from_seed(seed)).save(tmp_path / f"key{seed}.json"))
        for seed in (1, 2)
    ]


def detect(capsys, *words: str) -> tuple[int, list[dict], str]:
    code = cli.main(["detect", *words])
    printed = capsys.readouterr()
    return (
        code,
        (
            [json.loads(line) for line in printed.out.splitlines()]
            if "--json" in words
            else printed.out.splitlines()
        ),
        printed.err,
    )


def expected(lm, text: str, seed: int = 1, prompt: str = "") -> dict:
    key = Key.from_seed(seed)
    return (
        score.score(lm.model, [lm.prompt(prompt) if prompt else []], [lm.encode(text)], WM, [key])
        .iloc[0]
        .to_dict()
    )


def test_a_long_text_is_tested_in_windows(lm, keys, capsys, tmp_path):
    """As one: the same ψ alone, among others, and by the library; a wrong key and a control beside
    it.
    """
    long = "Returns the mean of the values. " * 5
    prompts, responses = windows(lm.model, [], lm.encode(long))
    wanted = tracing.author(lm.model, prompts, responses, WM, [Key.from_seed(1), Key.from_seed(2)])
    code, rows, _ = detect(capsys, "--key", keys[0], "--key", keys[1], "--text", long, "--json")
    assert code == 0
    assert [row["windows"] for row in rows] == [len(prompts)] * 2 == [4] * 2
    np.testing.assert_allclose([row["psi"] for row in rows], wanted["psi"], rtol=0, atol=2e-5)
    assert rows[0]["n_tokens"] == len(lm.encode(long))
    assert 0 < rows[0]["control_p_value"] < 1

    file = lines(tmp_path / "texts.jsonl", [TEXTS[0], long, TEXTS[1]])
    code, rows, _ = detect(capsys, "--key", keys[0], file, "--json")
    assert code == 0
    np.testing.assert_allclose(
        [row["psi"] for row in rows],
        [expected(lm, TEXTS[0])["psi"], wanted["psi"][0], expected(lm, TEXTS[1])["psi"]],
        rtol=1e-4,
    )
    assert ["windows" in row for row in rows] == [False, True, False]
    assert f"{len(lm.encode(long))} tokens in 4 windows" in "\n".join(
        detect(capsys, "--key", keys[0], "--text", long)[1]
    )
    code, [row], _ = detect(capsys, "--key", keys[0], "--codebook", "50", "--text", long, "--json")
    assert code == 0
    assert row["windows"] == 4
    code, rows, said = detect(
        capsys, "--key", keys[0], "--stream", str(tmp_path / "state"), file, "--json"
    )
    assert code == 3, "a stream's law is that of whole texts"
    assert "at most 64 tokens" in said


BROKEN = {
    2: b"{",
    3: b'{"txt": "a"}',
    5: b'{"text": 5}',
    6: b'{"text": "\xff"}',
    7: b'{"text": ""}',
    8: b'["text"]',
}


def test_broken_lines_are_told_by_number_and_the_others_are_scored(lm, keys, tmp_path, capsys):
    file = lines(
        tmp_path / "texts.jsonl", [TEXTS[0], "", "", TEXTS[1], "", "", "", "", TEXTS[2]], BROKEN
    )
    code, rows, err = detect(capsys, "--key", keys[0], file, "--json", "--batch", "2")
    assert code == cli.PARTLY
    assert [row["text"] for row in rows] == [f"{file}:{number}" for number in range(1, 10)]
    good = {row["text"].rpartition(":")[2]: row for row in rows if "error" not in row}
    assert sorted(good) == ["1", "4", "9"]
    for number, text in zip(("1", "4", "9"), TEXTS, strict=False):
        for name in ("psi", "p_value", "n_tokens"):
            assert good[number][name] == pytest.approx(expected(lm, text)[name], rel=1e-4)
        assert good[number]["key_id"] == Key.from_seed(1).key_id
        assert good[number].keys() == {"text", *scoring.FIELDS, *verdict.FIELDS, "digest"}
    for number in BROKEN:
        assert f"gaussmark: {file}:{number}: expected" in err
    assert "3 texts scored, 6 could not be" in err


def test_a_text_or_a_line_without_an_end_is_not_read_until_the_memory_is_full(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(inputs, "LONGEST_TEXT", 40)
    rows = [
        '{"text": "a"}',
        '{"text": "%s"}' % ("b" * 28),
        '{"text": "%s"}' % ("c" * 29),
        '{"text": "%s"}' % ("d" * 200),
        '{"text": "e"}',
    ]
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.write("\n".join(rows))
    found = list(inputs.items([str(tmp_path / "rows.jsonl.gz")]))
    assert [len(row) for row in rows[1:3]] == [40, 41]
    assert [item.text[:1] for item in found] == ["a", "b", ""], "and what follows is not read"
    assert "expected a line of at most 40 bytes" in found[2].error
    (tmp_path / "one.txt").write_text("x" * 41)
    with pytest.raises(GaussMarkError, match="expected a text of at most 40 characters"):
        list(inputs.items([str(tmp_path / "one.txt")]))


def test_files_folders_zipped_lines_and_prompts(lm, keys, tmp_path, capsys):
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text(TEXTS[0])
    (folder / "deep" / "b.md").write_text(TEXTS[1])
    (folder / "ignored.py").write_text("x = 1")
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "one.txt").write_text(TEXTS[2])
    with gzip.open(tmp_path / "more.jsonl.gz", "wt") as file:
        file.write(json.dumps({"text": TEXTS[3], "prompt": "The function"}) + "\n\n")
    code, rows, _ = detect(
        capsys,
        "--key",
        keys[0],
        str(folder),
        str(tmp_path / "one.txt"),
        str(tmp_path / "more.jsonl.gz"),
        "--json",
    )
    assert code == cli.PARTLY
    names = {row["text"]: row for row in rows}
    assert list(names) == [
        *(str(folder / name) for name in ("a.txt", "deep/b.md", "latin.txt")),
        str(tmp_path / "one.txt"),
        f"{tmp_path}/more.jsonl.gz:1",
    ]
    assert "UTF-8" in names[str(folder / "latin.txt")]["error"]
    assert rows[-1]["psi"] == pytest.approx(
        expected(lm, TEXTS[3], prompt="The function")["psi"], rel=1e-4
    )
    assert rows[0]["psi"] == pytest.approx(expected(lm, TEXTS[0])["psi"], rel=1e-4)


def test_standard_input_of_lines_and_sentences(lm, keys, typed, capsys):
    typed("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:2]).encode())
    code, printed, err = detect(capsys, "--key", keys[0], "-", "--jsonl")
    assert (code, len(printed)) == (0, 2)
    assert printed[0].startswith(
        f"-:1: Not detected at level 0.05: p = {expected(lm, TEXTS[0])['p_value']:.3g}  (ψ = "
    )
    assert "2 texts scored, 0 could not be" in err


def test_progress_is_for_terminals_and_no_answer_stands_behind_it(
    lm, keys, tmp_path, capsys, monkeypatch
):
    words = ["--key", keys[0], lines(tmp_path / "t.jsonl", TEXTS[:3]), "--batch", "1"]
    _, answered, err = detect(capsys, *words)
    assert err == "gaussmark: 3 texts scored, 0 could not be\n"
    monkeypatch.setattr(answers, "DELAY", 0)
    terminal = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", terminal)
    cli.main(["detect", *words])
    assert "testing: " in terminal.getvalue()
    assert terminal.screen()[:3] == answered


@pytest.mark.parametrize("words", [[], ["--codebook", "50"], ["--stream", "state"]])
def test_what_one_text_lacks_is_said_with_the_name_of_its_file(
    keys, tmp_path, capsys, typed, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "none.jsonl").touch()
    typed(b"")
    for text, name in (
        (["empty.txt"], "empty.txt"),
        (["-"], "standard input"),
        (["--text", ""], "--text"),
    ):
        code, out, err = detect(capsys, "--key", keys[0], *words, *text)
        assert (code, out, err) == (
            cli.REFUSED,
            [],
            f"gaussmark: {name}: expected at least one token to score, got none\n",
        )
    (tmp_path / "one.txt").write_text(TEXTS[0])
    assert (
        "gaussmark: 1 text scored, 1 could not be"
        in detect(capsys, "--key", keys[0], *words, "one.txt", "empty.txt")[2]
    )
    assert (
        "expected at least one text to be scored, got none in none.jsonl"
        in detect(capsys, "--key", keys[0], *words, "none.jsonl")[2]
    )


def test_several_keys_of_one_watermark(lm, keys, tmp_path, capsys):
    file = lines(tmp_path / "t.jsonl", TEXTS[:2])
    code, rows, _ = detect(capsys, "--key", keys[0], "--key", keys[1], file, "--json")
    assert code == 0
    assert [row["psi"] for row in rows] == pytest.approx(
        [expected(lm, text, seed)["psi"] for text in TEXTS[:2] for seed in (1, 2)], rel=1e-4
    )
    other = perturb.bind(lm.model, Watermark(WM.weight, 0.1), Key.from_seed(3)).save(
        tmp_path / "other.json"
    )
    for second, complaint in (
        (str(other), "expected keys of one watermark"),
        (keys[0], "expected different keys"),
    ):
        code, _, err = detect(capsys, "--key", keys[0], "--key", second, file)
        assert (code, complaint in err) == (cli.REFUSED, True)


def test_results_go_on_where_they_ended_whatever_was_cut_off(lm, keys, tmp_path, capsys):
    file, out = lines(tmp_path / "t.jsonl", [*TEXTS, TEXTS[0]], {3: b"{"}), tmp_path / "out.jsonl"
    words = ["--key", keys[0], "--key", keys[1], file, "--out", str(out), "--batch", "2"]
    assert detect(capsys, *words)[0] == cli.PARTLY
    whole = out.read_bytes()
    rows = [json.loads(line) for line in whole.splitlines()]
    assert [row["text"].rpartition(":")[2] for row in rows] == [
        "1",
        "1",
        "2",
        "2",
        "3",
        "4",
        "4",
        "5",
        "5",
    ]
    for cut in range(0, len(whole), 211):
        out.write_bytes(whole[:cut])
        detect(capsys, *words)
        assert [json.loads(line)["text"] for line in out.read_bytes().splitlines()] == [
            row["text"] for row in rows
        ]
    code, printed, err = detect(capsys, *words)
    assert (code, printed) == (cli.PARTLY, [])
    assert (
        "0 texts scored, 0 could not be, behind 5 of an earlier run, 1 of which could not be" in err
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("other", [["--prompt", "Once"], ["--level", "0.01"], "key"])
def test_results_of_another_question_are_not_gone_on_with(keys, tmp_path, capsys, other):
    """Of another key above all, whose verdicts would be taken for this one's."""
    out, file = str(tmp_path / "out.jsonl"), lines(tmp_path / "a.jsonl", TEXTS)
    detect(capsys, "--key", keys[0], file, "--out", out)
    before = (tmp_path / "out.jsonl").read_bytes()
    words = ["--key", keys[1]] if other == "key" else ["--key", keys[0], *other]
    code, _, err = detect(capsys, *words, file, "--out", out)
    assert (code, "these keys, this prompt and level" in err) == (cli.REFUSED, True)
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_killed_three_times_nothing_is_lost_or_repeated(lm, keys, tmp_path, capsys):
    n = 120
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(97, 123, size=rng.integers(5, 30)))) for _ in range(n)]
    file, out = lines(tmp_path / "t.jsonl", texts, {17: b"{", 90: b"no"}), tmp_path / "out.jsonl"
    words = ["detect", "--key", keys[0], file, "--out", str(out), "--batch", "4"]
    for part in (10, 40, 80):
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # this process may have threads; the child uses none of them
            child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            tqdm.set_lock(
                threading.RLock()
            )  # its own one is shared by all forks, and stays locked where a killed one held it
            cli.main(words)
            os._exit(0)
        deadline = time.monotonic() + 120
        while (
            not (out.exists() and out.read_bytes().count(b"\n") >= part)
            and time.monotonic() < deadline
        ):
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert cli.main(words) == cli.PARTLY
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [row["text"] for row in rows] == [f"{file}:{number}" for number in range(1, n + 1)]
    assert [i for i, row in enumerate(rows, 1) if "error" in row] == [17, 90]
    alone = [expected(lm, text)["psi"] for text in texts[:5]]
    assert [row["psi"] for row in rows[:5]] == pytest.approx(alone, rel=1e-3)
    assert Key.load(keys[0]).secret.hex() not in out.read_text()


def test_what_ends_after_the_first_answers_has_failed_and_was_not_refused(
    keys, tmp_path, capsys, monkeypatch
):
    calls, whole, at = [], scoring.Scoring.__call__, []

    def fails_later(self, batch):
        calls.append(batch)
        if len(calls) == at[-1]:
            raise GaussMarkError("no more")
        return whole(self, batch)

    monkeypatch.setattr(scoring.Scoring, "__call__", fails_later)
    for place, code in ((1, cli.REFUSED), (2, cli.FAILED)):
        at.append(place)
        calls.clear()
        assert (
            detect(
                capsys, "--key", keys[0], lines(tmp_path / "texts.jsonl", TEXTS), "--batch", "2"
            )[0]
            == code
        )


def test_a_full_memory_is_an_error_of_its_text(keys, tmp_path, capsys):
    joint.State(budget=0).save(tmp_path / "state")
    words = ["--key", keys[0], "--text", TEXTS[0], "--stream", str(tmp_path / "state"), "--json"]
    code, _, err = detect(capsys, *words)
    assert (code, "memory is full" in err) == (cli.REFUSED, True)


def test_a_stream_that_begins_with_texts_that_cannot_be_scored(keys, tmp_path, capsys):
    file, state = (
        lines(tmp_path / "t.jsonl", ["", "", TEXTS[0]], {1: b"{", 2: b'{"text": ""}'}),
        tmp_path / "state",
    )
    words = ["--key", keys[0], file, "--stream", str(state), "--json", "--batch", "1"]
    code, rows, _ = detect(capsys, *words)
    assert (code, ["error" in row for row in rows]) == (cli.PARTLY, [True, True, False])
    assert joint.State.load(state).n_texts == 1
    only = lines(tmp_path / "only.jsonl", [""], {1: b"{"})
    assert (
        detect(capsys, "--key", keys[0], only, "--stream", str(tmp_path / "other"))[0] == cli.PARTLY
    )
    assert joint.State.load(tmp_path / "other").n_texts == 0


def test_a_stream_remembers_what_it_answered(lm, keys, tmp_path, capsys):
    file, state = lines(tmp_path / "t.jsonl", TEXTS), tmp_path / "state"
    words = ["--key", keys[0], file, "--stream", str(state), "--json", "--batch", "1"]
    code, rows, _ = detect(capsys, *words)
    assert code == 0
    assert state.stat().st_mode & 0o777 == 0o600
    encoded = [lm.encode(text) for text in TEXTS]
    table = joint.sequence(lm.model, [[]] * 4, encoded, WM, [Key.from_seed(1)])
    for row, wanted in zip(rows, table.to_dict("records"), strict=True):
        for name in ("psi", "p_given", "innovation", "residual", "log_e", "e_value"):
            assert row[name] == pytest.approx(wanted[name], rel=1e-3, abs=1e-6), name
    again = lines(tmp_path / "again.jsonl", [TEXTS[2], "Something that was not said before."])
    _, [repeated, new], _ = detect(
        capsys, "--key", keys[0], again, "--stream", str(state), "--json"
    )
    assert (repeated["repeats"], new["repeats"]) == (2, -1)
    assert repeated["p_given"] == pytest.approx(max(rows[2]["p_given"], rows[2]["p_value"]))
    assert joint.State.load(state).n_texts == 6
    code, _, err = detect(capsys, "--key", keys[1], again, "--stream", str(state))
    assert (code, "the keys of this state" in err) == (cli.REFUSED, True)


def test_an_answer_that_was_counted_and_not_given_is_given_again(
    lm, keys, tmp_path, capsys, monkeypatch
):
    """The process dies between the state and the results: the same command gives the same answers,
    and asks nothing twice.
    """
    file, state, out = (
        lines(tmp_path / "t.jsonl", TEXTS),
        tmp_path / "state",
        tmp_path / "out.jsonl",
    )
    words = ["--key", keys[0], file, "--stream", str(state), "--out", str(out), "--batch", "2"]
    with monkeypatch.context() as patch:
        patch.setattr(
            answers.Kept, "write", lambda self, found: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert detect(capsys, *words)[0] == cli.INTERRUPTED
    assert joint.State.load(state).n_texts == 2
    assert not out.exists(), "nothing is left of results without an answer"
    assert detect(capsys, *words)[0] == 0
    assert joint.State.load(state).n_texts == 4
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [row["repeats"] for row in rows] == [-1] * 4
    table = joint.sequence(
        lm.model, [[]] * 4, [lm.encode(text) for text in TEXTS], WM, [Key.from_seed(1)]
    )
    assert [row["innovation"] for row in rows] == pytest.approx(
        table["innovation"].tolist(), rel=1e-3, abs=1e-5
    )


def test_given_reference_texts(lm, keys, tmp_path, capsys):
    reference = lines(tmp_path / "reference.jsonl", TEXTS[1:])
    _, [row], _ = detect(
        capsys, "--key", keys[0], "--text", TEXTS[0], "--given", reference, "--json"
    )
    given = ([[]] * 3, [lm.encode(text) for text in TEXTS[1:]])
    wanted = joint.sequence(
        lm.model, [[]], [lm.encode(TEXTS[0])], WM, [Key.from_seed(1)], given=given
    )
    assert row["p_given"] == pytest.approx(wanted["p_given"][0], rel=1e-3)
    _, sentence, _ = detect(capsys, "--key", keys[0], "--text", TEXTS[0], "--given", reference)
    assert f"p = {wanted['p_given'][0]:.3g} given what was answered before" in sentence[0]
    broken = lines(tmp_path / "broken.jsonl", TEXTS[:2], {1: b"{"})
    for words, complaint in (
        (["--given", broken], "--given: "),
        (["--given", reference, "--out", "o"], "expected --stream STATE too"),
    ):
        code, _, err = detect(capsys, "--key", keys[0], "--text", TEXTS[0], *words)
        assert (code, complaint in err) == (cli.REFUSED, True)


def test_the_user_is_named(lm, keys, tmp_path, capsys):
    book = tracing.Codebook(Key.load(keys[0]), 30, 4)
    path = str(book.save(tmp_path / "book.json"))
    file = lines(tmp_path / "t.jsonl", TEXTS, {2: b"{"})
    named = tracing.attribute(
        lm.model, [[]] * 3, [lm.encode(text) for text in (TEXTS[0], *TEXTS[2:])], WM, book
    )
    code, rows, _ = detect(capsys, "--key", keys[0], "--codebook", path, file, "--json")
    assert code == cli.PARTLY
    assert [row["user"] for row in rows if "user" in row] == named["user"].tolist()
    assert [row["p_value"] for row in rows if "user" in row] == pytest.approx(
        named["p_family"].tolist(), rel=1e-3
    )
    _, sentence, _ = detect(capsys, "--key", keys[0], "--codebook", "30", "--text", TEXTS[0])
    assert sentence[0].startswith("user ")


def test_a_codebook_and_a_checkpoint_are_written(lm, keys, tmp_path, capsys):
    path = tmp_path / "book.json"
    assert (
        cli.main(["key", "users", str(path), "--key", keys[0], "--users", "30", "--base", "4"]) == 0
    )
    folder = tmp_path / "marked"
    assert (
        cli.main(["export", str(folder), "--key", keys[0], "--codebook", str(path), "--user", "7"])
        == 0
    )
    printed = capsys.readouterr()
    user = tracing.Codebook(Key.load(keys[0]), 30, 4).key(7)
    assert user.key_id in printed.out
    assert json.loads((folder / "config.json").read_text())["gaussmark"]["key_id"] == user.key_id
    assert not any(
        Key.load(keys[0]).secret.hex() in text
        for text in (printed.out, printed.err, path.read_text())
    )
    assert cli.main(["export", str(folder), "--key", keys[0]]) == cli.REFUSED
    assert (
        cli.main(["export", str(tmp_path / "other"), "--key", keys[0], "--user", "7"])
        == cli.REFUSED
    )
    assert "--user and --codebook together" in capsys.readouterr().err


def test_a_stream_has_a_verdict_by_what_is_new_and_no_control(keys, tmp_path, capsys):
    words = [
        "--key",
        keys[0],
        "--text",
        TEXTS[0],
        "--stream",
        str(tmp_path / "state"),
        "--level",
        "0.999",
    ]
    _, [row], _ = detect(capsys, *words, "--json")
    assert (row["verdict"] == "detected", row["control_p_value"]) == (row["p_given"] <= 0.999, None)
    _, said, _ = detect(capsys, *words)
    assert "control" not in "".join(said)


def test_a_stream_answers_what_is_asked_and_not_what_was_asked_before(lm, keys, tmp_path, capsys):
    """The last answers wait in the state for who asks the same again: the same text under another
    level, prompt or share, or with other references, is another question.
    """
    (tmp_path / "m.txt").write_text(TEXTS[0])
    words = ["--key", keys[0], str(tmp_path / "m.txt"), "--stream", str(tmp_path / "st"), "--json"]
    _, [first], _ = detect(capsys, *words)
    assert detect(capsys, *words)[1] == [first]
    assert joint.State.load(tmp_path / "st").n_texts == 1
    _, [strict], _ = detect(capsys, *words, "--level", "1e-6")
    assert strict["level"] == 1e-6
    _, [prompted], _ = detect(capsys, *words, "--prompt", "Returns the")
    assert prompted["psi"] == pytest.approx(
        expected(lm, TEXTS[0], prompt="Returns the")["psi"], rel=1e-4
    )
    (tmp_path / "reference.txt").write_text(TEXTS[1])
    _, [given], _ = detect(capsys, *words, "--given", str(tmp_path / "reference.txt"))
    _, [shared], _ = detect(capsys, *words, "--share", "0.5")
    assert joint.State.load(tmp_path / "st").n_texts == 5
    digests = {row["digest"] for row in (first, strict, prompted, given, shared)}
    assert len(digests) == 5, "and no line of another question is gone on with"


@pytest.mark.filterwarnings("ignore::gaussmark_lib.errors.GaussMarkWarning")
def test_results_of_another_model_are_not_gone_on_with(keys, tmp_path, capsys, monkeypatch):
    """Of a fine-tune above all, whose marked matrix is the same."""
    out, file = tmp_path / "out.jsonl", lines(tmp_path / "a.jsonl", TEXTS)
    words = ["--key", keys[0], file, "--out", str(out)]
    detect(capsys, *words)
    before, other = out.read_bytes(), tiny_lm.build()
    other.model.get_parameter("model.layers.0.mlp.up_proj.weight").data *= 1.5
    monkeypatch.setattr(models, "load", lambda name: other)
    code, _, err = detect(capsys, *words)
    assert (code, "expected results of these texts with this model" in err) == (cli.REFUSED, True)
    assert out.read_bytes() == before


def test_a_state_is_one_process_s_alone_whatever_name_it_has(keys, tmp_path, capsys):
    """Of two that answer with it, each would forget what the other gave away."""
    state, link, twin = (tmp_path / name for name in ("state", "link", "twin"))
    words = ["--key", keys[0], "--text", TEXTS[0], "--stream"]
    link.symlink_to(state)
    with answers.alone(state):
        for name in (state, link, tmp_path / "." / "link"):
            code, _, err = detect(capsys, *words, str(name))
            assert (code, "another process answers with it" in err) == (cli.REFUSED, True)
    detect(capsys, *words, str(state))
    assert detect(capsys, *words, str(link))[0] == 0
    assert sorted(tmp_path.glob("*st*")) == [state], "the link stays one, and no lock is left"
    os.link(state, twin)
    for name in (state, twin):
        code, _, err = detect(capsys, *words, str(name))
        assert (code, "expected a state with one name" in err) == (cli.REFUSED, True)


@pytest.fixture
def unmoved(lm, keys, tmp_path, monkeypatch) -> str:
    """A key of a model whose texts have no gradient: its logits are 0 whatever its weights."""
    other = tiny_lm.build()
    other.model.lm_head.weight.data.zero_()
    monkeypatch.setattr(models, "load", lambda name: other)
    return str(perturb.bind(other.model, WM, Key.from_seed(1)).save(tmp_path / "unmoved.json"))


@pytest.mark.parametrize("batch", ["1", "2", "64"])
@pytest.mark.parametrize("words", [[], ["--codebook", "50"], ["--stream", "state"]])
def test_texts_without_a_gradient_are_told_and_the_run_goes_on(
    unmoved, tmp_path, capsys, monkeypatch, words, batch
):
    monkeypatch.chdir(tmp_path)
    file = lines(tmp_path / "t.jsonl", [*TEXTS[:2], "", "Returns the mean. " * 5])
    code, rows, err = detect(
        capsys, "--key", unmoved, *words, file, "--json", "--batch", batch, "--prompt", "A"
    )
    assert (code, [row["text"].rpartition(":")[2] for row in rows]) == (cli.PARTLY, [*"1234"])
    assert all("non-zero gradient" in rows[i]["error"] for i in (0, 1))
    assert "0 texts scored, 4 could not be" in err
    code, rows, err = detect(capsys, "--key", unmoved, *words, "--text", TEXTS[0])
    assert (code, rows, "non-zero gradient" in err) == (cli.REFUSED, [], True)


def test_lines_may_begin_with_a_byte_order_mark(lm, keys, tmp_path, capsys):
    file = tmp_path / "texts.jsonl"
    lines(file, TEXTS[:2])
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    code, rows, _ = detect(capsys, "--key", keys[0], str(file), "--json")
    assert (code, len(rows)) == (0, 2)
    assert rows[0]["psi"] == pytest.approx(expected(lm, TEXTS[0])["psi"], rel=1e-4)
    file.write_bytes(b"\xef\xbb\xbf\n" + b'{"text": "a"}\n')
    assert [item.name for item in inputs.items([str(file)])] == [f"{file}:2"]
    (tmp_path / "alone.txt").write_bytes(b"\xef\xbb\xbfA text")
    assert [item.text for item in inputs.items([str(tmp_path / "alone.txt")])] == ["A text"]


TEMPLATES = ["{{ raise_exception('no') }}", "{{ ''.__class__.__mro__ }}", "{{ range(10**9) }}"]
TEMPLATES += ["{{ 1 // 0 }}", "{% if %}"]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_that_raises_is_told_per_text(lm, keys, tmp_path, capsys, template):
    file = tmp_path / "t.jsonl"
    rows = [{"text": TEXTS[0], "prompt": "A list"}, {"text": TEXTS[1]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lm.tokenizer.chat_template = template
    try:
        code, [bad, good], err = detect(capsys, "--key", keys[0], str(file), "--json")
        assert (code, "psi" in good) == (cli.PARTLY, True)
        assert "tiny: expected a chat template that takes a user's turn" in bad["error"]
        code, _, err = detect(capsys, "--key", keys[0], "--text", TEXTS[0], "--prompt", "A")
        assert (code, "--text: tiny: expected a chat template" in err) == (cli.REFUSED, True)
    finally:
        lm.tokenizer.chat_template = None


def test_a_prompt_serves_a_model_without_a_start_token(keys, tmp_path, capsys, monkeypatch):
    other = tiny_lm.build()
    other.model.config.bos_token_id = other.model.config.eos_token_id = None
    monkeypatch.setattr(models, "load", lambda name: other)
    words = ["--key", keys[0], "--text", TEXTS[0]]
    assert detect(capsys, *words, "--prompt", "A")[0] == 0
    code, _, err = detect(capsys, *words)
    assert (code, "an empty prompt needs a start token" in err) == (cli.REFUSED, True)
