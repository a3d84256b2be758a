"""lm-evaluation-harness on a model in memory, watermarked or not: its own tasks, prompts, metrics
and tables; the score of every item kept.

    with perturb.watermarked(lm.model, wm, key):
        marked = harness.evaluate(lm, tasks.build(corpus, 300))
    print(marked.table)

A task is a definition (``tasks.build``) or, with a network, a name that the harness knows:
``"boolq"``, ``"super-glue-lm-eval-v1"``. An item that does not fit the model's context is left out
and listed, not cut: a cut question is another question.
"""

import contextlib
import difflib
import functools
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import datasets
import huggingface_hub
import pandas as pd

from gaussmark_lib import checks, models, tokens
from gaussmark_lib.errors import HarnessError

Tasks = (
    Mapping[str, dict] | Sequence[str]
)  # definitions by name, or names of tasks and groups that the harness knows
# of the examples in few-shot prompts: the harness's own default, and the same for every model
_SEED = 1234


@dataclass(frozen=True)
class Evaluation:
    """The harness's results.

    Args:
        items: ``task, item, metric, score``; a metric without a value per item is in ``table``
            only.
        dropped: the items left out: ``task, item, tokens, context``.
        table: the harness's own table, in Markdown.
        log_likelihoods: of tasks that score them: ``task, item, request, context, continuation,
            log_lik, greedy``.
    """

    items: pd.DataFrame
    dropped: pd.DataFrame
    table: str
    log_likelihoods: pd.DataFrame

    def of(self, task: str) -> pd.Series:
        """A task's first metric, by item."""
        rows = self.items[self.items["task"] == task]
        return rows[rows["metric"] == rows["metric"].iloc[0]].set_index("item")["score"]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(self.items["task"]))


def evaluate(
    lm: models.LM,
    tasks: Tasks,
    *,
    limit: int | None = None,
    batch_size: int = 16,
    progress: bool = False,
) -> Evaluation:
    """Runs the tasks on ``lm.model`` as it is (inside ``watermarked()``: watermarked), at most the
    first ``limit`` items of each that fit.

    Raises:
        HarnessError: an unknown task (with close matches), one whose data cannot be had, or one of
            which no item fits the context.
    """
    tokens.check_lm(lm)
    checks.whole(batch_size, "batch_size", HarnessError)
    if limit is not None:
        checks.whole(limit, "limit", HarnessError)
    from lm_eval import evaluator  # here: it takes seconds to import
    from lm_eval.models.huggingface import HFLM
    from lm_eval.utils import make_table

    with _quiet(progress), models.evaluating(lm.model):
        loaded = _load(tasks)
        adapter = HFLM(
            pretrained=lm.model,
            tokenizer=lm.tokenizer,
            batch_size=batch_size,
            device=str(lm.model.device),
        )
        samples, dropped = {}, []
        for name, task in loaded["tasks"].items():
            task.set_fewshot_seed(seed=_SEED)
            if task.get_config("num_fewshot") is None:
                task.set_config("num_fewshot", 0)
            samples[name], too_long = _fitting(name, task, adapter, limit)
            dropped += too_long
        results = evaluator.evaluate(
            adapter, loaded, samples=samples, bootstrap_iters=0, log_samples=True
        )
    return Evaluation(
        pd.DataFrame(_items(results["samples"])),
        pd.DataFrame(dropped, columns=["task", "item", "tokens", "context"]),
        make_table(results)
        + ("\n" + make_table(results, "groups") if results.get("groups") else ""),
        pd.DataFrame(_requests(results["samples"])),
    )


@contextlib.contextmanager
def _quiet(progress: bool) -> Iterator[None]:
    """Hides the harness's progress bars, which have no switch, and its warnings: it warns of every
    model in memory.
    """
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(max(logging.ERROR, level))
    try:
        with contextlib.nullcontext() if progress else contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def _load(tasks: Tasks) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    if isinstance(tasks, str) or not tasks:
        raise HarnessError(
            f"tasks: expected a list of at least one name, or definitions by name, got {tasks!r}"
        )
    if isinstance(tasks, Mapping):
        return TaskManager(include_defaults=False).load(list(tasks.values()))
    manager = _known_tasks()
    for name in tasks:
        if name not in manager.all_tasks:
            near = (
                ", ".join(difflib.get_close_matches(name, manager.all_tasks, n=5, cutoff=0.5))
                or "none that is close"
            )
            raise HarnessError(
                f"the harness has no task {name!r}; near names: {near}. tasks.build makes three"
                " that need no network"
            )
    online = models.hub_reachable()
    try:
        with (
            contextlib.ExitStack() as cache_only
        ):  # without a network the hub's client would try each file for a minute
            for module in () if online else (huggingface_hub.constants, datasets.config):
                cache_only.enter_context(mock.patch.object(module, "HF_HUB_OFFLINE", True))
            return manager.load(list(tasks))
    except (
        Exception
    ) as error:  # a data set fails to load in as many ways as there are hosts and formats
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = (
            "look at its data set's page"
            if online
            else (
                "the hub cannot be reached; data that is not on this machine already needs a"
                " network"
            )
        )
        raise HarnessError(
            f"cannot load {', '.join(tasks)}: {first_line}: {advice}. tasks.build makes three tasks"
            " that need none"
        ) from error


@functools.cache
def _known_tasks() -> Any:
    """Some 15,000 tasks, whose definitions take seconds to find."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def _fitting(name: str, task: Any, adapter: Any, limit: int | None) -> tuple[list[int], list[dict]]:
    """Numbers of the items that fit the context, and of each other item the tokens of its longest
    request.
    """
    task.build_all_requests(limit=None, rank=0, world_size=1)
    longest: dict[int, int] = {}
    for instance in task.instances:
        longest[instance.doc_id] = max(longest.get(instance.doc_id, 0), _tokens(instance, adapter))
    context = adapter.max_length
    if not (fits := sorted(item for item, n in longest.items() if n <= context)):
        raise HarnessError(
            f"{name}: none of its {len(longest)} items fits the model's context of {context} tokens"
            f" (the shortest takes {min(longest.values())}); choose another task, or a model with a"
            " longer context"
        )
    return fits[:limit], [
        {"task": name, "item": item, "tokens": n, "context": context}
        for item, n in longest.items()
        if n > context
    ]


def _tokens(instance: Any, adapter: Any) -> int:
    """Tokens of the context that a request takes: with its continuation except the last token, or
    with all that may be generated.
    """
    if instance.request_type == "generate_until":
        context, options = instance.args
        return len(adapter.tok_encode(context)) + int(
            options.get("max_gen_toks", adapter.max_gen_toks)
        )
    if instance.request_type == "loglikelihood":
        context, continuation = instance.args
        return max(1, len(adapter.tok_encode(context + continuation)) - (1 if context else 0))
    return 0  # rolling log-likelihoods go through long texts in windows


def _items(samples: Mapping[str, list[dict]]) -> Iterator[dict]:
    """Every number per item. A metric under a filter other than the harness's default carries the
    filter's name.
    """
    for task, rows in samples.items():
        for row in rows:
            for metric in row["metrics"]:
                score = row[metric]
                if isinstance(score, bool | int | float) or getattr(score, "ndim", 1) == 0:
                    name = metric if row["filter"] == "none" else f"{metric},{row['filter']}"
                    yield {
                        "task": task,
                        "item": row["doc_id"],
                        "metric": name,
                        "score": float(score),
                    }


def _requests(samples: Mapping[str, list[dict]]) -> Iterator[dict]:
    for task, rows in samples.items():
        for row in rows:
            for number, (arguments, response) in enumerate(
                zip(row["arguments"], row["filtered_resps"], strict=True)
            ):
                if isinstance(response, tuple | list) and len(response) == 2:
                    where = {
                        "task": task,
                        "item": row["doc_id"],
                        "request": number,
                        "context": arguments[0],
                        "continuation": arguments[1],
                    }
                    yield where | {"log_lik": float(response[0]), "greedy": bool(response[1])}
