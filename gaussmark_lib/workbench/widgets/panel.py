"""The panel of the playground: inputs, and buttons that call a ``playground.Session`` with them."""

from functools import partial
from itertools import cycle
from pathlib import Path
from threading import Lock
from typing import Any

import ipywidgets as w
import traitlets

from gaussmark_lib import tokens
from gaussmark_lib.perturb import Key
from gaussmark_lib.weights import Weight, some_weights
from gaussmark_lib.workbench.widgets import render
from gaussmark_lib.workbench.widgets.action import WIDE, Action, button
from gaussmark_lib.workbench.widgets.playground import (
    EDITS,
    WATERMARKED,
    Comparison,
    Edit,
    Question,
    Report,
    Session,
    Tested,
)

LONGEST = 400  # tokens; end of the slider, or half the context if that is shorter
DOCLM = (
    "doclm is a small model that knows only the documentation of Python libraries. It continues any"
    " prompt in that style."
)
LARGEST_SEED = 1_000_000
TESTS = [("the paper's ψ", 0.0), ("edited = 0.1: a tenth replaced", 0.1)]
OF_A_QUESTION = ["prompt", "weight", "psi", "n_tokens", "n_samples", "seed"]
OF_AN_EDIT = ["how", "share", "allowed"]
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
# ipywidgets has no attributes for this. JupyterLab's shortcuts must not act on the panel's buttons
# and sliders (X would cut the cell). The handle of a slider gets its label as a name, and a click
# on the track focuses it. The image does not exist, so its error handler runs when it is shown.
KEYBOARD = """<img alt="" hidden src="data:," onerror="
const find = tries => {
  const panel = this.closest('.gaussmark-panel');
  if (!panel) { if (tries) setTimeout(() => find(tries - 1), 100); return; }
  panel.addEventListener('focusin', event => {
    const slider = event.target.closest('.widget-slider');
    if (!event.target.matches('textarea, input'))
      event.target.setAttribute('data-lm-suppress-shortcuts', 'true');
    if (slider && event.target.matches('.noUi-handle'))
      event.target.setAttribute('aria-label', slider.querySelector('.widget-label').textContent);
  });
  panel.addEventListener('click', event => {
    const slider = event.target.closest('.widget-slider');
    const take = () => {  // not from the body: Tab goes on from a pressed button to Stop
      const focused = document.activeElement;
      if (focused === document.body && !slider || (slider || panel).contains(focused)) return;
      (slider ? slider.querySelector('.noUi-handle') : panel).focus({preventScroll: true});
    };
    take();
    for (const later of [30, 100]) setTimeout(take, later);  // behind JupyterLab's own focus
  });
};
find(100);">"""


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


def _button(name: str, icon: str, look: str = "") -> w.Button:
    """A button with its tooltip."""
    return button(name, icon, TOOLTIPS[name], look)


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
        self.result: Comparison | None = None
        self.tested: Tested | None = None
        self.error: Exception | None = None  # of the latest work, with its traceback
        self._turn = Lock()
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
        weight = Weight(model, start.weight).name
        weights = list(dict.fromkeys([*some_weights(model, None), weight]))  # without repetition
        self.prompt = _field(w.Textarea, "Prompt", start.prompt, rows=3)
        self.weight = _field(w.Dropdown, "Weight", weight, options=weights)
        self.psi = _field(
            w.FloatSlider, "Wanted ψ", start.psi, min=0.5, max=8, step=0.5, readout_format=".1f"
        )
        self.n_tokens = _field(w.IntSlider, "Tokens per text", start.n_tokens, min=1, max=longest)
        self.n_samples = _field(w.IntSlider, "Texts of each", start.n_samples, min=1, max=8)
        self.seed = _field(w.BoundedIntText, "Sampler's seed", start.seed, max=LARGEST_SEED)
        self.key_seed = _field(w.BoundedIntText, "Key from seed", key_seed, max=LARGEST_SEED)
        self.text = _field(w.Textarea, "Text to test", rows=4)
        self.before = _field(w.Textarea, "Its prompt", placeholder="if known", rows=2)
        self.how = _field(w.Dropdown, "Edit", EDITS[0], options=EDITS)
        self.share = _field(
            w.FloatSlider, "Share edited", 0.0, max=0.5, step=0.05, readout_format=".0%"
        )
        self.allowed = _field(w.Dropdown, "Tested by", 0.0, options=TESTS)
        self.key_file = _field(w.Text, "Key file", "playground_key.json")
        # Not while a slider is moving: each value would start a new test.
        self.n_tokens.continuous_update = False
        self.share.continuous_update = False
        self.sigma_shown = w.HTML(layout=WIDE)
        self.key_shown = w.HTML(layout=WIDE)

    def _make_actions(self) -> None:
        self.generate = _button("Generate", "play", "primary")
        self.another = _button("Another prompt", "refresh")
        self.seed_key = _button("Key of this seed", "undo")
        self.new_key = _button("New secret key", "key")
        self.test = _button("Test", "search", "primary")
        self.take = _button("Take the watermarked text", "arrow-down")
        self.save_key = _button("Save the key", "save")
        self.load_key = _button("Load a key", "folder-open")
        of_a_question = partial(self._settings, OF_A_QUESTION)
        of_a_test = partial(self._settings, OF_A_TEST)
        self.writing = Action([self.generate, self.another], of_a_question, self._turn)
        self.testing = Action([self.test, self.take], of_a_test, self._turn)
        self.filing = Action([self.save_key, self.load_key], dict, self._turn)
        self.actions = [self.writing, self.testing, self.filing]

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
        prompts = cycle(self.session.prompts)
        next(prompts)  # the first prompt is the present value
        clicks = {
            self.another: lambda: setattr(self.prompt, "value", next(prompts)),
            self.new_key: lambda: self._use(Key.new(), "secret, in memory only"),
            self.seed_key: self._use_seed,
            self.generate: self._generate,
            self.take: self._take,
            self.test: self._test,
            self.save_key: self._save_key,
            self.load_key: self._load_key,
        }
        for pressed, act in clicks.items():
            pressed.on_click(lambda _, act=act: act())  # act=act: of this turn of the loop
            for action in self.actions:
                traitlets.dlink((action, "busy"), (pressed, "disabled"))
        for name in dict.fromkeys([*OF_A_QUESTION, *OF_A_TEST]):
            getattr(self, name).observe(self._refresh, "value")
        for name in OF_AN_EDIT:
            getattr(self, name).observe(lambda _: self.tested and self._test(), "value")
        self.key_seed.observe(lambda _: self._use_seed(), "value")
        for action in self.actions:
            action.observe(self._on_busy, "busy")

    def _on_busy(self, change: Any) -> None:
        self.error = change.owner.error
        self._refresh()

    def _settings(self, names: list[str]) -> dict[str, Any]:
        """The values that a result depends on: inputs by their labels, and the key."""
        settings = {"key": self.key}
        for name in names:
            control = getattr(self, name)
            settings[control.description.lower()] = control.value
        return settings

    def _refresh(self, _: Any = None) -> None:
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

    def _use(self, key: Key, kind: str) -> None:
        """Make this the key of the panel."""
        self.key = key
        self.key_shown.value = render.aside(f"key_id {key.key_id}: {kind}")
        self._refresh()

    def _use_seed(self) -> None:
        self._use(Key.from_seed(self.key_seed.value), "anyone can guess it")

    def _generate(self) -> None:
        def show(result: Comparison) -> str:
            self.result = result
            return render.comparison(result)

        self.writing.run(partial(self.session.compare, self.question(), self.key), show)

    def _take(self) -> None:
        if self.result is None:
            self.testing.say("There is no watermarked text yet: press Generate.", is_error=True)
            return
        self.text.value = self.result.text(WATERMARKED)
        self.before.value = self.result.question.prompt

    def _test(self) -> None:
        def show(result: Tested) -> str:
            self.tested = result
            return render.of_test(result)

        edit = Edit(self.how.value, self.share.value, self.allowed.value)
        work = partial(
            self.session.test,
            self.text.value,
            self.question(),
            self.key,
            self.before.value,
            edit,
        )
        self.testing.run(work, show)

    def _save_key(self) -> None:
        bound = partial(self.session.bound, self.question(), self.key)
        path = Path(self.key_file.value)

        def show(key: Key) -> str:
            place = path.resolve()
            return render.message(f"Key {key.key_id} is saved as {place}, with this weight and σ.")

        def save(report: Report) -> Key:
            key = bound(report)
            key.save(path)
            return key

        self.filing.run(save, show)

    def _load_key(self) -> None:
        """Use the secret of a key file at any σ, and select the key's weight, if it has one."""
        path = self.key_file.value

        def show(key: Key) -> str:
            if key.binding:
                weight = Weight(self.session.lm.model, key.binding.weight).name
                self.weight.options = list(dict.fromkeys([*self.weight.options, weight]))
                self.weight.value = weight
            self._use(Key(key.secret), f"secret, from {path}")
            return render.message(f"Key {key.key_id} is in use, at {self.weight.value}.")

        self.filing.run(lambda _: Key.load(path), show)


def _columns(*columns: list[w.Widget]) -> w.HBox:
    """Widgets in columns, which wrap on a narrow screen."""
    half = w.Layout(flex="1 1 22em", width="auto", min_width="0")
    boxes = [w.VBox(column, layout=half) for column in columns]
    return w.HBox(boxes, layout=w.Layout(flex_flow="row wrap", grid_gap="0 24px"))


def _heading(title: str) -> w.HTML:
    return w.HTML(f"<h4 style='margin:.8em 0 .2em 0'>{title}</h4>")
