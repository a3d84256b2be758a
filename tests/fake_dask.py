"""A Dask client without processes: what is submitted runs at once, in this process, one after the
other.

``__class__`` makes them pass for Dask's own classes where signatures are checked.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import distributed


class Future:
    __class__ = distributed.Future

    def __init__(self, result=None, error: BaseException | None = None):
        self._result, self._error = result, error

    def result(self):
        if self._error:
            raise self._error
        return self._result


class Client:
    __class__ = distributed.Client
    loop = None

    def __init__(self):
        self.submitted: list[dict] = []

    def submit(self, function, *arguments, **options) -> Future:
        self.submitted.append(options)
        try:
            return Future(function(*arguments))
        except Exception as error:
            return Future(error=error)

    def run(self, function, *arguments, on_error: str) -> dict:
        return {"tcp://here": function(*arguments)}

    def nthreads(self) -> dict:
        return {"tcp://here": 1}


class Finished:
    """In place of ``as_completed``: hands out one future at a time, in the order in which they were
    added.
    """

    def __init__(self, loop=None):
        self.futures: list[Future] = []

    def add(self, future: Future) -> None:
        self.futures.append(future)

    def next_batch(self, block: bool) -> list[Future]:
        batch, self.futures = self.futures[:1], self.futures[1:]
        return batch


@contextmanager
def connect(**options) -> Iterator[Client]:
    yield Client()


def use(monkeypatch) -> None:
    """Lets sweeps and tours run in this process."""
    from gaussmark_lib.sweeps import places, submit, worker

    monkeypatch.setattr(places, "connect", connect)
    monkeypatch.setattr(submit, "as_completed", Finished)
    monkeypatch.setattr(submit, "POLL", 0)
    monkeypatch.setattr(worker, "_wanted", lambda: lambda: True)
