"""Several runs side by side."""

import pytest
from PIL import Image

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench import claims
from gaussmark_lib.workbench.cli import main
from gaussmark_lib.workbench.sweeps.comparison import MISSING, NOTE, compare


def a_record(root, name, sigma, value, **extra):
    folder = root / name
    (folder / "figures").mkdir(parents=True)
    finding = claims.finding(
        "ψ < its law", Estimate(value, value - 0.1, value + 0.1, 300), most=2, law=2.0
    )
    times = {"started": "2026-01-02T03:04", "finished": "2026-01-02T03:05", "seconds": 60}
    files.write_json(folder / "params.json", {"model": "doclm", "sigma": sigma, "<b>": 1} | extra)
    files.write_json(folder / "results.json", {"claims": [finding.row()], "cost": value})
    files.write_json(folder / "status.json", {"status": "complete"} | times)
    Image.new("RGB", (8, 6), "orange").save(folder / "figures" / "edits.png")
    return folder


@pytest.fixture
def root(tmp_path):
    a_record(tmp_path, NAMES[0], 0.1, 1.0)
    a_record(tmp_path, NAMES[1], 0.2, 1.5, more=[1, 2])
    return tmp_path


NAMES = ["06_robustness/aaa", "06_robustness/a_second_one"]


def test_only_parameters_that_differ_are_shown(root):
    table = compare(NAMES, root).parameters
    assert table.index.tolist() == ["sigma", "more"]
    assert table.loc["sigma"].tolist() == ["0.1", "0.2"]
    assert table.loc["more"].tolist() == [MISSING, "1, 2"]


def test_the_page_has_everything_and_escapes_what_runs_wrote(root, tmp_path):
    page = compare(NAMES, root).save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("data:image/webp;base64,") == 2
    assert "ψ &lt; its law" in page
    assert "<b>" not in page
    assert page.index("Parameters that differ") < page.index("Findings") < page.index("Figures")
    assert page.count(NOTE) == 1, "a parameter that the first run does not have"


@pytest.mark.browser
def test_the_page_fits_a_phone_and_a_click_enlarges_a_figure(root, tmp_path, browser):
    Image.new("RGB", (800, 600)).save(root / NAMES[0] / "figures" / "lone.png")
    shown = browser.new_page(viewport={"width": 390, "height": 800})
    shown.goto(compare(NAMES, root).save(tmp_path / "page.html").as_uri())
    assert shown.evaluate("document.documentElement.scrollWidth") == 390
    shown.locator("article img").last.click()
    assert shown.locator("dialog img").bounding_box()["width"] == 960
    shown.keyboard.press("Escape")
    shown.set_viewport_size({"width": 1280, "height": 800})
    assert 300 < shown.locator("article img").last.bounding_box()["width"] < 640, "a half"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (NAMES[:1], "at least two records"),
        (NAMES[:1] * 2, "same name twice"),
        (["06_robustness/aaa", "06_robustness/aab"], "did you mean 06_robustness/aaa"),
    ],
)
def test_what_cannot_be_compared_is_refused(root, names, message):
    with pytest.raises(GaussMarkError, match=message):
        compare(names, root)


def test_records_of_two_notebooks_are_refused(root):
    a_record(root, "reference/quality_judged", 0.1, 1.0)
    found = "one notebook, got 06_robustness/aaa of 06_robustness, reference/quality_judged of 05_q"
    with pytest.raises(GaussMarkError, match=found):
        compare([NAMES[0], "reference/quality_judged"], root)
    files.write_json(a_record(root, "copy/c", 1, 1) / "params.json", {"n_judged": 3})
    with pytest.raises(GaussMarkError, match="no parameter in common"):
        compare([NAMES[0], "copy/c"], root)


def test_the_command_prints_the_tables_and_names_its_page(root, capsys, tmp_path):
    page = tmp_path / "c.html"
    command = ["compare", *NAMES, "--records", str(root), "--html"]
    assert main([*command, str(tmp_path / "no folder" / "c.html")]) != 0
    printed = capsys.readouterr()
    assert (printed.out, "cannot write" in printed.err) == ("", True), "before any table"
    assert main([*command, str(page)]) == 0
    printed = capsys.readouterr().out
    assert NOTE in printed
    assert "parameters that differ\n  sigma\n" in printed
    for interval in ("1.00 (0.90 to 1.10)", "1.50 (1.40 to 1.60)"):
        assert f"{interval}, n = 300: held, but differs from 2" in " ".join(printed.split())
    assert str(page) in printed
    assert page.exists()
