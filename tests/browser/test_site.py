"""The site: answers that are folded in JupyterLab stay folded, until a reader opens them, and their
formulas are set.
"""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser

from gaussmark_lib.files import NOTEBOOKS

pytest.importorskip("myst_nb", reason="needs the extra site")
NAME = "16_theory_in_full"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Notebook 16 as the site shows it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "notebooks").mkdir()
    (folder / "notebooks" / f"{NAME}.ipynb").symlink_to(NOTEBOOKS / f"{NAME}.ipynb")
    options = [f"--conf-dir={NOTEBOOKS / 'pages'}", f"--define=root_doc=notebooks/{NAME}"]
    command = [sys.executable, "-m", "sphinx", "--quiet", *options, folder, folder / "site"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "site" / "notebooks" / f"{NAME}.html"


def test_folded_answers_stay_folded_on_the_site(page: Path, browser: Browser):
    notebook = nbformat.read(NOTEBOOKS / f"{NAME}.ipynb", as_version=4)
    n_hidden = sum("hide-output" in cell.metadata.get("tags", []) for cell in notebook.cells)
    assert n_hidden >= 5
    shown = browser.new_page()
    shown.goto(page.as_uri())
    folded = shown.locator("details.hide")
    assert folded.count() == n_hidden
    assert shown.locator("details:not(.hide) math").count() == 2, "in two of the three answers"
    output = folded.first.locator(".cell_output, .output").first
    assert not output.is_visible()
    folded.first.locator("summary").click()
    assert output.is_visible()


def test_a_figure_is_enlarged_by_a_click_and_by_the_keyboard(page: Path, browser: Browser):
    shown = browser.new_page(viewport={"width": 360, "height": 740})
    shown.goto(page.as_uri())
    shown.locator("details.hide").evaluate_all("all => all.forEach(one => { one.open = true })")
    figure = shown.locator("article img").first
    figure.evaluate("image => { image.loading = 'eager'; return image.decode() }")
    dialog = shown.locator("dialog.enlarged")
    before = figure.bounding_box()["width"]
    assert before <= 360
    assert not dialog.is_visible()
    figure.click()
    enlarged = dialog.locator("img")
    assert enlarged.bounding_box()["width"] > 2 * before
    assert enlarged.get_attribute("alt") == figure.get_attribute("alt")
    shown.keyboard.press("Escape")
    assert not dialog.is_visible()
    figure.focus()
    shown.keyboard.press("Enter")
    assert dialog.is_visible()
    dialog.click()
    assert not dialog.is_visible()
    width = shown.evaluate("document.documentElement.scrollWidth")
    assert width == 360, "tables and formulas scroll by themselves"
