"""10: fair timings. Alternating repeats in one process, medians and ratios; the plain loop that
everything is compared with; and the memory that a call needs in addition to what the process holds
already.

Seconds depend on the machine and its load. Ratios of tasks that take turns depend only on the
tasks. So each repeat runs every task once, in turn, and a ratio is formed within a repeat before
the median over repeats is taken.
"""

import copy
import ctypes
import gc
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from gaussmark_lib import generate, models, perturb, stats, tokens
from gaussmark_lib.engine import arithmetic, blocks
from gaussmark_lib.perturb import Key
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench import answers, runs
from gaussmark_lib.workbench.plots.panels import panels

# how figures and answers name a task whose recorded name must stay
SHOWN = {"noises drawn anew": "each noise drawn for the test"}
# what the numbers of an answer are
FASTER = "Time of the plain loop divided by the time of score"
PASSES = "Forward passes that scoring takes, divided by the count of operations"
ALONE = 4  # rows that are written one by one: all rows would take most of the time


def alternating(tasks: Mapping[str, Callable[[], object]], repeats: int = 5) -> pd.DataFrame:
    """Time each task in each repeat, the tasks taking turns: ``task, repeat, seconds``. Each task
    runs once before, untimed. An accelerator is waited for.
    """
    rows = []
    for repeat in range(-1, repeats):  # −1 is the warm-up
        for name, task in tasks.items():
            _wait()
            start = time.perf_counter()
            task()
            _wait()
            seconds = time.perf_counter() - start
            rows.append((name, repeat, seconds))
    return pd.DataFrame(rows[len(tasks) :], columns=["task", "repeat", "seconds"])


def at_sizes(
    tasks: Mapping[str, Callable[[int], object]],
    x: str,
    sizes: Sequence[int],
    repeats: int,
) -> pd.DataFrame:
    """Return :func:`alternating` over each task at each size, all of them taking turns, with a
    column ``x`` for the size.
    """
    named = {f"{name} {n}": partial(task, n) for name, task in tasks.items() for n in sizes}
    times = alternating(named, repeats)
    names = times["task"].str.rsplit(" ", n=1)  # task and size
    times["task"] = names.str[0]
    times[x] = names.str[1].astype(int)
    return times


def many_over_one(
    times: pd.DataFrame,
) -> dict[str, stats.Estimate]:
    """Divide the time of the largest number of keys by that of one key, for each task of
    :func:`at_sizes` over ``keys``.
    """
    largest = times["keys"].max()
    ratios = {}
    for task, rows in times.groupby("task", sort=False):
        ends = rows[rows["keys"].isin([1, largest])]  # the smallest and the largest number of keys
        as_tasks = ends.assign(task=ends["keys"].map({1: "one", largest: "many"}))
        ratios[task] = ratio(as_tasks, "many", "one")
    return ratios


def generations(
    lm: models.LM,
    prompts: Texts,
    wm: perturb.Watermark,
    keys: Sequence[Key],
    n: int,
    seed: int,
) -> dict[str, Callable[[], object]]:
    """Return four tasks that write n tokens after each prompt.

    They write without a watermark; with one key for all; with a key per row in one batch; and the
    first ``ALONE`` rows one by one. The timing of the second task includes writing, but not drawing
    the noise.
    """
    with perturb.watermarked(lm.model, wm, keys[0]):
        marked_model = copy.deepcopy(lm.model)  # its noise is drawn here, before the clock starts
    marks = [(wm, key) for key in keys]
    # all prompts in one batch
    write = partial(
        generate.sample,
        prompts=prompts,
        n_tokens=n,
        seed=seed,
        batch_size=len(prompts),
    )

    def one_by_one() -> list[list[list[int]]]:
        return [
            generate.sample(lm.model, [prompt], n, marks=[mark], seed=seed)
            for prompt, mark in zip(prompts[:ALONE], marks[:ALONE], strict=True)
        ]

    return {
        "plain": partial(write, lm.model),
        "watermarked": partial(write, marked_model),
        "a key per row": partial(write, lm.model, marks=marks),
        "one key after the other": one_by_one,
    }


def _wait() -> None:
    """A GPU's calls return before they are done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ratio(times: pd.DataFrame, task: str, reference: str) -> stats.Estimate:
    """Divide the seconds of a task by those of the reference: the median over repeats."""
    by_repeat = times.pivot(index="repeat", columns="task", values="seconds")  # (repeats, tasks)
    return stats.median(by_repeat[task] / by_repeat[reference])


def operations(call: Callable[[], object]) -> int:
    """Count the floating-point operations of a call's matrix products and attentions, forward and
    backward, as torch counts them.
    """
    # it counts what is executed, backward passes included
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def plain_loop(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: perturb.Watermark,
    xi: Float[Tensor, "d_out d_in"],
) -> Float[np.ndarray, " texts"]:
    """Compute the simplest ψ, the reference of all ratios: text by text, autograd on the weight, in
    the model's own dtype.
    """
    placed = wm.on(model)
    linear = placed.linear  # the marked matrix
    psi = []
    for prompt, y in zip(prompts, responses, strict=True):
        x = placed.reader.prompt(prompt)
        ids = torch.tensor([[*x, *y]], device=model.device)
        # the logits at a place predict the next token: from the prompt's last place on
        logits = model(input_ids=ids, use_cache=False).logits[0, len(x) - 1 : -1]
        log_p = logits.log_softmax(-1).gather(-1, ids[0, len(x) :, None]).sum()
        [gradient] = torch.autograd.grad(log_p, linear.parameter)
        gradient = linear.oriented(gradient).float()
        norm = gradient.square().sum().sqrt()  # torch's norm of many numbers is inexact
        psi.append(((xi.to(gradient) * gradient).sum() / (wm.sigma * norm)).item())
    return np.array(psi)


@torch.no_grad()
def forward_only(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    *,
    batch_size: int = 8,
    dtype: str | torch.dtype | None = None,
) -> None:
    """Run one forward pass over the same texts in the same batches, and nothing else: no scoring
    can be faster.
    """
    reader = tokens.Reader(model)
    pairs = [(reader.prompt(x), y) for x, y in zip(prompts, responses, strict=True)]
    with arithmetic.computing_in(model, arithmetic.arithmetic(model, dtype)):
        for start in range(0, len(pairs), batch_size):
            texts = [[*x, *y] for x, y in pairs[start : start + batch_size]]
            ids, mask = blocks.padded(texts, "right", model.device)
            model(
                input_ids=ids,
                attention_mask=mask,
                use_cache=False,
            )


def peak_memory(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what the call returns, and by how many MiB the process grew while it ran: resident
    memory, sampled every 2 ms, and memory of the GPU.

    Memory that was freed earlier is first returned to the system, if possible, so that using it
    again counts.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    process = psutil.Process()
    is_over = threading.Event()
    base = process.memory_info().rss
    peak = base

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(0.002):
            peak = max(peak, process.memory_info().rss)

    before_on_gpu = torch.cuda.memory_allocated()  # 0 where there is none, as the peak below
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = call()
    finally:
        is_over.set()
        watcher.join()
    grown_on_gpu = torch.cuda.max_memory_allocated() - before_on_gpu
    return result, (peak - base + grown_on_gpu) / 2**20


def over_plain(generation: pd.DataFrame) -> pd.DataFrame:
    """Divide the time of each task of :func:`generations` by that of the plain model: ``task,
    value, low, high, n``.
    """
    tasks = [task for task in generation["task"].unique() if task != "plain"]
    rows = [{"task": task, **ratio(generation, task, "plain").row()} for task in tasks]
    return pd.DataFrame(rows)


def memory_by_run(notebook: str, memory: Mapping[str, float]) -> pd.DataFrame:
    """Return the peak MiB of each task (rows) in a notebook's records and this run (columns). A
    task that a run did not measure, such as another run's batch size, has an empty entry.
    """
    columns = {
        answers.title(run): run.results.get("peak MiB", {}) for run in runs.references(notebook)
    }
    columns[answers.THIS_RUN] = memory
    table = pd.DataFrame(columns).round().rename_axis(columns="peak MiB")
    return table.astype(object).where(table.notna(), "")


def draw_against(
    times: pd.DataFrame,
    x: str,
    xlabel: str,
    title: str,
    caption: str,
) -> Figure:
    """Draw the median milliseconds per text against a size, a line per task and a panel for each
    run of ``answers.beside``, with the fastest and slowest repeat. Machines differ, so each panel
    has its own axis.
    """
    times = times.replace({"task": SHOWN})
    by_task = times.groupby(["run", "task", x], sort=False)["seconds"]  # all repeats at a size
    rows = 1000 * by_task.agg(value="median", low="min", high="max")
    return panels(
        rows.reset_index(),
        x,
        by="task",
        panel="run",
        title=title,
        caption=f"{caption}; median and range of the repeats",
        xlabel=xlabel,
        ylabel="milliseconds per text",
        ylim=(0, None),  # from 0, so that heights compare
        sharey=False,
    )
