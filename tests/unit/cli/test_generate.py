"""``gaussmark generate``: the library's own texts, whatever the batches, told apart from what could
not be written, and taken by ``detect``.
"""

import json
import warnings

import pytest
import tiny_lm
from command_lines import answer, lines, refusal, rows

from gaussmark_lib import errors, generate, perturb
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import cli
from gaussmark_lib.workbench.begin import KEY_TEMPERATURE

WM, KEY, N = Watermark(tiny_lm.WEIGHT, 0.2), Key.from_seed(1), 9


@pytest.fixture
def words(keys) -> list[str]:
    return ["generate", "--tokens", str(N), "--key", keys[0]]


def expected(lm, prompts: list[str], **options) -> list[str]:
    ids = [lm.prompt(prompt) if prompt else [] for prompt in prompts]
    with perturb.watermarked(lm.model, WM, KEY):
        return [lm.decode(response) for response in generate.sample(lm.model, ids, N, **options)]


OPTIONS = [{}, {"seed": 5}, {"temperature": 0.5}, {"temperature": 0.0}, {"top_p": 0.3}]


@pytest.mark.parametrize("options", [*OPTIONS, {"until_end": True, "seed": 3}])
def test_the_text_alone_is_printed(lm, words, capsys, options):
    for name, value in options.items():
        words += [f"--{name}".replace("_", "-")] + [str(value)] * (value is not True)
    [text] = expected(lm, ["A list of"], **options)
    assert answer(capsys, *words, "A list of") == (0, text + "\n", "")
    plain = generate.sample(lm.model, [lm.prompt("A list of")], N, **options)
    assert text != lm.decode(plain[0]), "the watermark is in it, and no longer in the model"


def test_a_chat_model_stops_by_itself_and_is_cooler(lm, words, capsys):
    lm.tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    [text] = expected(lm, ["A list of"], until_end=True, temperature=KEY_TEMPERATURE)
    assert answer(capsys, *words, "A list of")[1] == text + "\n"


@pytest.mark.parametrize("batch", ["1", "3", "16"])
def test_prompts_from_everywhere_are_one_list_whatever_the_batch(
    lm, words, tmp_path, capsys, typed, batch
):
    file = lines(tmp_path / "prompts.jsonl", ["Values are", "", "Ends with\n"], field="prompt")
    (tmp_path / "alone.txt").write_text("A list of\n")
    typed(b"Returns the\n")
    words += ["The function", "-", "--file", file, "--file", str(tmp_path / "alone.txt")]
    code, found, err = rows(capsys, *words, "--batch", batch)
    prompts = ["The function", "Returns the", "Values are", "", "Ends with\n", "A list of"]
    names = ["prompt 1", "-", *(f"{file}:{i}" for i in (1, 2, 3)), str(tmp_path / "alone.txt")]
    assert (code, "6 of 6 texts written, 0 failed" in err) == (0, True)
    assert [row["prompt"] for row in found] == prompts
    assert [row["name"] for row in found] == names
    assert [row["text"] for row in found] == expected(lm, prompts)
    assert {(row["key_id"], row["n_tokens"], row["seed"]) for row in found} == {(KEY.key_id, N, 0)}


def test_several_texts_have_names_and_their_count_goes_to_standard_error(lm, words, capsys):
    first, second = expected(lm, ["a", "b"])
    _, out, err = answer(capsys, *words, "a", "b", "--batch", "1")
    assert out == f"[prompt 1]\n{first}\n\n[prompt 2]\n{second}\n\n"
    assert err == "gaussmark: 2 of 2 texts written, 0 failed\n"


BROKEN = {2: b"{", 3: b'{"text": "a"}', 4: b'{"prompt": 5}'}


def test_what_cannot_be_continued_is_named_and_detect_reads_the_others(
    lm, keys, words, tmp_path, capsys
):
    prompts, out = ["a", "", "", "", "long " * 30, "b"], tmp_path / "texts.jsonl"
    file = lines(tmp_path / "p.jsonl", prompts, BROKEN, field="prompt")
    words += ["--file", file, "--out", str(out), "--batch", "2"]
    code, _, err = answer(capsys, *words)
    assert code == cli.answers.PARTLY
    assert all(f"gaussmark: {file}:{number}: expected a JSON object" in err for number in BROKEN)
    assert f"gaussmark: {file}:5: expected at most 64 tokens" in err
    texts = [json.loads(line)["text"] for line in out.read_bytes().splitlines()]
    written = expected(lm, ["a", "", "", "", "c", "b"])
    assert texts == [written[0], *[None] * 4, written[5]], "row i draws from its own stream"
    code, found, _ = rows(capsys, "detect", "--key", keys[0], str(out))
    is_broken = ["error" in row for row in found]
    assert (code, is_broken) == (cli.answers.PARTLY, [False, *[True] * 4, False])


def test_a_run_that_was_cut_off_goes_on_and_other_texts_are_left_alone(lm, words, tmp_path, capsys):
    prompts, out = ["a", "b", "c", "d", "e"], tmp_path / "texts.jsonl"
    file = lines(tmp_path / "p.jsonl", prompts, {3: b"no"}, field="prompt")
    words += ["--file", file, "--out", str(out), "--batch", "2"]
    assert answer(capsys, *words)[0] == cli.answers.PARTLY
    whole = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(whole[0] + whole[1] + whole[2][:-5])
    code, _, err = answer(capsys, *words)
    assert (code, "2 of 3 texts written, 1 failed" in err) == (cli.answers.PARTLY, True)
    complete, wanted = out.read_bytes(), expected(lm, prompts)
    texts = [json.loads(line)["text"] for line in complete.splitlines()]
    assert texts == [*wanted[:2], None, *wanted[3:]]
    for other in (["--seed", "1"], ["--top-p", "0.5"], ["--until-end"], ["--tokens", "5"]):
        assert "expected texts of these prompts" in refusal(capsys, *words, *other)
    assert out.read_bytes() == complete


def test_what_the_library_warns_of_is_one_sentence(words, capsys, monkeypatch):
    def warned(*args, watermarked=perturb.watermarked):
        warnings.warn("half of it is lost", errors.GaussMarkWarning, stacklevel=2)
        return watermarked(*args)

    monkeypatch.setattr(perturb, "watermarked", warned)
    code, _, err = answer(capsys, *words, "a")
    assert (code, "gaussmark: half of it is lost\n" in err) == (0, True)
