"""Three tasks for lm-evaluation-harness that need no download: made from held-out text, on which
also small models can be compared.

==================  ===========================================================  ===========
``next_paragraph``  which of four openings continues this paragraph?             chance ¼
``last_word``       the last word of a passage, exactly, by greedy choice        chance about 0
``minimal_pairs``   a sentence, or the same with one verb or demonstrative wrong  chance ½
==================  ===========================================================  ===========

Token boundaries are kept: contexts end without a space, and the scored text starts with one.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset

_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])|\n\n")
_LAST_WORD = re.compile(r" ([A-Za-z]{2,})[.!?]$")
_PAIRS = {"is": "are", "was": "were", "has": "have", "does": "do", "this": "these"}
# "that" is no partner of "those": it is far more often no demonstrative
_PARTNER = _PAIRS | {b: a for a, b in _PAIRS.items()} | {"those": "that"}
_CONTEXT, _OPTION, _PASSAGE = 140, 60, 200  # characters


def build(corpus: Dataset, n: int, *, least: int, seed: int = 0) -> dict[str, dict[str, Any]]:
    """The task definitions by name, of at most n items each, for ``harness.evaluate``. A task with
    fewer than ``least`` items is left out.

    Args:
        corpus: columns ``text`` (paragraphs, a blank line between) and ``source``, as
            ``texts.load`` gives it.
    """
    rows = corpus.select_columns(["text", "source"]).to_list()
    question = {"output_type": "loglikelihood", "doc_to_text": "context"}
    choice = {"output_type": "multiple_choice", "doc_to_choice": "choices"}
    made = {
        "next_paragraph": (
            next_paragraphs(rows, seed),
            "acc_mutual_info",  # the likelihood alone mostly says which opening surprises least
            question | choice | {"target_delimiter": "\n\n"},
        ),
        "last_word": (last_words(rows), "acc", question),
        "minimal_pairs": (
            minimal_pairs(rows, seed),
            "acc",
            choice | {"doc_to_text": "", "target_delimiter": ""},
        ),
    }
    return {
        name: _task(name, items[:n], metric, asked)
        for name, (items, metric, asked) in made.items()
        if len(items) >= least
    }


def next_paragraphs(rows: Sequence[dict], seed: int = 0) -> list[dict]:
    """``context`` (the end of a paragraph), ``choices`` (four openings of paragraphs), ``answer``
    (index of the one that follows). In texts of a single source, such as a file, the wrong openings
    come from its other texts.
    """
    pairs, one_source = [], len({row["source"] for row in rows}) == 1
    for number, row in enumerate(rows):
        first, second, *_ = [*row["text"].split("\n\n"), ""]
        if len(second) >= 40:
            source = number if one_source else row["source"]
            pairs.append((source, _end(first, _CONTEXT), _opening(second, _OPTION)))
    rng, items = np.random.default_rng(seed), []
    for source, context, right in pairs:
        wrong = list(dict.fromkeys(o for s, _, o in pairs if s != source and o != right))
        if len(wrong) >= 3:
            choices = [wrong[i] for i in rng.choice(len(wrong), 3, replace=False)]
            answer = int(rng.integers(4))
            choices.insert(answer, right)
            items.append({"context": context, "choices": choices, "answer": answer})
    return items


def last_words(rows: Sequence[dict]) -> list[dict]:
    """``context`` (a passage without its last word), ``answer`` (a space and that word)."""
    matches = [(row["text"], match) for row in rows if (match := _LAST_WORD.search(row["text"]))]
    return [
        {"context": _end(text[: match.start()], _PASSAGE), "answer": f" {match[1]}"}
        for text, match in matches
    ]


def minimal_pairs(rows: Sequence[dict], seed: int = 0) -> list[dict]:
    """``choices`` (a sentence, and the same with one word replaced by its singular or plural
    partner), ``answer`` 0: the harness knows no order.

    One item per passage. The replacement is by rule, so that sometimes both sentences are right.
    """
    rng, items = np.random.default_rng(seed), []
    for row in rows:
        for sentence in _SENTENCE_END.split(row["text"]):
            words = sentence.split(" ")
            places = [i for i, word in enumerate(words) if word in _PARTNER]
            if 6 <= len(words) <= 25 and places:
                i = int(rng.choice(places))
                wrong = " ".join([*words[:i], _PARTNER[words[i]], *words[i + 1 :]])
                items.append({"choices": [sentence, wrong], "answer": 0})
                break
    return items


def _end(text: str, n: int) -> str:
    """At most the last n characters, from the start of a word where one starts there."""
    return text if len(text) <= n else text[-n:].partition(" ")[2] or text[-n:]


def _opening(text: str, n: int) -> str:
    """At most the first n characters, to the end of a word where one ends there."""
    return text if len(text) <= n else text[: n + 1].rpartition(" ")[0] or text[:n]


def _task(name: str, items: list[dict], metric: str, asked: dict[str, str]) -> dict[str, Any]:
    """The harness's definition of a task; ``asked`` says how, and from which columns."""
    return {
        "task": name,
        "custom_dataset": lambda **_: {"test": Dataset.from_list(items)},
        "test_split": "test",
        "doc_to_target": "answer",
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1},
    } | asked
