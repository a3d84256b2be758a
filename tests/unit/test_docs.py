"""The documentation corpus: what counts as prose, how strings are cut, and a split that depends on the paragraph alone."""

import hashlib
import subprocess
import sys

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib import docs
from gaussmark_lib.docs import is_prose, paragraphs, paragraphs_of_file, split_of

PROSE = "The estimator returns the mean of all samples that were drawn, which does not depend on the order in which they came."
OTHER = "A second paragraph follows the first one after a blank line, and it has to be long enough to be kept by the rules."


def test_prose_is_prose():
    assert is_prose(PROSE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Too short to be kept.",
        PROSE[:-1],
        PROSE[0].lower() + PROSE[1:],
        PROSE.replace("mean", ">>> mean"),
        PROSE.replace("mean", "m\N{REPLACEMENT CHARACTER}an"),
        PROSE.replace("mean", f"m{chr(0xD800)}an"),
        "X " + "= 3 + x[4] % {} " * 10 + ".",
        "Returns x_1, y_2, z_3, f(x), g(y) -> np.ndarray[int, 3] of x_1 + y_2 and z_3 / f(x) * g(y) == 0x3F as x_4 or y_5.",
    ],
    ids=["empty", "short", "no full stop", "no capital", "doctest", "replacement", "surrogate", "formula", "code"],
)
def test_what_is_no_prose(text):
    assert not is_prose(text)


def test_the_share_of_words_decides():
    words, codes = "Some plain words in a row that go on and on without any end in sight for now", "x_1 y_2 z_3 a_4 b_5"
    text = f"{words} {codes}".split()
    share = len(words.split()) / len(text)
    assert share >= docs.MIN_WORD_SHARE
    assert is_prose(" ".join(text)[:-1] + "5.") == (share >= docs.MIN_WORD_SHARE)
    assert not is_prose(" ".join([*text, "c_6", "d_7", "e_8."]))


def test_strings_are_cut_at_blank_lines_rules_and_changes_of_indentation():
    text = f"{PROSE}\n\n{OTHER}\n\nNotes\n-----\n{PROSE} Once more.\nIndented:\n    {OTHER}\n"
    assert paragraphs(text) == [PROSE, OTHER, OTHER]  # "… Once more. Indented:" ends with a colon


def test_lines_of_one_paragraph_are_joined_by_one_space():
    first, second, third = PROSE[:40], PROSE[40:80], PROSE[80:]
    assert paragraphs(f"\n    {first}\n    {second}\n    {third}\n") == [" ".join(f"{first} {second} {third}".split())]


@given(st.text(max_size=400))
def test_paragraphs_are_prose_on_one_line_and_cutting_them_again_changes_nothing(text):
    for found in paragraphs(f"{text}\n\n{PROSE}\n\n{text}"):
        assert is_prose(found)
        assert found == " ".join(found.split())
        assert paragraphs(found) == [found]


@given(st.text(max_size=200))
def test_the_split_depends_on_the_paragraph_alone(text):
    fraction = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
    assert split_of(text) == ("heldout" if fraction < 0.05 else "train")


def test_the_split_is_the_same_in_another_process():
    """Python's own hash is not."""
    code = f"from gaussmark_lib.docs_corpus import split_of; print([split_of({PROSE!r} + str(i)) for i in range(100)])"
    answers = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(1)}
    assert answers == {f"{[split_of(PROSE + str(i)) for i in range(100)]}\n"}


def test_a_twentieth_is_held_out():
    n = 20_000
    share = sum(split_of(f"{PROSE} {i}") == "heldout" for i in range(n)) / n
    assert abs(share - 0.05) < 3.3 * (0.05 * 0.95 / n) ** 0.5  # 99.9%


def write(path, *strings: str):
    path.write_text("\n".join(f"x{i} = {text!r}" for i, text in enumerate(strings)), encoding="utf-8")
    return path


def test_a_files_paragraphs_come_in_its_order_from_all_its_strings(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(f'"""{PROSE}"""\n\ndef f():\n    """Short.\n\n    {OTHER}\n    """\n    return "{PROSE[:-1]} twice."\n')
    assert paragraphs_of_file(path) == [PROSE, OTHER, f"{PROSE[:-1]} twice."]


@pytest.mark.parametrize(
    "content", [b"def f(:", b"\x00", b"\xff\xfe", b"x = '\xe9'", b"((((" * 5000], ids=["syntax", "null", "bytes", "latin", "deep"]
)
def test_a_file_that_does_not_parse_has_none(tmp_path, content):
    path = tmp_path / "a.py"
    path.write_bytes(content)
    assert paragraphs_of_file(path) == []


def test_a_string_that_no_file_can_hold_does_not_stop_the_rest(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(f'x = "{PROSE[:-1]} \\ud800."\ny = "{OTHER}"\n')
    assert paragraphs_of_file(path) == [OTHER]


def test_invalid_escapes_of_others_are_not_our_warnings(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(f'x = "\\d {PROSE}"\ny = "{OTHER}"\n')
    assert paragraphs_of_file(path) == [OTHER]


@pytest.fixture
def built(tmp_path, monkeypatch) -> pd.DataFrame:
    one = write(tmp_path / "one.py", PROSE, OTHER)
    two = write(tmp_path / "two.py", OTHER, f"{PROSE[:-1]} too.")
    monkeypatch.setattr(docs, "source_files", lambda: [("a/one.py", one), ("b/two.py", two)])
    return docs.build()


def test_a_paragraph_found_twice_is_kept_once(built):
    assert built["source"].tolist() == ["a/one.py", "a/one.py", "b/two.py"]
    assert built["text"].tolist() == [PROSE, OTHER, f"{PROSE[:-1]} too."]
    assert built["split"].tolist() == [split_of(text) for text in built["text"]]


def test_no_paragraph_is_in_both_splits_of_the_whole_corpus_if_it_is_there():
    path = docs.CACHE / f"docs-{docs.fingerprint()}.parquet"
    if not path.exists():
        pytest.skip("the corpus has not been built yet, which takes a minute")
    corpus = docs.load()
    assert corpus["text"].is_unique
    assert (corpus["split"] == corpus["text"].map(split_of)).all()
    assert corpus["text"].map(is_prose).all()
    assert len(corpus) > 10_000


def test_the_cache_is_read_back_and_built_only_once(built, tmp_path, monkeypatch):
    monkeypatch.setattr(docs, "CACHE", tmp_path / "cache")
    first = docs.load()
    monkeypatch.setattr(docs, "build", lambda: pytest.fail("built again"))
    pd.testing.assert_frame_equal(docs.load(), first)
    assert [file.name for file in (tmp_path / "cache").iterdir()] == [f"docs-{docs.fingerprint()}.parquet"]


def test_other_packages_mean_another_cache(monkeypatch):
    before = docs.fingerprint()
    monkeypatch.setattr(docs, "installed_packages", lambda: {"python": "3.11.0", "numpy": "1.0"})
    assert docs.fingerprint() != before


def test_this_project_is_no_part_of_its_own_corpus():
    assert "gaussmark" not in docs.installed_packages()
    assert "torch" in docs.installed_packages()


def test_the_source_files_are_those_of_the_standard_library_and_the_packages():
    names = [name for name, _ in docs.source_files()]
    assert names == sorted(set(names))
    assert {"abc.py", "json/__init__.py", "torch/__init__.py"} <= set(names)
    assert not any(name.startswith(("test/", "site-packages/", "gaussmark_lib/")) for name in names)
