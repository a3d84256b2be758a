"""Fair timings: alternating repeats in one process, medians, ratios; and the plain loop that
everything is compared with.

Seconds depend on the machine and its load; ratios of tasks that take turns depend on the tasks. So
each repeat runs every task once, in turn, and a ratio is formed within a repeat before the median
over repeats is taken.
"""

import ctypes
import gc
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pandas as pd
import psutil
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import binom
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import models, perturb, stats, tokens
from gaussmark_lib.tokens import Texts


def alternating(
    tasks: Mapping[str, Callable[[], object]], repeats: int = 5, *, warm_up: bool = True
) -> pd.DataFrame:
    """Seconds of each task in each repeat, the tasks taking turns: one row each with ``task,
    repeat, seconds``.

    An accelerator is waited for. ``warm_up`` runs each once before, untimed.
    """
    rows = []
    for repeat in range(-1 if warm_up else 0, repeats):
        for name, task in tasks.items():
            _wait()
            start = time.perf_counter()
            task()
            _wait()
            if repeat >= 0:
                rows.append(
                    {"task": name, "repeat": repeat, "seconds": time.perf_counter() - start}
                )
    return pd.DataFrame(rows)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ratios(times: pd.DataFrame, reference: str) -> pd.DataFrame:
    """How many times faster than the reference each task is: ``task, ratio`` (median over repeats),
    ``low, high`` (range), ``seconds`` (median).

    >>> tasks, seconds = ["slow", "fast"] * 2, [2.0, 1.0, 3.0, 1.0]
    >>> times = pd.DataFrame({"task": tasks, "repeat": [0, 0, 1, 1], "seconds": seconds})
    >>> ratios(times, "slow").loc[1, ["ratio", "low", "high"]].tolist()
    [2.5, 2.0, 3.0]
    """
    by_repeat = times.pivot(index="repeat", columns="task", values="seconds")[
        times["task"].unique()
    ]
    faster = by_repeat[[reference]].to_numpy() / by_repeat
    columns = {
        "ratio": faster.median(),
        "low": faster.min(),
        "high": faster.max(),
        "seconds": by_repeat.median(),
    }
    return pd.DataFrame(columns).rename_axis("task").reset_index()


def ratio(times: pd.DataFrame, task: str, reference: str) -> stats.Estimate:
    """Seconds of a task over those of the reference: the :func:`median` over repeats."""
    by_repeat = times.pivot(index="repeat", columns="task", values="seconds")
    return median(by_repeat[task] / by_repeat[reference])


def median(values: ArrayLike) -> stats.Estimate:
    """The median of independent repeats with a 95% interval by order statistics, whatever their
    law: from the k-th smallest to the k-th largest.

    It misses the true median with probability 2·P(Binomial(n, ½) < k); k is the largest for which
    that is at most 0.05. Below six repeats there is none, even from the smallest to the largest:
    the ends are NaN.

    >>> print(median([1.0, 2.0, 3.0, 4.0, 5.0, 9.0]), median([1.0, 2.0]), sep="; ")
    3.5 (1 to 9), n = 6; 1.5 (no interval), n = 2
    """
    found = np.sort(values)
    n = len(found)
    k = int((2 * binom.cdf(np.arange(n), n, 0.5) <= 0.05).sum())
    low, high = (found[k - 1], found[n - k]) if k else (np.nan, np.nan)
    return stats.Estimate(float(np.median(found)), float(low), float(high), n)


def exponent(times: pd.DataFrame, x: str) -> stats.Estimate:
    """b of seconds ∝ x^b, by least squares of the logarithms: the mean over repeats, each repeat by
    itself, with Student's interval.

    Raises:
        StatisticsError: fewer than two repeats that have every x.
    """
    by_repeat = times.pivot(index="repeat", columns=x, values="seconds").dropna()
    return stats.mean(
        [np.polyfit(np.log(by_repeat.columns), np.log(row), 1)[0] for row in by_repeat.to_numpy()]
    )


def share_of_blocks(model: PreTrainedModel, weight: str) -> float:
    """Which share of the model's blocks stands at or above a weight, so that a backward pass goes
    through it; 1 for a weight in no block.
    """
    numbers = {
        name: int(found[1])
        for name in models.watermarkable(model)
        if (found := re.search(r"\.(\d+)\.", name))
    }
    blocks, own = set(numbers.values()), re.search(r"\.(\d+)\.", weight)
    return sum(block >= int(own[1]) for block in blocks) / len(blocks) if own else 1.0


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
    linear = wm.on(model).linear
    psi = []
    for x, y in zip(tokens.checked_prompts(model, prompts), responses, strict=True):
        ids = torch.tensor([[*x, *y]], device=model.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, len(x) - 1 : -1]
        log_p = logits.log_softmax(-1).gather(-1, ids[0, len(x) :, None]).sum()
        [gradient] = torch.autograd.grad(log_p, linear.stored)
        gradient = linear.oriented(gradient).float()
        psi.append(
            (
                (xi.to(gradient) * gradient).sum() / (wm.sigma * gradient.square().sum().sqrt())
            ).item()
        )  # torch's norm of many is inexact
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
    pairs = list(zip(tokens.checked_prompts(model, prompts), responses, strict=True))
    with models.computing_in(model, models.arithmetic(model, dtype)):
        for start in range(0, len(pairs), batch_size):
            ids, mask = tokens.pad(
                [[*x, *y] for x, y in pairs[start : start + batch_size]], "right", model.device
            )
            model(input_ids=ids, attention_mask=mask, use_cache=False)


@contextmanager
def peak_memory() -> Iterator[dict[str, float]]:
    """Inside the ``with``, memory is watched; afterwards ``bytes`` is its peak above what was in
    use at the start.

    Of the accelerator where there is one (exact); else of this process, looked at every few
    milliseconds (a lower bound).
    """
    found: dict[str, float] = {"bytes": 0.0}
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield found
        found["bytes"] = float(torch.cuda.max_memory_allocated() - before)
        return
    _give_back_freed_memory()
    process, done = psutil.Process(), threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        while not done.wait(0.002):
            found["bytes"] = max(found["bytes"], float(process.memory_info().rss - before))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


def _give_back_freed_memory() -> None:
    """Otherwise a task that reuses what an earlier one freed would seem to need none. A C library
    without the call keeps it.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim:
        trim(0)
