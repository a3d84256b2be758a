"""The device that a run would use: the memory it has, and, where somebody asks for seconds, how
fast it is.

What it *has* is read without torch, which takes seconds to import, unless there is a GPU to ask.
How fast it is, :func:`calibrated` measures in a few seconds on matrices of the model's own widths.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from gaussmark_lib.plan.cost import Read, Score, Write
from gaussmark_lib.plan.steps import Setting, Step

CGROUP = Path("/sys/fs/cgroup/memory.max")
PATIENCE = 0.6  # seconds for each of five measurements
SMALL_OPS = 90  # operations of a block, beside its matrices, with what Python takes to call them


@dataclass(frozen=True)
class Device:
    """``memory`` bytes there are, and ``free`` ones; ``host``: the machine's own beside a GPU.
    ``bfloat16``: whether it multiplies that itself.
    """

    name: str
    memory: float
    free: float
    bfloat16: bool
    host: float | None = None

    @property
    def is_cpu(self) -> bool:
        return self.host is None


@dataclass(frozen=True)
class Rates:
    """Seconds: of an operation in large products while scoring and while writing, of a number of
    the weights that is read for one row, of a block's small operations, of a word of the vocabulary
    for one row, and of a number of a noise.
    """

    scoring: float
    writing: float
    weight: float
    block: float
    word: float
    noise: float


def of(name: str | None) -> Device:
    """The device of this name; for None the GPU if there is one, as ``models.load`` takes it."""
    host, free = _host()
    if name != "cpu" and (
        name or any(Path(file).exists() for file in ("/dev/nvidia0", "/dev/kfd", "/dev/dxg"))
    ):
        import torch

        if torch.cuda.is_available() and (name is None or name.startswith("cuda")):
            left, there = torch.cuda.mem_get_info(name or "cuda")
            return Device(
                torch.cuda.get_device_name(name or "cuda"),
                there,
                left,
                torch.cuda.is_bf16_supported(including_emulation=False),
                host,
            )
    return Device("CPU", host, free, _bfloat16())


def _host() -> tuple[float, float]:
    """The machine's memory, or this process's share of it, and what is free of it."""
    memory = psutil.virtual_memory()
    try:
        limit = float(CGROUP.read_text())
        free = (
            limit
            - float(CGROUP.with_name("memory.current").read_text())
            + _cached(CGROUP.with_name("memory.stat").read_text())
        )
    except (OSError, ValueError):  # none, or "max"
        limit = free = float("inf")
    return min(memory.total, limit), max(0.0, min(memory.available, free))


def _cached(stat: str) -> float:
    """What a group holds of files and gives back when memory is short."""
    return sum(
        float(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file ")
    )


@cache
def _bfloat16() -> bool:
    """As ``models.native_bfloat16`` of the CPU."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[1].splitlines()[0].split()
        return bool({"avx512_bf16", "amx_tile"} & set(flags))
    except (OSError, IndexError):
        import torch

        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def calibrated(setting: Setting, device: Device) -> Rates:
    """Measures the rates on this device, on matrices of the model's widths, or narrower ones where
    these need too much memory.
    """
    import torch
    from torch.nn.functional import linear, scaled_dot_product_attention, silu

    from gaussmark_lib import normal

    on = "cpu" if device.is_cpu else "cuda"
    H, inner = setting.shape.hidden, min(setting.shape.intermediate, 4096)
    held, scoring = getattr(torch, setting.held), getattr(torch, setting.scoring)

    def seconds(call: Callable[[], object]) -> float:
        return _seconds(call, None if device.is_cpu else torch.cuda.synchronize)

    def product(dtype: "torch.dtype", rows: int, n_matrices: int = 1) -> float:
        x, W = (
            torch.ones(rows, H, device=on, dtype=dtype),
            [torch.ones(inner, H, device=on, dtype=dtype) for _ in range(n_matrices)],
        )
        return seconds(lambda: [linear(x, one) for one in W]) / (inner * H * n_matrices)

    with torch.no_grad():
        rows = 128 if device.is_cpu else 4096
        fast = product(scoring, rows) / (2 * rows)
        writing = fast if held == scoring else product(held, rows) / (2 * rows)
        weight = product(
            held, 1, max(1, min(8, 2**27 // (inner * H)))
        )  # several in turn: a cache holds none of them
        small = torch.randn(1, 4, 1, 16, device=on)
        op = (
            seconds(lambda: silu(small))
            + seconds(lambda: small + small)
            + seconds(lambda: scaled_dot_product_attention(small, small, small))
        ) / 3
        logits = torch.randn(4, min(setting.shape.vocabulary, 1 << 15), device=on)
        word = (
            seconds(
                lambda: (
                    ((logits.double() - logits.amax(-1, keepdim=True)) / 1.0).softmax(-1).cumsum(-1)
                )
            )
            / logits.numel()
        )
    n = 8 * normal.SPAN  # enough for every thread
    noise = _seconds(lambda: normal.standard_normal(0, n)) / n
    return Rates(fast, writing, weight, SMALL_OPS * op, word, noise)


def _seconds(call: Callable[[], object], wait: Callable[[], None] | None = None) -> float:
    """The least time of some calls, within ``PATIENCE`` of them, at least two."""
    wait = wait or (lambda: None)
    call()
    times, end = [], time.perf_counter() + PATIENCE
    while len(times) < 2 or (time.perf_counter() < end and len(times) < 200):
        wait()
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    return min(times)


def seconds(step: Step, setting: Setting, rates: Rates) -> float:
    """About how long a step takes. Each call of the model reads all its weights once, which is what
    small batches wait for.
    """
    shape = setting.shape
    through = shape.layers * shape.block_size + shape.head_size
    rate = rates.scoring if isinstance(step, Score) else rates.writing
    drawn = step.drawn * step.size(setting) * rates.noise
    if not step.texts:
        return drawn + 2 * step.drawn * step.held * step.size(setting) * rate
    predicted = step.texts * step.tokens * (step.times if isinstance(step, Read) else 1)
    words = predicted * shape.vocabulary * rates.word * (1.0 if isinstance(step, Write) else 0.5)
    return (
        step.flops(setting) * rate
        + step.calls * (through * rates.weight + shape.layers * rates.block)
        + words
        + drawn
    )


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
