"""The same texts from every kind of file, and a reason where there are none."""

import csv
import gzip
import io
import json
import tomllib
from pathlib import Path

import pytest

from gaussmark_lib import texts
from gaussmark_lib.engine import text_files
from gaussmark_lib.errors import InvalidTextError

TEXTS = ['The "first", of two;\nits second line.', "Die zweite – mit Umlauten: äöü.\n\nξ"]


def table(rows: list[list[str]], delimiter: str = ",", end: str = "\n") -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator=end).writerows(rows)
    return out.getvalue()


def objects(**more: str) -> list[dict[str, str]]:
    return [{"id": str(i), "text": text} | more for i, text in enumerate(TEXTS)]


ROWS = [["id", "text"], *([str(i), text] for i, text in enumerate(TEXTS))]
LINES = "".join(json.dumps(row) + "\n" for row in objects())
CRLF = "".join(
    json.dumps(row | {"text": row["text"].replace("\n", "\r\n")}) + "\r\n" for row in objects()
)
SAME = {  # name: content, and the number of the first text
    "two.jsonl": (LINES.encode(), 1),
    "two.ndjson": (LINES.encode(), 1),
    "crlf.jsonl": (CRLF.encode(), 1),
    "cr.jsonl": (CRLF.replace("\\r\\n", "\\r").encode(), 1),
    "two.jsonl.gz": (gzip.compress(LINES.encode()), 1),
    "utf16.jsonl": (LINES.encode("utf-16"), 1),
    "two.json": (json.dumps(objects(), indent=1).encode(), 1),
    "Two.Json": (json.dumps(objects(prompt="Once")).encode("utf-8-sig"), 1),
    "strings.json": (json.dumps(TEXTS, ensure_ascii=False).encode(), 1),
    "two.JSON.GZ": (gzip.compress(json.dumps(TEXTS).encode()), 1),
    "two.csv": (table(ROWS).encode(), 2),
    "TWO.CSV": (table(ROWS).encode(), 2),
    "utf16.csv": (table(ROWS, "\t").encode("utf-16"), 2),
    "crlf.csv": (table(ROWS, end="\r\n").replace("\n", "\r\n").replace("\r\r", "\r").encode(), 2),
    "excel.csv": (table(ROWS, ";").encode("utf-8-sig"), 2),
    "two.tsv": (table(ROWS, "\t").encode(), 2),
    "two.csv.gz": (gzip.compress(table(ROWS).encode()), 2),
    "blank.csv": (("\n" + table(ROWS)).encode(), 3),
    "only.csv": (table([["n", "answer"], *([row[0], row[1]] for row in ROWS[1:])]).encode(), 2),
    "one.csv": (table([["answer"], *([text] for text in TEXTS)]).encode(), 2),
    "spaces.csv": (table([["id", " Text "], *ROWS[1:]]).encode(), 2),
    "empty_cells.csv": (table([["text", "n", ""], *([text, 1, ""] for text in TEXTS)]).encode(), 2),
    "prompt.csv": (table([["prompt", "text"], *(["Once", text] for text in TEXTS)]).encode(), 2),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_two_texts_come_from_every_kind_of_file(tmp_path, name):
    content, first = SAME[name]
    path = tmp_path / name
    path.write_bytes(content)
    found = list(text_files.items(path))
    assert [item.error for item in found] == [None, None]
    assert [item.text for item in found] == TEXTS
    assert [item.name for item in found] == [f"{path}:{first}", f"{path}:{first + 1}"]
    has_prompt = name in ("Two.Json", "prompt.csv")
    assert [item.prompt for item in found] == ["Once" if has_prompt else None] * 2
    assert text_files.has_many(name)
    numbers = [first, first + 1]
    assert texts.load(path)["source"] == [f"{name}:{number}" for number in numbers]
    assert texts.load(path)["text"] == TEXTS


WHOLE = {
    "a.txt": TEXTS[0].encode(),
    "a.TXT.gz": gzip.compress(TEXTS[0].encode()),
    "a.md": TEXTS[0].encode("utf-8-sig"),
    "utf16.txt": TEXTS[0].encode("utf-16"),
    "crlf.txt": TEXTS[0].replace("\n", "\r\n").encode(),
    "cr.txt": TEXTS[0].replace("\n", "\r").encode(),
    "notes": TEXTS[0].encode(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_another_file_is_one_text(tmp_path, name):
    (tmp_path / name).write_bytes(WHOLE[name])
    [item] = text_files.items(tmp_path / name)
    assert (item.name, item.text, item.error) == (str(tmp_path / name), TEXTS[0], None)
    assert not text_files.has_many(name)


def test_a_column_can_have_any_name_and_prompts_are_read_alike(tmp_path):
    rows = [["title", "Answer", "prompt"], ["A", "one.", "Say"], ["B", "two.", ""]]
    (tmp_path / "a.csv").write_text(table(rows))
    found = list(text_files.items(tmp_path / "a.csv", column="answer"))
    assert [(item.text, item.prompt) for item in found] == [("one.", "Say"), ("two.", None)]
    found = list(text_files.items(tmp_path / "a.csv", field="prompt"))
    assert [item.text for item in found] == ["Say", ""]
    (tmp_path / "a.json").write_text(json.dumps([{"body": "one", "text": "no"}]))
    [item] = text_files.items(tmp_path / "a.json", column="body")
    assert item.text == "one"


def test_rows_without_content_are_no_texts_and_a_spreadsheet_counts_them(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n1,one\n\n,\n2,two\n")
    found = list(text_files.items(tmp_path / "a.csv"))
    assert [item.name.rpartition(":")[2] for item in found] == ["2", "5"]


def test_a_cell_can_be_longer_than_python_allows_by_default(tmp_path):
    (tmp_path / "a.csv").write_text(f"text\n{'long ' * 40_000}\n")
    [item] = text_files.items(tmp_path / "a.csv")
    assert len(item.text) == 200_000


BAD = {  # name: content, what the error says
    "cut.csv.gz": (gzip.compress(table(ROWS).encode() * 3)[:-12], "expected a whole gzip file"),
    "a.docx.gz": (gzip.compress(b"PK\x03\x04"), "got a .docx file; save it as plain text"),
    "deep.json": (b"[" * 100_000, "broken JSON"),
    "binary.dat": (bytes(range(256)), "expected UTF-8 text"),
}
BAD_FILES = tomllib.loads(Path(__file__).with_name("bad_files.toml").read_text(encoding="utf-8"))
BAD |= {name: (text.encode("latin-1"), says) for name, (text, says) in BAD_FILES.items()}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_text_is_an_error_that_says_what_to_do(tmp_path, name):
    content, why = BAD[name]
    path = tmp_path / name
    path.write_bytes(content)
    [item] = text_files.items(path)
    assert (item.name, item.text) == (str(path), "")
    with pytest.raises(InvalidTextError, match=f"{name}: cannot read the file: .*{why}"):
        texts.load(path)
    with pytest.raises(InvalidTextError, match=why):
        item.valid()


RAGGED = {
    b"id,text\n1,one\n2,two, three\n4,four\n": "expected 2 cells, as in the first row, got 3",
    b"id,text\n1,one\nbroken\n4,four\n": "expected 2 cells, as in the first row, got 1",
    b"id,text\n1,one\n2,caf\xe9\n4,four\n": "expected UTF-8 text",
}


@pytest.mark.parametrize("content", RAGGED)
def test_a_broken_row_does_not_stop_the_others(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    first, broken, last = text_files.items(tmp_path / "a.csv")
    assert [first.text, last.text] == ["one", "four"]
    assert (broken.name, RAGGED[content] in broken.error) == (f"{tmp_path}/a.csv:3", True)


def test_an_open_quote_ends_the_table(tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,one\n2,"two\n3,three\n')
    first, broken = text_files.items(tmp_path / "a.csv")
    assert (first.text, broken.name) == ("one", f"{tmp_path}/a.csv:3")
    assert "no later row was read" in broken.error


def test_a_cut_gzip_file_gives_its_first_texts_and_an_error(tmp_path):
    lines = "".join(json.dumps({"text": f"number {i} {hash(str(i))}"}) + "\n" for i in range(9_999))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-20])
    *found, last = text_files.items(tmp_path / "a.jsonl.gz")
    assert len(found) > 1_000
    assert "expected a whole gzip file" in last.error
    assert last.name == f"{tmp_path}/a.jsonl.gz"


def test_elements_of_an_array_are_judged_one_by_one(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(["one", 2, {"text": None}, {"text": "four"}]))
    one, two, three, four = text_files.items(tmp_path / "a.json")
    assert (one.text, four.text, four.name) == ("one", "four", f"{tmp_path}/a.json:4")
    assert all("expected a JSON object whose 'text'" in item.error for item in (two, three))
