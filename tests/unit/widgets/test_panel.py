"""The panel without a browser: what its buttons do, what it says when things go wrong, and that it
never shows half of anything.
"""

import re
from html import unescape
from threading import Event

import ipywidgets as w
import pandas as pd
import pytest
import tiny_lm

from gaussmark_experiments.widgets import Panel, action, playground, render
from gaussmark_experiments.widgets.playground import Edit, Question, Session
from gaussmark_lib import models, perturb
from gaussmark_lib.perturb import Key
from gaussmark_lib.workbench import verdict
from gaussmark_lib.workbench.cli import notebooks
from gaussmark_lib.workbench.rewrite import apertium

ASKED = Question("The function", tiny_lm.WEIGHT, psi=2.0, n_tokens=10)


@pytest.fixture
def session() -> Session:
    return Session(tiny_lm.build(), tiny_lm.PROMPTS, Key.from_seed(2), n_reference=2)


@pytest.fixture
def panel(session: Session) -> Panel:
    return Panel(session, question=ASKED)


def press(panel: Panel, button: str) -> None:
    getattr(panel, button).click()
    panel.wait()


def parts(widget: w.Widget) -> list[w.Widget]:
    """A widget and all that it contains."""
    children = getattr(widget, "children", ())
    return [widget, *(part for child in children for part in parts(child))]


def shown(panel: Panel) -> str:
    """Every word on the panel."""
    names = ("description", "value", "tooltip")
    return "\n".join(str(getattr(part, name, "")) for part in parts(panel) for name in names)


def test_generates(panel: Panel):
    press(panel, "generate")
    assert panel.error is None, panel.writing.message.value
    result, html = panel.writing.result, panel.writing.output.value
    assert (result.question, result.key_id) == (ASKED, Key.from_seed(1).key_id)
    predicted = " of 1 detected. The predicted probability of detection was"
    figure = 'min-width:100%;overflow-x:auto"><img alt='  # on a phone
    for words in ("Watermarked texts, this key:", "wrong key", "Plain text", predicted, figure):
        assert words in html
    assert (panel.writing.message.value, "of at most 10 tokens" in html) == ("", True)
    assert html.count('title="evidence') > 10
    assert unescape(html).count(f"session.compare({ASKED!r}, key)") == 1


def test_stop_leaves_the_base_model_and_what_was_shown(panel: Panel):
    press(panel, "generate")
    before, result = panel.writing.output.value, panel.writing.result
    model = panel.session.lm.model
    theta = model.get_parameter(tiny_lm.WEIGHT).clone()
    seen = []

    def stop_in_the_middle(change) -> None:
        if change["new"] == "writing":
            seen.append(hasattr(model, "gaussmark"))
            panel.writing.stop.click()

    panel.writing.doing.observe(stop_in_the_middle, "value")
    press(panel, "generate")
    assert seen == [True], "it was stopped while the noise was in the weights"
    assert "Stopped" in panel.writing.message.value
    texts, _, kept = panel.writing.output.value.partition(before)
    assert re.search("are no result.*Plain text.*ψ = .* …", texts, re.DOTALL)
    assert f">{result.text('plain')[0]}<" in unescape(texts)
    assert (kept, panel.writing.result is result) == ("", True)
    perturb.refuse_perturbed(model)
    assert model.get_parameter(tiny_lm.WEIGHT).equal(theta)


def test_tests_a_text_and_takes_the_watermarked_one(panel: Panel):
    panel.take.click()
    assert "press Generate" in panel.testing.message.value
    press(panel, "generate")
    panel.take.click()
    assert panel.text.value == panel.writing.result.text("watermarked")
    assert panel.before.value == ASKED.prompt
    press(panel, "test")
    wanted = panel.session.test(panel.text.value, ASKED, panel.key, ASKED.prompt)
    assert panel.testing.result.row["psi"] == pytest.approx(wanted.row["psi"], rel=1e-3)
    assert "an unrelated key gives p" in panel.testing.output.value


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
    press(panel, button)
    messages = {"generate": panel.writing.message.value, "test": panel.testing.message.value}
    assert re.search(f'role="alert".*{sentence}', messages.pop(button).lower())
    assert [*messages.values()] == [""], "an error stands beside its own button"
    assert ("Traceback" in shown(panel), panel.generate.disabled) == (False, False)
    assert panel.writing.output.value == panel.testing.output.value == ""


def test_a_result_of_earlier_settings_says_so(panel: Panel):
    press(panel, "generate")
    fresh = panel.writing.output.value
    assert "From earlier settings" not in fresh
    panel.psi.value, panel.prompt.value = 4, "Another"
    assert "From earlier settings. Changed since: prompt, wanted ψ." in panel.writing.output.value
    assert "opacity:.45" in panel.writing.output.value
    panel.psi.value, panel.prompt.value = ASKED.psi + 1e-15, ASKED.prompt  # as by arrow keys
    assert panel.writing.output.value == fresh, "the same settings again"
    panel.n_samples.value = 2
    press(panel, "generate")
    assert "opacity:.45" not in panel.writing.output.value


@pytest.fixture
def tested(panel: Panel) -> Panel:
    panel.text.value = "abcdefgh " * 3
    press(panel, "test")
    return panel


def test_edits_when_the_slider_is_let_go(tested: Panel, monkeypatch: pytest.MonkeyPatch):
    assert not tested.share.continuous_update
    plain = tested.testing.result.row["psi"]
    may_end, test = Event(), tested.session.test
    monkeypatch.setattr(tested.session, "test", lambda *a, **b: may_end.wait(60) and test(*a, **b))
    tested.share.value = 0.3
    tested.how.value = "delete at random"
    assert tested.testing.message.value == render.message(action.TAKEN), "the first is at work"
    may_end.set()
    tested.wait()
    assert "Changed since: edit." in tested.testing.output.value
    press(tested, "test")
    assert tested.error is None
    after = tested.testing.result
    assert (after.edit, after.row["n_tokens"]) == (Edit("delete at random", 0.3), 19)
    assert after.row["psi"] != plain
    html = unescape(tested.testing.output.value)
    assert "delete at random, 30% of the tokens:" in html
    assert f"ψ = {after.row['psi']:.3f}".replace("-", "−") in html
    assert f"Before the edit, by the paper's ψ: ψ = {plain:.2f}".replace("-", "−") in html
    tested.allowed.value = 0.1
    tested.wait()
    sharper = tested.testing.result
    assert (sharper.text, sharper.row["psi"] != after.row["psi"]) == (after.text, True)
    assert "tested for 10% replaced tokens" in tested.testing.output.value
    assert "Changed since" not in tested.testing.output.value
    assert tested.testing.message.value == ""
    tested.text.value = "something else"
    assert re.search("text to test.*opacity:.45", tested.testing.output.value, re.DOTALL)


def test_another_model_is_loaded(panel: Panel, monkeypatch: pytest.MonkeyPatch):
    assert list(panel.model.options)[:2] == ["tiny", "doclm"]
    press(panel, "generate")
    drawn = panel.session.wrong_key
    panel.n_tokens.value = 64 // 2
    panel.writing.say(action.STOPPED)
    panel.model.value = "doclm"
    panel.wait()
    assert (panel.error, panel.writing.message.value) == (None, "")
    assert (panel.session.lm.name, panel.session.wrong_key) == ("doclm", drawn)
    assert panel.weight.value == models.default_weight(panel.session.lm.model)
    assert panel.prompt.value == panel.session.prompts[0]
    fresh = Panel(panel.session, Question("A", panel.weight.value))
    fresh.psi.value = 4
    assert "documentation" in panel.opening.output.value
    assert "documentation" in fresh.opening.output.value
    assert "Changed since: model" in panel.writing.output.value
    monkeypatch.setattr(models, "load", lambda *_, **__: 1 / 0)
    panel.model.value = "tiny"
    panel.wait()
    assert panel.model.value == "doclm", "what could not be loaded is not chosen"
    assert "ZeroDivisionError" in panel.opening.message.value


def test_a_text_is_shown_while_it_is_written(panel: Panel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(action, "MOMENT", 0.0)
    drafts = []
    panel.writing.output.observe(lambda change: drafts.append(unescape(change["new"])), "value")
    press(panel, "generate")
    whole = panel.writing.result.text("watermarked")
    psis = panel.writing.result.curve.query("kind == 'watermarked' and key == 'this key'")["psi"]
    grown = [draft for draft in drafts if whole[:5] in draft and whole[:6] not in draft]
    assert f"ψ = {psis.iloc[0]:.1f} → {psis.iloc[1]:.1f}".replace("-", "−") in grown[0]


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_round_trip_is_a_button_where_apertium_is(session, is_installed, monkeypatch):
    monkeypatch.setattr(apertium, "is_installed", lambda: is_installed)
    panel = Panel(session, question=ASKED)
    assert ("To Spanish and back" in shown(panel)) == is_installed
    seen = []
    monkeypatch.setattr(session, "test", lambda *given, **_: seen.append(given[4]) or 1 / 0)
    panel.text.value = "abc"
    press(panel, "round_trip")
    assert seen == [Edit(playground.ROUND_TRIP, 1.0)]


def test_every_input_and_button_says_what_it_is_for(panel: Panel):
    for widget in parts(panel):
        is_input = isinstance(widget, w.Button | w.widget_description.DescriptionWidget)
        if is_input and not isinstance(widget, w.HTML | w.FloatProgress):
            assert all((widget.description, widget.tooltip)), widget
    assert "gaussmark-panel" in panel._dom_classes
    assert re.search("seeds: 0 to 1,000,000.*data-lm-suppress-s", shown(panel), re.DOTALL)


def test_the_app_ends_kernels_that_have_no_page():
    options = {f"--{option.partition('.')[2]}" for option in notebooks.APP_OPTIONS}
    assert {"--cull_idle_timeout=60", "--cull_interval=20", "--cull_connected=False"} < options


def test_a_broken_panel_shows_a_sentence(panel: Panel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(panel.session, "compare", lambda *_: 1 / 0)
    press(panel, "generate")
    assert "This did not work: ZeroDivisionError" in panel.writing.message.value
    assert ("Traceback" in shown(panel), panel.generate.disabled) == (False, False)
    assert isinstance(panel.error, ZeroDivisionError)
    monkeypatch.undo()
    press(panel, "generate")
    assert panel.writing.message.value == "", "and it works again"


def tokens(texts: list[str], evidence: list[float]) -> str:
    pieces = pd.DataFrame({"text": texts, "evidence": evidence, "log_p": -1.0, "n_tokens": 1})
    return render.tokens(playground.Tested("".join(texts), Edit(), {"psi": 0.0}, {}, pieces))


def test_text_is_escaped():
    html = tokens(["<script>", "&amp;", '"'], [0.4, -0.4, 0.0])
    assert ("<script>" in html, "&amp;amp;" in html) == (False, True)
    assert re.search(r'aria-label="[^"<>]*&lt;script&gt;[^"<>]*"', html)
    assert render.message('<b>"', is_error=True).count("<") == 2


def test_a_false_alarm_is_said(panel: Panel):
    press(panel, "generate")
    for said, is_said in (("not detected", False), ("detected", True)):
        [plain] = panel.writing.result.tested["plain"]
        plain.row["verdict"] = said
        assert (render.FALSE_ALARM in render.comparison(panel.writing.result)) == is_said


def test_a_caution_is_said_once(tested: Panel):
    tested.testing.result.row.update(power=None, warnings=[verdict.UNUSUAL])
    html = render.of_test(tested.testing.result)
    assert (html.count("unusual for"), html.count("<code>gaussmark audit</code>")) == (1, 1)


def test_evidence_is_shown_by_more_than_colour():
    html = tokens(["for", "against", "neither"], [2.0, -2.0, 0.0])
    for_it, against, neither = re.findall(r"<span[^>]*>", html)
    assert "solid" in for_it
    assert re.search('dotted.* title="evidence −2.000', against)
    assert "border" not in neither
    assert "0.00)" in neither, "no colour at all"
    assert 'title="evidence +2.000' in for_it
    assert len({re.search(r"rgba\(([\d,]+),", span)[1] for span in (for_it, against)}) == 2
