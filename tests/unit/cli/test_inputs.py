"""Files that people have, by the command line: answers as from JSON lines, or one sentence."""

import csv
import gzip
import json

import numpy as np
import pytest
from command_lines import answer, lines, refusal, rows
from scipy.stats import binom

from gaussmark_lib import perturb
from gaussmark_lib.beyond import tracing
from gaussmark_lib.beyond.tracing.authors import windows
from gaussmark_lib.engine import typography
from gaussmark_lib.keys import Key
from gaussmark_lib.weights import Watermark
from gaussmark_lib.workbench import cli

TEXTS = ["Returns the mean,\nof the values.", "A list of all names."]


def table(path, texts=TEXTS, names=("id", "text")) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *enumerate(texts)])
    return str(path)


def test_every_kind_of_file_gives_the_answers_of_json_lines(detect, tmp_path, capsys):
    _, wanted, _ = rows(capsys, *detect, lines(tmp_path / "two.jsonl", TEXTS))
    crlf = [text.replace("\n", "\r\n") for text in TEXTS]
    packed = tmp_path / "two.csv.gz"
    packed.write_bytes(gzip.compress((tmp_path / table(tmp_path / "two.csv")).read_bytes()))
    (tmp_path / "two.json").write_text(json.dumps(TEXTS))
    of_windows = [lines(tmp_path / "CRLF.JSONL", crlf), table(tmp_path / "TWO.CSV", crlf)]
    for name in (*of_windows, str(tmp_path / "two.json"), str(packed)):
        code, found, _ = rows(capsys, *detect, name)
        assert (code, [row["psi"] for row in found]) == (0, [row["psi"] for row in wanted]), name
    code, found, _ = rows(capsys, *detect, table(tmp_path / "b.csv", names=("id", "body")))
    assert [row["psi"] for row in found] == [row["psi"] for row in wanted]
    assert [row["text"] for row in found] == [f"{tmp_path}/b.csv:{n}" for n in (2, 3)]


def test_line_ends_are_one_wherever_a_text_or_prompt_comes_from(detect, tmp_path, capsys, typed):
    _, [wanted], _ = rows(capsys, *detect, "--prompt", "A\nlist", "--text", TEXTS[0])
    (tmp_path / "t.txt").write_bytes(TEXTS[0].replace("\n", "\r\n").encode())
    (tmp_path / "p.txt").write_bytes(b"A\rlist\r\n")
    typed((tmp_path / "t.txt").read_bytes())
    for words in (
        ["--prompt", "A\r\nlist", "--text", TEXTS[0].replace("\n", "\r")],
        ["--prompt-file", str(tmp_path / "p.txt"), str(tmp_path / "t.txt")],
        ["--prompt", "A\nlist", "-"],
    ):
        assert rows(capsys, *detect, *words)[1][0]["psi"] == wanted["psi"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.csv", b"id,score\n1,2\n", "expected a column 'text', or only one column with words"),
        ("a.json", b'["a', "broken JSON"),
        ("a.docx", b"PK\x03\x04", "save it as plain text (.txt)"),
        ("a.csv.gz", gzip.compress(b"text\nlong\n", mtime=0)[:-9], "expected a whole gzip file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(
    detect, keys, tmp_path, capsys, name, content, why
):
    (tmp_path / name).write_bytes(content)
    file = str(tmp_path / name)
    for words in ([*detect, file], ["generate", "--key", keys[0], "--file", file]):
        err = refusal(capsys, *words)
        assert len(err.splitlines()) == 1
        assert err.startswith(f"gaussmark: {file}: cannot read the file: ")
        if words[0] == "detect":
            assert why in err
    good = lines(tmp_path / "good.jsonl", TEXTS)
    code, found, _ = rows(capsys, *detect, file, good)
    assert (code, ["error" in row for row in found]) == (cli.answers.PARTLY, [True, False, False])


def test_a_folder_s_documents_are_named_and_left_out(detect, tmp_path, capsys):
    folder = tmp_path / "texts"
    folder.mkdir()
    table(folder / "a.CSV")
    (folder / "b.docx").write_bytes(b"PK\x03\x04")
    (folder / "c.py").write_text("x = 1")
    code, found, err = rows(capsys, *detect, str(folder))
    assert (code, len(found)) == (0, 2)
    assert f"left out 1 files that are not plain text, such as '{folder}/b.docx'" in err


def test_prompts_of_a_table_are_continued(lm, keys, tmp_path, capsys, typed):
    words = ["generate", "--key", keys[0], "--tokens", "5"]
    prompts = ["The function", "A list of"]
    _, wanted, _ = rows(capsys, *words, *prompts)
    file = table(tmp_path / "p.csv", prompts, ("id", "prompt"))
    content = (tmp_path / "p.csv").read_bytes()
    typed(content)
    for source in (["--file", file], ["-", "--format", "csv"]):
        _, found, _ = rows(capsys, *words, *source)
        assert [row["text"] for row in found] == [row["text"] for row in wanted]
        assert [row["prompt"] for row in found] == prompts
    typed(content)
    assert "--format csv" in refusal(capsys, *words, "-")


ODD = "\u201cReturns\u201d the\u00a0mean of the values."


def test_unusual_characters_are_said_in_one_line(detect, tmp_path, capsys):
    said = "This text has 2 curly quotes and 1 non-breaking space, which models rarely write; a"
    assert said in answer(capsys, *detect, "--text", ODD)[1]
    file = lines(tmp_path / "t.jsonl", [ODD, TEXTS[1]])
    out = answer(capsys, *detect, file)[1].splitlines()
    assert [said in line for line in out] == [True, False]
    _, found, _ = rows(capsys, *detect, file)
    assert [sum(said in warning for warning in row["warnings"]) for row in found] == [1, 0]
    trace = ["trace", *detect[1:], "--codebook", "30"]
    assert said in answer(capsys, *trace, "--text", ODD)[1]


@pytest.mark.parametrize("text", [ODD, ODD * 4], ids=["short", "in windows"])
def test_normalise_tests_both_versions_as_the_library_does(lm, keys, detect, capsys, text):
    versions = [
        windows(lm.model, [], lm.encode(version)) for version in (typography.normalised(text), text)
    ]
    wm = Watermark("model.layers.1.mlp.down_proj.weight", 0.2)
    of_keys = [Key.from_seed(seed) for seed in (1, 2)]
    wanted = tracing.any_version(lm.model, versions, wm, of_keys)
    words = [*detect, "--key", keys[1], "--normalise", "--text", text]
    code, found, _ = rows(capsys, *words)
    assert code == 0
    assert [row["p_value"] for row in found] == pytest.approx(wanted["p_value"].tolist(), rel=1e-3)
    pairs = [[row["psi_normalised"], row["psi_as_given"]] for row in found]
    assert np.array(pairs) == pytest.approx(np.array(wanted["psi_of_each"].tolist()), abs=1e-4)
    assert [row["n_tokens"] for row in found] == [len(lm.encode(typography.normalised(text)))] * 2
    out = answer(capsys, *words)[1]
    assert "Tested as given (ψ = " in out
    assert "rarely write" not in out


def test_normalise_changes_nothing_for_plain_text_alone_or_among_others(detect, tmp_path, capsys):
    file = lines(tmp_path / "t.jsonl", [TEXTS[0], ODD, TEXTS[1], ""])
    _, plain, _ = rows(capsys, *detect, file)
    code, found, _ = rows(capsys, *detect, file, "--normalise")
    assert code == cli.answers.PARTLY
    for number in (0, 2):
        assert found[number] | {"digest": 0} == plain[number] | {"digest": 0}
    assert found[1]["psi"] != plain[1]["psi"]
    assert found[3]["error"] == plain[3]["error"]
    _, [alone], _ = rows(capsys, *detect, "--text", ODD, "--normalise")
    assert alone["psi"] == pytest.approx(found[1]["psi"], abs=1e-4)
    out = ["--out", str(tmp_path / "out.jsonl")]
    answer(capsys, *detect, file, *out)
    assert "name another file" in refusal(capsys, *detect, file, *out, "--normalise")


def test_a_text_of_spaces_alone_has_one_version(detect, capsys):
    words = [*detect, "--text", "   "]
    assert rows(capsys, *words, "--normalise")[1][0]["psi"] == rows(capsys, *words)[1][0]["psi"]


@pytest.mark.parametrize("format", ["csv", "json", "jsonl"])
def test_standard_input_of_several_texts_is_read_as_named_and_refused_without_a_name(
    detect, tmp_path, capsys, typed, format
):
    _, wanted, _ = rows(capsys, *detect, lines(tmp_path / "two.jsonl", TEXTS))
    table(tmp_path / "two.csv")
    (tmp_path / "two.json").write_text(json.dumps(TEXTS))
    content = (tmp_path / f"two.{format}").read_bytes()
    typed(content)
    code, found, _ = rows(capsys, *detect, "-", "--format", format)
    assert (code, [row["psi"] for row in found]) == (0, [row["psi"] for row in wanted])
    assert [row["text"][:2] for row in found] == ["-:", "-:"]
    typed(content)
    err = refusal(capsys, *detect, "-")
    assert len(err.splitlines()) == 1
    assert f"say --format {format} to read each, or --format text" in err
    typed(content)
    code, found, _ = rows(capsys, *detect, "-", "--format", "text")
    assert (code, [row["text"] for row in found]) == (0, ["-"])


@pytest.mark.parametrize(
    "content",
    [
        "Returns a list: [1, 2].\nA text, with a comma.",
        "text\nis, what this page is about",
        '{"name": "a text that is one JSON object"}',
        '["a", 1]',
        "[]",
        "text",
    ],
)
def test_one_text_that_is_no_file_of_several_is_read(detect, capsys, typed, content):
    typed(content.encode())
    code, found, _ = rows(capsys, *detect, "-")
    assert (code, len(found)) == (0, 1)


def test_a_column_is_named_and_refused_if_it_is_not_there(detect, tmp_path, capsys, typed):
    file = table(tmp_path / "a.csv", names=("id", "body"))
    _, wanted, _ = rows(capsys, *detect, file)
    typed((tmp_path / "a.csv").read_bytes())
    words = ["-", "--format", "csv", "--column", "body"]
    _, found, _ = rows(capsys, *detect, *words)
    assert [row["psi"] for row in found] == [row["psi"] for row in wanted]
    err = refusal(capsys, *detect, file, "--column", "essay")
    assert "expected a column 'essay', got the columns 'id', 'body'" in err


def test_the_level_of_normalise_is_exact_over_keys(lm, tmp_path, capsys):
    """By the command, over 2,500 keys, in the exact 99% interval."""
    n = 2_500
    wm = Watermark("model.layers.1.mlp.down_proj.weight", 0.2)
    words = ["detect", "--normalise", "--text", ODD]
    for seed in range(n):
        key = perturb.bind(lm.model, wm, Key.from_seed(5_000 + seed))
        words += ["--key", str(key.save(tmp_path / f"{seed}.key"))]
    code, found, _ = rows(capsys, *words)
    assert (code, len(found)) == (0, n)
    low, high = binom.ppf([0.005, 0.995], n, 0.05)
    assert low <= sum(row["p_value"] <= 0.05 for row in found) <= high
