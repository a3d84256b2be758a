"""The help of every command: few options at first sight, and the others under "Advanced"."""

import re
import shlex
from collections.abc import Iterator

import pytest
import typer
from command_lines import answer, parse

from gaussmark_lib.workbench import cli

LINES = 45  # of a terminal
MOST = 8  # options that are not under "Advanced"
OPTION = re.compile(r"^  (-[-\w]+)", re.MULTILINE)


def named(group, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every command with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from named(command, (*words, name))
        else:
            yield (*words, name), command


COMMANDS = dict(named(typer.main.get_command(cli.app)))


def panels(text: str) -> dict[str, list[str]]:
    """The names of the options in each panel of a help."""
    heading, *parts = re.split(r"^(\w+):\n", text, flags=re.MULTILINE)
    assert heading.startswith("Usage: gaussmark")
    return {
        name: OPTION.findall(content) for name, content in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_few_options_are_seen_first_and_all_others_are_advanced(capsys, words):
    code, out, _ = answer(capsys, *words, "--help")
    shown = panels(out)
    assert code == 0
    assert shown.keys() <= {"Arguments", "Options", "Advanced"}
    assert 1 <= len(shown["Options"]) <= MOST
    options = [p.opts for p in COMMANDS[words].params if p.param_type_name == "option"]
    listed = shown["Options"] + shown.get("Advanced", [])
    assert len(listed) == len(set(listed)) == len(options) + 1, "every option, and --help"
    assert set(listed) <= {"--help"}.union(*options)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_help_fits_on_a_screen_and_has_examples_that_the_parser_takes(
    capsys, monkeypatch, tmp_path, words
):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    for name in ("my.key", "chat.key"):  # which are looked for at once
        (tmp_path / name).touch()
    shown = answer(capsys, *words, "--help")[1]
    assert len(shown.splitlines()) <= LINES
    examples = re.findall(r"^ +gaussmark (.*)$", shown.partition("Examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        typed = shlex.split(example.partition(" > ")[0])
        assert tuple(typed[: len(words)]) == words
        parse(typed)


def test_the_first_screen_shows_where_to_start_and_a_sentence_per_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = answer(capsys, "--help")[1]
    listed = shown.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(listed) == len({words[0] for words in COMMANDS})
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)
    examples = re.findall(r"^ +gaussmark ([a-z]+)", shown.partition("Start with:")[2], re.MULTILINE)
    assert examples == ["playground", "key", "generate", "detect", "audit"]
    assert set(examples) <= {words[0] for words in COMMANDS}
    assert max(map(len, shown.splitlines())) <= 80
