"""lm-evaluation-harness on a model in memory, watermarked or not: its own tasks, prompts and
metrics; the score of every item kept.

    asked = harness.prepare(lm, tasks.build(corpus, 300, least=20))
    base = harness.evaluate(asked)
    with perturb.watermarked(lm.model, wm, key):
        marked = harness.evaluate(asked)

A task is a definition (``tasks.build``) or a name that the harness knows, such as ``"arc_easy"`` or
``"boolq"``. The items of a named task come from the hub; ``benchmarks`` reads local files.

A named task has at most ``MOST_ITEMS`` items. ``prepare`` chooses them once, so they are the same
for every model and every key. An item that does not fit the model's context is left out and listed,
not cut: a cut question is another question. :func:`chance` is the accuracy of guessing; a task with
this accuracy or less measures nothing.

Notebook 05 passes its parameters on unchanged: ``harness_tasks`` are the names, and ``task_limit``
(null: ``MOST_ITEMS``) is an option of ``prepare``.
"""

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import datasets
import huggingface_hub
import numpy as np
import pandas as pd

from gaussmark_lib import models
from gaussmark_lib.engine.arithmetic import evaluating
from gaussmark_lib.engine.checkpoints import hub_reachable
from gaussmark_lib.errors import ParameterError

Tasks = Mapping[str, dict] | Sequence[str]  # definitions by name, or names that the harness knows
MOST_ITEMS = 600  # of a named task
_SEED = 1234  # of the examples in few-shot prompts: the same for every model


@dataclass(frozen=True)
class Asked:
    """Tasks as the harness loaded them for a model (its ``adapter``), the numbers of each task's
    ``items``, and those ``dropped`` (``task, item, tokens, context``).
    """

    adapter: Any
    loaded: dict[str, Any]
    items: dict[str, list[int]]
    dropped: pd.DataFrame


def prepare(
    lm: models.LM,
    tasks: Tasks,
    *,
    limit: int | None = None,
    batch_size: int = 16,
) -> Asked:
    """Prepare the first ``limit`` items of each task that fit the model's context.

    Args:
        limit: None for ``MOST_ITEMS`` of a named task, and for all items of a definition.

    Raises:
        ParameterError: an unknown task, a task whose data cannot be loaded, or a task without an
            item that fits the context.
    """
    from lm_eval.models.huggingface import HFLM  # here: it takes seconds to import

    if limit is None and not isinstance(tasks, Mapping):
        limit = MOST_ITEMS
    with _quiet():
        loaded = _load(tasks)
        items = {}
        dropped = []
        adapter = HFLM(
            pretrained=lm.model,
            tokenizer=lm.tokenizer,
            batch_size=batch_size,
            device=str(lm.model.device),
        )
        for name, task in loaded["tasks"].items():
            task.set_fewshot_seed(seed=_SEED)
            if task.get_config("num_fewshot") is None:
                task.set_config("num_fewshot", 0)
            fitting_items, too_long = _fitting(name, task, adapter)
            items[name] = fitting_items[:limit]
            dropped += too_long
    columns = ["task", "item", "tokens", "context"]
    return Asked(adapter, loaded, items, pd.DataFrame(dropped, columns=columns))


def evaluate(asked: Asked, part: slice = slice(None)) -> dict[str, pd.Series]:
    """Return each task's first metric by item, or by the items of a part. The model is used as it
    is (inside ``watermarked()``: watermarked).
    """
    from lm_eval import evaluator

    samples = {name: items[part] for name, items in asked.items.items()}
    with _quiet(), evaluating(asked.adapter.model):
        results = evaluator.evaluate(
            asked.adapter,
            asked.loaded,
            samples=samples,
            bootstrap_iters=0,
            log_samples=True,
        )
    return {name: _scores(rows) for name, rows in results["samples"].items()}


def chance(asked: Asked) -> dict[str, float]:
    """Return the accuracy of guessing, by task: the mean of 1 ÷ (number of choices) over its items,
    and 0 for a task without choices.
    """
    by_task = {}
    for name, task in asked.loaded["tasks"].items():
        by_task[name] = 0.0
        if task.OUTPUT_TYPE == "multiple_choice":
            items = [task.eval_docs[item] for item in asked.items[name]]
            by_task[name] = float(np.mean([1 / len(task.doc_to_choice(item)) for item in items]))
    return by_task


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the harness's progress bars, which cannot be switched off, and its warnings, which it
    gives for every model in memory.
    """
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(max(logging.ERROR, level))
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def _load(tasks: Tasks) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    if isinstance(tasks, Mapping):
        return TaskManager(include_defaults=False).load(list(tasks.values()))
    online = hub_reachable()
    try:
        with contextlib.ExitStack() as cache_only:
            for module in () if online else (huggingface_hub.constants, datasets.config):
                # without a network the hub's client would try each file for a minute
                cache_only.enter_context(mock.patch.object(module, "HF_HUB_OFFLINE", True))
            return TaskManager().load(list(tasks))
    except Exception as error:  # data sets fail to load in as many ways as there are hosts
        hub = "" if online else "; the hub cannot be reached"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ParameterError(f"cannot load {', '.join(tasks)}: {reason}{hub}") from error


def _fitting(name: str, task: Any, adapter: Any) -> tuple[list[int], list[dict]]:
    """The items that fit the context, and a row of ``dropped`` for each other item."""
    task.build_all_requests(limit=None, rank=0, world_size=1)
    longest: dict[int, int] = {}  # item → tokens of its longest request
    for instance in task.instances:
        item = instance.doc_id
        longest[item] = max(longest.get(item, 0), _tokens(instance, adapter))
    context = adapter.max_length
    too_long = [
        {"task": name, "item": item, "tokens": n, "context": context}
        for item, n in longest.items()
        if n > context
    ]
    if len(too_long) == len(longest):
        raise ParameterError(
            f"{name}: none of its {len(longest)} items fits the model's context of {context} tokens"
            f" (the shortest takes {min(longest.values())}); choose another task, or a model with a"
            " longer context"
        )
    return sorted(longest.keys() - {row["item"] for row in too_long}), too_long


def _tokens(instance: Any, adapter: Any) -> int:
    """The tokens that a request takes: its context with the continuation except the last token, or
    with all tokens that may be generated.
    """
    if instance.request_type == "generate_until":
        context, options = instance.args
        n_more = int(options.get("max_gen_toks", adapter.max_gen_toks))
        return len(adapter.tok_encode(context)) + n_more
    if instance.request_type == "loglikelihood":
        context, continuation = instance.args
        n_tokens = len(adapter.tok_encode(context + continuation))
        # without a context, the harness puts a start token before the continuation
        return max(1, n_tokens - 1) if context else max(1, n_tokens)
    return 0  # rolling log-likelihoods read long texts in windows


def _scores(rows: list[dict]) -> pd.Series:
    """The first metric by item, under the first of the task's filters."""
    metric = rows[0]["metrics"][0]
    first_filter = rows[0]["filter"]
    of_filter = [row for row in rows if row["filter"] == first_filter]
    return pd.Series({row["doc_id"]: float(row[metric]) for row in of_filter})
