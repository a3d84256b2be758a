"""The panel without a browser: what its buttons do, what it says when things go wrong, and that it
never shows half of anything.
"""

import re
import threading
import time
from dataclasses import asdict
from html import unescape
from pathlib import Path

import ipywidgets as w
import nbformat
import numpy as np
import pandas as pd
import pytest
import tiny_lm
from matplotlib.figure import Figure

from gaussmark_lib import models, paths, perturb
from gaussmark_lib.errors import DegenerateScoreError, UnknownWeightError
from gaussmark_lib.experiments import drafts
from gaussmark_lib.experiments.played import Given, Verdict
from gaussmark_lib.experiments.playground import Question, Session
from gaussmark_lib.perturb import Key
from gaussmark_lib.plots import playground as plots
from gaussmark_lib.runs import parameters, presets
from gaussmark_lib.widgets import Panel, keyboard, render
from gaussmark_lib.widgets.words import earlier, expectation
from gaussmark_lib.widgets.worker import Worker

ASKED = Question("The function", tiny_lm.WEIGHT, psi=2.0, n_tokens=10)


@pytest.fixture
def session() -> Session:
    return Session(tiny_lm.build(), tiny_lm.PROMPTS, Key.from_seed(2), n_reference=2)


@pytest.fixture
def panel(session: Session) -> Panel:
    panel = Panel(session, question=ASKED)
    panel.wait()
    return panel


def shown(panel: Panel) -> str:
    """Every word on the panel."""
    widgets, words = [panel.view], []
    while widgets:
        widget = widgets.pop()
        widgets += getattr(widget, "children", ())
        words += [str(getattr(widget, name, "")) for name in ("description", "value", "tooltip")]
    return "\n".join(words)


class Blocked:
    """Work that stands still in its middle until it is let go."""

    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, report) -> str:
        report("working", 0.5)
        self.begun.set()
        self.go.wait(60)
        report("working", 1.0)
        return "done"


# The worker


@pytest.fixture
def said() -> list:
    return []


@pytest.fixture
def worker(said: list) -> Worker:
    return Worker(
        lambda at: said.append("start"),
        lambda at, *step: said.append(step),
        lambda at, end: said.append(end),
        lambda: said.append("idle"),
    )


def test_work_is_shown_and_one_at_a_time(worker: Worker, said: list):
    work = Blocked()
    assert worker.start(work, said.append)
    work.begun.wait(60)
    assert worker.busy
    assert not worker.start(work, said.append), "it is busy"
    work.go.set()
    worker.wait()
    assert said == ["start", ("working", 0.5), ("working", 1.0), "done", "", "idle"]
    assert not worker.busy
    assert worker.start(lambda report: 1, said.append)
    worker.wait()


def test_work_stops_at_its_next_step(worker: Worker, said: list):
    work = Blocked()
    worker.start(work, said.append)
    work.begun.wait(60)
    worker.stop()
    work.go.set()
    worker.wait()
    assert "done" not in said
    assert said[-2].startswith("Stopped")
    assert worker.error is None
    worker.start(lambda report: report("again", 1.0), lambda _: None)
    worker.wait()
    assert ("again", 1.0) in said, "an old stop does not end new work"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (DegenerateScoreError("no gradient"), "No gradient."),
        (KeyError("x"), "This did not work: KeyError"),
    ],
)
def test_an_error_is_a_sentence(worker: Worker, said: list, error: Exception, sentence: str):
    def fail(report):
        raise error

    worker.start(fail, said.append)
    worker.wait()
    assert said[-2].startswith(sentence)
    assert worker.error is error
    assert not worker.busy


def test_an_error_while_showing_is_a_sentence_too(worker: Worker, said: list):
    worker.start(lambda report: 0, lambda result: 1 / result)
    worker.wait()
    assert "ZeroDivisionError" in said[-2]
    assert not worker.busy


# The panel


def test_generates(panel: Panel):
    panel.generate.click()
    panel.wait()
    assert panel.error is None, panel.writing.message.value
    assert panel.writing.message.value == ""
    assert panel.result.question == ASKED
    assert panel.result.key_id == Key.from_seed(1).key_id
    html = panel.writing.output.value
    for words in (
        "Watermarked text, this key:",
        "wrong key",
        "Plain text",
        "had nothing to do with the key",
        "<img alt=",
    ):
        assert words in html
    assert html.count("<span") > 20


def test_says_sigma_at_once(panel: Panel):
    first = panel.sigma_shown.value
    assert "σ = " in first
    panel.psi.value = 4
    number = re.compile(r"σ = ([\d.e-]+),")
    assert float(number.search(panel.sigma_shown.value)[1]) == pytest.approx(
        2 * float(number.search(first)[1]), rel=0.01
    )


def test_measures_again_for_another_weight_or_length(panel: Panel):
    first = panel.sigma_shown.value
    panel.weight.value = panel.weight.options[0]
    panel.wait()
    second = panel.sigma_shown.value
    panel.n_tokens.value = 20
    panel.wait()
    assert "σ = " in panel.sigma_shown.value
    assert len({first, second, panel.sigma_shown.value}) == 3


def test_buttons_wait_while_it_works(panel: Panel, monkeypatch: pytest.MonkeyPatch):
    work = Blocked()
    monkeypatch.setattr(panel.session, "compare", lambda question, key, report, watch: work(report))
    buttons = [panel.generate, panel.test, panel.another, panel.new_key, panel.seed_key, panel.take]
    assert panel.writing.stop.disabled
    panel.generate.click()
    assert all(button.disabled for button in buttons)
    assert not panel.writing.stop.disabled
    work.begun.wait(60)
    assert panel.writing.doing.value == "working"
    assert panel.writing.progress.value == 0.5
    panel.psi.value = 5  # inputs stay live, and what is known is shown
    assert "= 5<" in panel.sigma_shown.value
    panel.writing.stop.click()
    work.go.set()
    panel.wait()
    assert not any(button.disabled for button in buttons)
    assert panel.writing.stop.disabled
    assert panel.writing.progress.value == 0
    assert "Stopped" in panel.writing.message.value


def test_stop_leaves_the_base_model_and_what_was_shown(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
):
    panel.generate.click()
    panel.wait()
    before, result = panel.writing.output.value, panel.result
    theta = perturb.Watermark(tiny_lm.WEIGHT, 1.0).on(panel.session.lm.model).linear.sha256()
    seen = []

    def stop_in_the_middle(change) -> None:
        if change["new"] == "writing watermarked text":
            seen.append(hasattr(panel.session.lm.model, "gaussmark"))
            panel.writing.stop.click()

    panel.writing.doing.observe(stop_in_the_middle, "value")
    panel.generate.click()
    panel.wait()
    assert seen == [True], "it was stopped while the noise was in the weights"
    assert "Stopped" in panel.writing.message.value
    assert panel.writing.output.value == before
    assert panel.result is result
    perturb.refuse_perturbed(panel.session.lm.model)
    assert (
        perturb.Watermark(tiny_lm.WEIGHT, 1.0).on(panel.session.lm.model).linear.sha256() == theta
    )


def test_nothing_starts_by_itself_after_a_stop(panel: Panel):
    panel.writing.doing.observe(lambda change: panel.writing.stop.click(), "value")
    panel.n_tokens.value = 30  # begins to measure, and is stopped
    panel.wait()
    assert not panel.session.knows(tiny_lm.WEIGHT, 30)
    assert "Stopped" in panel.writing.message.value
    assert "when you press Generate" in panel.sigma_shown.value


def test_work_that_ends_at_once_has_the_last_word(panel: Panel, monkeypatch):
    """The work's thread may be done before the one that began it has said that it waits."""
    start = panel._worker.start

    def ended_before_it_returns(*its):
        began = start(*its)
        time.sleep(0.3)
        return began

    monkeypatch.setattr(panel._worker, "start", ended_before_it_returns)
    panel.writing.doing.observe(lambda change: panel.writing.stop.click(), "value")
    panel.n_tokens.value = 30
    panel.wait()
    assert "when you press Generate" in panel.sigma_shown.value


def test_tests_a_text_and_takes_the_watermarked_one(panel: Panel):
    panel.take.click()
    assert "press Generate first" in panel.testing.message.value
    panel.generate.click()
    panel.wait()
    panel.take.click()
    assert panel.text.value == panel.result.text("watermarked")
    assert panel.before.value == ASKED.prompt
    panel.test.click()
    panel.wait()
    wanted = panel.session.test(
        panel.result.text("watermarked"), tiny_lm.WEIGHT, panel.key, ASKED.prompt
    )
    assert panel.verdict.scores["psi"][0] == pytest.approx(wanted.scores["psi"][0], rel=1e-3)
    assert "Negative control" in panel.testing.output.value


@pytest.mark.parametrize(
    ("inputs", "button", "sentence"),
    [
        ({"prompt": " "}, "generate", "expected a prompt"),
        ({"prompt": "x" * 60}, "generate", "expected at most 64 tokens"),
        ({"text": ""}, "test", "expected a text to test"),
        ({"text": "x", "before": "y" * 64}, "test", "expected at most 64 tokens"),
    ],
)
def test_bad_input_is_a_sentence(panel: Panel, inputs: dict, button: str, sentence: str):
    for name, value in inputs.items():
        getattr(panel, name).value = value
    getattr(panel, button).click()
    panel.wait()
    at, other = (
        (panel.writing, panel.testing) if button == "generate" else (panel.testing, panel.writing)
    )
    assert sentence in at.message.value.lower()
    assert 'role="alert"' in at.message.value
    assert other.message.value == "", "an error stands beside its own button"
    assert "Traceback" not in shown(panel)
    assert not panel.generate.disabled
    assert panel.writing.output.value == panel.testing.output.value == ""


def test_a_result_of_earlier_settings_says_so(panel: Panel):
    panel.generate.click()
    panel.wait()
    fresh = panel.writing.output.value
    assert panel.writing.note.value == ""
    panel.psi.value, panel.prompt.value = 4, "Another"
    assert "From earlier settings. Changed since: prompt, wanted ψ." in panel.writing.note.value
    assert "opacity:.45" in panel.writing.output.value
    panel.psi.value, panel.prompt.value = ASKED.psi, ASKED.prompt
    assert (panel.writing.note.value, panel.writing.output.value) == (
        "",
        fresh,
    ), "the same settings again"
    panel.n_samples.value = 2
    panel.generate.click()
    panel.wait()
    assert panel.writing.note.value == ""


def drafts_of(panel: Panel, act) -> list[str]:
    """What is shown while texts are written; ``act`` is called with each, in the middle of the
    work.
    """
    seen = []

    def note(change) -> None:
        if "Being written" in change["new"]:
            seen.append(change["new"])
            act(panel)

    panel.writing.output.observe(note, "value")
    panel.generate.click()
    panel.wait()
    return seen


def test_texts_stream_and_the_curve_grows(panel: Panel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drafts, "SCORED_EVERY", 4)
    seen = drafts_of(panel, lambda panel: None)
    assert panel.error is None
    assert len(seen) == 4, "4 and 8 of 10 tokens, plain and watermarked"
    assert [html.count("<circle") for html in seen] == [2, 4, 6, 8]
    assert "plain, this key: log10 p = " in seen[0]
    assert "watermarked, this key: log10 p" not in seen[0]
    assert all(html.count("<svg role=") == 1 for html in seen)
    assert panel.writing.output.value.count("<circle") == 12, "and the whole texts"
    assert "Being written" not in panel.writing.output.value
    assert panel.draft is None


def test_a_draft_of_earlier_settings_says_so(panel: Panel):
    seen = drafts_of(panel, lambda panel: setattr(panel.psi, "value", 7.0))
    assert "opacity:.45" not in seen[0]
    assert all("opacity:.45" in html for html in seen[1:])
    assert all("for a wanted ψ of 2," in html for html in seen)
    assert "Changed since: wanted ψ." in panel.writing.note.value, "nor does the result forget it"
    assert panel.result.question.psi == 2


def test_a_stopped_draft_gives_way_to_the_result_before(panel: Panel):
    panel.generate.click()
    panel.wait()
    before, result = panel.writing.output.value, panel.result
    panel.psi.value = 3
    assert drafts_of(panel, lambda panel: panel.writing.stop.click())
    assert panel.result is result
    assert panel.writing.output.value == render.dimmed(before)
    assert "Changed since: wanted ψ." in panel.writing.note.value
    assert panel.draft is None


def test_without_a_result_before_a_stopped_draft_leaves_nothing(panel: Panel):
    assert drafts_of(panel, lambda panel: panel.writing.stop.click())
    assert panel.writing.output.value == panel.writing.note.value == ""


def test_a_new_key_makes_both_results_old(panel: Panel):
    panel.generate.click()
    panel.wait()
    panel.take.click()
    panel.test.click()
    panel.wait()
    panel.new_key.click()
    for area in (panel.writing, panel.testing):
        assert "Changed since: key." in area.note.value
        assert "opacity:.45" in area.output.value
    panel.weight.value = panel.weight.options[0]
    assert "Changed since: weight, key." in panel.testing.note.value
    panel.wait()


@pytest.mark.parametrize("name", ["text", "before"])
def test_a_verdict_goes_with_its_text(panel: Panel, name: str):
    panel.text.value = "Some words"
    panel.test.click()
    panel.wait()
    assert panel.verdict is not None
    getattr(panel, name).value = "Other words"
    assert panel.verdict is None
    assert panel.testing.output.value == panel.testing.message.value == ""


def test_a_text_that_changes_while_it_is_tested_has_no_verdict(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
):
    work, real = Blocked(), panel.session.ask
    monkeypatch.setattr(
        panel.session, "ask", lambda *given: (work(given[-1]), real(*given[:-1]))[1]
    )
    panel.text.value = "Some words"
    panel.test.click()
    work.begun.wait(60)
    panel.text.value = "Other words"
    work.go.set()
    panel.wait()
    assert panel.verdict is None
    assert "text has changed" in panel.testing.message.value
    assert panel.testing.output.value == ""


def test_inputs_that_change_during_work_make_its_result_old(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
):
    work, real = Blocked(), panel.session.compare
    monkeypatch.setattr(
        panel.session, "compare", lambda *given: (work(given[2]), real(*given[:-1]))[1]
    )
    panel.generate.click()
    work.begun.wait(60)
    panel.psi.value = 7
    work.go.set()
    panel.wait()
    assert "Changed since: wanted ψ." in panel.writing.note.value


def test_testing_has_its_own_progress_and_stop(panel: Panel, monkeypatch: pytest.MonkeyPatch):
    work = Blocked()
    monkeypatch.setattr(panel.session, "ask", lambda *given: work(given[-1]))
    panel.text.value = "Some words"
    panel.test.click()
    work.begun.wait(60)
    assert (panel.testing.doing.value, panel.writing.doing.value) == ("working", "")
    assert (panel.testing.stop.disabled, panel.writing.stop.disabled) == (False, True)
    panel.testing.stop.click()
    work.go.set()
    panel.wait()
    assert "Stopped" in panel.testing.message.value
    assert panel.writing.message.value == ""


def test_a_long_text_is_tested(panel: Panel):
    panel.text.value = "abcdefgh " * 20
    panel.test.click()
    panel.wait()
    assert panel.testing.message.value == ""
    assert "180 tokens in 4 windows" in panel.testing.output.value


def test_says_the_power_to_expect(panel: Panel):
    for psi, text, said in (
        (8, "abcdefgh " * 6, "detected at level 0.05 with probability"),
        (0.5, "xy", "too short to tell"),
    ):
        panel.psi.value, panel.text.value = psi, text
        panel.test.click()
        panel.wait()
        assert said in panel.testing.output.value
        assert "What to expect" in panel.testing.output.value
    assert f"σ = {panel.verdict.sigma:.3g}" in panel.testing.output.value
    assert panel.testing.note.value == ""
    panel.psi.value = 3
    assert "Changed since: wanted ψ." in panel.testing.note.value, "its power is of another σ"


@pytest.fixture
def tested(panel: Panel) -> Panel:
    panel.text.value = "abcdefgh " * 3
    panel.test.click()
    panel.wait()
    return panel


def test_edits_when_the_slider_is_let_go(tested: Panel, monkeypatch: pytest.MonkeyPatch):
    assert not tested.share.continuous_update
    for control, value in ((tested.share, 0.3), (tested.how, "delete at random")):
        control.value = value
        tested.wait()
        assert tested.error is None
        assert (tested.edited.share, tested.edited.how) == (tested.share.value, tested.how.value)
        html = unescape(tested.editing.output.value)
        for row in (tested.verdict.row("this key"), tested.edited.after.row("this key")):
            psi = f"ψ = {row['psi']:.2f}, {row['n_tokens']} tokens"
            assert f"p = {row['p_value']:.2g} ({psi})".replace("-", "−") in html
        assert "30% of the tokens" in html
    assert tested.edited.after.row("this key")["n_tokens"] == 19
    assert tested.editing.note.value == tested.editing.message.value == ""
    monkeypatch.setattr(models, "load", lambda name: tested.session.lm)
    exec(code_of(tested.editing.output.value), editing := {})
    assert editing["scores"]["psi"][0] == pytest.approx(
        tested.edited.after.row("this key")["psi"], abs=1e-4
    )


def test_an_edit_needs_a_test(panel: Panel):
    panel.share.value = 0.2
    assert "press Test first" in panel.editing.message.value
    panel.text.value = "abcdefgh"
    panel.test.click()
    panel.wait()
    assert panel.editing.message.value == ""
    panel.new_key.click()
    panel.edit.click()
    assert "press Test first" in panel.editing.message.value
    assert panel.edited is None


def test_an_edited_text_of_earlier_settings_says_so(tested: Panel):
    tested.edit.click()
    tested.wait()
    fresh = tested.editing.output.value
    tested.editing.doing.observe(
        lambda change: tested.editing.stop.click() if change["new"] else None, "value"
    )
    tested.share.value = 0.4  # begins, and is stopped
    tested.wait()
    assert "Stopped" in tested.editing.message.value
    assert tested.edited.share == 0.1
    assert tested.editing.output.value == render.dimmed(fresh)
    assert "Changed since: share edited." in tested.editing.note.value
    tested.psi.value = 7
    assert "Changed since: wanted ψ, share edited." in tested.editing.note.value
    tested.text.value = "other"
    assert tested.edited is None
    assert (
        tested.editing.output.value
        == tested.editing.note.value
        == tested.editing.message.value
        == ""
    )


def test_a_text_that_changes_while_it_is_edited_is_not_shown(
    tested: Panel, monkeypatch: pytest.MonkeyPatch
):
    work, real = Blocked(), tested.session.edited
    monkeypatch.setattr(
        tested.session, "edited", lambda *given: (work(given[-1]), real(*given[:-1]))[1]
    )
    tested.edit.click()
    work.begun.wait(60)
    assert (tested.editing.doing.value, tested.testing.doing.value) == ("working", "")
    tested.text.value = "Other words"
    work.go.set()
    tested.wait()
    assert "text has changed" in tested.editing.message.value
    assert tested.editing.output.value == ""


def test_says_what_is_new_after_the_texts_before(panel: Panel):
    def said(text: str) -> str:
        panel.text.value = text
        panel.test.click()
        panel.wait()
        return unescape(panel.testing.output.value)

    assert "tested before" not in said("abcdefgh")
    second = said("Some other words")
    assert "Given the 1 text you tested before with this key and weight: p = " in second
    assert (
        second.index("This key:")
        < second.index("Given the 1 text")
        < second.index("What to expect")
    )
    again = said("abcdefgh")
    assert "it is text 1 of the 2 texts you tested before" in again
    assert f"p = {panel.verdict.given.p_value:.2g}." in again
    panel.new_key.click()
    assert "you tested before" not in said("abcdefgh "), "a new key begins anew"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Given(0, 0.5, 0.0, -1), ""),
        (Given(2, 0.01, 2.3, -1), "Detected at level 0.05 by what is new"),
        (Given(2, 0.5, 0.0, -1), "Not detected at level 0.05 by what is new"),
        (Given(2, 1.0, float("nan"), -1), "nothing in it is new"),
        (Given(2, 0.0, 40.0, 1), "text 2 of the 2 texts"),
    ],
)
def test_earlier_texts_in_words(given: Given, said: str):
    assert said in earlier(given)
    assert bool(earlier(given)) == bool(given.n_before)


def verdict(p_value: float, grad_norm: float) -> Verdict:
    this = {
        "key": "this key",
        "psi": 0.0,
        "p_value": p_value,
        "log10_p": np.log10(p_value),
        "grad_norm": grad_norm,
        "n_tokens": 9,
    }
    return Verdict(
        "x", "", tiny_lm.WEIGHT, "0", 1, pd.DataFrame([this]), pd.DataFrame(), ASKED, 0.1
    )


@pytest.mark.parametrize(
    ("p_value", "grad_norm", "said"),
    [
        (0.3, 100.0, "above 0.99"),
        (0.3, 10.0, "about 0.26 (σ = 0.1). At this σ, this text is too short to tell."),
        (0.01, 10.0, "about 0.26 (σ = 0.1). At this σ, such a text is mostly too short to tell."),
        (0.3, 20.0, "about 0.64 (σ = 0.1)."),
    ],
)
def test_power_in_words(p_value: float, grad_norm: float, said: str):
    sentence = expectation(verdict(p_value, grad_norm))
    assert said in sentence
    assert ("too short" in sentence) == ("too short" in said)


def code_of(html: str) -> str:
    return unescape(re.search(r"<pre[^>]*>(.*)</pre>", html, re.DOTALL)[1])


def test_the_code_shown_does_the_same(panel: Panel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "load", lambda name: panel.session.lm)
    panel.n_samples.value = 2
    panel.generate.click()
    panel.wait()
    exec(code_of(panel.writing.output.value), generating := {})
    rows = panel.result.scores.query("key == 'this key'")
    np.testing.assert_allclose(generating["scores"]["psi"], rows["psi"], rtol=0, atol=2e-5)
    for before in ("The 'function'", " "):
        panel.text.value, panel.before.value = "abcdefgh\n\"' " * 10, before
        panel.test.click()
        panel.wait()
        exec(code_of(panel.testing.output.value), testing := {})
        assert testing["scores"]["psi"][0] == pytest.approx(
            panel.verdict.scores["psi"][0], abs=1e-4
        )


def test_keys_are_saved_and_loaded(panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    panel.new_key.click()
    secret, panel.key_file.value = panel.key, str(tmp_path / "a key.json")
    panel.save_key.click()
    panel.wait()
    assert "a key.json" in panel.key_shown.value
    saved = Key.load(tmp_path / "a key.json")
    assert saved.secret == secret.secret
    assert saved.watermark == perturb.Watermark(
        tiny_lm.WEIGHT, panel.session.sigma(tiny_lm.WEIGHT, ASKED.n_tokens, ASKED.psi)
    )
    panel.save_key.click()
    panel.wait()
    assert "exists" in panel.filing.message.value, "a key file is never written over"

    panel.seed_key.click()
    panel.weight.value = panel.weight.options[0]
    panel.wait()
    panel.load_key.click()
    panel.wait()
    assert panel.key == secret
    assert panel.weight.value == tiny_lm.WEIGHT
    assert secret.key_id in panel.filing.message.value
    monkeypatch.setattr(models, "load", lambda name: panel.session.lm)
    panel.generate.click()
    panel.wait()
    exec(code_of(panel.writing.output.value), generating := {})
    np.testing.assert_allclose(
        generating["scores"]["psi"],
        panel.result.scores.query("key == 'this key'")["psi"],
        rtol=0,
        atol=2e-5,
    )
    everything = shown(panel)
    assert secret.secret.hex() not in everything
    assert str(secret.seed) not in everything
    panel.key_file.value = str(tmp_path / "none.json")
    panel.load_key.click()
    assert 'role="alert"' in panel.filing.message.value


def test_settings_are_saved_as_parameters(panel: Panel, tmp_path: Path):
    cells = nbformat.read(paths.NOTEBOOKS / "11_playground.ipynb", as_version=4).cells
    declared = parameters.read(
        next(cell.source for cell in cells if "parameters" in cell.metadata.get("tags", []))
    )
    panel.prompt.value, panel.key_seed.value, panel.seed.value = "The: 'function' # é", 7, 5
    for new, key_seed in ((False, 7), (True, None)):
        if new:
            panel.new_key.click()
        panel.parameters_file.value = str(file := tmp_path / f"{new}.yaml")
        panel.save_parameters.click()
        assert "gaussmark run 11 -f" in panel.filing.message.value
        values = parameters.check(declared, presets.read(file))
        assert {
            name: values[name]
            for name in ("prompt", "weight", "psi", "n_tokens", "n_samples", "seed", "key_seed")
        } == {
            **asdict(panel.question()),
            "key_seed": key_seed,
        }
    panel.parameters_file.value = str(tmp_path / "no folder" / "a.yaml")
    panel.save_parameters.click()
    assert 'role="alert"' in panel.filing.message.value
    panel.wait()


def test_every_input_and_button_says_what_it_is_for(panel: Panel):
    widgets = [panel.view]
    while widgets:
        widget = widgets.pop()
        widgets += getattr(widget, "children", ())
        if isinstance(widget, w.Button | w.widget_description.DescriptionWidget) and not isinstance(
            widget, w.HTML | w.FloatProgress
        ):
            assert widget.description, widget
            assert widget.tooltip, widget.description
    assert keyboard.PANEL in panel.view._dom_classes
    assert "data-lm-suppress-shortcuts" in shown(panel)


def test_one_token_is_a_caution(panel: Panel):
    panel.text.value = "x"
    panel.test.click()
    panel.wait()
    assert panel.testing.message.value == ""
    assert "1 token)" in panel.testing.output.value
    assert "there is almost no evidence" in panel.testing.output.value


def test_a_broken_panel_shows_a_sentence(panel: Panel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(panel.session, "compare", lambda *_: 1 / 0)
    panel.generate.click()
    panel.wait()
    assert "This did not work: ZeroDivisionError" in panel.writing.message.value
    assert "Traceback" not in shown(panel)
    assert isinstance(panel.error, ZeroDivisionError)
    assert not panel.generate.disabled
    monkeypatch.undo()
    panel.generate.click()
    panel.wait()
    assert panel.writing.message.value == "", "and it works again"


def test_a_broken_measurement_is_tried_once(session: Session, monkeypatch: pytest.MonkeyPatch):
    tries = []
    monkeypatch.setattr(session, "sigma", lambda *_: tries.append(1) or 1 / 0)
    panel = Panel(session, question=ASKED)
    panel.wait()
    assert tries == [1]
    assert "ZeroDivisionError" in panel.writing.message.value


def test_keys(panel: Panel):
    assert panel.key == Key.from_seed(1)
    panel.key_seed.value = 7
    assert panel.key == Key.from_seed(7)
    panel.new_key.click()
    secret = panel.key
    assert secret not in (Key.from_seed(7), Key.from_seed(1))
    assert secret.key_id in panel.key_shown.value
    panel.generate.click()
    panel.wait()
    assert panel.result.key_id == secret.key_id
    everything = shown(panel)
    assert secret.secret.hex() not in everything
    assert str(secret.seed) not in everything
    panel.seed_key.click()
    assert panel.key == Key.from_seed(7)


def test_prompts_go_round(panel: Panel):
    seen = []
    for _ in range(2 * len(tiny_lm.PROMPTS)):
        panel.another.click()
        seen.append(panel.prompt.value)
    assert set(seen) == set(tiny_lm.PROMPTS)


def test_an_unknown_weight_is_refused_at_once(session: Session):
    with pytest.raises(UnknownWeightError, match="down_proj"):
        Panel(session, question=Question("The", "model.layers.1.mlp.down.weight"))


def test_any_linear_weight_can_be_asked_for(session: Session):
    panel = Panel(
        session, question=Question("The", "model.layers.0.self_attn.q_proj.weight", n_tokens=5)
    )
    panel.wait()
    assert panel.weight.value == "model.layers.0.self_attn.q_proj.weight"


def test_says_what_it_is_where_it_cannot_be_shown(panel: Panel):
    bundle = panel._repr_mimebundle_()
    assert bundle["text/plain"] == repr(panel)
    assert "application/vnd.jupyter.widget-view+json" in bundle


# The words and colours


def test_text_is_escaped():
    pieces = pd.DataFrame(
        {
            "text": ["<script>", "&amp;", '"'],
            "evidence": [0.4, -0.4, 0.0],
            "log_p": -1.0,
            "n_tokens": 1,
        }
    )
    html = render.tokens(pieces, psi=0.0)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "&amp;amp;" in html
    assert re.search(r'aria-label="[^"<>]*&lt;script&gt;[^"<>]*"', html)
    assert render.message('<b>"', is_error=True).count("<") == 2


def test_evidence_is_shown_by_more_than_colour():
    pieces = pd.DataFrame(
        {
            "text": ["for", "against", "neither"],
            "evidence": [2.0, -2.0, 0.0],
            "log_p": -1.0,
            "n_tokens": 1,
        }
    )
    for_it, against, neither = re.findall(r"<span[^>]*>", render.tokens(pieces, psi=0.0))
    assert "solid" in for_it
    assert "dotted" in against
    assert "border" not in neither
    assert "0.00)" in neither, "no colour at all"
    assert 'title="evidence +2.000' in for_it
    assert len({re.search(r"rgba\(([\d,]+),", span)[1] for span in (for_it, against)}) == 2


def test_full_colour_depends_on_the_length():
    one = pd.DataFrame({"text": ["a"], "evidence": [0.1], "log_p": -1.0, "n_tokens": 1})
    long = pd.concat([one] * 900)
    strength = [
        float(re.search(r",([\d.]+)\)", render.tokens(pieces, 0.0))[1]) for pieces in (one, long)
    ]
    assert strength == [0.02, 0.6]


@pytest.mark.parametrize(
    ("p", "log10_p", "words"),
    [
        (0.5, -0.3, "0.5"),
        (0.0123, -1.91, "0.012"),
        (0.00042, np.log10(0.00042), "4.2·10⁻⁴"),
        (0.0, -400.3, "5.0·10⁻⁴⁰¹"),
    ],
)
def test_probabilities_in_words(p: float, log10_p: float, words: str):
    assert render.probability(p, log10_p) == words


def test_verdicts_claim_no_more_than_a_p_value_says():
    row = pd.Series({"p_value": 0.01, "log10_p": -2.0, "psi": 2.33, "n_tokens": 50})
    assert "about once in 100" in render.verdict_sentence(row)
    assert "Detected at level 0.05." in render.verdict_sentence(row)
    row["p_value"], row["log10_p"] = 1 / 25_574, -np.log10(25_574)
    assert "about once in 26,000" in render.verdict_sentence(row)
    row["p_value"], row["log10_p"] = 0.4, np.log10(0.4)
    assert "Not detected at level 0.05: that is no proof of absence." in render.verdict_sentence(
        row
    )
    assert "about once" not in render.verdict_sentence(row)


def scores() -> pd.DataFrame:
    groups = [(kind, key) for kind in ("plain", "watermarked") for key in ("this key", "wrong key")]
    return pd.DataFrame(
        [
            {"kind": kind, "key": key, "psi": float(i), "n_tokens": 9, "wanted": 3.0}
            for i, (kind, key) in enumerate(groups)
        ]
    )


def test_figures():
    figure = plots.psi_on_null(scores(), predicted=3.0)
    assert isinstance(figure, Figure)
    [axes] = figure.axes
    assert axes.get_xlim()[1] >= 4
    assert "n = 1" in axes.get_title("left")
    assert "standard deviations" in axes.get_xlabel()
    assert len(axes.get_yticks()) == 4
    alt = re.search('<img alt="([^"]*)"', render.image(figure))[1]
    assert "ψ below its null density" in alt
    assert plots.psi_when_turned(scores()).axes[0].get_xlabel() == "wanted ψ = σ · median‖G‖"
