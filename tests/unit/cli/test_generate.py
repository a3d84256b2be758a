"""``gaussmark generate``: the library's own texts, whatever the batches, told apart from what could
not be written, and taken by ``detect``.
"""

import json
import warnings

import pytest
import tiny_lm
from command_lines import Terminal, lines

from gaussmark_lib import cli, errors, generate, models, perturb
from gaussmark_lib.cli import answers
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.2)
N = 9


@pytest.fixture(scope="module")
def lm():
    return tiny_lm.build()


@pytest.fixture
def key(lm, tmp_path, monkeypatch) -> str:
    """A key file of the tiny model, which stands for whatever ``--model`` names."""
    monkeypatch.setattr(models, "load", lambda name: lm)
    return str(perturb.bind(lm.model, WM, Key.from_seed(1)).save(tmp_path / "key.json"))


def write(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.main(["generate", "--tokens", str(N), *words])
    return code, *capsys.readouterr()


def expected(lm, prompts: list[str], **options) -> list[str]:
    ids = [lm.prompt(prompt) if prompt else [] for prompt in prompts]
    with perturb.watermarked(lm.model, WM, Key.from_seed(1)):
        return [lm.decode(response) for response in generate.sample(lm.model, ids, N, **options)]


def test_the_text_alone_is_printed(lm, key, capsys):
    code, out, err = write(capsys, "--key", key, "Returns the")
    assert (code, out) == (0, expected(lm, ["Returns the"])[0] + "\n")
    assert err == "", "so soon, there is no progress to show"
    assert expected(lm, ["Returns the"]) != [
        lm.decode(generate.sample(lm.model, [lm.prompt("Returns the")], N)[0])
    ], "the watermark is in it"
    assert not hasattr(lm.model, "gaussmark"), "and the model is the base model again"


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 5},
        {"temperature": 0.5},
        {"temperature": 0.0},
        {"top_p": 0.3},
        {"until_end": True, "seed": 3},
    ],
)
def test_options_reach_the_library(lm, key, capsys, options):
    words = [
        word
        for name, value in options.items()
        for word in [f"--{name}".replace("_", "-")] + [str(value)] * (value is not True)
    ]
    assert (
        write(capsys, "--key", key, "A list of", *words)[1]
        == expected(lm, ["A list of"], **options)[0] + "\n"
    )


@pytest.mark.parametrize("batch", ["1", "2", "3", "16"])
def test_prompts_from_everywhere_are_one_list_whatever_the_batch(
    lm, key, tmp_path, capsys, typed, batch
):
    file = lines(tmp_path / "prompts.jsonl", ["Values are", "", "Ends with\n"], field="prompt")
    (tmp_path / "alone.txt").write_text("A list of\n")
    typed(b"Returns the\n")
    words = [
        "The function",
        "-",
        "--file",
        file,
        "--file",
        str(tmp_path / "alone.txt"),
        "--batch",
        batch,
    ]
    code, out, err = write(capsys, "--key", key, *words, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    prompts = ["The function", "Returns the", "Values are", "", "Ends with\n", "A list of"]
    assert code == 0
    assert [row["prompt"] for row in rows] == prompts
    assert [row["name"] for row in rows] == [
        "prompt 1",
        "-",
        *(f"{file}:{i}" for i in (1, 2, 3)),
        str(tmp_path / "alone.txt"),
    ]
    assert [row["text"] for row in rows] == expected(lm, prompts)
    assert {(row["key_id"], row["n_tokens"], row["seed"]) for row in rows} == {
        (Key.from_seed(1).key_id, N, 0)
    }
    assert "6 texts written, 0 could not be" in err


def test_progress_goes_to_standard_error(lm, key, capsys, monkeypatch):
    monkeypatch.setattr(answers, "DELAY", 0)
    code, out, err = write(capsys, "--key", key, "a", "b", "--batch", "1")
    assert (code, err) == (
        0,
        "gaussmark: 2 texts written, 0 could not be\n",
    ), "only where that is a terminal"
    terminal = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", terminal)
    cli.main(["generate", "--tokens", str(N), "--key", key, "a", "b", "--batch", "1"])
    assert f"0/{2 * N}" in terminal.getvalue()
    assert " tokens/s" in terminal.getvalue()
    assert terminal.screen()[:-2] == [line.rstrip() for line in out.splitlines()], (
        "no text stands behind it"
    )


def test_a_prompt_that_is_too_long_is_told_by_its_name(lm, key, tmp_path, capsys):
    (tmp_path / "long.txt").write_text("long " * 30)
    code, out, err = write(capsys, "--key", key, "--file", str(tmp_path / "long.txt"))
    assert (code, out) == (cli.REFUSED, "")
    assert err.startswith(f"gaussmark: {tmp_path}/long.txt: expected at most 64 tokens")
    (tmp_path / "none.jsonl").touch()
    assert (
        f"got none in {tmp_path}/none.jsonl"
        in write(capsys, "--key", key, "--file", str(tmp_path / "none.jsonl"))[2]
    )


def test_several_texts_have_their_names(lm, key, capsys):
    first, second = expected(lm, ["a", "b"])
    assert (
        write(capsys, "--key", key, "a", "b")[1]
        == f"[prompt 1]\n{first}\n\n[prompt 2]\n{second}\n\n"
    )


BROKEN = {2: b"{", 3: b'{"text": "a"}', 4: b'{"prompt": 5}'}


def test_what_cannot_be_continued_is_told_and_the_others_are_written_where_detect_reads_them(
    lm, key, tmp_path, capsys
):
    prompts = ["a", "", "", "", "long " * 30, "b"]
    file, out = (
        lines(tmp_path / "p.jsonl", prompts, BROKEN, field="prompt"),
        tmp_path / "texts.jsonl",
    )
    code, printed, err = write(
        capsys, "--key", key, "--file", file, "--out", str(out), "--batch", "2"
    )
    assert (code, printed) == (cli.PARTLY, "")
    for number, why in (
        (2, "expected a JSON object with a 'prompt' field"),
        (3, "'prompt' field"),
        (4, "to be a string"),
        (5, "expected at most"),
    ):
        assert f"gaussmark: {file}:{number}: " in err
        assert why in err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    written = expected(lm, ["a", "", "", "", "c", "b"])
    assert [row["text"] for row in rows] == [
        written[0],
        None,
        None,
        None,
        None,
        written[5],
    ], "row i draws from its own stream"
    code = cli.main(["detect", "--key", key, str(out), "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == cli.PARTLY
    assert ["error" in row for row in found] == [False, True, True, True, True, False]
    assert Key.from_seed(1).secret.hex() not in out.read_text()


def test_an_interrupted_run_goes_on_and_other_texts_are_left_alone(
    lm, key, tmp_path, capsys, monkeypatch
):
    prompts, out = ["a", "b", "c", "d", "e"], tmp_path / "texts.jsonl"
    words = [
        "--key",
        key,
        "--file",
        lines(tmp_path / "p.jsonl", prompts, {3: b"no"}, field="prompt"),
        "--out",
        str(out),
        "--batch",
        "2",
    ]
    write_rows = answers.Kept.write
    with monkeypatch.context() as patch:
        patch.setattr(
            answers.Kept,
            "write",
            lambda self, rows: (
                write_rows(self, rows)
                if not out.read_bytes()
                else (_ for _ in ()).throw(KeyboardInterrupt)
            ),
        )
        assert write(capsys, *words)[0] == cli.INTERRUPTED
    assert len(out.read_bytes().splitlines()) == 2
    code, _, err = write(capsys, *words)
    assert (code, "2 texts written, 1 could not be, behind 2 of an earlier run" in err) == (
        cli.PARTLY,
        True,
    )
    whole = out.read_bytes()
    wanted = expected(lm, prompts)
    assert [json.loads(line)["text"] for line in whole.splitlines()] == [
        *wanted[:2],
        None,
        *wanted[3:],
    ]
    out.write_bytes(whole[:-5])
    assert write(capsys, *words)[0] == cli.PARTLY
    assert out.read_bytes() == whole
    for changed in (
        ["--seed", "1"],
        ["--top-p", "0.5"],
        ["--temperature", "2"],
        ["--until-end"],
        ["--tokens", "5"],
    ):
        code, _, err = write(capsys, *words, *changed)
        assert (
            code,
            "expected texts of these prompts, with this model, this key and these options" in err,
        ) == (cli.REFUSED, True)
    assert out.read_bytes() == whole
    (tmp_path / "mine").write_text("my own notes")
    assert write(capsys, *words[:-4], "--out", str(tmp_path / "mine"))[0] == cli.REFUSED
    assert (tmp_path / "mine").read_text() == "my own notes"


def test_what_the_library_warns_of_is_one_sentence(lm, key, capsys, monkeypatch):
    def warned(model, wm, key):
        warnings.warn("half of it is lost", errors.GaussMarkWarning, stacklevel=2)
        return marked(model, wm, key)

    marked = perturb.watermarked
    monkeypatch.setattr(perturb, "watermarked", warned)
    code, _, err = write(capsys, "--key", key, "a")
    assert (code, "gaussmark: half of it is lost\n" in err) == (0, True)


def test_a_prompt_serves_a_model_without_a_start_token(key, capsys, monkeypatch):
    other = tiny_lm.build()
    for config in (other.model.config, other.model.generation_config):
        config.bos_token_id = config.eos_token_id = None
    monkeypatch.setattr(models, "load", lambda name: other)
    for words in ([], ["--until-end"]):
        code, out, _ = write(capsys, "--key", key, "A list of", *words)
        assert (code, len(out) > 1) == (0, True)
    code, out, err = write(capsys, "--key", key, "")
    assert (code, out) == (cli.REFUSED, "")
    assert "an empty prompt needs a start token" in err


def test_a_chat_template_that_raises_is_told_per_prompt(lm, key, capsys):
    lm.tokenizer.chat_template = "{{ raise_exception('no') if messages[0]['content'][-1] == 'b' }}A"
    try:
        code, out, err = write(capsys, "--key", key, "a", "b", "--json")
        assert (code, len(out.splitlines())) == (cli.PARTLY, 2)
        assert "gaussmark: prompt 2: tiny: expected a chat template" in err
        assert write(capsys, "--key", key, "b")[0] == cli.REFUSED
    finally:
        lm.tokenizer.chat_template = None
