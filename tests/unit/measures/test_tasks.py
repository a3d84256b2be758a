"""The tasks made from text: what an item is, and that wrong answers are wrong."""

import pytest
from datasets import Dataset

from gaussmark_experiments.measures import tasks

NAMES = {"one": "arrays", "two": "tables", "three": "figures", "four": "sounds", "five": "letters"}
TEXT = (
    "Package {0} is a tool for {1}. It has many uses.\n\n"
    "The {1} of this package are called {0} objects now."
)
NAMED = [*NAMES.items(), ("five", "letters")]
ROWS = [{"text": TEXT.format(name, thing), "source": name} for name, thing in NAMED]


def test_the_right_paragraph_follows_and_the_others_come_from_other_sources():
    items = tasks.next_paragraphs(ROWS, seed=0)
    assert len(items) == 6
    for item, row in zip(items, ROWS, strict=True):
        first, second = row["text"].split("\n\n")
        assert first.endswith(item["context"])
        assert second.startswith(item["choices"][item["answer"]])
        assert len(set(item["choices"])) == 4
        right = [row["source"] in choice for choice in item["choices"]]
        assert right == [i == item["answer"] for i in range(4)]


def test_last_words():
    texts = ["The answer is forty two.", "No full stop", "It is x.", "See [1]."]
    items = tasks.last_words([{"text": text} for text in texts])
    assert items == [{"context": "The answer is forty", "answer": " two"}]


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("Too short. The values of the array are never copied.", ("are", "is")),
        ("We think that those values in here come first.", ("those", "that")),
    ],
)
def test_minimal_pairs_differ_in_one_word(text, changed):
    (item,) = tasks.minimal_pairs([{"text": text}, {"text": "Nothing to be seen in here at all."}])
    right, wrong = (choice.split() for choice in item["choices"])
    assert [(a, b) for a, b in zip(right, wrong, strict=True) if a != b] == [changed]
    assert item["answer"] == 0


@pytest.mark.parametrize(
    ("n", "least", "sizes"),
    [
        (7, 6, {"next_paragraph": 6, "last_word": 7, "minimal_pairs": 7}),
        (7, 7, {"last_word": 7, "minimal_pairs": 7}),
        (3, 3, {"next_paragraph": 3, "last_word": 3, "minimal_pairs": 3}),
        (8, 8, {}),
    ],
)
def test_a_task_has_n_items_or_is_left_out(n, least, sizes):
    one_line = {"text": "A text of one line, and that is the end.", "source": "six"}
    made = tasks.build(Dataset.from_list([*ROWS, one_line]), n, least=least)
    assert {name: len(task["custom_dataset"]()["test"]) for name, task in made.items()} == sizes
