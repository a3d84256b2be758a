"""The documentation corpus: what counts as prose, how strings are cut, and a split that depends on
the paragraph alone.
"""

import subprocess
import sys
from importlib import metadata
from pathlib import Path, PurePosixPath

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib.engine import corpus
from gaussmark_lib.engine.corpus import is_prose, paragraphs, paragraphs_of_file, split_of

PROSE = (
    "The estimator returns the mean of all samples that were drawn, which does not depend on the"
    " order in which they came."
)
OTHER = (
    "A second paragraph follows the first one after a blank line, and it has to be long enough to"
    " be kept by the rules."
)


def test_strings_are_cut_at_blank_lines_rules_and_changes_of_indentation():
    text = f"{PROSE}\n\n{OTHER}\n\nNotes\n-----\n{PROSE} Once more.\nIndented:\n    {OTHER}\n"
    assert paragraphs(text) == [PROSE, OTHER, OTHER]  # "… Once more. Indented:" ends with a colon
    lines = PROSE.replace(" ", "\n    ", 3)
    assert paragraphs(f"\n    {lines}\n") == [PROSE], "joined by one space"


@given(st.text(max_size=400))
def test_paragraphs_are_prose_on_one_line_and_cutting_them_again_changes_nothing(text):
    for found in paragraphs(f"{text}\n\n{PROSE}\n\n{text}"):
        assert is_prose(found)
        assert found == " ".join(found.split())
        assert paragraphs(found) == [found]


def test_a_twentieth_is_held_out_and_the_same_in_another_process():
    """Python's own hash is another one there."""
    n = 20_000
    splits = [split_of(f"{PROSE} {i}") for i in range(n)]
    assert abs(splits.count("heldout") / n - 0.05) < 3.3 * (0.05 * 0.95 / n) ** 0.5  # 99.9%
    code = f"from gaussmark_lib.engine.corpus import split_of as f; t = {PROSE!r}\n"
    code += "print([f(f'{t} {i}') for i in range(100)])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{splits[:100]}\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            f'"""{PROSE}"""\ndef f():\n    """Short.\n\n    {OTHER}\n    """\n    return "{PROSE}"',
            [PROSE, OTHER, PROSE],
        ),
        (f'x = "{PROSE[:-1]} \\ud800."\ny = "{OTHER}"\n', [OTHER]),
        (f'x = "\\d {PROSE}"\ny = "{OTHER}"\n', [OTHER]),  # others' invalid escapes: no warnings
        ("def f(:", []),
        ("\0", []),
        ("((((" * 5000, []),
    ],
    ids=["in its order", "surrogate", "escape", "syntax", "null", "deep"],
)
def test_the_paragraphs_of_a_file(tmp_path, content, expected):
    (tmp_path / "a.py").write_text(content)
    assert paragraphs_of_file(tmp_path / "a.py") == expected


@pytest.fixture
def built(tmp_path, monkeypatch) -> pd.DataFrame:
    sources = {"one": [PROSE, OTHER], "two": [OTHER, f"{PROSE[:-1]} too."]}
    for name, strings in sources.items():
        (tmp_path / f"{name}.py").write_text("\n".join(f"x = {text!r}" for text in strings))
    found = [(f"a/{name}.py", tmp_path / f"{name}.py") for name in sources]
    monkeypatch.setattr(corpus, "source_files", lambda: found)
    monkeypatch.setattr(corpus, "CACHE", tmp_path / "cache")
    return corpus.build()


def test_a_paragraph_found_twice_is_kept_once(built):
    assert built["source"].tolist() == ["a/one.py", "a/one.py", "a/two.py"]
    assert built["text"].tolist() == [PROSE, OTHER, f"{PROSE[:-1]} too."]
    assert built["split"].tolist() == [split_of(text) for text in built["text"]]


def test_the_cache_is_built_once(built, monkeypatch):
    first = corpus.load()
    [path] = corpus.CACHE.iterdir()
    assert path.name == f"docs-{corpus.fingerprint()}.parquet"
    monkeypatch.setattr(corpus, "build", lambda: pytest.fail("built again"))
    pd.testing.assert_frame_equal(corpus.load(), first)


class _Installed:
    """An installed distribution of this version, with these files."""

    def __init__(self, version="1.0", names=None):
        self.version, self.files = version, names and [_File(name) for name in names]


class _File(PurePosixPath):
    def locate(self):
        return Path("/installed", self)


def install(monkeypatch, **distributions):
    """Exactly these packages are installed, and the corpus is of them."""

    def distribution(name):
        if name not in distributions:
            raise metadata.PackageNotFoundError(name)
        return distributions[name]

    monkeypatch.setattr(corpus, "PACKAGES", tuple(distributions))
    monkeypatch.setattr(corpus.metadata, "distribution", distribution)


def test_the_cache_is_of_versions_and_rules_and_not_of_a_build(monkeypatch):
    fingerprints = []
    for version in ("2.13.0", "2.13.0+cpu", "2.14.0"):
        install(monkeypatch, torch=_Installed(version), numpy=_Installed("2.4.6"))
        fingerprints.append(corpus.fingerprint())
    monkeypatch.setattr(corpus, "VERSION", corpus.VERSION + 1)
    assert fingerprints[0] == fingerprints[1]
    assert len({*fingerprints, corpus.fingerprint()}) == 3


def test_the_files_of_a_package_are_sorted_by_name_and_lie_inside_it(monkeypatch):
    names = ["b/z.py", "b/a.py", "b/tests/t.py", "b/data.txt", "../../bin/script.py", "b/LICENSE"]
    install(monkeypatch, b=_Installed(names=names), a=_Installed(names=["a/tests/x.py", "a.py"]))
    assert [name for name, _ in corpus.files_of("b")] == ["b/a.py", "b/tests/t.py", "b/z.py"]
    assert next(name for name, _ in corpus.files_of("b", suffix="")) == "b/LICENSE"
    assert corpus.files_of("b")[0] == ("b/a.py", Path("/installed/b/a.py"))
    # package by package, without tests
    assert [name for name, _ in corpus.source_files()] == ["b/a.py", "b/z.py", "a.py"]


NO_PROSE = {
    "empty": "",
    "short": "Too short to be kept.",
    "no full stop": PROSE[:-1],
    "no capital": PROSE[0].lower() + PROSE[1:],
    "doctest": PROSE.replace("mean", ">>> mean"),
    "replacement": PROSE.replace("mean", "m\N{REPLACEMENT CHARACTER}an"),
    "surrogate": PROSE.replace("mean", f"m{chr(0xD800)}an"),
    "formula": "X " + "= 3 + x[4] % {} " * 10 + ".",
    "code": f"Returns {'f(x_1) -> np.ndarray[int, 3] ' * 4}.",
}


@pytest.mark.parametrize("text", [PROSE, *NO_PROSE.values()], ids=["prose", *NO_PROSE])
def test_what_is_prose(text):
    assert is_prose(text) == (text == PROSE)
