"""The panel of the playground: inputs, and buttons that call a ``playground.Session`` with them."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from itertools import cycle
from pathlib import Path
from threading import Lock
from typing import Any

import ipywidgets as w
import traitlets

from gaussmark_lib import tokens
from gaussmark_lib.keys import Key
from gaussmark_lib.weights import some_weights
from gaussmark_lib.workbench.widgets import playground, render
from gaussmark_lib.workbench.widgets.action import WIDE, Action, button
from gaussmark_lib.workbench.widgets.playground import EDITS, Edit, Question, Report, Session

LONGEST = 400  # tokens; end of the slider, or half the context if that is shorter
DOCLM = (
    "doclm is a small model that knows only the documentation of Python libraries. It continues any"
    " prompt in that style."
)
LARGEST_SEED = 1_000_000
TESTS = [("the paper's ψ", 0.0), ("edited = 0.1: a tenth replaced", 0.1)]
OF_A_QUESTION = [field.name for field in fields(Question)]
OF_AN_EDIT = [field.name for field in fields(Edit)]
OF_A_TEST = ["text", "before", *OF_AN_EDIT, "weight", "psi", "n_tokens"]
TOOLTIPS = {  # by label
    "Prompt": "The words that both texts continue",
    "Weight": "The matrix that gets the noise",
    "Wanted ψ": "Mean ψ of watermarked text, for which the σ of the noise is solved",
    "Tokens per text": "Length of each text",
    "Texts of each": "Number of plain texts, and of watermarked texts",
    "Sampler's seed": "The same seed gives the same random numbers",
    "Key from seed": "Seed of the demonstration key, which is not secret",
    "Text to test": "Any text, of any length",
    "Its prompt": "The prompt of the text; without it the test is exact, but has less power",
    "Edit": "How the text is edited, with the same random numbers each time",
    "Share edited": "Share of tokens that are edited; release the slider to test again",
    "Tested by": "The test; both tests are exact",
    "Key file": "File to which the key is saved, and from which it is loaded",
    "Generate": "Write plain and watermarked text with the same random numbers, and test both",
    "Another prompt": "The beginning of another held-out documentation text",
    "Key of this seed": "Return to the demonstration key, which is not secret",
    "New secret key": "128 secret random bits, in the memory of this kernel only",
    "Test": "Edit the text, if the edited share is above 0, and test it against the key",
    "Take the watermarked text": "Copy the first watermarked text and its prompt here",
    "Save the key": "Write the key, bound to this weight and σ, to a file that only you can read",
    "Load a key": "Use the key in the key file",
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
        self._turn = Lock()
        self._prompts = cycle(session.prompts)
        next(self._prompts)  # the first prompt is the present value
        self._buttons: list[w.Button] = []
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
        values = {name: getattr(self, name).value for name in OF_A_QUESTION}
        return Question(**values)

    def _make_inputs(self, start: Question, key_seed: int) -> None:
        model = self.session.lm.model
        context = tokens.Reader(model).context or 2 * LONGEST  # None: no limit
        longest = min(LONGEST, context // 2)
        weight = playground.one_weight(model, start.weight)
        self.prompt = _field(w.Textarea, "Prompt", start.prompt, rows=3)
        self.weight = _field(w.Dropdown, "Weight", None, options=some_weights(model, None))
        self._choose(weight)
        self.psi = _field(w.FloatSlider, "Wanted ψ", start.psi, min=0.5, max=8, step=0.5)
        self.psi.readout_format = ".1f"
        self.n_tokens = _field(w.IntSlider, "Tokens per text", start.n_tokens, min=1, max=longest)
        self.n_samples = _field(w.IntSlider, "Texts of each", start.n_samples, min=1, max=8)
        self.seed = _field(w.BoundedIntText, "Sampler's seed", start.seed, max=LARGEST_SEED)
        self.key_seed = _field(w.BoundedIntText, "Key from seed", key_seed, max=LARGEST_SEED)
        self.text = _field(w.Textarea, "Text to test", rows=4)
        self.before = _field(w.Textarea, "Its prompt", placeholder="if known", rows=2)
        self.how = _field(w.Dropdown, "Edit", EDITS[0], options=EDITS)
        self.share = _field(w.FloatSlider, "Share edited", 0.0, max=0.5, step=0.05)
        self.share.readout_format = ".0%"
        self.allowed = _field(w.Dropdown, "Tested by", 0.0, options=TESTS)
        self.key_file = _field(w.Text, "Key file", "playground_key.json")
        # Not while a slider is moving: each value would start a new test.
        self.n_tokens.continuous_update = False
        self.share.continuous_update = False
        self.sigma_shown = w.HTML(layout=WIDE)
        self.key_shown = w.HTML(layout=WIDE)

    def _make_actions(self) -> None:
        self.generate = self._button("Generate", "play", self._generate, "primary")
        self.another = self._button("Another prompt", "refresh", self._another)
        self.seed_key = self._button("Key of this seed", "undo", self._use_seed)
        self.new_key = self._button("New secret key", "key", self._use_new)
        self.test = self._button("Test", "search", self._test, "primary")
        self.take = self._button("Take the watermarked text", "arrow-down", self._take)
        self.save_key = self._button("Save the key", "save", self._save_key)
        self.load_key = self._button("Load a key", "folder-open", self._load_key)
        of_a_question = partial(self._settings, OF_A_QUESTION)
        of_a_test = partial(self._settings, OF_A_TEST)
        self.writing = Action([self.generate, self.another], of_a_question, self._turn)
        self.testing = Action([self.test, self.take], of_a_test, self._turn)
        self.filing = Action([self.save_key, self.load_key], dict, self._turn)
        self.actions = [self.writing, self.testing, self.filing]

    def _button(self, name: str, icon: str, act: Callable[[], None], look: str = "") -> w.Button:
        """A button that does this when it is pressed, and is disabled during work."""
        pressed = button(name, icon, TOOLTIPS[name], look)
        pressed.on_click(lambda _: act())
        self._buttons.append(pressed)
        return pressed

    def _laid_out(self) -> list[w.Widget]:
        indented = w.Layout(margin=f"0 0 0 {render.INDENT}", flex_flow="row wrap")
        keys = w.HBox([self.seed_key, self.new_key], layout=indented)
        of_texts = [self.weight, self.psi, self.sigma_shown, self.n_tokens, self.n_samples]
        of_keys = [self.key_seed, self.key_shown, keys, self.seed]
        about = DOCLM if self.session.lm.name == "doclm" else ""
        return [
            self.prompt,
            w.HTML(render.aside(about)),
            _columns(of_texts, of_keys),
            self.writing,
            _heading("Test any text against this key"),
            self.text,
            self.before,
            _columns([self.how, self.share], [self.allowed]),
            self.testing,
            _heading("Save or load a key"),
            self.key_file,
            self.filing,
            w.HTML(KEYBOARD),
        ]

    def _wire(self) -> None:
        for action in self.actions:
            action.observe(self._on_busy, "busy")
            for pressed in self._buttons:
                traitlets.dlink((action, "busy"), (pressed, "disabled"))
        for name in dict.fromkeys([*OF_A_QUESTION, *OF_A_TEST]):
            getattr(self, name).observe(lambda _: self._refresh(), "value")
        for name in OF_AN_EDIT:
            getattr(self, name).observe(lambda _: self.testing.result and self._test(), "value")
        self.key_seed.observe(lambda _: self._use_seed(), "value")

    def _on_busy(self, change: Any) -> None:
        self.error = change.owner.error
        self._refresh()

    def _settings(self, names: list[str]) -> dict[str, Any]:
        """The values that a result depends on: inputs by their labels, and the key."""
        inputs = [getattr(self, name) for name in names]
        return {"key": self.key} | {field.description.lower(): field.value for field in inputs}

    def _refresh(self) -> None:
        """Dim the results of earlier settings, and show σ if ‖G‖ of such texts is known."""
        for action in self.actions:
            action.refresh()
        weight = self.weight.value
        n_tokens = self.n_tokens.value
        psi = self.psi.value
        note = "σ is solved for when you press Generate"
        if self.session.knows(weight, n_tokens):
            sigma = self.session.sigma(weight, n_tokens, psi)
            note = f"σ = {sigma:.3g}, so that σ · median‖G‖ = {psi:g}, ψ to first order"
        self.sigma_shown.value = render.aside(note)

    def _choose(self, weight: str) -> None:
        """Select a weight, which may be a new option."""
        self.weight.options = list(dict.fromkeys([*self.weight.options, weight]))
        self.weight.value = weight

    def _use(self, key: Key, kind: str) -> None:
        """Make this the key of the panel."""
        self.key = key
        self.key_shown.value = render.aside(f"key_id {key.key_id}: {kind}")
        self._refresh()

    def _use_seed(self) -> None:
        self._use(Key.from_seed(self.key_seed.value), "anyone can guess it")

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
        text = self.text.value
        edit = Edit(self.how.value, self.share.value, self.allowed.value)
        prompt = self.before.value
        work = partial(self.session.test, text, self.question(), self.key, prompt, edit)
        self.testing.run(work, render.of_test)

    def _save_key(self) -> None:
        path = Path(self.key_file.value)
        question = self.question()
        key = self.key

        def save(report: Report) -> str:
            self.session.bound(question, key, report).save(path)
            place = path.resolve()
            return f"Key {key.key_id} is saved as {place}, with this weight and σ."

        self.filing.run(save, render.message)

    def _load_key(self) -> None:
        """Use the secret of a key file at any σ, and select the key's weight, if it has one."""
        path = self.key_file.value

        def load(report: Report) -> str:
            key = Key.load(path)
            if key.binding:
                self._choose(playground.one_weight(self.session.lm.model, key.binding.weight))
            self._use(Key(key.secret), f"secret, from {path}")
            return f"Key {key.key_id} is in use, at {self.weight.value}."

        self.filing.run(load, render.message)


def _columns(*columns: list[w.Widget]) -> w.HBox:
    """Widgets in columns, which wrap on a narrow screen."""
    half = w.Layout(flex="1 1 22em", width="auto", min_width="0")
    boxes = [w.VBox(column, layout=half) for column in columns]
    return w.HBox(boxes, layout=w.Layout(flex_flow="row wrap", grid_gap="0 24px"))


def _heading(title: str) -> w.HTML:
    return w.HTML(f"<h4 style='margin:.8em 0 .2em 0'>{title}</h4>")
