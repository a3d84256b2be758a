"""Texts by kind: columns, order, lengths, splits, and what is said where there are none."""

import gzip
import json
import socket
import time

import pandas as pd
import pytest

from gaussmark_lib import texts
from gaussmark_lib.engine import corpus as corpus_
from gaussmark_lib.errors import CorpusError, InvalidTextError


@pytest.fixture
def corpus(monkeypatch) -> pd.DataFrame:
    """A corpus of 2,000 paragraphs in 40 files of 8 packages, in place of the installed
    packages'.
    """
    rows = [
        (
            f"pkg{i // 250}/file{i // 50}.py",
            (
                f"Paragraph number {i} says something of its own, at some length, about nothing at"
                " all."
            ),
        )
        for i in range(2000)
    ]
    table = pd.DataFrame(rows, columns=["source", "text"])
    table["split"] = table["text"].map(corpus_.split_of)
    monkeypatch.setattr(corpus_, "load", lambda: table)
    return table


class TestDocs:
    def test_each_text_is_whole_paragraphs_of_one_package_and_split(self, corpus):
        split, package = (
            corpus.set_index("text")["split"],
            corpus.set_index("text")["source"].str.split("/").str[0],
        )
        for wanted in ("train", "heldout"):
            for row in texts.load("docs", split=wanted, min_chars=200):
                parts = row["text"].split("\n\n")
                assert set(split[parts]) == {wanted}
                assert set(package[parts]) == {row["source"]}
                assert len(row["text"]) >= 200
                assert len("\n\n".join(parts[:-1])) < 200  # no longer than it has to be

    def test_splits_share_no_paragraph(self, corpus):
        train, heldout = (
            {
                part
                for text in texts.load("docs", split=split, min_chars=100)["text"]
                for part in text.split("\n\n")
            }
            for split in ("train", "heldout")
        )
        assert train
        assert heldout
        assert not train & heldout

    def test_the_first_n_are_a_prefix_in_a_fixed_order_that_mixes_packages(self, corpus):
        everything = texts.load("docs", split="train", min_chars=200)
        assert (
            texts.load("docs", split="train", n=7, min_chars=200).to_list()
            == everything.to_list()[:7]
        )
        assert len(set(everything["source"][:20])) > 3
        assert everything.column_names == ["text", "source"]

    def test_an_unknown_split(self, corpus):
        with pytest.raises(
            CorpusError, match="docs: expected the split 'train' or 'heldout', got 'test'"
        ):
            texts.load("docs", split="test")

    def test_more_than_there_are(self, corpus):
        n = len(texts.load("docs", min_chars=200))
        with pytest.raises(
            CorpusError,
            match=(
                rf"docs \(heldout\): expected {n + 1} texts of at least 200 characters, found {n};"
                r" ask for fewer or shorter"
            ),
        ):
            texts.load("docs", n=n + 1, min_chars=200)

    def test_longer_than_any(self, corpus):
        with pytest.raises(
            CorpusError, match="expected some texts of at least 10000000 characters, found 0"
        ):
            texts.load("docs", min_chars=10**7)


@pytest.mark.parametrize(
    ("kind", "words"), [("licences", ("copyright", "licen")), ("source", ("def ", "import "))]
)
def test_the_other_kinds_exist_on_this_machine(kind, words):
    found = texts.load(kind, n=50)
    assert found.column_names == ["text", "source"]
    assert len(set(found["text"])) == 50
    assert min(map(len, found["text"])) >= 1000
    assert len(set(found["source"])) > 10
    assert (
        sum(any(word in text.lower() for word in words) for text in found["text"]) > 25
    )  # it is what it says


def test_licences_and_source_are_of_the_listed_packages_only():
    """Whatever else is installed, these texts are the same."""
    licences = {name.split("/")[0].partition("-")[0] for name in texts.load("licences")["source"]}
    listed = {
        name.split("/")[0].partition("-")[0]
        for package in corpus_.PACKAGES
        for name, _ in corpus_.files_of(package, suffix="")
    }
    assert licences <= listed
    assert {name.split("/")[0] for name in texts.load("source")["source"]} == {
        "dask",
        "distributed",
    }


def test_source_code_comes_in_a_fixed_order():
    assert texts.load("source", n=5).to_list() == texts.load("source", n=20).to_list()[:5]


class TestJsonl:
    @staticmethod
    def write(path, *rows):
        path.write_text(
            "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n",
            encoding="utf-8",
        )
        return path

    def test_texts_come_in_the_files_order_with_its_name(self, tmp_path):
        path = self.write(
            tmp_path / "mine.jsonl",
            {"text": "b ξ\u2028x"},
            "",
            {"text": "a", "more": 1},
            {"text": ""},
        )
        assert texts.load(path).to_list() == [
            {"text": "b ξ\u2028x", "source": "mine.jsonl"},
            {"text": "a", "source": "mine.jsonl"},
        ]
        assert texts.load(str(path), n=1)["text"] == ["b ξ\u2028x"]

    def test_a_byte_order_mark_is_no_part_of_a_text(self, tmp_path):
        path = self.write(tmp_path / "mine.jsonl", "\ufeff" + json.dumps({"text": "a ξ"}))
        assert texts.load(path)["text"] == ["a ξ"]

    def test_min_chars_holds_where_it_is_given(self, tmp_path):
        path = self.write(tmp_path / "mine.jsonl", {"text": "short"}, {"text": "long enough"})
        assert texts.load(path, min_chars=6)["text"] == ["long enough"]

    def test_gzipped(self, tmp_path):
        plain = self.write(tmp_path / "mine.jsonl", {"text": "a ξ"}, {"text": "b"})
        path = tmp_path / "mine.jsonl.gz"
        path.write_bytes(gzip.compress(plain.read_bytes()))
        assert texts.load(path)["text"] == ["a ξ", "b"]

    @pytest.mark.parametrize(
        "content",
        [b"not gzip", gzip.compress(b'{"text": "a"}' * 999)[:30], b""],
        ids=["plain", "truncated", "empty"],
    )
    def test_gzipped_and_broken(self, tmp_path, content):
        path = tmp_path / "mine.jsonl.gz"
        path.write_bytes(content)
        with pytest.raises(CorpusError, match=r"cannot read .*mine\.jsonl\.gz|expected some texts"):
            texts.load(path)

    @pytest.mark.parametrize(
        "line",
        [
            "{",
            "[1]",
            '"x"',
            "3",
            "null",
            '{"txt": "a"}',
            "plain words",
            "[" * 100_000,
            "1" * 5000,
            '{"text": "a", "n": ' + "1" * 5000 + "}",
        ],
    )
    def test_a_line_without_a_text_is_named_by_number(self, tmp_path, line):
        path = self.write(tmp_path / "mine.jsonl", {"text": "a"}, "", line)
        with pytest.raises(
            CorpusError,
            match=r"mine\.jsonl, line 3: expected a JSON object with a 'text' field, got",
        ):
            texts.load(path)

    @pytest.mark.parametrize("value", [3, None, ["a"], {"a": 1}])
    def test_a_text_that_is_no_string(self, tmp_path, value):
        path = self.write(tmp_path / "mine.jsonl", {"text": value})
        with pytest.raises(CorpusError, match="line 1: expected 'text' to be a string, got"):
            texts.load(path)

    @pytest.mark.parametrize("text", [r"\ud83d", r"a\udc00 b", r"\udc00\ud800"])
    def test_half_a_character(self, tmp_path, text):
        path = self.write(
            tmp_path / "mine.jsonl", r'{"text": "\ud83d\ude00 whole"}', f'{{"text": "{text}"}}'
        )
        with pytest.raises(
            CorpusError,
            match=(
                r"mine\.jsonl, line 2: expected 'text' of whole characters, got half of one, '\\ud"
            ),
        ):
            texts.load(path)

    def test_bytes_that_are_no_text(self, tmp_path):
        path = tmp_path / "mine.jsonl"
        path.write_bytes(b'{"text": "\xff\xfe"}')
        with pytest.raises(CorpusError, match=r"cannot read .*expected UTF-8 text"):
            texts.load(path)

    @pytest.mark.parametrize("name", ["none.jsonl", "none.jsonl.gz", "x" * 300 + ".jsonl"])
    def test_a_missing_file(self, tmp_path, name):
        with pytest.raises(CorpusError, match=rf"no file .*{name}: expected a \.jsonl file"):
            texts.load(tmp_path / name)

    def test_an_empty_file_and_too_few_lines(self, tmp_path):
        path = self.write(tmp_path / "mine.jsonl", {"text": "a"})
        with pytest.raises(CorpusError, match="expected 2 texts of at least 1 characters, found 1"):
            texts.load(path, n=2)
        with pytest.raises(CorpusError, match="found 0"):
            texts.load(self.write(tmp_path / "empty.jsonl"))


@pytest.mark.parametrize("kind", ["wikipedia", "", "mine.txt", "docs ", "Docs"])
def test_an_unknown_kind(kind):
    with pytest.raises(
        CorpusError,
        match=r"expected one of docs, licences, source, c4 or a path ending in \.jsonl, got",
    ):
        texts.load(kind)


@pytest.mark.parametrize("n", [0, -1])
def test_fewer_than_one(n):
    with pytest.raises(CorpusError, match=f"n: expected a whole number ≥ 1, got {n}"):
        texts.load("docs", n=n)


def test_c4_needs_to_know_how_many():
    with pytest.raises(CorpusError, match=r"say how many \(n=…\)"):
        texts.load("c4")


def test_c4_without_a_network_says_what_works_without_one(monkeypatch):
    def fail(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    start = time.monotonic()
    with pytest.raises(
        CorpusError,
        match=(
            r"cannot read allenai/c4: the hub cannot be reached.*texts\.load\('docs'\) or a \.jsonl"
            r" file works"
        ),
    ):
        texts.load("c4", n=3)
    assert time.monotonic() - start < 10


def test_prompts_are_beginnings_of_the_wanted_length_as_the_model_wants_to_be_asked(tmp_path):
    import tiny_lm

    lm = tiny_lm.build()
    path = tmp_path / "texts.jsonl"
    lines = ["Returns the first of them, always.", "no", "A list of values that are whole."]
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    assert [lm.decode(ids) for ids in texts.prompts(lm, path, 2, 5)] == ["Retur", "A lis"]
    lm.tokenizer.chat_template = (
        "{{ bos_token }}{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
    )
    assert [lm.tokenizer.decode(ids) for ids in texts.prompts(lm, path, 2, 5)] == [
        f"<s>[Complete the following prompt: {text}]" for text in ("Retur", "A lis")
    ]
    assert [lm.tokenizer.decode(ids) for ids in texts.human(lm, path, 2, 5)] == [
        "Retur",
        "A lis",
    ], "people wrote no template"
    with pytest.raises(CorpusError, match="expected 9 texts of 40 tokens, found 1"):
        texts.prompts(lm, path, 9, 40)


def test_short_lines_are_joined(tmp_path):
    import tiny_lm

    lm, path = tiny_lm.build(), tmp_path / "short.jsonl"
    lines = [f"line {i} is short" for i in range(60)]
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    joined = lm.encode("\n\n".join(lines))
    pieces = texts.human(lm, path, 3, 40)
    assert pieces == [joined[:40], joined[40:80], joined[80:120]]
    assert texts.prompts(lm, path, 3, 40) == [lm.prompt(lm.decode(ids)) for ids in pieces]


def test_texts_fit_the_context_with_what_edits_add(monkeypatch):
    import tiny_lm

    lm, prompts = tiny_lm.build(), [[5] * 4, [5] * 9]
    context = lm.model.config.max_position_embeddings
    assert texts.fit(lm, prompts, 10) == 10
    assert texts.fit(lm, prompts, 10 * context) == context - 9
    n = texts.fit(lm, prompts, 10 * context, growth=1.5)
    assert 1.5 * (n + 9) <= context < 1.5 * (n + 9 + 1)
    with pytest.raises(InvalidTextError, match="take shorter prompts"):
        texts.fit(lm, [[5] * context], 10)
    monkeypatch.setattr(texts.tokens, "context", lambda model: None)
    assert texts.fit(lm, prompts, 10 * context) == 10 * context


def test_a_prompt_ends_in_a_whole_character(tmp_path):
    """Tokens of bytes: the cut may fall into a letter."""
    from gaussmark_lib import models

    lm, path = models.load(), tmp_path / "texts.jsonl"
    path.write_text(
        json.dumps({"text": "Größe, Länge, Weite und Höhe. 東京は日本の首都です。" * 3})
    )
    for n in range(4, 40):
        [prompt] = texts.prompts(lm, path, 1, n)
        assert "\ufffd" not in lm.decode(prompt)
        assert len(prompt) <= n + 1
