"""Ten multiple-choice benchmarks from local files, scored without the harness, for machines that
do not have it.

    asked = benchmarks.prepare(lm, ["arc_easy", "piqa"], tasks_data="benchmarks")
    base = benchmarks.evaluate(asked)

``tasks_data`` is a folder with a file of JSON lines for each task (``arc_easy.jsonl``) and the
columns of the hub's data sets. The prompts are the harness's: each choice is the end of a text, and
the answer is the choice with the largest log-likelihood (the harness's ``acc``).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import models, tokens
from gaussmark_lib.errors import ParameterError, require_one_of
from gaussmark_lib.tokens import Pair
from gaussmark_lib.workbench.quality import reading

MOST_ITEMS = 600  # of a task


class Item(NamedTuple):
    """A question: context and ending of each choice, and the number of the right choice."""

    choices: list[tuple[str, str]]
    answer: int


class Question(NamedTuple):
    """An item as token ids, with its number in the task."""

    number: int
    choices: list[Pair]
    answer: int


@dataclass(frozen=True)
class Asked:
    """The questions of each task that fit the model's context, and the items that do not
    (``task, item, tokens, context``).
    """

    model: PreTrainedModel
    questions: dict[str, list[Question]]
    dropped: pd.DataFrame

    def only(self, tasks: Sequence[str]) -> "Asked":
        """The same with these tasks alone."""
        return replace(self, questions={task: self.questions[task] for task in tasks})


def prepare(
    lm: models.LM, tasks: Sequence[str], *, tasks_data: str | Path, limit: int | None = None
) -> Asked:
    """The first ``limit`` items of each task that fit the model's context, at most ``MOST_ITEMS``.

    Raises:
        ParameterError: an unknown task, no file for it, another file, or no item that fits.
    """
    context = tokens.Reader(lm.model).context or np.inf
    questions = {}
    dropped = []
    for task in tasks:
        require_one_of(task, "tasks", tuple(READERS), ParameterError)
        encoded = _encoded(lm, read(task, Path(tasks_data)))
        lengths = [max(len(x) + len(y) - 1 for x, y in item.choices) for item in encoded]
        fitting = [item for item, length in zip(encoded, lengths, strict=True) if length <= context]
        if not fitting:
            raise ParameterError(
                f"{task}: none of its {len(encoded)} items fits the model's context of {context}"
                " tokens; choose another task, or a model with a longer context"
            )
        questions[task] = fitting[: min(limit or MOST_ITEMS, MOST_ITEMS)]
        dropped += [
            {"task": task, "item": item.number, "tokens": length, "context": context}
            for item, length in zip(encoded, lengths, strict=True)
            if length > context
        ]
    columns = ["task", "item", "tokens", "context"]
    return Asked(lm.model, questions, pd.DataFrame(dropped, columns=columns))


def evaluate(asked: Asked, part: slice = slice(None)) -> dict[str, pd.Series]:
    """Whether the model as it is (inside ``watermarked()``: watermarked) finds the right choice the
    likeliest: 1 or 0 by item, or by the items of a part.
    """
    chosen = {task: questions[part] for task, questions in asked.questions.items()}
    flat = [question for questions in chosen.values() for question in questions]
    log_p = reading.log_p(asked.model, [pair for question in flat for pair in question.choices])
    ends = np.cumsum([len(question.choices) for question in flat])
    of_choices = iter(np.split(log_p, ends[:-1]))
    return {
        task: pd.Series(
            {
                question.number: float(next(of_choices).argmax() == question.answer)
                for question in questions
            }
        )
        for task, questions in chosen.items()
    }


def chance(asked: Asked) -> dict[str, float]:
    """The accuracy of guessing, by task."""
    return {
        task: float(np.mean([1 / len(question.choices) for question in questions]))
        for task, questions in asked.questions.items()
    }


def read(task: str, folder: Path) -> list[Item]:
    """The items of a task's file; ParameterError for a file that is missing or something else."""
    path = folder / f"{task}.jsonl"
    expected = f"tasks_data: expected {path}, with a JSON object on each line and the columns of"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [READERS[task](json.loads(line)) for line in lines]
    except OSError as error:
        raise ParameterError(f"{expected} the hub's data set, but {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ParameterError(f"{expected} the hub's data set, got {error!r}") from None


def _encoded(lm: models.LM, items: Sequence[Item]) -> list[Question]:
    """Each choice as the harness encodes it: the ending begins where the context's ids end, and
    takes the spaces at the context's end along.
    """
    texts = [choice for item in items for choice in item.choices]
    contexts = lm.tokenizer([context.rstrip() for context, _ in texts])["input_ids"]
    wholes = lm.tokenizer([context + ending for context, ending in texts])["input_ids"]
    pairs = iter(
        (before, whole[len(before) :]) for before, whole in zip(contexts, wholes, strict=True)
    )
    return [
        Question(number, [next(pairs) for _ in item.choices], item.answer)
        for number, item in enumerate(items)
    ]


# ---- the prompts of the harness


def _item(context: str, endings: Sequence[str], answer: int) -> Item:
    return Item([(context, f" {ending}") for ending in endings], int(answer))


def _arc(row: dict[str, Any]) -> Item:
    right = row["choices"]["label"].index(row["answerKey"])
    return _item(f"Question: {row['question']}\nAnswer:", row["choices"]["text"], right)


def _openbookqa(row: dict[str, Any]) -> Item:
    right = row["choices"]["label"].index(row["answerKey"].lstrip())
    return _item(row["question_stem"], row["choices"]["text"], right)


def _boolq(row: dict[str, Any]) -> Item:
    right = row["label"] if "label" in row else row["answer"]  # the hub's name, and the authors'
    return _item(f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:", ["no", "yes"], right)


def _piqa(row: dict[str, Any]) -> Item:
    return _item(f"Question: {row['goal']}\nAnswer:", [row["sol1"], row["sol2"]], row["label"])


def _sciq(row: dict[str, Any]) -> Item:
    wrong = [row[f"distractor{number}"] for number in (1, 2, 3)]
    context = f"{row['support'].lstrip()}\nQuestion: {row['question']}\nAnswer:"
    return _item(context, [*wrong, row["correct_answer"]], len(wrong))


def _winogrande(row: dict[str, Any]) -> Item:
    """The choices are two beginnings of one ending."""
    before, _, after = row["sentence"].partition("_")
    options = [row["option1"], row["option2"]]
    choices = [(before + option, f" {after.strip()}") for option in options]
    return Item(choices, ["1", "2"].index(row["answer"]))


def _copa(row: dict[str, Any]) -> Item:
    connector = {"cause": "because", "effect": "therefore"}[row["question"]]
    choices = [row["choice1"], row["choice2"]]
    # the harness has two spaces before a choice
    endings = [f" {choice[0].lower()}{choice[1:]}" for choice in choices]
    return _item(f"{row['premise'].strip()[:-1]} {connector}", endings, row["label"])


def _cb(row: dict[str, Any]) -> Item:
    question = f"Question: {row['hypothesis']}. True, False, or Neither?"
    context = f"{row['premise']}\n{question}\nAnswer:"
    return _item(context, ["True", "False", "Neither"], row["label"])


def _rte(row: dict[str, Any]) -> Item:
    question = f"Question: {row['sentence2']} True or False?"
    return _item(f"{row['sentence1']}\n{question}\nAnswer:", ["True", "False"], row["label"])


READERS: dict[str, Callable[[dict[str, Any]], Item]] = {
    "arc_easy": _arc,
    "arc_challenge": _arc,
    "boolq": _boolq,
    "piqa": _piqa,
    "sciq": _sciq,
    "openbookqa": _openbookqa,
    "winogrande": _winogrande,
    "copa": _copa,
    "cb": _cb,
    "rte": _rte,
}
