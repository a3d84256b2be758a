"""lm-evaluation-harness on a model in memory, watermarked or not: its own tasks, prompts and
metrics; the score of every item kept.

    asked = harness.prepare(lm, tasks.build(corpus, 300, least=20))
    base = harness.evaluate(asked)
    with perturb.watermarked(lm.model, wm, key):
        marked = harness.evaluate(asked)

A task is a definition (``tasks.build``) or a name that the harness knows, such as ``"arc_easy"`` or
``"boolq"``. The items of a named task come from the hub, or from local files::

    asked = harness.prepare(lm, ["arc_easy", "boolq", "gsm8k_cot"], tasks_data="benchmarks")

``tasks_data`` is a folder with a file of JSON lines for each task. The file has the name of the
task (``arc_easy.jsonl``) or of its data set on the hub (``gsm8k.jsonl`` for ``gsm8k_cot``), and the
columns of that data set. One column is renamed: the authors' ``answer`` of BoolQ is the harness's
``label``. A local file has no training split, so a task whose examples come from there is refused:
``gsm8k_cot`` contains its examples, ``gsm8k`` does not.

A named task has at most ``MOST_ITEMS`` items. ``prepare`` chooses them once, so they are the same
for every model and every key. An item that does not fit the model's context is left out and listed,
not cut: a cut question is another question. :func:`chance` is the accuracy of guessing; a task with
this accuracy or less measures nothing.

Notebook 05 passes its parameters on unchanged: ``harness_tasks`` are the names, and
``tasks_data`` (null: the hub) and ``task_limit`` (null: ``MOST_ITEMS``) are options of ``prepare``.
"""

import contextlib
import io
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import huggingface_hub
import numpy as np
import pandas as pd

from gaussmark_lib import models
from gaussmark_lib.engine.arithmetic import evaluating
from gaussmark_lib.engine.checkpoints import first_line, hub_reachable
from gaussmark_lib.errors import ParameterError, shown

Tasks = Mapping[str, dict] | Sequence[str]  # definitions by name, or names that the harness knows
MOST_ITEMS = 600  # of a named task
# Task → its columns in the authors' own files → their names on the hub and in the harness.
RENAMED = {"boolq": {"answer": "label"}}
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
    tasks_data: str | Path | None = None,
    limit: int | None = None,
    batch_size: int = 16,
) -> Asked:
    """Prepare the first ``limit`` items of each task that fit the model's context.

    Args:
        tasks_data: a folder of local files for named tasks; None for the hub.
        limit: None for ``MOST_ITEMS`` of a named task, and for all items of a definition.

    Raises:
        ParameterError: an unknown task, a task whose data cannot be loaded, or a task without an
            item that fits the context.
    """
    from lm_eval.models.huggingface import HFLM  # here: it takes seconds to import

    if limit is None and not isinstance(tasks, Mapping):
        limit = MOST_ITEMS
    with _quiet():
        loaded = _load(tasks, tasks_data)
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


def _load(tasks: Tasks, tasks_data: str | Path | None) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    if isinstance(tasks, Mapping):
        return TaskManager(include_defaults=False).load(list(tasks.values()))
    if tasks_data is not None:
        return _from_files(list(tasks), Path(tasks_data))
    online = hub_reachable()
    try:
        with contextlib.ExitStack() as cache_only:
            for module in () if online else (huggingface_hub.constants, datasets.config):
                # without a network the hub's client would try each file for a minute
                cache_only.enter_context(mock.patch.object(module, "HF_HUB_OFFLINE", True))
            return TaskManager().load(list(tasks))
    except Exception as error:  # data sets fail to load in as many ways as there are hosts
        hub = "" if online else "; the hub cannot be reached"
        raise ParameterError(f"cannot load {', '.join(tasks)}: {first_line(error)}{hub}") from error


# ---- tasks with local items


def _from_files(names: list[str], folder: Path) -> dict[str, Any]:
    """The harness's definitions of these tasks, with the items of the folder's files."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_defaults=False, include_path=_definitions(names))
    changed = []
    for name in names:
        if name not in manager.task_index:
            raise ParameterError(
                f"tasks: expected names of single tasks that lm-evaluation-harness defines, got"
                f" {shown(name)}; its command `lm-eval ls tasks` lists them"
            )
        changed.append(_with_items(name, manager.task_index[name].cfg, folder))
    try:
        # The members of a group are known tasks, of which these settings are replaced.
        loaded = manager.load([{"group": "local files", "task": changed}])
    except Exception as error:  # a column is missing, or has values of another type
        raise ParameterError(
            f"cannot load {', '.join(names)} from {folder}: {first_line(error)}; expected the"
            " columns of the hub's data sets"
        ) from error
    return {"tasks": loaded["tasks"]}


def _definitions(names: Sequence[str]) -> list[Path]:
    """Folders of the harness with definitions of these tasks. The harness has 14,000 definitions,
    and takes half a minute to read all of them.
    """
    import lm_eval.tasks

    alternatives = "|".join(re.escape(name) for name in names)
    defines = re.compile(rf"^task:\s*[\"']?({alternatives})[\"']?\s*$", re.MULTILINE)
    root = Path(lm_eval.tasks.__file__).parent
    files = root.rglob("*.yaml")
    return sorted({file.parent for file in files if defines.search(file.read_text("utf-8"))})


def _with_items(name: str, definition: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The settings that make a definition take its items from a file."""
    has_samples = "samples" in definition.get("fewshot_config", {})
    if definition.get("num_fewshot") and not has_samples:
        raise ParameterError(
            f"{name}: expected a task whose prompts need no other split, got one with"
            f" {definition['num_fewshot']} examples from its training split, which a local file"
            " does not have; choose another task (for gsm8k: gsm8k_cot)"
        )
    data_set = definition.get("dataset_path", name)
    files = [folder / f"{stem}.jsonl" for stem in (name, data_set.split("/")[-1])]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise ParameterError(
            f"tasks_data: expected {files[0]}, with a JSON object on each line and the columns of"
            f" the hub's {data_set}, found no such file"
        )
    items = datasets.Dataset.from_list(_rows(file, RENAMED.get(name, {})))
    return {
        "task": name,
        "custom_dataset": lambda **_: {"test": items},
        "test_split": "test",
        "validation_split": None,
        "training_split": None,
        "fewshot_split": None,
    }


def _rows(file: Path, renamed: Mapping[str, str]) -> list[dict[str, Any]]:
    """The JSON objects of a file, with some columns renamed."""
    rows = []
    for number, line in enumerate(file.read_text("utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = dict(json.loads(line))
        except (ValueError, TypeError) as error:
            raise ParameterError(
                f"{file}:{number}: expected a JSON object, got {shown(line)}"
            ) from error
        rows.append({renamed.get(column, column): value for column, value in row.items()})
    if not rows:
        raise ParameterError(f"{file}: expected a JSON object on each line, got an empty file")
    return rows


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
