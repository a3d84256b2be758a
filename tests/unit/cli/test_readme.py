"""README.md and the page on the shell: their commands and their code run as they are printed there,
and what the README points to exists.
"""

import json
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from command_lines import parse

from gaussmark_lib import files, models, perturb
from gaussmark_lib.perturb import Key
from gaussmark_lib.workbench import cli
from gaussmark_lib.workbench.runs.parameters import yaml

TEXT = (files.ROOT / "README.md").read_text(encoding="utf-8")
SHELL = (files.NOTEBOOKS / "pages" / "shell.md").read_text(encoding="utf-8")


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A new folder to be in, the embedded model loaded once, and keys that are the same in each run
    of the tests.
    """
    seeds = iter(range(1, 9))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "load", cache(models.load))
    monkeypatch.setattr(perturb.Key, "new", classmethod(lambda cls: Key.from_seed(next(seeds))))
    return tmp_path


def commands(text: str) -> list[str]:
    """The lines of a shell that begin with ``gaussmark``, without their comments."""
    lines = re.findall(r"^    (gaussmark .*)$", text, re.MULTILINE)
    return [line.split("   #")[0].strip() for line in lines]


def section(title: str) -> str:
    """A section of the page on the shell."""
    return SHELL.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_its_commands_work_as_printed(place, capsys, typed):
    """A shell of two operators runs them, ``>`` and ``|``; with fewer tokens, for time."""

    def shell(line: str) -> str:
        said = None
        for command in line.split(" | "):
            words, _, target = command.partition(" > ")
            if said is not None:
                typed(said.encode())
            fewer = ["--tokens", "100"] if " generate " in words else []
            assert cli.main([*shlex.split(words)[1:], *fewer]) == 0
            said, err = capsys.readouterr()
            assert err == "", "no progress where nobody sees it"
            if target:
                Path(target).write_text(said)
        return said

    said = [shell(line) for line in commands(section("With the embedded model"))]
    starts = ["key ", " ", "Detected at", "key ", "Not detected at", "Detected at"]
    assert [line[: len(start)] for line, start in zip(said, starts, strict=True)] == starts
    names = {path.name for path in place.iterdir()}
    assert names == {"my.key", "other.key", "text.txt", "typed"}
    assert Key.load("my.key").key_id in said[2]
    after = section("With the embedded model").partition("leans towards it),")[2]
    printed = after.strip().partition("\n\n")[0]
    shape = [re.sub(r"[\d.e-]*\d|above ", "", line).split() for line in (printed, said[2].strip())]
    assert shape[0][:4] == shape[1][:4], "the answer is as printed, up to its numbers"
    assert [len(text.splitlines()) for text in (printed, said[2])] == [5, 5]


def test_its_code_prints_the_text_and_both_p_values(place, capsys):
    [code] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 9
    exec(code.replace("n_tokens=200", "n_tokens=100"), names := {})
    out = capsys.readouterr().out
    assert out.startswith(names["lm"].decode(names["text"][0]))
    head, right, wrong = out.splitlines()[-3:]
    assert head.split() == ["psi", "p_value"]
    assert float(right.split()[-1]) < 0.01 < float(wrong.split()[-1])
    assert "..." not in head


PAGES = ["own_model", "short_paper", "public_detector", "shell"]
FILES = ["papermill_runs/README.md", "notebooks/README.md"]
FILES += [f"notebooks/pages/{name}.md" for name in PAGES]


@pytest.mark.parametrize("file", FILES)
def test_every_command_is_one_that_the_parser_takes(tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    for name in ("my.key", "new.key", "other.key", "chat.key"):  # which are looked for at once
        Path(name).touch()
    found = commands((files.ROOT / file).read_text(encoding="utf-8"))
    for line in found:
        for command in line.split(" > ")[0].split(" | "):
            words = shlex.split(re.split(r"\s{3,}", command.replace("sigma S", "sigma 0.1"))[0])[1:]
            parse(words)
    assert found or file == "notebooks/README.md"


def test_what_it_points_to_exists():
    for link in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert link.startswith("https://") or (files.ROOT / link).exists(), link
    makefile = (files.ROOT / "Makefile").read_text()
    container = json.loads((files.ROOT / ".devcontainer" / "devcontainer.json").read_text())
    in_container = container["postCreateCommand"].removeprefix("make ").split()
    for target in re.findall(r"(?:^    |`)make ([a-z-]+)", TEXT, re.MULTILINE) + in_container:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    [figure] = re.findall(r"!\[[^\]]{40,}\]\(([^)]+)\)", TEXT)
    assert (files.ROOT / figure).stat().st_size < 150_000


def test_how_to_cite_it():
    cited = yaml((files.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = (files.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{cited["version"]}"' in project
    assert f'license = "{cited["license"]}"' in project
    paper = cited["preferred-citation"]
    [bibtex] = re.findall(r"```bibtex\n(.*?)```", TEXT, re.DOTALL)
    assert all(author["family-names"] in bibtex for author in paper["authors"])
    assert paper["title"] in bibtex.replace("{GaussMark}", "GaussMark")
    assert paper["url"] in bibtex


@pytest.mark.parametrize(
    ("file", "most"), [("README.md", 7_000), ("CHANGELOG.md", 6_000), ("SECURITY.md", 4_500)]
)
def test_it_is_short(file, most):
    assert len((files.ROOT / file).read_text(encoding="utf-8")) <= most
