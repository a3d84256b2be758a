"""A corpus out of the reader's own folder: which files count, where they are cut, and what cannot
be used.
"""

import json

import pytest

from gaussmark_lib import docs
from gaussmark_lib.doclm import own_text
from gaussmark_lib.errors import CorpusError

PARAGRAPHS = [f"Paragraph number {number} of somebody's own text." for number in range(80)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.txt").write_text("\n\n".join(PARAGRAPHS[:40]))
    (tmp_path / "deep" / "er" / "b.MD").write_text("\n\n\n".join(PARAGRAPHS[30:60]))
    (tmp_path / "c.jsonl").write_text(
        "".join(
            json.dumps({"text": "\n\n".join(pair)}) + "\n"
            for pair in zip(PARAGRAPHS[60::2], PARAGRAPHS[61::2], strict=True)
        )
    )
    (tmp_path / "d.py").write_text("not = 'text'")
    (tmp_path / ".git" / "e.txt").write_text("Hidden.")
    return tmp_path


def test_it_has_every_paragraph_once_with_its_file_and_the_split_of_its_hash(folder):
    corpus = own_text.load(folder)
    assert sorted(corpus["text"]) == sorted(PARAGRAPHS)
    assert set(corpus["source"]) == {
        "a.txt",
        "deep/er/b.MD",
        *(f"c.jsonl/{line}" for line in range(1, 11)),
    }
    assert corpus["split"].tolist() == [docs.split_of(text) for text in corpus["text"]]
    assert set(corpus["split"]) == {"train", "heldout"}


def test_a_text_s_place_does_not_depend_on_the_files_beside_it(folder):
    before = own_text.load(folder).set_index("text")["split"]
    (folder / "a.txt").write_text("\n\n".join(PARAGRAPHS[:20]))
    after = own_text.load(folder).set_index("text")["split"]
    assert (before[after.index] == after).all()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("f.txt", b"\xff\xfe\x00", r"cannot read .*f\.txt.*expected UTF-8"),
        ("f.jsonl", b"{}", r"f\.jsonl, line 1: expected a JSON object with a 'text' field"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(folder, name, content, message):
    (folder / name).write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        own_text.load(folder)


def test_no_folder_and_too_little_text_say_what_is_missing(tmp_path):
    with pytest.raises(CorpusError, match="expected a folder with files ending in"):
        own_text.load(tmp_path / "none")
    with pytest.raises(CorpusError, match=r"expected paragraphs in both splits.*got 0 paragraphs"):
        own_text.load(tmp_path)
    (tmp_path / "a.txt").write_text("One.")
    with pytest.raises(CorpusError, match="got 1 paragraphs"):
        own_text.load(tmp_path)
