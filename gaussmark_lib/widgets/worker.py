"""Work that can be stopped, done beside the kernel's own thread.

A kernel handles one message after another. Work done in a button's handler would hold up the click on Stop until it is over; so it runs
in a thread, and looks between two steps whether Stop was pressed.
"""

from collections.abc import Callable
from contextvars import copy_context
from threading import Event, Lock, Thread
from typing import Any

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.experiments.playground import Report, StoppedError


class Worker:
    """Does one thing at a time, and turns whatever goes wrong into a sentence. Work runs in a thread; so do the last three of these.

    Args:
        on_start: called before ``start`` returns.
        on_progress: called with what is being done and the share of it that is done.
        on_end: called with a sentence if the work failed or was stopped, with "" if its result was shown.
        on_idle: called when new work can be started.
    """

    def __init__(self, on_start: Callable[[], None], on_progress: Report, on_end: Callable[[str], None], on_idle: Callable[[], None]):
        self._on_start, self._on_progress, self._on_end, self._on_idle = on_start, on_progress, on_end, on_idle
        self._free, self._stop, self._thread = Lock(), Event(), None
        self.error: Exception | None = None  # of the last work, with its traceback

    @property
    def busy(self) -> bool:
        return self._free.locked()

    def start(self, work: Callable[[Report], Any], show: Callable[[Any], None]) -> bool:
        """Begins ``show(work(report))`` and returns at once; False, and nothing happens, if other work is going on."""
        if not self._free.acquire(blocking=False):
            return False
        self._stop.clear()
        self.error = None
        self._on_start()
        self._thread = Thread(target=copy_context().run, args=(self._run, work, show), daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """Ends the work at its next step."""
        self._stop.set()

    def wait(self) -> None:
        """Returns when nothing is going on any more."""
        while (thread := self._thread) and thread.is_alive():
            thread.join()

    def _run(self, work: Callable[[Report], Any], show: Callable[[Any], None]) -> None:
        sentence = ""
        try:
            show(work(self._report))
        except StoppedError:
            sentence = "Stopped. The model is the base model again; what is shown below is from before."
        except GaussMarkError as error:
            self.error, sentence = error, _capitalised(str(error))
        except Exception as error:  # a reader is owed a sentence whatever happens
            self.error, sentence = (
                error,
                f"This did not work: {type(error).__name__}: {str(error).strip() or 'no message'} (all of it is in panel.error)",
            )
        try:
            self._on_end(sentence)
        finally:
            self._free.release()
        self._on_idle()

    def _report(self, what: str, share: float) -> None:
        if self._stop.is_set():
            raise StoppedError
        self._on_progress(what, share)


def _capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:] + ("" if sentence.endswith((".", "!", "?")) else ".")
