"""lm-evaluation-harness on a model in memory, watermarked or not: its own tasks, prompts and
metrics; the score of every item kept.

    asked = harness.prepare(lm, tasks.build(corpus, 300, least=20))
    base = harness.evaluate(asked)
    with perturb.watermarked(lm.model, wm, key):
        marked = harness.evaluate(asked)

A task is a definition (``tasks.build``) or, with a network, a name that the harness knows:
``"boolq"``, ``"super-glue-lm-eval-v1"``. An item that does not fit the model's context is left out
and listed, not cut: a cut question is another question.
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
import pandas as pd

from gaussmark_lib import models
from gaussmark_lib.engine.arithmetic import evaluating
from gaussmark_lib.engine.checkpoints import hub_reachable
from gaussmark_lib.errors import ParameterError

Tasks = Mapping[str, dict] | Sequence[str]  # definitions by name, or names known to the harness
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
    lm: models.LM, tasks: Tasks, *, limit: int | None = None, batch_size: int = 16
) -> Asked:
    """The first ``limit`` items of each task that fit the model's context.

    Raises:
        ParameterError: an unknown task, one whose data cannot be had, or one of which no item fits
            the context.
    """
    from lm_eval.models.huggingface import HFLM  # here: it takes seconds to import

    with _quiet():
        loaded, items, dropped = _load(tasks), {}, []
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
            fits, too_long = _fitting(name, task, adapter)
            items[name] = fits[:limit]
            dropped += too_long
    columns = ["task", "item", "tokens", "context"]
    return Asked(adapter, loaded, items, pd.DataFrame(dropped, columns=columns))


def evaluate(asked: Asked, part: slice = slice(None)) -> dict[str, pd.Series]:
    """Each task's first metric by item, or by those of a part, of the model as it is (inside
    ``watermarked()``: watermarked).
    """
    from lm_eval import evaluator

    with _quiet(), evaluating(asked.adapter.model):
        results = evaluator.evaluate(
            asked.adapter,
            asked.loaded,
            samples={name: items[part] for name, items in asked.items.items()},
            bootstrap_iters=0,
            log_samples=True,
        )
    return {name: _scores(rows) for name, rows in results["samples"].items()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides the harness's progress bars, which have no switch, and its warnings: it warns of every
    model in memory.
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
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        hub = "" if online else "; the hub cannot be reached"
        raise ParameterError(f"cannot load {', '.join(tasks)}: {reason}{hub}") from error


def _fitting(name: str, task: Any, adapter: Any) -> tuple[list[int], list[dict]]:
    """Numbers of the items that fit the context, and a row of ``dropped`` for each other item."""
    task.build_all_requests(limit=None, rank=0, world_size=1)
    longest: dict[int, int] = {}
    for instance in task.instances:
        longest[instance.doc_id] = max(longest.get(instance.doc_id, 0), _tokens(instance, adapter))
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
    """Tokens of the context that a request takes: with its continuation except the last token, or
    with all that may be generated.
    """
    if instance.request_type == "generate_until":
        context, options = instance.args
        n_more = int(options.get("max_gen_toks", adapter.max_gen_toks))
        return len(adapter.tok_encode(context)) + n_more
    if instance.request_type == "loglikelihood":
        context, continuation = instance.args
        return max(1, len(adapter.tok_encode(context + continuation)) - (1 if context else 0))
    return 0  # rolling log-likelihoods go through long texts in windows


def _scores(rows: list[dict]) -> pd.Series:
    """The first metric by item, under the first of the task's filters."""
    metric, of_answers = rows[0]["metrics"][0], rows[0]["filter"]
    return pd.Series(
        {row["doc_id"]: float(row[metric]) for row in rows if row["filter"] == of_answers}
    )
