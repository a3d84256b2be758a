"""The playground's panel: a form over a ``playground.Session``, and its results."""

from collections.abc import Iterable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.perturb import Key
from gaussmark_lib.weights import Weight
from gaussmark_lib.workbench import verdict
from gaussmark_lib.workbench.widgets import render
from gaussmark_lib.workbench.widgets.area import Worker
from gaussmark_lib.workbench.widgets.form import NAMES, OF_A_QUESTION, OF_A_TEST, OF_AN_EDIT, Form
from gaussmark_lib.workbench.widgets.playground import (
    WATERMARKED,
    Comparison,
    Question,
    Session,
    Tested,
)


class Panel(Form):
    """Widgets to play with; ``panel`` as a cell's last line shows them. Inputs can change during
    work, which uses their values at its start.

    The ``session`` computes what the panel shows. The first key is the demonstration key of
    ``key_seed``; ``question`` holds the inputs' first values. A result that is not of the inputs'
    values any more is dimmed, and says what has changed.
    """

    def __init__(self, session: Session, question: Question, key_seed: int = 1):
        self.session = session
        self.result: Comparison | None = None
        self.tested: Tested | None = None
        self.edited: Tested | None = None
        self._prompts = cycle(session.prompts)
        next(self._prompts)  # which stands there already
        super().__init__(session, question, key_seed)
        self._worker = Worker(self._on_busy)
        self._use_seed()
        self._wire()

    @property
    def error(self) -> Exception | None:
        """What went wrong in the last work, with its traceback."""
        return self._worker.error

    def wait(self) -> None:
        """Returns when the panel's work is done; for scripts and tests."""
        self._worker.wait()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        words = {"text/plain": "Panel: widgets, alive when the notebook runs"}
        return self.view._repr_mimebundle_(**options) | words

    def _wire(self) -> None:
        clicks = {
            self.another: lambda: setattr(self.prompt, "value", next(self._prompts)),
            self.new_key: lambda: self._use(Key.new(), "secret, in memory only", render.SAVED_KEY),
            self.seed_key: self._use_seed,
            self.generate: self._generate,
            self.take: self._take,
            self.test: self._test,
            self.edit: self._edit,
            self.save_key: self._save_key,
            self.load_key: self._load_key,
        }
        clicks |= {area.stop: self._worker.stop for area in self.areas}
        for button, action in clicks.items():
            button.on_click(lambda _, action=action: action())
        changes = {self.key_seed: self._use_seed}
        changes |= dict.fromkeys((self.share, self.how, self.allowed), self._edit)
        changes |= dict.fromkeys((self.text, self.before), self._forget_test)
        changes |= dict.fromkeys(self.asking, self._compare)
        for control, action in changes.items():
            control.observe(lambda _, action=action: action(), "value")

    def _use(self, key: Key, kind: str, written: str) -> None:
        """From now on this key; ``written`` is how code gets it."""
        self.key, self._key_written = key, written
        self.key_shown.value = render.aside(f"key_id {key.key_id}: {kind}")
        self._compare()

    def _use_seed(self) -> None:
        seed = self.key_seed.value
        self._use(Key.from_seed(seed), "anyone can guess it", f"Key.from_seed({seed})")

    def _compare(self) -> None:
        """Dims what was made with other settings than those that stand there now, and shows their
        σ.
        """
        for area in self.areas:
            area.compare(self._settings(NAMES))
        self._show_sigma()

    def _settings(self, names: Iterable[str]) -> dict[str, Any]:
        """Inputs by what they are called in words, and the key."""
        return {NAMES[name]: getattr(self, name).value for name in names} | {"key": self.key}

    def _forget_test(self) -> None:
        self.tested = self.edited = None
        self.testing.clear()
        self.editing.clear()

    def _on_busy(self, busy: bool) -> None:
        for button in self.pressed:
            button.disabled = busy
        self._show_sigma()

    def _show_sigma(self) -> None:
        """σ for the current inputs, where ‖G‖ of such texts was measured before."""
        weight, n_tokens, psi = self.weight.value, self.n_tokens.value, self.psi.value
        shown = "σ: will be solved for when you press Generate"
        if self.session.knows(weight, n_tokens):
            sigma = self.session.sigma(weight, n_tokens, psi)
            shown = f"σ = {sigma:.3g}, so that σ · median‖G‖ = {psi:g}, ψ to first order"
        self.sigma_shown.value = render.aside(shown)

    def _generate(self) -> None:
        question, key, written = self.question(), self.key, self._key_written
        made = self._settings(OF_A_QUESTION)

        def show(result: Comparison) -> None:
            lines = render.code_of_comparison(result, self.session.lm.name, written)
            self.result = result
            self.writing.show(render.comparison(result, code=lines), made)
            self._compare()  # inputs may have changed meanwhile

        work = partial(self.session.compare, question, key)
        self._worker.start(work, show, self.writing)

    def _take(self) -> None:
        if self.result:
            self.text.value = self.result.text(WATERMARKED)
            self.before.value = self.result.question.prompt
        else:
            self.testing.say("There is no watermarked text yet: press Generate first.", True)

    def _test(self) -> None:
        text, before, written = self.text.value, self.before.value, self._key_written
        made = self._settings(OF_A_TEST)

        def show(result: Tested) -> None:
            if (text, before) != (self.text.value, self.before.value):
                raise GaussMarkError("the text has changed while it was tested; press Test again")
            lines = render.code_of_test(result, self.session.lm.name, written)
            self._forget_test()
            self.tested = result
            self.testing.show(render.of_test(result, code=lines), made)
            self._compare()

        work = partial(self.session.test, text, self.question(), self.key, before)
        self._worker.start(work, show, self.testing)

    def _edit(self) -> None:
        self._compare()
        before, how, share = self.tested, self.how.value, self.share.value
        allowed = self.allowed.value
        written, made = self._key_written, self._settings(OF_AN_EDIT)
        if not before or self.testing.changed:
            self.editing.say("There is no test with these settings: press Test first.", True)
            return

        def show(after: Tested) -> None:
            if before is not self.tested:
                raise GaussMarkError("the text has changed while it was edited; press Test again")
            lines = render.code_of_test(before, self.session.lm.name, written, how, share, allowed)
            self.edited = after
            p = verdict.p_value(before.row["log10_p"])
            was = f"before, by the paper's ψ: {before.row['psi']:.2f}, p = {p}"
            title = f"{how}, {share:.0%} of the tokens, tested with edited = {allowed:g} ({was})"
            self.editing.show(render.of_test(after, title, code=lines), made)
            self._compare()

        work = partial(self.session.edited, before, how, share, self.key, allowed=allowed)
        if not self._worker.start(work, show, self.editing):
            self.editing.say("Other work is going on: press Edit and test when it has ended.")

    def _save_key(self) -> None:
        question, key, path = self.question(), self.key, Path(self.key_file.value)

        def show(_: Path) -> None:
            if key == self.key and self._key_written == render.SAVED_KEY:
                self._key_written = render.loaded(str(path))
            self.filing.say(
                f"Key {key.key_id} is saved as {path.resolve()}, with this weight and σ."
            )

        work = partial(self.session.bound, question, key)
        self._worker.start(lambda report: work(report).save(path), show, self.filing)

    def _load_key(self) -> None:
        """The key's secret is used, whatever σ is turned to; its weight, where it names one, is
        chosen.
        """
        path = self.key_file.value
        try:
            key = Key.load(path)
            if key.binding:
                name = Weight(self.session.lm.model, key.binding.weight).name
                self.weight.options = list(dict.fromkeys([*self.weight.options, name]))
                self.weight.value = name
        except (GaussMarkError, OSError) as error:
            self.filing.say(str(error), is_error=True)
            return
        self._use(Key(key.secret), f"secret, of {path}", render.loaded(path))
        self.filing.say(f"Key {key.key_id} is in use, at {self.weight.value}.")
