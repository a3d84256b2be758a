"""The panel's inputs and buttons, and how they lie on the page."""

import ipywidgets as w

from gaussmark_lib import models, tokens
from gaussmark_lib.experiments.played import EDITS, Question
from gaussmark_lib.experiments.playground import Session, mlp_weights
from gaussmark_lib.widgets import code, keyboard, render
from gaussmark_lib.widgets.area import WIDE, Area, button

LONGEST = 400  # tokens; the slider's end, or half the context if that is shorter
MOST = 1_000_000  # the largest seed
_FIELD = {"layout": WIDE, "style": {"description_width": render.LABEL}}
_HEADING = "style='margin:.8em 0 .2em 0'"
NAMES = {  # of a question's parts, in words
    "prompt": "prompt",
    "weight": "weight",
    "psi": "wanted ψ",
    "n_tokens": "tokens",
    "n_samples": "number of texts",
    "seed": "sampler's seed",
}
OF_AN_EDIT = {"how": "edit", "share": "share edited"}
OF_A_TEST = [
    "weight",
    "psi",
    "n_tokens",
]  # of these: what a text is tested at, and what σ is solved for


class Form:
    """What the reader fills in and presses. ``view`` is all of it with the results; nothing is
    wired yet.
    """

    def __init__(self, session: Session, start: Question, key_seed: int):
        self._make_inputs(session, start, key_seed)
        self._make_buttons()
        self.writing = Area(self.generate, "writing and testing")
        self.testing = Area(self.test, "testing the text")
        self.editing = Area(self.edit, "editing the text and testing it again")
        self.filing = Area(self.save_key, "saving the key")
        self.asking = [getattr(self, name) for name in NAMES]
        self.pressed = [
            self.another,
            self.seed_key,
            self.new_key,
            self.generate,
            self.take,
            self.test,
            self.edit,
        ]
        self.pressed += [self.save_key, self.load_key, self.save_parameters]
        self.view = self._lay_out(session.lm.name)

    def question(self) -> Question:
        return Question(**{name: getattr(self, name).value for name in NAMES})

    def _make_inputs(self, session: Session, start: Question, key_seed: int) -> None:
        longest = min(LONGEST, (tokens.context(session.lm.model) or 2 * LONGEST) // 2)
        weights = list(
            dict.fromkeys(
                [*mlp_weights(session.lm.model), models.linear(session.lm.model, start.weight).name]
            )
        )

        def field(
            kind: type, name: str, tooltip: str, *value: object, **options: object
        ) -> w.Widget:
            return kind(
                *value,
                description=name,
                tooltip=tooltip,
                description_allow_html=False,
                **options,
                **_FIELD,
            )

        self.prompt = field(
            w.Textarea, "Prompt", "The words that both texts continue", start.prompt, rows=3
        )
        self.weight = field(
            w.Dropdown,
            "Weight",
            "The matrix that gets the noise",
            options=weights,
            value=start.weight,
        )
        what = "The mean ψ that watermarked text is to have; the noise's σ is solved for it"
        self.psi = field(
            w.FloatSlider,
            "Wanted ψ",
            what,
            start.psi,
            min=0.5,
            max=8,
            step=0.5,
            readout_format=".1f",
        )
        self.n_tokens = field(
            w.IntSlider,
            "Tokens a text",
            "Length of each text",
            start.n_tokens,
            min=1,
            max=longest,
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
        self.key_seed = field(
            w.BoundedIntText,
            "Key from seed",
            "Of the demonstration key, which is not secret",
            key_seed,
            min=0,
            max=MOST,
        )
        self.text = field(
            w.Textarea,
            "Text to test",
            "Any text, of any length",
            placeholder="Any text, of any length",
            rows=4,
        )
        what = "What it continues, if known"
        self.before = field(
            w.Textarea,
            "Its prompt",
            f"{what}; without it the test is as exact, and has less power",
            placeholder=what,
            rows=2,
        )
        what = (
            "How much of the tested text is edited; when you let it go, the edited text is tested"
        )
        self.share = field(
            w.FloatSlider,
            "Share edited",
            what,
            0.1,
            min=0,
            max=0.5,
            step=0.05,
            readout_format=".0%",
            continuous_update=False,
        )
        self.how = field(
            w.Dropdown,
            "Edit",
            "What is done to these tokens, with the same random numbers each time",
            options=EDITS,
        )
        self.key_file = field(
            w.Text, "Key file", "Where the key is saved, and loaded from", code.KEY_FILE
        )
        self.parameters_file = field(
            w.Text,
            "Parameters",
            "Where the settings are saved: a preset of this notebook",
            "playground.yaml",
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
        self.save_parameters = button(
            "Save as parameters",
            "save",
            "Write these settings as a preset for gaussmark run and for papermill",
        )
        self.sigma_shown, self.key_shown = w.HTML(layout=WIDE), w.HTML(layout=WIDE)

    def _lay_out(self, model: str) -> w.VBox:
        half = w.Layout(flex="1 1 22em", width="auto", min_width="0")
        keys = w.HBox(
            [self.seed_key, self.new_key],
            layout=w.Layout(margin=f"0 0 0 {render.INDENT}", flex_flow="row wrap"),
        )
        left = w.VBox(
            [self.weight, self.psi, self.sigma_shown, self.n_tokens, self.n_samples], layout=half
        )
        right = w.VBox([self.key_seed, self.key_shown, keys, self.seed], layout=half)
        columns = w.HBox([left, right], layout=w.Layout(flex_flow="row wrap", grid_gap="0 24px"))
        files = w.VBox(
            [
                self.key_file,
                self.filing.bar(self.load_key),
                self.parameters_file,
                self.save_parameters,
                self.filing.message,
            ]
        )
        drawer = w.Accordion([files], titles=("Save and load: key file, parameters",))
        knows = [w.HTML(render.aside(render.DOCLM))] if model == "doclm" else []
        heading = w.HTML(f"<h4 {_HEADING}>Test any text against this key</h4>")
        edits = w.HBox(
            [w.VBox([self.how], layout=half), w.VBox([self.share], layout=half)],
            layout=columns.layout,
        )
        writing, testing, editing = self.writing, self.testing, self.editing
        parts = [
            self.prompt,
            *knows,
            columns,
            writing.bar(self.another),
            writing.message,
            writing.note,
            writing.output,
            heading,
            self.text,
        ]
        parts += [
            self.before,
            testing.bar(self.take),
            testing.message,
            testing.note,
            testing.output,
        ]
        parts += [
            w.HTML(f"<h4 {_HEADING}>Edit the tested text</h4>"),
            edits,
            editing.bar(),
            editing.message,
            editing.note,
            editing.output,
        ]
        parts += [drawer, w.HTML(keyboard.KEYBOARD)]
        view = w.VBox(parts, layout=w.Layout(max_width="76em"))
        view.add_class(keyboard.PANEL)
        return view
