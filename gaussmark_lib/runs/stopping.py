"""Ctrl-C and SIGTERM as one KeyboardInterrupt, for the commands that leave records and processes
behind.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside, the first Ctrl-C or SIGTERM raises KeyboardInterrupt; later ones are ignored, so that
    the clean-up, about a second, can finish.
    """

    def stop(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
