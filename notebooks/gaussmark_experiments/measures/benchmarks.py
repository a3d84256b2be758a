"""Ten multiple-choice benchmarks from local files, scored without the harness, for machines that do
not have the harness.

    asked = benchmarks.prepare(lm, ["arc_easy", "piqa"], tasks_data="benchmarks")
    base = benchmarks.evaluate(asked)

``tasks_data`` is a folder with a file of JSON lines for each task (``arc_easy.jsonl``), with the
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

from gaussmark_experiments.measures import reading
from gaussmark_lib import models, tokens
from gaussmark_lib.errors import ParameterError, require_one_of
from gaussmark_lib.tokens import Pair

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
        """Return the same with only these tasks."""
        questions = {task: self.questions[task] for task in tasks}
        return replace(self, questions=questions)


def prepare(
    lm: models.LM, tasks: Sequence[str], *, tasks_data: str | Path, limit: int | None = None
) -> Asked:
    """Read the first ``limit`` items of each task that fit the model's context, at most
    ``MOST_ITEMS``.

    Raises:
        ParameterError: an unknown task, no file for it, another file, or no item that fits.
    """
    context = tokens.Reader(lm.model).context or np.inf
    largest_number = min(limit or MOST_ITEMS, MOST_ITEMS)
    questions = {}
    dropped = []
    for task in tasks:
        require_one_of(task, "tasks", tuple(READERS), ParameterError)
        items = read(task, Path(tasks_data))
        fitting = []
        for number, item in enumerate(items):
            question = _encoded(lm, number, item)
            # the last token is predicted, not read
            length = max(len(x) + len(y) - 1 for x, y in question.choices)
            if length <= context:
                fitting.append(question)
            else:
                row = {"task": task, "item": number, "tokens": length, "context": context}
                dropped.append(row)
            if len(fitting) == largest_number:
                break
        if not fitting:
            raise ParameterError(
                f"{task}: none of its {len(items)} items fits the model's context of {context}"
                " tokens; choose another task, or a model with a longer context"
            )
        questions[task] = fitting
    columns = ["task", "item", "tokens", "context"]
    return Asked(lm.model, questions, pd.DataFrame(dropped, columns=columns))


def evaluate(asked: Asked, part: slice = slice(None)) -> dict[str, pd.Series]:
    """Return 1 for each item whose right choice has the largest probability under the model, and 0
    for each other item, or for the items of a part. The model is used as it is (inside
    ``watermarked()``: watermarked).
    """
    questions_by_task = {task: questions[part] for task, questions in asked.questions.items()}
    pairs = []
    for questions in questions_by_task.values():
        for question in questions:
            pairs += question.choices
    log_p = iter(reading.log_p(asked.model, pairs))  # all choices of all questions, in order

    results = {}
    for task, questions in questions_by_task.items():
        is_right = {}
        for question in questions:
            of_choices = [next(log_p) for _ in question.choices]
            is_right[question.number] = float(np.argmax(of_choices) == question.answer)
        results[task] = pd.Series(is_right)
    return results


def chance(asked: Asked) -> dict[str, float]:
    """Return the accuracy of guessing, by task."""
    accuracies = {}
    for task, questions in asked.questions.items():
        of_questions = [1 / len(question.choices) for question in questions]
        accuracies[task] = float(np.mean(of_questions))
    return accuracies


def read(task: str, folder: Path) -> list[Item]:
    """Read the items of a task's file. ParameterError if it is missing or has other content."""
    path = folder / f"{task}.jsonl"
    expected = f"tasks_data: expected {path}, with a JSON object on each line and the columns of"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [READERS[task](json.loads(line)) for line in lines]
    except OSError as error:
        raise ParameterError(f"{expected} the hub's data set, but {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ParameterError(f"{expected} the hub's data set, got {error!r}") from None


def _encoded(lm: models.LM, number: int, item: Item) -> Question:
    """Each choice as the harness encodes it: the ending begins where the context's ids end, and
    includes the spaces at the end of the context.
    """
    contexts = [context.rstrip() for context, _ in item.choices]
    whole_texts = [context + ending for context, ending in item.choices]
    ids_of_contexts = lm.tokenizer(contexts)["input_ids"]
    ids_of_texts = lm.tokenizer(whole_texts)["input_ids"]
    choices = []
    for context_ids, text_ids in zip(ids_of_contexts, ids_of_texts, strict=True):
        ending_ids = text_ids[len(context_ids) :]
        choices.append((context_ids, ending_ids))
    return Question(number, choices, item.answer)


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
    context = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
    return _item(context, ["no", "yes"], right)


def _piqa(row: dict[str, Any]) -> Item:
    context = f"Question: {row['goal']}\nAnswer:"
    return _item(context, [row["sol1"], row["sol2"]], row["label"])


def _sciq(row: dict[str, Any]) -> Item:
    wrong = [row[f"distractor{number}"] for number in (1, 2, 3)]
    context = f"{row['support'].lstrip()}\nQuestion: {row['question']}\nAnswer:"
    return _item(context, [*wrong, row["correct_answer"]], len(wrong))


def _winogrande(row: dict[str, Any]) -> Item:
    """The choices are two beginnings of the same ending."""
    beginning, _, ending = row["sentence"].partition("_")
    options = [row["option1"], row["option2"]]
    choices = [(beginning + option, f" {ending.strip()}") for option in options]
    right = ["1", "2"].index(row["answer"])
    return Item(choices, right)


def _copa(row: dict[str, Any]) -> Item:
    connector = {"cause": "because", "effect": "therefore"}[row["question"]]
    choices = [row["choice1"], row["choice2"]]
    # the harness has two spaces before a choice
    endings = [f" {choice[0].lower()}{choice[1:]}" for choice in choices]
    premise = row["premise"].strip()[:-1]  # without its full stop
    return _item(f"{premise} {connector}", endings, row["label"])


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
