"""The playground as its reader meets it: driven in a kernel without a browser, and by hand and eye
in JupyterLab in Chromium.
"""

import re
from pathlib import Path

import legibility
import nbformat
import pytest
from playwright.sync_api import Page, expect

from gaussmark_lib import files, runs

NOTEBOOK = files.NOTEBOOKS / "11_playground.ipynb"
PATIENCE = 180_000  # ms
SMALL = {"n_tokens": 30, "n_samples": 1, "psi": 4.0}

DRIVE = """
import time
panel.wait()
assert panel.writing.stop.disabled and panel.result is None and "σ = " in panel.sigma_shown.value
before = panel.sigma_shown.value
panel.psi.value = 8
assert panel.sigma_shown.value != before

panel.generate.click()
assert panel.generate.disabled and panel.test.disabled and panel.new_key.disabled
assert not panel.writing.stop.disabled
panel.wait()
assert panel.writing.message.value == "", panel.writing.message.value
assert not panel.generate.disabled and panel.writing.stop.disabled
assert panel.result.question.psi == 8
assert "wrong key" in panel.writing.output.value and "<img" in panel.writing.output.value

panel.take.click()
panel.before.value = ""
panel.test.click()
panel.wait()
assert "without the key" in panel.testing.output.value
assert panel.tested.key_id == panel.key.key_id
panel.text.value = "Returns the value of the given key, or the default. " * 200
assert panel.testing.output.value == "" and panel.tested is None
panel.test.click()
panel.wait()
assert panel.testing.message.value == "", panel.testing.message.value
assert panel.tested.row["windows"] > 1
assert "is detected with probability" in panel.testing.output.value
panel.share.value = 0.3
panel.wait()
assert panel.edited[1] == 0.3, panel.editing.message.value
assert "30% of the tokens" in panel.editing.output.value, panel.editing.message.value

shown = panel.writing.output.value
panel.prompt.value = "  "
panel.generate.click()
panel.wait()
assert "expected a prompt" in panel.writing.message.value.lower()
assert "Traceback" not in panel.writing.message.value
assert shown in panel.writing.output.value, "what was shown stays"
assert "From earlier settings. Changed since: prompt." in panel.writing.note.value

theta = perturb.Watermark(weight, 1.0).on(lm.model).linear.sha256()
panel.prompt.value, panel.n_tokens.value = "The function", 120
panel.wait()
panel.generate.click()
while panel.writing.doing.value != "writing watermarked text":
    time.sleep(0.01)
panel.writing.stop.click()
panel.wait()
assert "Stopped" in panel.writing.message.value and shown in panel.writing.output.value
assert perturb.Watermark(weight, 1.0).on(lm.model).linear.sha256() == theta
print("driven")
"""

BROKEN = """
broken = playground.Session(lm, prompts, wrong_key)
broken.compare = lambda *_: 1 / 0
Panel(broken, question=question)
"""


def shortened(path: Path, **values: object) -> nbformat.NotebookNode:
    """The notebook up to its panel, with other defaults."""
    notebook = nbformat.read(path, as_version=4)
    last = next(
        i
        for i, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and "Panel(" in cell.source
    )
    notebook.cells = notebook.cells[: last + 1]
    declared = next(
        cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
    )
    for name, value in values.items():
        declared.source, n = re.subn(
            rf"^({name}: \w+ = )[^#]*#", rf"\g<1>{value!r}  #", declared.source, flags=re.MULTILINE
        )
        assert n == 1, name
    return notebook


def with_cell(notebook: nbformat.NotebookNode, source: str, path: Path) -> Path:
    notebook.cells.append(nbformat.v4.new_code_cell(source.strip()))
    nbformat.write(notebook, path)
    return path


@pytest.mark.slow
def test_driven_in_a_kernel(tmp_path: Path):
    """Sliders, Generate, Test, bad input and Stop, by the values and clicks that a browser would
    send.
    """
    path = with_cell(shortened(NOTEBOOK, **SMALL), DRIVE, tmp_path / "driven.ipynb")
    done = runs.run(path, progress=False, root=tmp_path / "runs")
    [last] = nbformat.read(done.dir / "notebook.ipynb", as_version=4).cells[-1].outputs
    assert last.text.endswith("driven\n")


@pytest.fixture(scope="module")
def page(lab: tuple[str, Path], open_and_run) -> Page:
    _, folder = lab
    with_cell(shortened(NOTEBOOK, **SMALL), BROKEN, folder / "playground.ipynb")
    return open_and_run("playground.ipynb")


@pytest.mark.browser
def test_generates_in_jupyterlab(page: Page, tmp_path: Path):
    panel = page.locator(".jp-OutputArea-output .widget-vbox").first
    sigma = panel.get_by_text(re.compile(r"^σ = "))
    expect(sigma).to_be_visible(timeout=PATIENCE)
    before = sigma.inner_text()
    slider = panel.locator(".widget-slider").filter(has_text="Wanted ψ").locator(".noUi-handle")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(panel.locator(".widget-readout").first).to_have_text("4.5")
    expect(sigma).not_to_have_text(before)
    expect(slider).to_have_attribute("aria-label", "Wanted ψ")
    page.keyboard.press("x")  # in command mode, JupyterLab's shortcut would cut the cell
    expect(slider).to_be_focused()
    panels = page.locator(".gaussmark-panel").count()
    panel.locator(".widget-label").filter(
        has_text="Tokens per text"
    ).click()  # what takes no focus by itself, as a slider's track does not
    page.wait_for_timeout(300)
    page.keyboard.press("x")
    expect(page.locator(".gaussmark-panel")).to_have_count(panels)

    expect(panel.get_by_role("button", name="Generate")).to_be_enabled(timeout=PATIENCE)
    panel.get_by_role("button", name="Generate").click()
    page.wait_for_timeout(300)
    page.keyboard.press("x")  # the pressed button was disabled, and has lost the focus
    expect(panel.get_by_text("Watermarked text, this key:")).to_be_visible(timeout=PATIENCE)
    expect(page.locator(".gaussmark-panel")).to_have_count(panels)
    expect(panel.get_by_text("for a wanted ψ of 4.5").first).to_be_visible()
    figure = panel.locator("img[src^='data:image/png']")
    expect(figure).to_have_attribute("src", re.compile("^data:image/png;base64,"))
    expect(figure).to_have_attribute("alt", re.compile("Where does each ψ lie"))
    assert figure.evaluate("image => image.naturalWidth") > 500
    assert figure.evaluate("image => image.width") >= 570, "its smallest words are 11 pixels high"
    plain, marked = (
        panel.get_by_text(re.compile(f"^{kind} text ψ =")).bounding_box()
        for kind in ("Plain", "Watermarked")
    )
    assert plain["y"] == marked["y"], "side by side"
    assert panel.locator("span[title^=evidence]").count() >= 2 * SMALL["n_tokens"] - 4, (
        "pieces of several tokens are rare"
    )
    expect(panel.get_by_role("button", name="Generate")).to_be_enabled()
    expect(panel.get_by_role("button", name="Stop").first).to_be_disabled()
    panel.screenshot(path=tmp_path / "generated.png")

    panel.get_by_role("button", name="Take the watermarked text").click()
    panel.get_by_role("button", name=re.compile("Test$")).click()
    expect(panel.get_by_text("A control key, which nobody writes with").nth(1)).to_be_visible(
        timeout=PATIENCE
    )
    panel.screenshot(path=tmp_path / "tested.png")
    share = panel.locator(".widget-slider").filter(has_text="Share edited").locator(".noUi-handle")
    share.focus()
    expect(share).to_have_attribute("aria-label", "Share edited")
    page.keyboard.press("ArrowRight")
    expect(panel.get_by_text("substitute at random, 15% of the tokens")).to_be_visible(
        timeout=PATIENCE
    )
    panel.screenshot(path=tmp_path / "edited.png")
    panel.get_by_role("button", name="New secret key").click()
    expect(panel.get_by_text("From earlier settings. Changed since: key.")).to_have_count(3)


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_every_word_can_be_read_in_both_themes(page: Page, theme: str, tmp_path: Path):
    """Also those of results, which the test before left."""
    page.evaluate(
        "async theme => { await window.jupyterapp.commands.execute('apputils:change-theme', { theme"
        " }) }",
        theme,
    )
    expect(page.locator("body")).to_have_attribute("data-jp-theme-name", theme, timeout=PATIENCE)
    panel = page.locator(".jp-OutputArea-output .widget-vbox").first
    panel.get_by_role("button", name="Key of this seed").click()  # nothing is dimmed
    expect(panel.get_by_text("From earlier settings")).to_have_count(0)
    panel.screenshot(path=tmp_path / "theme.png")
    assert legibility.faint(page) == {}
    assert legibility.small(page) == legibility.clipped(page) == []


@pytest.mark.browser
def test_by_keyboard_alone(page: Page):
    """From the prompt to a text that streams, Stop, and the whole result, without a mouse."""
    panel = page.locator(".jp-OutputArea-output .widget-vbox").first
    generate, stop = (
        panel.get_by_role("button", name="Generate"),
        panel.get_by_role("button", name="Stop").first,
    )
    expect(generate).to_be_enabled(timeout=PATIENCE)

    def tab_to(goal, key: str = "Tab") -> None:
        for _ in range(25):
            if goal.evaluate("one => one === document.activeElement"):
                return
            page.keyboard.press(key)
        raise AssertionError("it cannot be reached by Tab")

    sigma = panel.get_by_text(re.compile(r"^σ = "))
    length = panel.locator(".widget-slider").filter(has_text="Tokens").locator(".widget-readout")

    def write_as_many_tokens_as(n: int, key: str) -> None:
        """The slider's number can be typed. ‖G‖ is measured for the new length, so σ changes."""
        before = sigma.inner_text()
        tab_to(length, key)
        for key in ("ControlOrMeta+a", *str(n), "Enter"):
            page.keyboard.press(key)
        expect(sigma).not_to_have_text(before, timeout=PATIENCE)
        expect(generate).to_be_enabled(timeout=PATIENCE)

    panel.get_by_label("Prompt", exact=True).focus()
    write_as_many_tokens_as(200, "Tab")  # long texts: the work lasts while Stop is looked for
    tab_to(generate)
    page.keyboard.press("Enter")
    expect(stop).to_be_enabled(timeout=PATIENCE)
    tab_to(stop)
    page.keyboard.press("Enter")
    expect(panel.get_by_role("status").filter(has_text="Stopped.")).to_be_visible(timeout=PATIENCE)
    write_as_many_tokens_as(SMALL["n_tokens"], "Shift+Tab")
    tab_to(generate)
    page.keyboard.press("Enter")
    expect(panel.get_by_text(f"× {SMALL['n_tokens']} tokens, sampler's seed")).to_be_visible(
        timeout=PATIENCE
    )
    expect(generate).to_be_enabled(timeout=PATIENCE)


@pytest.mark.browser
def test_stop_is_heard_while_it_works(page: Page):
    """The kernel answers the click in the middle of the work, not after it."""
    panel = page.locator(".jp-OutputArea-output .widget-vbox").first
    expect(panel.get_by_role("button", name="Generate")).to_be_enabled(timeout=PATIENCE)
    panel.locator(".widget-slider").filter(has_text="Tokens").locator(".noUi-handle").focus()
    page.keyboard.press(
        "End"
    )  # as many as there can be: gradients are measured for this length first
    expect(panel.get_by_text(re.compile("^writing reference texts"))).to_be_visible(
        timeout=PATIENCE
    )
    panel.get_by_role("button", name="Stop").first.click()
    expect(panel.get_by_role("status").filter(has_text="Stopped.")).to_be_visible(timeout=PATIENCE)
    expect(panel.get_by_text("σ: will be solved for when you press Generate")).to_be_visible()
    expect(panel.get_by_role("button", name="Stop").first).to_be_disabled()


@pytest.mark.browser
def test_shows_a_sentence_when_it_breaks(page: Page):
    panel = page.locator(".jp-OutputArea-output .widget-vbox").filter(
        has=page.get_by_role("button", name="Generate")
    )
    broken = page.locator(".jp-CodeCell").last.locator(".widget-vbox").first
    expect(broken.get_by_role("button", name="Generate")).to_be_enabled(timeout=PATIENCE)
    broken.get_by_role("button", name="Generate").click()
    expect(broken.get_by_role("alert")).to_have_text(
        re.compile("This did not work: ZeroDivisionError"), timeout=PATIENCE
    )
    expect(broken.get_by_role("button", name="Generate")).to_be_enabled()
    assert "Traceback" not in page.locator(".jp-Notebook").inner_text()
    assert panel.count() >= 2
