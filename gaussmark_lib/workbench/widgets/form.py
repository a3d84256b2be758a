"""The panel's inputs and buttons, and how they lie on the page."""

import ipywidgets as w

from gaussmark_lib import tokens
from gaussmark_lib.weights import Weight, some_weights
from gaussmark_lib.workbench.widgets import render
from gaussmark_lib.workbench.widgets.area import WIDE, Area, button
from gaussmark_lib.workbench.widgets.playground import EDITS, Question, Session

LONGEST = 400  # tokens; the slider's end, or half the context if that is shorter
MOST = 1_000_000  # the largest seed
NAMES = {  # of settings, in words
    "prompt": "prompt",
    "weight": "weight",
    "psi": "wanted ψ",
    "n_tokens": "tokens",
    "n_samples": "number of texts",
    "seed": "sampler's seed",
    "how": "edit",
    "share": "share edited",
    "allowed": "test",
}
OF_A_QUESTION = ["prompt", "weight", "psi", "n_tokens", "n_samples", "seed"]
OF_A_TEST = ["weight", "psi", "n_tokens"]  # what a text is tested at, and what σ is solved for
OF_AN_EDIT = [*OF_A_TEST, "how", "share", "allowed"]
PANEL = "gaussmark-panel"  # the class of the panel's outermost element
# What ipywidgets has no attribute for: a page's shortcuts leave a key alone that is pressed inside
# the panel (JupyterLab's X would cut the cell), also behind a click on what takes no focus, such as
# a slider's track; a slider's handle has its label as a name. The image does not exist, so its
# error handler runs when the panel is shown.
KEYBOARD = """<img alt="" hidden src="data:," onerror="
const image = this;
const reach = tries => {
  const panel = image.closest('.gaussmark-panel');
  if (!panel) { if (tries) setTimeout(() => reach(tries - 1), 100); return; }
  const place = document.createElement('span');  // of the focus, where the click was on words
  place.tabIndex = -1;
  panel.append(place);
  panel.addEventListener('click', event => {
    const slider = event.target.closest('.widget-slider');
    const take = () => {
      // The body, when a pressed button is disabled: Tab goes on from it to Stop. A click on a
      // slider's track leaves the focus there, in Chromium 156 for example.
      const focused = document.activeElement;
      if (focused === document.body && !slider || panel.contains(focused)) return;
      (slider && slider.querySelector('.noUi-handle') || place).focus({preventScroll: true});
    };
    // Behind JupyterLab, which gives the focus to the cell.
    for (const later of [0, 30, 100]) setTimeout(take, later);
  });
  panel.addEventListener('focusin', event => {
    const focused = event.target, slider = focused.closest('.widget-slider');
    if (!focused.matches('textarea, input'))
      focused.setAttribute('data-lm-suppress-shortcuts', 'true');
    if (slider && focused.matches('.noUi-handle'))
      focused.setAttribute('aria-label', slider.querySelector('.widget-label').textContent);
  });
};
reach(100);">"""


def field(kind: type, name: str, tooltip: str, value: object = None, **options: object) -> w.Widget:
    """An input with its label."""
    if value is not None:
        options["value"] = value
    return kind(
        description=name,
        tooltip=tooltip,
        description_allow_html=False,
        layout=WIDE,
        style={"description_width": render.LABEL},
        **options,
    )


class Form:
    """What the reader fills in and presses. ``view`` is all of it with the results; nothing is
    wired yet.
    """

    def __init__(self, session: Session, start: Question, key_seed: int):
        self._make_question(session, start)
        self._make_others(key_seed)
        self._make_buttons()
        self.writing = Area(self.generate, "writing and testing")
        self.testing = Area(self.test, "testing the text")
        self.editing = Area(self.edit, "editing the text and testing it again")
        self.filing = Area(self.save_key, "saving the key")
        self.areas = [self.writing, self.testing, self.editing, self.filing]
        self.asking = [getattr(self, name) for name in OF_A_QUESTION]
        self.pressed = [area.start for area in self.areas]
        self.pressed += [self.another, self.seed_key, self.new_key, self.take, self.load_key]
        self.view = self._lay_out(session.lm.name)

    def question(self) -> Question:
        return Question(**{name: getattr(self, name).value for name in OF_A_QUESTION})

    def _make_question(self, session: Session, start: Question) -> None:
        model = session.lm.model
        context = tokens.Reader(model).context
        weights = dict.fromkeys([*some_weights(model, None), Weight(model, start.weight).name])
        self.prompt = field(
            w.Textarea, "Prompt", "The words that both texts continue", start.prompt, rows=3
        )
        self.weight = field(
            w.Dropdown,
            "Weight",
            "The matrix that gets the noise",
            start.weight,
            options=list(weights),
        )
        self.psi = field(
            w.FloatSlider,
            "Wanted ψ",
            "The mean ψ that watermarked text is to have; the noise's σ is solved for it",
            start.psi,
            min=0.5,
            max=8,
            step=0.5,
            readout_format=".1f",
        )
        self.n_tokens = field(
            w.IntSlider,
            "Tokens per text",
            "Length of each text",
            start.n_tokens,
            min=1,
            max=min(LONGEST, (context or 2 * LONGEST) // 2),
            continuous_update=False,
        )
        self.n_samples = field(
            w.IntSlider,
            "Texts of each",
            "How many plain texts, and as many watermarked ones",
            start.n_samples,
            min=1,
            max=8,
        )
        self.seed = field(
            w.BoundedIntText,
            "Sampler's seed",
            "The same seed, the same random numbers",
            start.seed,
            min=0,
            max=MOST,
        )

    def _make_others(self, key_seed: int) -> None:
        self.key_seed = field(
            w.BoundedIntText,
            "Key from seed",
            "Of the demonstration key, which is not secret",
            key_seed,
            min=0,
            max=MOST,
        )
        what = "Any text, of any length"
        self.text = field(w.Textarea, "Text to test", what, placeholder=what, rows=4)
        self.before = field(
            w.Textarea,
            "Its prompt",
            "What it continues, if known; without it the test is as exact, and has less power",
            placeholder="if known",
            rows=2,
        )
        self.share = field(
            w.FloatSlider,
            "Share edited",
            "How much of the tested text is edited; when you let it go, the edit is tested",
            0.1,
            continuous_update=False,
            min=0,
            max=0.5,
            step=0.05,
            readout_format=".0%",
        )
        self.how = field(
            w.Dropdown,
            "Edit",
            "What is done to these tokens, with the same random numbers each time",
            options=EDITS,
        )
        tests = [("the paper's ψ", 0.0), ("edited = 0.1: a tenth exchanged", 0.1)]
        self.allowed = field(
            w.Dropdown, "Test", "Which test reads the edited text; both are exact", options=tests
        )
        self.key_file = field(
            w.Text, "Key file", "Where the key is saved, and loaded from", render.KEY_FILE
        )

    def _make_buttons(self) -> None:
        self.another = button(
            "Another prompt", "refresh", "The beginning of another held-out documentation text"
        )
        self.seed_key = button(
            "Key of this seed", "undo", "Back to the demonstration key, which is not secret"
        )
        self.new_key = button(
            "New secret key", "key", "128 secret random bits, kept in this kernel's memory only"
        )
        self.generate = button(
            "Generate",
            "play",
            "Write plain and watermarked text with the same random numbers, and test both",
            "primary",
        )
        self.take = button(
            "Take the watermarked text",
            "arrow-down",
            "Copy the first watermarked text and its prompt here, to edit and test again",
        )
        self.test = button("Test", "search", "Test the text against the key", "primary")
        self.edit = button(
            "Edit and test", "scissors", "Edit the tested text, and test what comes of it"
        )
        self.save_key = button(
            "Save the key",
            "save",
            "Write this key, bound to this weight and σ, to the key file, which only you can read",
        )
        self.load_key = button(
            "Load a key", "folder-open", "Use the key of the key file from now on"
        )
        self.sigma_shown, self.key_shown = w.HTML(layout=WIDE), w.HTML(layout=WIDE)

    def _lay_out(self, model: str) -> w.VBox:
        keys = w.HBox(
            [self.seed_key, self.new_key],
            layout=w.Layout(margin=f"0 0 0 {render.INDENT}", flex_flow="row wrap"),
        )
        left = [self.weight, self.psi, self.sigma_shown, self.n_tokens, self.n_samples]
        right = [self.key_seed, self.key_shown, keys, self.seed]
        knows = [w.HTML(render.aside(render.DOCLM))] if model == "doclm" else []
        parts = [self.prompt, *knows, _columns(left, right), *self.writing.parts(self.another)]
        parts += [_heading("Test any text against this key"), self.text, self.before]
        parts += self.testing.parts(self.take)
        parts += [
            _heading("Edit the tested text"),
            _columns([self.how, self.allowed], [self.share]),
        ]
        parts += self.editing.parts()
        parts += [_heading("Save or load a key"), self.key_file]
        parts += [*self.filing.parts(self.load_key), w.HTML(KEYBOARD)]
        view = w.VBox(parts, layout=w.Layout(max_width="76em"))
        view.add_class(PANEL)
        return view


def _columns(*columns: list[w.Widget]) -> w.HBox:
    half = w.Layout(flex="1 1 22em", width="auto", min_width="0")
    boxes = [w.VBox(column, layout=half) for column in columns]
    return w.HBox(boxes, layout=w.Layout(flex_flow="row wrap", grid_gap="0 24px"))


def _heading(title: str) -> w.HTML:
    return w.HTML(f"<h4 style='margin:.8em 0 .2em 0'>{title}</h4>")
