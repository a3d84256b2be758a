"""A corpus of the reader's own folder: which files count, where they are cut, what is refused."""

import gzip
import json

import pytest

from gaussmark_lib.engine import corpus as corpora
from gaussmark_lib.errors import InvalidTextError

PARAGRAPHS = [f"Paragraph number {number} of somebody's own text." for number in range(120)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.txt").write_text("\n\n".join(PARAGRAPHS[:40]))
    (tmp_path / "deep" / "er" / "b.MD").write_text("\n\n\n".join(PARAGRAPHS[30:60]))
    lines = [{"text": "\n\n".join(PARAGRAPHS[i : i + 2])} for i in range(60, 80, 2)]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "f.CSV").write_text("text\n" + "\n".join(PARAGRAPHS[80:100]))
    (tmp_path / "g.json").write_text(json.dumps(PARAGRAPHS[100:110]))
    crlf = "\r\n\r\n".join(PARAGRAPHS[110:])
    (tmp_path / "h.txt.gz").write_bytes(gzip.compress(crlf.encode()))
    (tmp_path / "d.py").write_text("not = 'text'")
    (tmp_path / ".git" / "e.txt").write_text("Hidden.")
    return tmp_path


def test_it_has_every_paragraph_once_with_its_file_and_the_split_of_its_hash(folder):
    corpus = corpora.of_folder(folder)
    assert sorted(corpus["text"]) == sorted(PARAGRAPHS)
    lines = [f"c.jsonl:{line}" for line in range(1, 11)]
    rows = [f"f.CSV:{row}" for row in range(2, 22)] + [f"g.json:{n}" for n in range(1, 11)]
    assert set(corpus["source"]) == {"a.txt", "deep/er/b.MD", "h.txt.gz", *lines, *rows}
    assert corpus["split"].tolist() == [corpora.split_of(text) for text in corpus["text"]]
    assert set(corpus["split"]) == {"train", "heldout"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("f.txt", b"\xff\xfe\x00", r"f\.txt: cannot read the file: expected UTF-8"),
        ("f.jsonl", b"{}", r"f\.jsonl:1: expected a JSON object whose 'text'"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(folder, name, content, message):
    (folder / name).write_bytes(content)
    with pytest.raises(InvalidTextError, match=message):
        corpora.of_folder(folder)
