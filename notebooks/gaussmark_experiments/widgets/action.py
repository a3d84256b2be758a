"""A button of the panel, with Stop, progress, a message and the result."""

import time
from collections.abc import Callable
from contextvars import copy_context
from threading import Event, Lock, Thread
from typing import Any

import ipywidgets as w
import traitlets

from gaussmark_experiments.widgets import render
from gaussmark_experiments.widgets.playground import Draft, Report, StoppedError
from gaussmark_lib.errors import GaussMarkError

STOPPED = "Stopped. The model is the base model again."
MOMENT = 0.1  # s between two drafts: each is a message to the page
TAKEN = "Other work is still running. Wait until it has ended, and press again."
WIDE = w.Layout(width="auto", margin="2px 0")
BAR = w.Layout(align_items="center", margin="6px 0 2px 0", flex_flow="row wrap")


def button(name: str, icon: str, tooltip: str, look: str = "") -> w.Button:
    """Return a button of the panel's look."""
    layout = w.Layout(width="auto", margin="2px 8px 2px 0")
    return w.Button(description=name, icon=icon, tooltip=tooltip, button_style=look, layout=layout)


class Action(w.VBox):
    """The work that the first of ``inputs``, a button or a choice, starts, with its result.

    The work runs in a thread, because a kernel handles a click on Stop only after the handler of
    another button has returned. Errors become sentences.

    Args:
        settings: returns the values that a result depends on, by name. The result is dimmed while a
            value differs from its value at the start of the work.
        turn: a lock that all actions share, so that one action works at a time.
    """

    busy = traitlets.Bool(False)

    def __init__(self, inputs: list[w.Widget], settings: Callable[[], dict[str, Any]], turn: Lock):
        name = inputs[0].description
        self.stop = button("Stop", "stop", f"End at the next step: {name}")
        self.progress = w.FloatProgress(max=1, tooltip=f"Progress: {name}")
        self.progress.layout.width = "14em"
        self.doing = w.HTML()
        self.message = w.HTML(layout=WIDE)
        self.output = w.HTML(layout=WIDE)
        self.result: Any = None  # of the latest work that ended well
        self.error: Exception | None = None  # of the latest work, with its traceback
        self._settings = settings
        self._turn = turn
        self._stopped = Event()  # set by Stop, and read by the report
        self._html = ""  # of the result
        self._draft: Draft | None = None  # the latest of this work
        self._half_written = ""  # HTML of what the latest work had written when it was stopped
        self._drawn = 0.0  # when the latest draft was shown
        self._settings_of_result: dict[str, Any] = {}
        bar = w.HBox([inputs[0], self.stop, *inputs[1:], self.progress, self.doing], layout=BAR)
        super().__init__([bar, self.message, self.output])
        self.stop.on_click(lambda _: self._stopped.set())
        traitlets.dlink((self, "busy"), (self.stop, "disabled"), lambda busy: not busy)
        visibility = {True: "visible", False: "hidden"}
        traitlets.dlink((self, "busy"), (self.progress.layout, "visibility"), visibility.get)

    def run(self, work: Callable[[Report], Any], show: Callable[[Any], str]) -> None:
        """Start ``show(work(report))`` in a thread; it returns the HTML of the result."""
        if not self._turn.acquire(blocking=False):
            self.say(TAKEN)
            return
        self._stopped.clear()
        self.error = None
        self._draft = None
        self._half_written = ""
        self.say("")
        self.busy = True
        arguments = (self._work, work, show, self._settings())
        Thread(target=copy_context().run, args=arguments, daemon=True).start()

    def show(self, html: str) -> None:
        """Show this as the result."""
        self._html = html
        self.refresh()

    def refresh(self) -> None:
        """Show the result, and dim it if settings have changed; above it, what Stop left."""
        settings = self._settings()
        earlier = self._settings_of_result
        changed = [name for name, value in earlier.items() if settings[name] != value]
        html = render.outdated(self._html, changed) if changed else self._html
        self.output.value = self._half_written + html

    def say(self, sentence: str, is_error: bool = False) -> None:
        """Show a sentence below the button."""
        self.message.value = render.message(sentence, is_error)

    def _work(
        self, work: Callable[[Report], Any], show: Callable[[Any], str], settings: dict[str, Any]
    ) -> None:
        try:
            result = work(self._report)
            self._html = show(result)
            self.result = result
            self._settings_of_result = settings
        except StoppedError:
            self.say(STOPPED)
            if self._draft:
                self._half_written = render.stopped(self._draft)
        except Exception as error:  # a user gets a sentence for every error
            self.error = error
            self.say(_in_words(error), is_error=True)
        finally:
            self.progress.value = 0
            self.doing.value = ""
            self.busy = False
            self._turn.release()

    def _report(self, step: str, share: float, draft: Draft | None = None) -> None:
        self._draft = draft or self._draft
        if self._stopped.is_set():
            raise StoppedError
        if draft and time.monotonic() - self._drawn > MOMENT:
            self.output.value = render.draft(draft)
            self._drawn = time.monotonic()
        # Each new value is a message to the page: leave out small steps.
        is_near = 0 <= share - self.progress.value < 0.02
        if self.doing.value != step or not is_near or share == 1:
            self.doing.value = step
            self.progress.value = share


def _in_words(error: Exception) -> str:
    """An error as a sentence."""
    words = str(error).strip()
    if isinstance(error, GaussMarkError | OSError):
        return words[:1].upper() + words[1:].rstrip(".") + "."
    kind = type(error).__name__
    return f"This did not work: {kind}: {words or 'no message'} (the whole error is in panel.error)"
