"""10: fair timings: alternating repeats in one process, medians, ratios; the plain loop that
everything is compared with; and the memory that a call needs beyond what the process holds already.

Seconds depend on the machine and its load; ratios of tasks that take turns depend on the tasks. So
each repeat runs every task once, in turn, and a ratio is formed within a repeat before the median
over repeats is taken.
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
from gaussmark_lib.workbench.plots.panels import panels

ALONE = 4  # rows that are written one after the other: all of them would take most of the time


def alternating(tasks: Mapping[str, Callable[[], object]], repeats: int = 5) -> pd.DataFrame:
    """Seconds of each task in each repeat, the tasks taking turns: ``task, repeat, seconds``. Each
    runs once before, untimed; an accelerator is waited for.
    """
    rows = []
    for repeat in range(-1, repeats):
        for name, task in tasks.items():
            _wait()
            start = time.perf_counter()
            task()
            _wait()
            rows.append(
                {
                    "task": name,
                    "repeat": repeat,
                    "seconds": time.perf_counter() - start,
                }
            )
    return pd.DataFrame(rows[len(tasks) :])


def at_sizes(
    tasks: Mapping[str, Callable[[int], object]],
    x: str,
    sizes: Sequence[int],
    repeats: int,
) -> pd.DataFrame:
    """:func:`alternating` over each task at each size, all of them taking turns, with a column
    ``x`` for the size.
    """
    each = {f"{name} {n}": partial(task, n) for name, task in tasks.items() for n in sizes}
    times = alternating(each, repeats)
    names = times["task"].str.rsplit(" ", n=1)
    return times.assign(task=names.str[0], **{x: names.str[1].astype(int)})


def many_over_one(times: pd.DataFrame) -> dict[str, stats.Estimate]:
    """By task of :func:`at_sizes` over ``keys``: the time of the most keys over that of one."""
    most = times["keys"].max()
    over = {}
    for task, rows in times.groupby("task", sort=False):
        ends = rows[rows["keys"].isin([1, most])]
        over[task] = ratio(
            ends.assign(task=ends["keys"].map({1: "one", most: "many"})),
            "many",
            "one",
        )
    return over


def generations(
    lm: models.LM,
    prompts: Texts,
    wm: perturb.Watermark,
    keys: Sequence[Key],
    n: int,
    seed: int,
) -> dict[str, Callable[[], object]]:
    """Four tasks that write n tokens after each prompt: without a watermark, with one key for all,
    with a key per row in one batch, and the first ``ALONE`` rows one after the other. What is timed
    of the second is writing, not drawing the noise.
    """
    with perturb.watermarked(lm.model, wm, keys[0]):
        marked_model = copy.deepcopy(lm.model)
    marks = [(wm, key) for key in keys]
    batch = {"seed": seed, "batch_size": len(prompts)}
    return {
        "plain": lambda: generate.sample(lm.model, prompts, n, **batch),
        "watermarked": lambda: generate.sample(marked_model, prompts, n, **batch),
        "a key per row": lambda: generate.sample(lm.model, prompts, n, marks=marks, **batch),
        "one key after the other": lambda: [
            generate.sample(lm.model, [prompt], n, marks=[mark], seed=seed)
            for prompt, mark in zip(prompts[:ALONE], marks[:ALONE], strict=True)
        ],
    }


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ratio(times: pd.DataFrame, task: str, reference: str) -> stats.Estimate:
    """Seconds of a task over those of the reference: the median over repeats."""
    by_repeat = times.pivot(index="repeat", columns="task", values="seconds")
    return stats.median(by_repeat[task] / by_repeat[reference])


def operations(call: Callable[[], object]) -> int:
    """Floating-point operations of a call's matrix products and attentions, forward and backward,
    as torch counts them.
    """
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
    """The simplest ψ, the reference of all ratios: one text at a time, autograd on the weight, in
    the model's own dtype.
    """
    placed = wm.on(model)
    linear = placed.linear
    psi = []
    for prompt, y in zip(prompts, responses, strict=True):
        x = placed.reader.prompt(prompt)
        ids = torch.tensor([[*x, *y]], device=model.device)
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
    """One forward pass over the same texts in the same batches, and nothing else: the floor below
    which no scoring can go.
    """
    reader = tokens.Reader(model)
    pairs = list(zip([reader.prompt(x) for x in prompts], responses, strict=True))
    with arithmetic.computing_in(model, arithmetic.arithmetic(model, dtype)):
        for start in range(0, len(pairs), batch_size):
            texts = [[*x, *y] for x, y in pairs[start : start + batch_size]]
            ids, mask = blocks.padded(texts, "right", model.device)
            model(input_ids=ids, attention_mask=mask, use_cache=False)


def peak_memory(call: Callable[[], Any]) -> tuple[Any, float]:
    """What the call returns, and by how many MiB the process grew while it ran: resident memory,
    sampled every 2 ms, and memory of the GPU.

    Memory that was freed before is handed back to the system first, where that is possible, so that
    using it again counts.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    process = psutil.Process()
    over = threading.Event()
    before = most = process.memory_info().rss

    def watch() -> None:
        nonlocal most
        while not over.wait(0.002):
            most = max(most, process.memory_info().rss)

    before_on_gpu = torch.cuda.memory_allocated()  # 0 where there is none, as the peak below
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = call()
    finally:
        over.set()
        watcher.join()
    grown_on_gpu = torch.cuda.max_memory_allocated() - before_on_gpu
    return result, (most - before + grown_on_gpu) / 2**20


def draw_against(times: pd.DataFrame, x: str, xlabel: str, title: str, caption: str) -> Figure:
    """Median milliseconds per text against a size, a line per task, with the fastest and slowest
    repeat.
    """
    each = times.groupby(["task", x], sort=False)["seconds"]
    rows = 1000 * each.agg(value="median", low="min", high="max")
    return panels(
        rows.reset_index(),
        x,
        by="task",
        title=title,
        caption=f"{caption}; median and range of the repeats",
        xlabel=xlabel,
        ylabel="milliseconds per text",
        ylim=(0, 1.05 * rows["high"].max()),
    )
