"""How much memory a call needs beyond what the process holds already."""

import ctypes
import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
import torch


def measured(call: Callable[[], Any]) -> tuple[Any, float]:
    """What the call returns, and by how many MiB the process grew while it ran: resident memory,
    sampled every 2 ms, and memory of the GPU.

    Memory that was freed before is handed back to the system first, where that is possible, so that
    using it again counts.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    process, over, gpu = psutil.Process(), threading.Event(), torch.cuda.is_available()
    before = most = process.memory_info().rss

    def watch() -> None:
        nonlocal most
        while not over.wait(0.002):
            most = max(most, process.memory_info().rss)

    on_gpu = torch.cuda.memory_allocated() if gpu else 0
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = call()
    finally:
        over.set()
        watcher.join()
    return (
        result,
        (most - before + (torch.cuda.max_memory_allocated() - on_gpu if gpu else 0)) / 2**20,
    )
