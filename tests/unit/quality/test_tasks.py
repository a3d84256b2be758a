"""The tasks made from text: what an item is, and that wrong answers are wrong."""

import pytest
from datasets import Dataset

from gaussmark_lib.errors import CorpusError
from gaussmark_lib.quality import tasks

ROWS = [
    {
        "text": (
            f"Package {name} is a tool for {thing}. It has many uses.\n\nThe {thing} of this"
            f" package are called {name} objects now."
        ),
        "source": name,
    }
    for name, thing in [
        ("one", "arrays"),
        ("two", "tables"),
        ("three", "figures"),
        ("four", "sounds"),
        ("five", "letters"),
        ("five", "letters"),
    ]
]


def test_the_right_paragraph_follows_and_the_others_come_from_other_sources():
    items = tasks.next_paragraphs(ROWS, seed=0)
    assert len(items) == 6
    for item, row in zip(items, ROWS, strict=True):
        first, second = row["text"].split("\n\n")
        assert first.endswith(item["context"])
        assert second.startswith(item["choices"][item["answer"]])
        assert len(set(item["choices"])) == 4
        for i, choice in enumerate(item["choices"]):
            assert (row["source"] in choice) == (i == item["answer"])


def test_the_right_answer_has_no_favourite_place():
    many = [
        {"text": row["text"].replace("objects", f"objects {i}"), "source": f"{row['source']}"}
        for i in range(100)
        for row in ROWS[:5]
    ]
    places = [item["answer"] for item in tasks.next_paragraphs(many, seed=1)]
    assert all(80 < places.count(place) < 170 for place in range(4))


def test_last_words():
    items = tasks.last_words(
        [
            {"text": "The answer is forty two."},
            {"text": "No full stop"},
            {"text": "It is x."},
            {"text": "See [1]."},
        ]
    )
    assert items == [{"context": "The answer is forty", "answer": " two"}]


def test_minimal_pairs_differ_in_one_word():
    rows = [
        {"text": "Too short. The values of the array are never copied."},
        {"text": "Nothing to be seen in here at all."},
    ]
    (item,) = tasks.minimal_pairs(rows)
    right, wrong = (choice.split() for choice in item["choices"])
    assert [(a, b) for a, b in zip(right, wrong, strict=True) if a != b] == [("are", "is")]
    assert item["answer"] == 0


def test_too_few_items_are_an_error_that_says_how_many():
    corpus = Dataset.from_list(ROWS)
    assert len(tasks.build(corpus, 5)["minimal_pairs"]["custom_dataset"]()["test"]) == 5
    with pytest.raises(
        CorpusError, match="next_paragraph: expected 7 items, but these texts yield 6"
    ):
        tasks.build(corpus, 7)


def test_in_one_file_the_wrong_paragraphs_come_from_other_texts():
    items = tasks.next_paragraphs([row | {"source": "mine.jsonl"} for row in ROWS[:5]])
    assert len(items) == 5
    assert all(len(set(item["choices"])) == 4 for item in items)


def test_with_a_least_number_a_task_has_what_there_is_or_is_left_out():
    corpus = Dataset.from_list(
        [*ROWS, {"text": "A text of one line, and that is the end.", "source": "six"}]
    )
    found = tasks.build(corpus, 7, least=6)
    assert {name: len(made["custom_dataset"]()["test"]) for name, made in found.items()} == {
        "next_paragraph": 6,
        "last_word": 7,
        "minimal_pairs": 7,
    }
    assert list(tasks.build(corpus, 7, least=7)) == ["last_word", "minimal_pairs"]
    assert tasks.build(corpus, 7, least=8) == {}
    assert len(tasks.build(corpus, 3, least=2)["last_word"]["custom_dataset"]()["test"]) == 3
