"""Where one action shows itself: its button, Stop and progress, what went wrong, and its result,
dimmed when it is from earlier settings.
"""

import ipywidgets as w

from gaussmark_lib.widgets import render

WIDE = w.Layout(width="auto", margin="2px 0")
BUTTON = w.Layout(width="auto", margin="2px 8px 2px 0")


def button(name: str, icon: str, tooltip: str, style: str = "") -> w.Button:
    return w.Button(description=name, icon=icon, tooltip=tooltip, button_style=style, layout=BUTTON)


class Area:
    """One action of the panel. ``start`` begins it and ``stop`` ends it; beside them it says how
    far it is, and below what came of it.
    """

    def __init__(self, start: w.Button, name: str):
        self.start, self.stop = (
            start,
            button("Stop", "stop", f"End this work at its next step: {name}"),
        )
        self.stop.disabled = True
        self.progress = w.FloatProgress(
            min=0,
            max=1,
            tooltip=f"Progress: {name}",
            layout=w.Layout(width="14em", visibility="hidden"),
        )
        self.doing, self.message, self.note, self.output = (
            w.HTML(),
            w.HTML(layout=WIDE),
            w.HTML(layout=WIDE),
            w.HTML(layout=WIDE),
        )
        self._result, self._shown, self._changed = (
            "",
            "",
            "",
        )  # the last whole result; what is shown; settings that are others now

    def bar(self, *more: w.Widget) -> w.HBox:
        layout = w.Layout(align_items="center", margin="6px 0 2px 0", flex_flow="row wrap")
        return w.HBox([self.start, self.stop, *more, self.progress, self.doing], layout=layout)

    def show(self, html: str, changed: str = "") -> None:
        """A new result; ``changed`` names the settings that are others now."""
        self._result = html
        self._put(html, changed)

    def sketch(self, html: str, changed: str = "") -> None:
        """What there is of a result so far, in the place of the last one, which :meth:`drop_sketch`
        brings back.
        """
        self._put(html, changed)

    def drop_sketch(self) -> None:
        """The last whole result again, if a sketch stands in its place."""
        if self._shown != self._result:
            self._put(self._result, "")

    def clear(self) -> None:
        """No result, and nothing to say of one."""
        self.show("")
        self.message.value = ""

    def compare(self, changed: str) -> None:
        """Dims what is shown where settings have changed since, and names them; with "" it is shown
        as new.
        """
        if self._shown and changed != self._changed:
            self._put(self._shown, changed)

    def _put(self, html: str, changed: str) -> None:
        shown = render.dimmed(html) if changed else html
        if self.output.value != shown:  # a result is a large message to the browser
            self.output.value = shown
        self._shown, self._changed = html, changed
        self.note.value = (
            render.message(f"From earlier settings. Changed since: {changed}.") if changed else ""
        )

    def say(self, sentence: str, is_error: bool = False) -> None:
        self.message.value = render.message(sentence, is_error)

    # What its work reports, from the worker's thread

    def started(self) -> None:
        self.message.value = ""
        self._set_busy(True)

    def progressed(self, what: str, share: float) -> None:
        if (
            self.doing.value != what or share - self.progress.value >= 0.02 or share == 1
        ):  # each is a message to the browser
            self.doing.value, self.progress.value = what, share

    def ended(self, sentence: str, is_error: bool) -> None:
        self.say(sentence, is_error)
        self.progress.value, self.doing.value = 0, ""
        self._set_busy(False)

    def _set_busy(self, busy: bool) -> None:
        self.stop.disabled = not busy
        self.progress.layout.visibility = "visible" if busy else "hidden"
