"""Three tasks for lm-evaluation-harness that need no download. They are made from held-out text,
and can also compare small models.

==================  ===========================================================  ===========
``next_paragraph``  which of four openings continues this paragraph?             chance ¼
``last_word``       the last word of a passage, exactly, by greedy choice        chance about 0
``minimal_pairs``   a sentence, or the same with one verb or demonstrative wrong  chance ½
==================  ===========================================================  ===========

Token boundaries are kept: contexts end without a space, and the scored text starts with one.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset

_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])|\n\n")
_LAST_WORD = re.compile(r" ([A-Za-z]{2,})[.!?]$")
_PAIRS = {"is": "are", "was": "were", "has": "have", "does": "do", "this": "these"}
_REVERSED = {plural: singular for singular, plural in _PAIRS.items()}
# "those" becomes "that", but "that" stays: most often it is not a demonstrative
_PARTNER = _PAIRS | _REVERSED | {"those": "that"}
# lengths in characters
_CONTEXT = 140
_OPTION = 60
_PASSAGE = 200


def build(corpus: Dataset, n: int, *, least: int, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Return the task definitions by name, with at most n items each, for ``harness.evaluate``. A
    task with fewer than ``least`` items is left out.

    Args:
        corpus: columns ``text`` (paragraphs, separated by blank lines) and ``source``, as
            ``texts.load`` returns them.
    """
    rows = corpus.select_columns(["text", "source"]).to_list()
    items_by_task = {
        "next_paragraph": next_paragraphs(rows, seed),
        "last_word": last_words(rows),
        "minimal_pairs": minimal_pairs(rows, seed),
    }
    return {
        name: _task(name, items[:n]) for name, items in items_by_task.items() if len(items) >= least
    }


def next_paragraphs(rows: Sequence[dict], seed: int = 0) -> list[dict]:
    """Return items with ``context`` (the end of a paragraph), ``choices`` (four openings of
    paragraphs) and ``answer`` (index of the opening that follows). If all texts have the same
    source, such as a file, the wrong openings come from its other texts.
    """
    has_one_source = len({row["source"] for row in rows}) == 1
    pairs = []
    for number, row in enumerate(rows):
        first, second, *_ = [*row["text"].split("\n\n"), ""]
        if len(second) >= 40:  # a shorter paragraph is often a heading
            pair = _Paragraphs(
                source=number if has_one_source else row["source"],
                context=_end(first, _CONTEXT),
                opening=_opening(second, _OPTION),
            )
            pairs.append(pair)

    rng = np.random.default_rng(seed)
    items = []
    for pair in pairs:
        elsewhere = [other.opening for other in pairs if other.source != pair.source]
        wrong = [opening for opening in dict.fromkeys(elsewhere) if opening != pair.opening]
        if len(wrong) < 3:  # not enough for four choices
            continue
        choices = [wrong[number] for number in rng.choice(len(wrong), 3, replace=False)]
        answer = int(rng.integers(4))
        choices.insert(answer, pair.opening)
        items.append({"context": pair.context, "choices": choices, "answer": answer})
    return items


class _Paragraphs(NamedTuple):
    """The end of a paragraph, and the opening of the next."""

    source: str | int
    context: str
    opening: str


def last_words(rows: Sequence[dict]) -> list[dict]:
    """Return items with ``context`` (a passage without its last word) and ``answer`` (a space and
    this word).
    """
    items = []
    for row in rows:
        text = row["text"]
        match = _LAST_WORD.search(text)
        if match:
            context = _end(text[: match.start()], _PASSAGE)
            items.append({"context": context, "answer": f" {match[1]}"})
    return items


def minimal_pairs(rows: Sequence[dict], seed: int = 0) -> list[dict]:
    """Return items with ``choices`` (a sentence, and the same sentence with a word replaced by its
    singular or plural partner) and ``answer``. The answer is always 0: the order of choices does
    not matter to the harness.

    There is one item per passage. The replacement follows a rule, so sometimes both sentences are
    right.
    """
    rng = np.random.default_rng(seed)
    items = []
    for row in rows:
        for sentence in _SENTENCE_END.split(row["text"]):
            words = sentence.split(" ")
            places = [place for place, word in enumerate(words) if word in _PARTNER]
            # short sentences are often headings, long sentences often several clauses
            if 6 <= len(words) <= 25 and places:
                place = int(rng.choice(places))
                words[place] = _PARTNER[words[place]]
                wrong = " ".join(words)
                items.append({"choices": [sentence, wrong], "answer": 0})
                break
    return items


def _end(text: str, n: int) -> str:
    """At most the last n characters, from the start of a word if they contain a space."""
    if len(text) <= n:
        return text
    cut = text[-n:]
    _, _, whole_words = cut.partition(" ")
    return whole_words or cut


def _opening(text: str, n: int) -> str:
    """At most the first n characters, to the end of a word if they contain a space."""
    if len(text) <= n:
        return text
    whole_words, _, _ = text[: n + 1].rpartition(" ")
    return whole_words or text[:n]


# the harness's settings of each task: the kind of question, and its columns
_SETTINGS = {
    "next_paragraph": {
        "output_type": "multiple_choice",
        "doc_to_text": "context",
        "doc_to_choice": "choices",
        "target_delimiter": "\n\n",
    },
    "last_word": {
        "output_type": "loglikelihood",
        "doc_to_text": "context",
    },
    "minimal_pairs": {
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "doc_to_text": "",
        "target_delimiter": "",
    },
}
_METRICS = {
    # the likelihood alone mostly says which opening is the most common
    "next_paragraph": "acc_mutual_info",
    "last_word": "acc",
    "minimal_pairs": "acc",
}


def _task(name: str, items: list[dict]) -> dict[str, Any]:
    """The harness's definition of a task."""
    metric = {"metric": _METRICS[name], "aggregation": "mean", "higher_is_better": True}
    return {
        "task": name,
        "custom_dataset": lambda **_: {"test": Dataset.from_list(items)},
        "test_split": "test",
        "doc_to_target": "answer",
        "metric_list": [metric],
        "metadata": {"version": 1},
        **_SETTINGS[name],
    }
