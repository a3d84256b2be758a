"""The playground's panel: a form over a ``playground.Session``, and its results."""

from itertools import cycle
from typing import Any

import ipywidgets as w

from gaussmark_lib import models
from gaussmark_lib.experiments.playground import WATERMARKED, Comparison, Question, Session, Verdict, mlp_weights
from gaussmark_lib.perturb import Key
from gaussmark_lib.plots import playground as plots
from gaussmark_lib.widgets import render
from gaussmark_lib.widgets.worker import Worker

LONGEST = 400  # tokens; the slider's end, or half the context if that is shorter
_WIDE = w.Layout(width="auto", margin="2px 0")
_BUTTON = w.Layout(width="auto", margin="2px 8px 2px 0")
_FIELD = {"layout": _WIDE, "style": {"description_width": render.LABEL}}
_KEYS = {"demonstration": "anyone can guess it", "secret": "secret, in this kernel's memory", "given": "given to the panel"}


class Panel:
    """Widgets to play with; ``panel`` as a cell's last line shows them. Inputs can change during work, which uses their values at its start.

    The ``session`` computes what the panel shows. ``key`` is the first key, by default the demonstration key of seed 1; ``question`` holds the
    inputs' first values.
    """

    def __init__(self, session: Session, key: Key | None = None, question: Question | None = None):
        self.session = session
        self.result: Comparison | None = None
        self.verdict: Verdict | None = None
        self._prompts = cycle(session.prompts)
        self._tried: tuple[str, int] | None = None  # the weight and length of the last attempt to measure ‖G‖
        first, weights = next(self._prompts), mlp_weights(session.lm.model)
        self._make_inputs(question or Question(first, weights[2 * len(weights) // 3]), weights)
        self._make_outputs()
        self._worker = Worker(self._started, self._progressed, self._ended, self._show_sigma)
        self._use(key or Key.from_seed(self.key_seed.value), "given" if key else "demonstration")
        self._wire()
        self.view = self._lay_out()
        self._show_sigma()

    @property
    def error(self) -> Exception | None:
        """What went wrong in the last work, with its traceback."""
        return self._worker.error

    def wait(self) -> None:
        """Returns when the panel's work is done; for scripts and tests."""
        self._worker.wait()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options) | {"text/plain": repr(self)}

    def __repr__(self) -> str:
        return "Panel: widgets, alive when the notebook runs"

    # What the reader sees

    def _make_inputs(self, start: Question, weights: list[str]) -> None:
        longest = min(LONGEST, getattr(self.session.lm.model.config, "max_position_embeddings", 2 * LONGEST) // 2)
        weights = list(dict.fromkeys([*weights, models.linear(self.session.lm.model, start.weight).name]))
        self.prompt = w.Textarea(start.prompt, description="Prompt", rows=3, **_FIELD)
        self.weight = w.Dropdown(options=weights, value=start.weight, description="Weight", **_FIELD)
        self.psi = w.FloatSlider(start.psi, min=0.5, max=8, step=0.5, description="Predicted ψ", readout_format=".1f", **_FIELD)
        self.n_tokens = w.IntSlider(start.n_tokens, min=1, max=longest, description="Tokens", continuous_update=False, **_FIELD)
        self.n_samples = w.IntSlider(start.n_samples, min=1, max=8, description="Texts of a kind", **_FIELD)
        self.seed = w.BoundedIntText(start.seed, min=0, max=10**9, description="Sampler's seed", **_FIELD)
        self.key_seed = w.BoundedIntText(1, min=0, max=10**9, description="Key from seed", **_FIELD)
        self.text = w.Textarea(placeholder="Any text", description="Text to test", rows=4, **_FIELD)
        self.before = w.Textarea(placeholder="What it continues, if known", description="Its prompt", rows=2, **_FIELD)

    def _make_outputs(self) -> None:
        def button(name: str, icon: str, tooltip: str, style: str = "") -> w.Button:
            return w.Button(description=name, icon=icon, tooltip=tooltip, button_style=style, layout=_BUTTON)

        self.another = button("Another prompt", "refresh", "The beginning of another held-out documentation text")
        self.seed_key = button("Key of this seed", "undo", "Back to the demonstration key, which is not secret")
        self.new_key = button("New secret key", "key", "128 secret random bits, kept in this kernel's memory only")
        self.generate = button("Generate", "play", "Write plain and watermarked text with the same random numbers, and test both", "primary")
        self.stop = button("Stop", "stop", "End the work at its next step")
        self.take = button("Take the watermarked text", "arrow-down", "Copy the first watermarked text and its prompt here, to edit and test again")
        self.test = button("Test", "search", "Test the text against the key", "primary")
        self.sigma_shown, self.key_shown = w.HTML(layout=_WIDE), w.HTML(layout=_WIDE)
        self.progress = w.FloatProgress(min=0, max=1, layout=w.Layout(width="14em", margin="2px 8px", visibility="hidden"))
        self.doing, self.message = w.HTML(), w.HTML(layout=_WIDE)
        self.generated, self.tested = w.HTML(layout=_WIDE), w.HTML(layout=_WIDE)
        self.stop.disabled = True
        self._buttons = [self.another, self.seed_key, self.new_key, self.generate, self.take, self.test]

    def _lay_out(self) -> w.VBox:
        half = w.Layout(flex="1 1 22em", width="auto", min_width="0")
        keys = w.HBox([self.seed_key, self.new_key], layout=w.Layout(margin=f"0 0 0 {render.INDENT}", flex_flow="row wrap"))
        left = w.VBox([self.weight, self.psi, self.sigma_shown, self.n_tokens, self.n_samples], layout=half)
        right = w.VBox([self.key_seed, self.key_shown, keys, self.seed], layout=half)
        columns = w.HBox([left, right], layout=w.Layout(flex_flow="row wrap", grid_gap="0 24px"))
        bar = w.HBox([self.generate, self.stop, self.another, self.progress, self.doing], layout=w.Layout(align_items="center", margin="6px 0 2px 0"))
        heading = w.HTML("<h4 style='margin:.8em 0 .2em 0'>Test any text against this key</h4>")
        return w.VBox(
            [self.prompt, columns, bar, self.message, self.generated, heading, self.text, self.before, w.HBox([self.test, self.take]), self.tested],
            layout=w.Layout(max_width="72em"),
        )

    # What the reader does

    def _wire(self) -> None:
        self.another.on_click(lambda _: setattr(self.prompt, "value", next(self._prompts)))
        self.new_key.on_click(lambda _: self._use(Key.new(), "secret"))
        self.seed_key.on_click(lambda _: self._use(Key.from_seed(self.key_seed.value), "demonstration"))
        self.key_seed.observe(lambda _: self._use(Key.from_seed(self.key_seed.value), "demonstration"), "value")
        for control in (self.weight, self.psi, self.n_tokens):
            control.observe(lambda _: self._show_sigma(), "value")
        self.generate.on_click(lambda _: self._generate())
        self.test.on_click(lambda _: self._test())
        self.take.on_click(lambda _: self._take())
        self.stop.on_click(lambda _: self._worker.stop())

    def _use(self, key: Key, kind: str) -> None:
        self.key = key
        self.key_shown.value = render.aside(f"key_id {key.key_id}: {_KEYS[kind]}")

    def _show_sigma(self) -> None:
        """σ for the current inputs: at once where ‖G‖ is known, else after measuring it."""
        weight, n_tokens, psi = self.weight.value, self.n_tokens.value, self.psi.value
        if self.session.knows(weight, n_tokens):
            words = f"σ = {self.session.sigma(weight, n_tokens, psi):.3g}, so that σ · median‖G‖ = {psi:g}"
        elif self._worker.busy or self._measure(weight, n_tokens):
            words = "σ: waiting for ‖G‖ of unwatermarked text …"
        else:
            words = "σ: will be solved for when you press Generate"
        self.sigma_shown.value = render.aside(words)

    def _measure(self, weight: str, n_tokens: int) -> bool:
        """Starts measuring ‖G‖, unless the same measurement failed or was stopped: Generate will say why."""
        if self._tried == (weight, n_tokens):
            return False
        self._tried = weight, n_tokens
        return self._worker.start(lambda report: self.session.sigma(weight, n_tokens, 1.0, report), lambda _: None)

    def _generate(self) -> None:
        try:
            question = Question(self.prompt.value, self.weight.value, self.psi.value, self.n_tokens.value, self.n_samples.value, self.seed.value)
        except ValueError as error:
            self.message.value = render.message(str(error), is_error=True)
            return
        key = self.key
        self._worker.start(lambda report: self.session.compare(question, key, report), self._show_comparison)

    def _test(self) -> None:
        text, weight, key, before = self.text.value, self.weight.value, self.key, self.before.value
        self._worker.start(lambda report: self.session.test(text, weight, key, before, report), self._show_verdict)

    def _take(self) -> None:
        if self.result:
            self.text.value, self.before.value = self.result.text(WATERMARKED), self.result.question.prompt
        else:
            self.message.value = render.message("There is no watermarked text yet: press Generate first.", is_error=True)

    # What comes back, from the worker's thread

    def _show_comparison(self, result: Comparison) -> None:
        html = render.comparison(result, plots.psi_on_null(result.scores, result.predicted, render.LEVEL))
        self.result, self.generated.value = result, html

    def _show_verdict(self, verdict: Verdict) -> None:
        html = render.verdict(verdict)
        self.verdict, self.tested.value = verdict, html

    def _started(self) -> None:
        self._set_busy(True)
        self.message.value = ""

    def _progressed(self, what: str, share: float) -> None:
        if self.doing.value != what or share - self.progress.value >= 0.02 or share == 1:  # each is a message to the browser
            self.doing.value, self.progress.value = what, share

    def _ended(self, sentence: str) -> None:
        if sentence:  # nothing starts by itself after a failure or a stop
            self._tried = self.weight.value, self.n_tokens.value
        self.message.value = render.message(sentence, is_error=self.error is not None)
        self.progress.value, self.doing.value = 0, ""
        self._set_busy(False)

    def _set_busy(self, busy: bool) -> None:
        for button in self._buttons:
            button.disabled = busy
        self.stop.disabled = not busy
        self.progress.layout.visibility = "visible" if busy else "hidden"
