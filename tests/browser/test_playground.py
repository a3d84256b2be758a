"""The playground as its reader meets it: by hand and eye in JupyterLab in Chromium."""

import re
from pathlib import Path

import legibility
import nbformat
import pytest
from playwright.sync_api import Page, expect

from gaussmark_lib import files

NOTEBOOK = files.NOTEBOOKS / "11_playground.ipynb"
PATIENCE = 180_000  # ms
pytestmark = pytest.mark.browser
KINDS = ("Plain", "Watermarked")
SMALL = {"n_tokens": 30, "n_samples": 1, "psi": 4.0}


def shortened(path: Path, **values: object) -> nbformat.NotebookNode:
    """The notebook up to its panel, with other defaults."""
    notebook = nbformat.read(path, as_version=4)
    is_panel = [cell.cell_type == "code" and "Panel(" in cell.source for cell in notebook.cells]
    notebook.cells = notebook.cells[: is_panel.index(True) + 1]
    [declared] = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    for name, value in values.items():
        declaration = rf"(?m)^({name}: \w+ = )[^#]*#"
        declared.source, n = re.subn(declaration, rf"\g<1>{value!r}  #", declared.source)
        assert n == 1, name
    return notebook


@pytest.fixture(scope="module")
def page(lab: tuple[str, Path], open_and_run) -> Page:
    _, folder = lab
    nbformat.write(shortened(NOTEBOOK, **SMALL), folder / "playground.ipynb")
    return open_and_run("playground.ipynb")


def test_generates_in_jupyterlab(page: Page, tmp_path: Path):
    panel = page.locator(".jp-OutputArea-output .widget-vbox").first
    sigma = panel.get_by_text(re.compile(r"^σ[ :]"))
    expect(sigma).to_be_visible(timeout=PATIENCE)
    slider = panel.locator(".widget-slider").filter(has_text="Wanted ψ").locator(".noUi-handle")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(panel.locator(".widget-readout").first).to_have_text("4.5")
    expect(slider).to_have_attribute("aria-label", "Wanted ψ")
    page.keyboard.press("x")  # in command mode, JupyterLab's shortcut would cut the cell
    expect(slider).to_be_focused()
    panels = page.locator(".gaussmark-panel").count()
    # what takes no focus by itself, as a slider's track does not
    panel.locator(".widget-label").filter(has_text="Tokens per text").click()
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
    expect(sigma).to_have_text(re.compile(r"^σ = .* = 4\.5, ψ to first order$"))
    figure = panel.locator("img[src^='data:image/png']")
    expect(figure).to_have_attribute("src", re.compile("^data:image/png;base64,"))
    expect(figure).to_have_attribute("alt", re.compile("Where does each ψ lie"))
    assert figure.evaluate("image => image.naturalWidth") > 500
    assert figure.evaluate("image => image.width") >= 570, "its smallest words are 11 pixels high"
    plain, marked = (panel.get_by_text(re.compile(f"^{kind} text ψ =")) for kind in KINDS)
    assert plain.bounding_box()["y"] == marked.bounding_box()["y"], "side by side"
    # pieces of several tokens are rare
    assert panel.locator("span[title^=evidence]").count() >= 2 * SMALL["n_tokens"] - 4
    expect(panel.get_by_role("button", name="Generate")).to_be_enabled()
    expect(panel.get_by_role("button", name="Stop").nth(1)).to_be_disabled()
    panel.screenshot(path=tmp_path / "generated.png")

    panel.get_by_role("button", name="Take the watermarked text").click()
    panel.get_by_role("button", name=re.compile("Test$")).click()
    control = panel.get_by_text("For comparison, an unrelated key gives").nth(1)
    expect(control).to_be_visible(timeout=PATIENCE)
    panel.screenshot(path=tmp_path / "tested.png")
    share = panel.locator(".widget-slider").filter(has_text="Share edited").locator(".noUi-handle")
    share.focus()
    expect(share).to_have_attribute("aria-label", "Share edited")
    page.keyboard.press("ArrowRight")
    edit = panel.get_by_text("substitute at random, 5% of the tokens")
    expect(edit).to_be_visible(timeout=PATIENCE)
    panel.screenshot(path=tmp_path / "edited.png")
    panel.get_by_role("button", name="New secret key").click()
    expect(panel.get_by_text("From earlier settings. Changed since: key.")).to_have_count(2)


@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_every_word_can_be_read_in_both_themes(page: Page, theme: str, tmp_path: Path):
    """Also those of results, which the test before left."""
    change = "window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
    page.evaluate(f"async theme => {{ await {change} }}", theme)
    expect(page.locator("body")).to_have_attribute("data-jp-theme-name", theme, timeout=PATIENCE)
    panel = page.locator(".jp-OutputArea-output .widget-vbox").first
    panel.get_by_role("button", name="Key of this seed").click()  # nothing is dimmed
    expect(panel.get_by_text("From earlier settings")).to_have_count(0)
    panel.screenshot(path=tmp_path / "theme.png")
    assert legibility.faint(page) == {}
    assert legibility.small(page) == legibility.clipped(page) == []


def test_by_keyboard_alone(page: Page):
    """From the prompt to a text that streams, Stop, and the whole result, without a mouse."""
    panel = page.locator(".jp-OutputArea-output .widget-vbox").first
    generate = panel.get_by_role("button", name="Generate")
    stop = panel.get_by_role("button", name="Stop").nth(1)
    expect(generate).to_be_enabled(timeout=PATIENCE)

    def tab_to(goal, key: str = "Tab") -> None:
        for _ in range(25):
            if goal.evaluate("one => one === document.activeElement"):
                return
            page.keyboard.press(key)
        raise AssertionError("it cannot be reached by Tab")

    sigma = panel.get_by_text(re.compile(r"^σ[ :]"))
    length = panel.locator(".widget-slider").filter(has_text="Tokens").locator(".widget-readout")

    def write_as_many_tokens_as(n: int, key: str) -> None:
        """The slider's number can be typed. σ belongs to a length, so its line changes."""
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
    written = panel.get_by_text(f"of at most {SMALL['n_tokens']} tokens, sampler's seed")
    expect(written).to_be_visible(timeout=PATIENCE)
    expect(generate).to_be_enabled(timeout=PATIENCE)
