"""The panel of the playground: inputs, and buttons that call a ``playground.Session`` with them."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from itertools import cycle
from threading import Lock
from typing import Any

import ipywidgets as w
import traitlets

from gaussmark_experiments.widgets import playground, render
from gaussmark_experiments.widgets.action import WIDE, Action, button
from gaussmark_experiments.widgets.playground import (
    EDITS,
    ROUND_TRIP,
    Edit,
    Question,
    Report,
    Session,
)
from gaussmark_lib import models, tokens
from gaussmark_lib.engine import packages
from gaussmark_lib.keys import Key
from gaussmark_lib.weights import some_weights
from gaussmark_lib.workbench.begin import KEY_TEMPERATURE
from gaussmark_lib.workbench.rewrite import apertium

LONGEST = 400  # tokens; end of the slider, or half the context if that is shorter
DOCLM = "toy model that knows only the documentation of Python libraries"
LARGEST_SEED = 1_000_000
SEEDS = f"seeds: 0 to {LARGEST_SEED:,}"
TESTS = [("the paper's ψ", 0.0), ("edited = 0.1: a tenth replaced", 0.1)]
OF_A_QUESTION = [field.name for field in fields(Question)]
OF_AN_EDIT = [field.name for field in fields(Edit)]
OF_A_TEST = ["text", "before", *OF_AN_EDIT, "weight", "psi", "n_tokens", "temperature"]
TOOLTIPS = {  # by label
    "Model": "The model that writes and tests; `make models` installs two more",
    "Prompt": "The words that both texts continue, or the instruction that a chat model follows",
    "Weight": "The matrix that gets the noise",
    "Wanted ψ": "Mean ψ of watermarked text, for which the σ of the noise is solved",
    "Tokens per text": "Length of each text; an answer of a chat model may end earlier",
    "Temperature": "At 1, the model's own probabilities; lower, more predictable text",
    "Texts of each": "Number of plain texts, and of watermarked texts",
    "Sampler's seed": f"The same seed gives the same random numbers; {SEEDS}",
    "Key from seed": "Seed of the demonstration key, which is not secret",
    "Text to test": "Any text, of any length",
    "Its prompt": "The prompt of the text; without it the test is exact, but has less power",
    "Edit": "How the text is edited, with the same random numbers each time",
    "Share edited": "Share of tokens that are edited; release the slider to test again",
    "Tested by": "The test; both tests are exact",
    "Generate": "Write plain and watermarked text with the same random numbers, and test both",
    "Another prompt": "An instruction for a chat model, or the beginning of a held-out text",
    "Key of this seed": "Return to the demonstration key, which is not secret",
    "New secret key": "128 secret random bits, in the memory of this kernel only",
    "Test": "Edit the text, if the edited share is above 0, and test it against the key",
    "Take the watermarked text": "Copy the first watermarked text and its prompt here",
    "To Spanish and back": "Translate the text by Apertium to Spanish and back, and test it",
}
KEYBOARD = (render.TEMPLATES / "keyboard.html").read_text("utf-8")


def _field(kind: type[w.Widget], name: str, value: Any = "", **traits: Any) -> w.Widget:
    """An input with its label."""
    return kind(
        description=name,
        tooltip=TOOLTIPS[name],
        description_allow_html=False,
        layout=WIDE,
        style={"description_width": render.LABEL},
        value=value,
        **traits,
    )


class Panel(w.VBox):
    """The widgets of the playground; ``panel`` as the last line of a cell shows them.

    Inputs can change during work, which uses their values at its start.

    Args:
        session: computes what the panel shows.
        question: the first values of the inputs.
        key_seed: seed of the first key, a demonstration key.
    """

    def __init__(self, session: Session, question: Question, key_seed: int = 1):
        self.session = session
        self.error: Exception | None = None  # of the latest work, with its traceback
        self._turn = Lock()  # held by the action that works
        self._starters: list[w.Widget] = []  # of work; disabled during work
        self._make_inputs(question, key_seed)
        self._make_actions()
        super().__init__(self._laid_out(), layout=w.Layout(max_width="76em"), tabbable=False)
        self.add_class("gaussmark-panel")
        self._use_seed()
        self._wire()

    def __repr__(self) -> str:
        return "Panel: widgets, alive when the notebook runs"

    def wait(self) -> None:
        """Return when the panel's work is done; for scripts and tests."""
        with self._turn:  # work holds the lock until its end
            pass

    def question(self) -> Question:
        """Return the present values of the inputs."""
        return Question(**{name: _value(getattr(self, name)) for name in OF_A_QUESTION})

    def _make_inputs(self, start: Question, key_seed: int) -> None:
        name = self.session.lm.name
        # the session's own model first, once
        names = list(dict.fromkeys([name, *playground.installed_models()]))
        self.model = _field(w.Dropdown, "Model", name, options=names)
        self.prompt = _field(w.Textarea, "Prompt", rows=3)
        self.weight = _field(w.Dropdown, "Weight", None)
        self.psi = _field(w.FloatSlider, "Wanted ψ", start.psi, min=0.5, max=8, step=0.5)
        self.psi.readout_format = ".1f"
        self.n_tokens = _field(w.IntSlider, "Tokens per text", start.n_tokens, min=1, max=LONGEST)
        self.n_samples = _field(w.IntSlider, "Texts of each", start.n_samples, min=1, max=8)
        self.temperature = _field(
            w.FloatSlider, "Temperature", start.temperature, min=0.1, max=1.5, step=0.1
        )
        self.seed = _field(w.BoundedIntText, "Sampler's seed", start.seed, max=LARGEST_SEED)
        self.key_seed = _field(w.BoundedIntText, "Key from seed", key_seed, max=LARGEST_SEED)
        self.text = _field(w.Textarea, "Text to test", rows=4)
        self.before = _field(w.Textarea, "Its prompt", placeholder="if known", rows=2)
        self.how = _field(w.Dropdown, "Edit", EDITS[0], options=EDITS)
        self.share = _field(w.FloatSlider, "Share edited", 0.0, max=0.5, step=0.05)
        self.share.readout_format = ".0%"
        self.allowed = _field(w.Dropdown, "Tested by", 0.0, options=TESTS)
        # Not while a slider is moving: each value would start a new test.
        self.n_tokens.continuous_update = False
        self.share.continuous_update = False
        self.temperature.continuous_update = False
        self.sigma_shown = w.HTML(layout=WIDE)
        self.key_shown = w.HTML(layout=WIDE)
        self._fit(start)

    def _fit(self, start: Question) -> None:
        """Set the inputs that depend on the model."""
        model = self.session.lm.model
        context = tokens.Reader(model).context or 2 * LONGEST  # None: no limit
        self.n_tokens.max = min(LONGEST, context // 2)
        weight = playground.one_weight(model, start.weight)
        # a caller may ask for a weight that is not among the usual ones
        options = dict.fromkeys([*some_weights(model, None), weight])
        self.weight.options = list(options)
        self.weight.value = weight
        self.prompt.value = start.prompt
        self.temperature.value = start.temperature
        self._prompts = cycle(self.session.prompts)
        next(self._prompts)  # the first prompt is the present value

    def _make_actions(self) -> None:
        self.generate = self._button("Generate", "play", self._generate, "primary")
        self.another = self._button("Another prompt", "refresh", self._another)
        self.seed_key = self._button("Key of this seed", "undo", self._use_seed)
        self.new_key = self._button("New secret key", "key", self._use_new)
        self.test = self._button("Test", "search", self._test, "primary")
        self.take = self._button("Take the watermarked text", "arrow-down", self._take)
        self.round_trip = self._button("To Spanish and back", "language", self._round_trip)
        self._starters.append(self.model)
        of_a_question = partial(self._settings, OF_A_QUESTION)
        of_a_test = partial(self._settings, OF_A_TEST)
        self.writing = Action([self.generate, self.another], of_a_question, self._turn)
        of_testing = [self.test, self.take]
        if apertium.is_installed():
            of_testing.append(self.round_trip)
        self.opening = Action([self.model], dict, self._turn)
        self.testing = Action(of_testing, of_a_test, self._turn)
        self.actions = [self.opening, self.writing, self.testing]

    def _button(self, name: str, icon: str, act: Callable[[], None], look: str = "") -> w.Button:
        """A button that does this when it is pressed, and is disabled during work."""
        pressed = button(name, icon, TOOLTIPS[name], look)
        pressed.on_click(lambda _: act())
        self._starters.append(pressed)
        return pressed

    def _laid_out(self) -> list[w.Widget]:
        indented = w.Layout(margin=f"0 0 0 {render.INDENT}", flex_flow="row wrap")
        keys = w.HBox([self.seed_key, self.new_key], layout=indented)
        of_texts = [self.weight, self.psi, self.sigma_shown, self.n_tokens, self.n_samples]
        of_keys = [self.key_seed, self.key_shown, keys, self.seed, self.temperature]
        return [
            self.opening,
            self.prompt,
            _columns(of_texts, of_keys),
            self.writing,
            _heading("Test any text against this key"),
            self.text,
            self.before,
            _columns([self.how, self.share], [self.allowed]),
            self.testing,
            w.HTML(KEYBOARD),
        ]

    def _wire(self) -> None:
        for action in self.actions:
            action.observe(self._on_busy, "busy")
            for starter in self._starters:
                traitlets.dlink((action, "busy"), (starter, "disabled"))
        for name in dict.fromkeys([*OF_A_QUESTION, *OF_A_TEST]):
            getattr(self, name).observe(lambda _: self._refresh(), "value")
        for name in OF_AN_EDIT:
            getattr(self, name).observe(lambda _: self.testing.result and self._test(), "value")
        self.key_seed.observe(lambda _: self._use_seed(), "value")
        self.model.observe(lambda _: self._open(), "value")
        self.opening.show(_about(self.session.lm))

    def _on_busy(self, change: Any) -> None:
        self.error = change.owner.error
        self._refresh()

    def _settings(self, names: list[str]) -> dict[str, Any]:
        """The values that a result depends on: inputs by their labels, and the key."""
        inputs = [self.model, *(getattr(self, name) for name in names)]
        return {"key": self.key} | {field.description.lower(): _value(field) for field in inputs}

    def _refresh(self) -> None:
        """Dim the results of earlier settings, and show σ if ‖G‖ of such texts is known."""
        for action in self.actions:
            action.refresh()
        question = self.question()
        note = "σ is solved for when you press Generate"
        if self.session.knows(question):
            sigma = self.session.sigma(question)
            note = f"σ = {sigma:.3g}, so that σ · median‖G‖ = {question.psi:g}, ψ to first order"
        self.sigma_shown.value = render.aside(note)

    def _open(self) -> None:
        """Load the chosen model; after an error or Stop, the earlier model is chosen again."""
        name = self.model.value
        earlier = self.session.lm
        if name == earlier.name:
            return

        def load(report: Report) -> models.LM:
            report(f"loading {name}", 0.0)
            try:
                lm = models.load(name, device=str(earlier.model.device))
                prompts = playground.example_prompts(lm)
                report(f"loading {name}", 1.0)
            except BaseException:
                self.model.value = earlier.name
                raise
            self.session = Session(lm, prompts, self.session.wrong_key)
            temperature = KEY_TEMPERATURE if lm.is_chat else 1.0
            weight = models.default_weight(lm.model)
            self._fit(Question(prompts[0], weight, temperature=temperature))
            for action in (self.writing, self.testing):
                action.say("")  # what it said was about the earlier model
            return lm

        self.opening.run(load, _about)

    def _use(self, key: Key, kind: str) -> None:
        """Make this the key of the panel."""
        self.key = key
        self.key_shown.value = render.aside(f"key_id {key.key_id}: {kind}")
        self._refresh()

    def _use_seed(self) -> None:
        self._use(Key.from_seed(self.key_seed.value), f"easy to guess; {SEEDS}")

    def _use_new(self) -> None:
        self._use(Key.new(), "secret, in memory only")

    def _another(self) -> None:
        self.prompt.value = next(self._prompts)

    def _generate(self) -> None:
        work = partial(self.session.compare, self.question(), self.key)
        self.writing.run(work, render.comparison)

    def _take(self) -> None:
        result = self.writing.result
        if result is None:
            self.testing.say("There is no watermarked text yet: press Generate.", is_error=True)
            return
        self.text.value = result.text(playground.WATERMARKED)
        self.before.value = result.question.prompt

    def _test(self) -> None:
        self._run_test(Edit(self.how.value, self.share.value, self.allowed.value))

    def _round_trip(self) -> None:
        self._run_test(Edit(ROUND_TRIP, 1.0, self.allowed.value))

    def _run_test(self, edit: Edit) -> None:
        text = self.text.value
        prompt = self.before.value
        work = partial(self.session.test, text, self.question(), self.key, prompt, edit)
        self.testing.run(work, render.of_test)


def _value(field: w.Widget) -> Any:
    """The value of an input, without the rounding errors of a slider that was moved by keys."""
    return round(field.value, 3) if isinstance(field.value, float) else field.value


def _about(lm: models.LM) -> str:
    """What the model is, below its name."""
    about = packages.MODELS[lm.name].about if lm.name in packages.MODELS else ""
    return render.aside(DOCLM if lm.name == models.EMBEDDED else about)


def _columns(*columns: list[w.Widget]) -> w.HBox:
    """Widgets in columns, which wrap on a narrow screen."""
    half = w.Layout(flex="1 1 22em", width="auto", min_width="0")
    boxes = [w.VBox(column, layout=half) for column in columns]
    return w.HBox(boxes, layout=w.Layout(flex_flow="row wrap", grid_gap="0 24px"))


def _heading(title: str) -> w.HTML:
    return w.HTML(f"<h4 style='margin:.8em 0 .2em 0'>{title}</h4>")
