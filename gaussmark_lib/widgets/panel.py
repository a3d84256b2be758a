"""The playground's panel: a form over a ``playground.Session``, and its results."""

from functools import partial
from itertools import cycle
from pathlib import Path
from threading import RLock
from typing import Any

from gaussmark_lib import models
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.experiments.played import (
    WATERMARKED,
    Comparison,
    Draft,
    Edited,
    Question,
    Verdict,
)
from gaussmark_lib.experiments.playground import Session, mlp_weights
from gaussmark_lib.perturb import Key
from gaussmark_lib.plots import playground as plots
from gaussmark_lib.widgets import code, render
from gaussmark_lib.widgets.area import Area
from gaussmark_lib.widgets.form import NAMES, OF_A_TEST, OF_AN_EDIT, Form
from gaussmark_lib.widgets.worker import Worker

_DEMONSTRATION, _SECRET, _GIVEN = (
    "anyone can guess it",
    "secret, in this kernel's memory",
    "given to the panel",
)


class Panel(Form):
    """Widgets to play with; ``panel`` as a cell's last line shows them. Inputs can change during
    work, which uses their values at its start.

    The ``session`` computes what the panel shows. ``key`` is the first key, by default the
    demonstration key of ``key_seed``; ``question`` holds the inputs' first values. A result that is
    not of the inputs' values any more is dimmed, and says what has changed.
    """

    def __init__(
        self,
        session: Session,
        key: Key | None = None,
        question: Question | None = None,
        key_seed: int = 1,
    ):
        self.session = session
        self.result: Comparison | None = None
        self.draft: Draft | None = None  # of the result that is being made
        self.verdict: Verdict | None = None
        self.edited: Edited | None = None  # of this verdict
        self._prompts = cycle(session.prompts)
        self._of_sigma = RLock()
        self._tried: tuple[str, int] | None = (
            None  # the weight and length of the last attempt to measure ‖G‖
        )
        first, weights = next(self._prompts), mlp_weights(session.lm.model)
        super().__init__(
            session, question or Question(first, weights[2 * len(weights) // 3]), key_seed
        )
        self._worker = Worker(self._started, Area.progressed, self._ended, self._show_sigma)
        if key:
            self._use(key, _GIVEN, code.SAVED_KEY)
        else:
            self._use_seed()
        self._wire()
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

    # What the reader does

    def _wire(self) -> None:
        self.another.on_click(lambda _: setattr(self.prompt, "value", next(self._prompts)))
        self.new_key.on_click(lambda _: self._use(Key.new(), _SECRET, code.SAVED_KEY))
        self.seed_key.on_click(lambda _: self._use_seed())
        self.key_seed.observe(lambda _: self._use_seed(), "value")
        for control in self.asking:
            control.observe(lambda _: self._compare(), "value")
        for control in (self.weight, self.psi, self.n_tokens):
            control.observe(lambda _: self._show_sigma(), "value")
        for control in (self.text, self.before):
            control.observe(lambda _: self._forget_verdict(), "value")
        for control in (self.share, self.how):
            control.observe(lambda _: self._edit(), "value")
        actions = {
            self.generate: self._generate,
            self.test: self._test,
            self.take: self._take,
            self.edit: self._edit,
            self.save_key: self._save_key,
            self.load_key: partial(self._in_words, self._load_key),
            self.save_parameters: partial(self._in_words, self._save_parameters),
        }
        for pressed, action in actions.items():
            pressed.on_click(lambda _, action=action: action())
        for area in (self.writing, self.testing, self.editing, self.filing):
            area.stop.on_click(lambda _: self._worker.stop())

    def _use(self, key: Key, kind: str, written: str) -> None:
        """From now on this key; ``written`` is how code gets it."""
        self.key, self._key_written = key, written
        self.key_shown.value = render.aside(f"key_id {key.key_id}: {kind}")
        self._compare()

    def _use_seed(self) -> None:
        self._use(
            Key.from_seed(self.key_seed.value),
            _DEMONSTRATION,
            f"Key.from_seed({self.key_seed.value})",
        )

    def _compare(self) -> None:
        """Dims what was made with other settings than those that stand there now."""
        if written := self.draft or self.result:
            self.writing.compare(self._changed_since(written))
        if verdict := self.verdict:
            self.testing.compare(self._changed_since(verdict))
        if edited := self.edited:
            self.editing.compare(self._changed_since(edited))

    def _changed_since(self, made: Draft | Comparison | Verdict | Edited) -> str:
        """The settings that are others now than those that this was made with, in words."""
        if isinstance(made, Edited):
            changed = [
                word
                for name, word in OF_AN_EDIT.items()
                if getattr(made, name) != getattr(self, name).value
            ]
            return ", ".join(filter(None, [self._changed_since(made.before), *changed]))
        settings = OF_A_TEST if isinstance(made, Verdict) else NAMES
        changed = [
            NAMES[name]
            for name in settings
            if getattr(made.question, name) != getattr(self, name).value
        ]
        return ", ".join(changed + ["key"] * (made.key_id != self.key.key_id))

    def _forget_verdict(self) -> None:
        self.verdict = self.edited = None
        self.testing.clear()
        self.editing.clear()

    def _show_sigma(self) -> None:
        """σ for the current inputs: at once where ‖G‖ is known, else after measuring it."""
        with self._of_sigma:  # work that ends soon says so after this, not before
            self.sigma_shown.value = render.aside(
                self._sigma_in_words(self.weight.value, self.n_tokens.value, self.psi.value)
            )

    def _sigma_in_words(self, weight: str, n_tokens: int, psi: float) -> str:
        if self.session.knows(weight, n_tokens):
            return (
                f"σ = {self.session.sigma(weight, n_tokens, psi):.3g}, so that σ · median‖G‖ ="
                f" {psi:g}"
            )
        if self._worker.busy or self._measure(weight, n_tokens):
            return "σ: waiting for ‖G‖ of unwatermarked text …"
        return "σ: will be solved for when you press Generate"

    def _measure(self, weight: str, n_tokens: int) -> bool:
        """Starts measuring ‖G‖, unless the same measurement failed or was stopped: Generate will
        say why.
        """
        if self._tried == (weight, n_tokens):
            return False
        self._tried = weight, n_tokens
        return self._worker.start(
            lambda report: self.session.sigma(weight, n_tokens, 1.0, report),
            lambda _: None,
            self.writing,
        )

    def _generate(self) -> None:
        question, key, show = (
            self.question(),
            self.key,
            partial(self._show_comparison, self._key_written),
        )
        self._worker.start(
            lambda report: self.session.compare(question, key, report, self._show_draft),
            show,
            self.writing,
        )

    def _test(self) -> None:
        text, question, key, before = self.text.value, self.question(), self.key, self.before.value
        show = partial(self._show_verdict, self._key_written)
        self._worker.start(
            lambda report: self.session.ask(text, question, key, before, report), show, self.testing
        )

    def _edit(self) -> None:
        self._compare()
        verdict, how, share, key = self.verdict, self.how.value, self.share.value, self.key
        if not verdict or self._changed_since(verdict):
            self.editing.say(
                "There is no test with these settings yet: press Test first.", is_error=True
            )
        else:
            show = partial(self._show_edited, self._key_written)
            if not self._worker.start(
                lambda report: self.session.edited(verdict, how, share, key, report),
                show,
                self.editing,
            ):
                self.editing.say("Other work is going on: press Edit and test when it has ended.")

    def _take(self) -> None:
        if self.result:
            self.text.value, self.before.value = (
                self.result.text(WATERMARKED),
                self.result.question.prompt,
            )
        else:
            self.testing.say(
                "There is no watermarked text yet: press Generate first.", is_error=True
            )

    def _save_key(self) -> None:
        question, key, path = self.question(), self.key, self.key_file.value
        work, show = (
            (lambda report: self.session.bound(question, key, report).save(path)),
            partial(self._show_saved, key),
        )
        self._worker.start(work, show, self.filing)

    def _load_key(self) -> str:
        """The key's secret is used, whatever σ is turned to; its weight, where it names one, is
        chosen.
        """
        path = self.key_file.value
        key = Key.load(path)
        if key.binding:
            name = models.linear(self.session.lm.model, key.binding.weight).name
            self.weight.options = list(dict.fromkeys([*self.weight.options, name]))
            self.weight.value = name
        self._use(Key(key.secret), f"secret, of {path}", code.loaded(path))
        return f"Key {key.key_id} is in use" + (
            f", at its weight, {self.weight.value}." if key.binding else "."
        )

    def _save_parameters(self) -> str:
        key_seed = self.key_seed.value if self.key == Key.from_seed(self.key_seed.value) else None
        path = Path(self.parameters_file.value).expanduser().resolve()
        path.write_text(
            code.preset(self.question(), self.session.lm.name, key_seed), encoding="utf-8"
        )
        left_out = "" if key_seed is not None else " The key is secret and is not in it."
        return f"Saved. The same again: gaussmark run 11 -f {path}.{left_out}"

    def _in_words(self, action: Any) -> None:
        """Says how a short action ended, by Save and Load."""
        try:
            self.filing.say(action())
        except (GaussMarkError, OSError) as error:
            self.filing.say(str(error), is_error=True)

    # What comes back, from the worker's thread

    def _show_comparison(self, key: str, result: Comparison) -> None:
        figure = plots.psi_on_null(result.scores, result.predicted, render.LEVEL)
        html = render.comparison(
            result, figure, code=code.generating(result, self.session.lm.name, key)
        )
        self.draft, self.result = None, result
        self.writing.show(html, self._changed_since(result))
        self._compare()  # inputs may have changed meanwhile

    def _show_draft(self, draft: Draft) -> None:
        self.draft = draft
        self.writing.sketch(render.draft(draft), self._changed_since(draft))
        self._compare()

    def _show_verdict(self, key: str, verdict: Verdict) -> None:
        if (verdict.text, verdict.prompt) != (self.text.value, self.before.value):
            raise GaussMarkError("the text has changed while it was tested; press Test again")
        html = render.verdict(verdict, code=code.testing(verdict, self.session.lm.name, key))
        self.verdict, self.edited = verdict, None
        self.editing.clear()
        self.testing.show(html, self._changed_since(verdict))
        self._compare()

    def _show_edited(self, key: str, edited: Edited) -> None:
        if edited.before is not self.verdict:
            raise GaussMarkError("the text has changed while it was edited; press Test again")
        self.edited = edited
        html = render.edited(edited, code=code.editing(edited, self.session.lm.name, key))
        self.editing.show(html, self._changed_since(edited))

    def _show_saved(self, key: Key, path: Path) -> None:
        if key == self.key and self._key_written == code.SAVED_KEY:
            self._key_written = code.loaded(str(path))
        self.key_shown.value = render.aside(
            f"key_id {key.key_id}: saved as {path.resolve()}, with this weight and σ"
        )

    def _started(self, area: Area) -> None:
        for pressed in self.pressed:
            pressed.disabled = True
        area.started()

    def _ended(self, area: Area, sentence: str) -> None:
        if sentence:  # nothing starts by itself after a failure or a stop
            self._tried = self.weight.value, self.n_tokens.value
        if self.draft:  # no result came of it
            self.draft = None
            self.writing.drop_sketch()
            self._compare()
        area.ended(sentence, is_error=self.error is not None)
        for pressed in self.pressed:
            pressed.disabled = False
