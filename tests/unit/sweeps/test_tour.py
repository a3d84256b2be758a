"""The tour's page shows what every notebook gave, or that it failed, and is one file that needs
no other.
"""

import re
from html.parser import HTMLParser
from pathlib import Path

import legibility
import matplotlib.pyplot as plt
import nbformat
import pytest
import tracked
from small_notebooks import code, markdown, parameters, write

from gaussmark_lib import files, stats
from gaussmark_lib.workbench import cli, record, runs
from gaussmark_lib.workbench.runs import kernel
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.sweeps.tour import mathml, tour

CLAIM = r"""# {name}: one claim & more

**Claim.** An alarm at level $\alpha$ rings
rarely, where $\langle\xi, g\rangle$ is small.

**Time:** a minute"""
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
CHECK = {"check": "ψ is linear in ξ", "ok": True}
GOOD, BAD, NONE = "03_detectability", "05_quality", "06_robustness"


def _write(name: str, *cells, **hints) -> None:
    path = write(files.NOTEBOOKS / f"{name}.ipynb", *cells)
    node = nbformat.read(path, as_version=4)
    node.metadata["gaussmark"] = hints
    nbformat.write(node, path)


@pytest.fixture
def executed(tmp_path, monkeypatch) -> list[str]:
    """Three notebooks, of which the second fails and the third cannot start; the list fills with
    what was executed.
    """
    monkeypatch.setattr(files, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(notebooks.Notebook, "code", "tested")
    _write(GOOD, markdown(CLAIM.format(name="Zero")), parameters(), code("x"))
    _write(BAD, markdown(CLAIM.format(name="One")), parameters(), code("1 / 0"))
    _write(NONE, markdown("no heading here"))
    _write("solution", markdown("not numbered"))
    names = []

    def execute(path: Path, parameters, **options):
        names.append(path.parents[2].name)
        monkeypatch.setenv(record.RUN_DIR, options["env"][record.RUN_DIR])
        figure, axes = plt.subplots()
        axes.set(title="Power", xlabel="tokens", ylabel='TPR at "0.05"')
        record.save_figure(figure, "power")
        if "1 / 0" in path.read_text():
            error = RuntimeError("<b>boom</b>")
            error.traceback = ["\x1b[31mE\x1b[0m", "<b>boom</b>"]
            raise error
        estimate = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
        claim = {"claim": "power", "outcome": "not held", "expected": "at least 0.8"} | estimate
        record.headline("texts detected <at> level 0.05", stats.Estimate(0.95, 0.85, 0.98, 60))
        record.record({"σ": 0.15, "power": {"at 0.05": 0.9}, "claims": [claim], "checks": [CHECK]})

    monkeypatch.setattr(kernel, "execute", execute)
    return names


class Page(HTMLParser):
    """What a test wants to know about a page: each tag with its attributes, and the text."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.lines = [line.strip() for line in self.text.splitlines() if line.strip()]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_shows_what_came_of_each_notebook(tmp_path, executed, monkeypatch):
    monkeypatch.setattr(runs, "references", lambda name: [])
    done = tour(workers=1, progress=False, root=tmp_path / "runs")
    assert executed == [GOOD, BAD]
    assert [stop.name for stop in done.stops] == [GOOD, BAD, NONE]
    assert [stop.name for stop in done.failed] == [BAD, NONE]
    page = Page(done.page)
    assert "An alarm at level α rings\nrarely, where ⟨ξ,g⟩ is small." in page.text
    assert len(page.all("math")) == 4, "formulas are set, in each of two claims"
    assert "Time:" not in page.text
    assert "ψ = ⟨ξ, G⟩ / (σ‖G‖)" in page.text[: page.text.index("One headline per notebook")]
    at = page.lines.index("Does it work? 95% texts detected <at> level 0.05")
    assert page.lines[at + 1] == "(85% to 98%), n = 60 · notebook 03"
    assert "At what price?" not in page.text, "its notebook failed"
    at = next(i for i, line in enumerate(page.lines) if line.startswith("One headline"))
    assert page.lines[at + 1] == "notebookquantitylarger runthis run"
    assert page.lines[at + 2 : at + 9] == [
        *("Zero: one claim & more", "texts detected <at> level 0.05", "95% (85% to 98%), n = 60"),
        *("One: one claim & more", "✗ failed", NONE, "✗ failed"),
    ]
    assert "Expectations stated beforehand: 1 not held" in page.text
    assert "power✗ not held; expected at least 0.8\n0.50 (0.40 to 0.60), n = 9" in page.text
    assert "power · at 0.05" in page.text
    assert f"Theorems checked: 1{CHECK['check']}" in page.text
    assert "RuntimeError: <b>boom</b>" in page.text
    assert "E\n<b>boom</b>" in page.text, "the traceback, without colours"
    assert "expected exactly one code cell tagged 'parameters'" in page.text
    assert "2 failed" in page.text


def test_the_page_is_one_accessible_file(tmp_path, executed):
    done = tour(workers=1, progress=False, root=tmp_path / "runs")
    assert list(done.page.parent.iterdir()) == [done.page]
    page = Page(done.page)
    large = runs.references(GOOD)[0].headline
    assert f"Does it work? {large.value} {large.name}" in page.lines, "the larger run's leads"
    assert page.all("html")[0]["lang"] == "en"
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = [attributes["href"] for attributes in page.all("a")]
    assert {f"#{name}" for name in (GOOD, BAD, NONE)} <= set(links) <= {f"#{name}" for name in ids}
    assert len(page.all("img")) == 2
    for image in page.all("img"):
        assert image["src"].startswith("data:image/webp;base64,")
        assert image["alt"] == 'Power, TPR at "0.05" against tokens.'
        assert int(image["width"]) > 100
    assert not page.all("script")
    assert [tag for tag, _ in page.tags if tag in ("h1", "h2", "h3")] == ["h1", "h2", "h2", "h2"]


def test_every_formula_of_the_notebooks_is_set():
    n = 0
    for file in tracked.NOTEBOOKS:
        for cell in notebooks.load(file).cells:
            text = CODE.sub("", cell.source) if cell.kind == "markdown" else ""
            for match in FORMULA.finditer(text):
                element = mathml(match[1] or match[2])
                assert element.startswith("<math"), (file.name, match[0])
                assert "aligned" not in match[0], (file.name, match[0])
                assert "\\" not in element, (file.name, match[0])
                n += 1
    assert n > 300, f"formulas in {files.NOTEBOOKS}"
    assert '<mi>log</mi><mspace width="0.167em" /><mi>p' in mathml(r"\log p")
    assert "mspace" not in mathml(r"\log(p)") + mathml(r"\exp\left(p\right)")
    assert mathml(r"<\left(") == r"<code>&lt;\left(</code>", "a broken one stays as it is"


def test_the_longest_is_first_and_what_times_things_is_last(tmp_path, executed):
    cells = markdown(CLAIM.format(name="T")), parameters(), code("x")
    _write("07_long", *cells, seconds=90)
    _write("08_timings", *cells, seconds=200, alone=True)
    done = tour(workers=1, progress=False, root=tmp_path / "runs")
    assert executed == ["07_long", GOOD, BAD, "08_timings"]
    assert [stop.name for stop in done.stops] == [GOOD, BAD, NONE, "07_long", "08_timings"]


def test_a_second_tour_is_answered_from_records_unless_forced(tmp_path, executed, capsys):
    options = {"workers": 1, "progress": False, "root": tmp_path / "runs"}
    first, second = tour(**options), tour(**options)
    assert executed == [GOOD, BAD, BAD], "what failed is tried again"
    assert second.page != first.page
    assert ["from its record" in stop.outcome for stop in second.stops] == [True, False, False]
    assert not first.stops[0].run.cached
    words = ["tour", "--workers", "1", "--force", "--records", str(tmp_path / "runs")]
    assert cli.main(words) == cli.FAILED
    assert executed[3:] == [GOOD, BAD]
    lines = capsys.readouterr().out.splitlines()
    assert ["failed: " in line for line in lines[:3]] == [False, True, True]


def test_an_interrupted_tour_leaves_no_page(tmp_path, executed, monkeypatch, capsys):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("gaussmark_lib.workbench.sweeps.jobs.wait", stop)
    assert cli.main(["tour", "--records", str(tmp_path / "runs")]) == cli.INTERRUPTED
    printed = capsys.readouterr().err
    assert "interrupted; 1 of 3 notebooks are done" in printed, "the one that cannot start"
    assert not list((tmp_path / "runs").glob("tour-*"))


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_its_words_stand_out(tmp_path, executed, browser, width, scheme):
    """No sideways scrolling, every figure loads, nothing is fetched, and text has the contrast that
    WCAG asks for (4.5 to 1).
    """
    done = tour(workers=1, progress=False, root=tmp_path / "runs")
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    fetched = []
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(done.page.as_uri())
    page.evaluate("document.querySelectorAll('img').forEach(image => image.loading = 'eager')")
    page.wait_for_function("[...document.images].every(it => it.complete && it.naturalWidth)")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert all(url.startswith("file://") for url in fetched)
    assert legibility.faint(page, "p, a, td, th, h1, h2, .bad") == {}
