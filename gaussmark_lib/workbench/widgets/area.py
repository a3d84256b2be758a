"""Where one action shows itself (:class:`Area`), and what does its work in a thread
(:class:`Worker`), since a kernel would handle a click on Stop only after another button's handler.
"""

from collections.abc import Callable, Mapping
from contextvars import copy_context
from threading import Event, Lock, Thread
from typing import Any

import ipywidgets as w

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench.widgets import render
from gaussmark_lib.workbench.widgets.playground import Report, StoppedError

WIDE = w.Layout(width="auto", margin="2px 0")
BUTTON = w.Layout(width="auto", margin="2px 8px 2px 0")
BAR = w.Layout(align_items="center", margin="6px 0 2px 0", flex_flow="row wrap")
STOPPED = "Stopped. The model is the base model again; what is shown below is from before."


def button(name: str, icon: str, tooltip: str, style: str = "") -> w.Button:
    return w.Button(description=name, icon=icon, tooltip=tooltip, button_style=style, layout=BUTTON)


class Area:
    """One action of the panel: the button that starts it, Stop and progress, what went wrong, and
    its result, dimmed when it is from earlier settings.
    """

    def __init__(self, start: w.Button, name: str):
        self.start, self.stop = start, button("Stop", "stop", f"End at the next step: {name}")
        self.stop.disabled = True
        hidden = w.Layout(width="14em", visibility="hidden")
        self.progress = w.FloatProgress(min=0, max=1, tooltip=f"Progress: {name}", layout=hidden)
        self.doing = w.HTML()
        self.message, self.note, self.output = (w.HTML(layout=WIDE) for _ in range(3))
        self.changed = ""  # the settings that are others now than those of the result
        self._html, self._made = "", {}

    def parts(self, *more: w.Widget) -> list[w.Widget]:
        """From top to bottom; ``more`` stands beside the buttons."""
        bar = w.HBox([self.start, self.stop, *more, self.progress, self.doing], layout=BAR)
        return [bar, self.message, self.note, self.output]

    def show(self, html: str, made: Mapping[str, Any]) -> None:
        """A result, and the settings that it was made with."""
        self._html, self._made = html, made
        self._draw("")

    def compare(self, now: Mapping[str, Any]) -> None:
        """Dims the result where settings have changed since."""
        changed = ", ".join(name for name, value in self._made.items() if now[name] != value)
        if changed != self.changed:  # a result is a large message to the browser
            self._draw(changed)

    def _draw(self, changed: str) -> None:
        self.changed = changed
        self.output.value = render.dimmed(self._html) if changed else self._html
        earlier = f"From earlier settings. Changed since: {changed}."
        self.note.value = render.message(earlier) if changed else ""

    def clear(self) -> None:
        self.show("", {})
        self.message.value = ""

    def say(self, sentence: str, is_error: bool = False) -> None:
        self.message.value = render.message(sentence, is_error)

    def progressed(self, step: str, share: float) -> None:
        near = 0 <= share - self.progress.value < 0.02  # each change is a message to the browser
        if self.doing.value != step or not near or share == 1:
            self.doing.value, self.progress.value = step, share

    def set_busy(self, busy: bool) -> None:
        self.stop.disabled = not busy
        self.progress.layout.visibility = "visible" if busy else "hidden"
        self.progress.value, self.doing.value = 0, ""


class Worker:
    """Does one thing at a time, and turns every error into a sentence. ``on_busy`` is called with
    True when work begins, and with False when the next can begin.
    """

    def __init__(self, on_busy: Callable[[bool], None]):
        self._on_busy = on_busy
        self._free, self._stop, self._thread = Lock(), Event(), None
        self.error: Exception | None = None  # of the last work, with its traceback

    def start(self, work: Callable[[Report], Any], show: Callable[[Any], None], area: Area) -> bool:
        """Begins ``show(work(report))`` and returns at once; False, without any effect, if other
        work is running.
        """
        if not self._free.acquire(blocking=False):
            return False
        self._stop.clear()
        self.error = None
        self._on_busy(True)
        area.say("")
        area.set_busy(True)
        run = copy_context().run
        self._thread = Thread(target=run, args=(self._run, work, show, area), daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """Ends the work at its next step."""
        self._stop.set()

    def wait(self) -> None:
        """Returns when no work is left; for scripts and tests."""
        while (thread := self._thread) and thread.is_alive():
            thread.join()

    def _run(self, work: Callable[[Report], Any], show: Callable[[Any], None], area: Area) -> None:
        def report(step: str, share: float) -> None:
            if self._stop.is_set():
                raise StoppedError
            area.progressed(step, share)

        try:
            show(work(report))
        except StoppedError:
            area.say(STOPPED)
        except Exception as error:  # the reader gets a sentence for every error
            self.error = error
            area.say(_in_words(error), is_error=True)
        finally:
            area.set_busy(False)
            self._free.release()
        self._on_busy(False)


def _in_words(error: Exception) -> str:
    if isinstance(error, GaussMarkError):
        sentence = str(error)
        return sentence[:1].upper() + sentence[1:].rstrip(".") + "."
    return (
        f"This did not work: {type(error).__name__}: {str(error).strip() or 'no message'} (the"
        " whole error is in panel.error)"
    )
