"""Work that can be stopped. It runs in a thread, since a kernel would handle a click on Stop only
after the work of another button's handler.
"""

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from threading import Event, Lock, Thread
from typing import Any

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.experiments.playground import Report, StoppedError


class Worker:
    """Does one thing at a time, and turns every error into a sentence. The work and the last three
    of these functions run in a thread.

    Args:
        on_start: called with the place where the work shows itself, before ``start`` returns.
        on_progress: called with the place, the name of the current step and the share that is done.
        on_end: called with the place, and a sentence if the work failed or was stopped, "" if its
            result was shown.
        on_idle: called when new work can be started.
    """

    def __init__(
        self,
        on_start: Callable[[Any], None],
        on_progress: Callable[[Any, str, float], None],
        on_end: Callable[[Any, str], None],
        on_idle: Callable[[], None],
    ):
        self._on_start, self._on_progress, self._on_end, self._on_idle = (
            on_start,
            on_progress,
            on_end,
            on_idle,
        )
        self._free, self._stop, self._thread = Lock(), Event(), None
        self.error: Exception | None = None  # of the last work, with its traceback

    @property
    def busy(self) -> bool:
        return self._free.locked()

    def start(
        self, work: Callable[[Report], Any], show: Callable[[Any], None], place: Any = None
    ) -> bool:
        """Begins ``show(work(report))`` and returns at once; False, without any effect, if other
        work is running.
        """
        if not self._free.acquire(blocking=False):
            return False
        self._stop.clear()
        self.error = None
        self._on_start(place)
        self._thread = Thread(
            target=copy_context().run, args=(self._run, work, show, place), daemon=True
        )
        self._thread.start()
        return True

    def stop(self) -> None:
        """Ends the work at its next step."""
        self._stop.set()

    def wait(self) -> None:
        """Returns when no work is left."""
        while (thread := self._thread) and thread.is_alive():
            thread.join()

    def _run(self, work: Callable[[Report], Any], show: Callable[[Any], None], place: Any) -> None:
        sentence = ""
        try:
            show(work(partial(self._report, place)))
        except StoppedError:
            sentence = (
                "Stopped. The model is the base model again; what is shown below is from before."
            )
        except Exception as error:  # the reader gets a sentence for every error
            self.error, sentence = error, _in_words(error)
        try:
            self._on_end(place, sentence)
        finally:
            self._free.release()
        self._on_idle()

    def _report(self, place: Any, what: str, share: float) -> None:
        if self._stop.is_set():
            raise StoppedError
        self._on_progress(place, what, share)


def _in_words(error: Exception) -> str:
    if isinstance(error, GaussMarkError):
        said = str(error)
        return said[:1].upper() + said[1:] + ("" if said.endswith((".", "!", "?")) else ".")
    return (
        f"This did not work: {type(error).__name__}: {str(error).strip() or 'no message'} (the"
        " whole error is in panel.error)"
    )
