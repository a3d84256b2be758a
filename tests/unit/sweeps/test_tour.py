"""The tour's page shows what every notebook gave, or that it failed, and needs nothing outside its
folder.
"""

import base64
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import fake_dask
import matplotlib.pyplot as plt
import nbformat
import pytest
from PIL import Image
from small_notebooks import code, markdown, parameters, write

from gaussmark_lib import cli, paths, stats
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.runs import inside, kernel
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.sweeps import cards
from gaussmark_lib.sweeps.tour import tour

CLAIM = r"""# {name}: one claim & more

**Claim.** An alarm at level $\alpha$ rings
rarely, where $\langle\xi, g\rangle$ is small.

**Time:** a minute"""


@pytest.fixture
def executed(tmp_path, monkeypatch) -> list[str]:
    """Three notebooks, of which the second fails and the third cannot start; the list fills with
    what was executed.
    """
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(notebooks.Notebook, "code", "tested")
    write(
        paths.NOTEBOOKS / "00_good.ipynb",
        markdown(CLAIM.format(name="Zero")),
        parameters(),
        code("x"),
    )
    write(
        paths.NOTEBOOKS / "01_bad.ipynb",
        markdown(CLAIM.format(name="One")),
        parameters(),
        code("1 / 0"),
    )
    write(paths.NOTEBOOKS / "02_none.ipynb", markdown("no heading here"))
    write(paths.NOTEBOOKS / "solution.ipynb", markdown("not numbered"))
    names = []

    def execute(path: Path, parameters, **options):
        names.append(path.parent.parent.name)
        monkeypatch.setenv(inside.RUN_DIR, options["env"][inside.RUN_DIR])
        figure, axes = plt.subplots()
        axes.set(title="Power", xlabel="tokens", ylabel='TPR at "0.05"')
        inside.save_figure(figure, "power")
        if "1 / 0" in path.read_text():
            node = nbformat.read(path, as_version=4)
            node.cells[2].outputs = [
                nbformat.v4.new_output(
                    "error", ename="E", evalue="", traceback=["\x1b[31mE\x1b[0m", "<b>boom</b>"]
                )
            ]
            nbformat.write(node, path)
            raise RuntimeError("<b>boom</b>")
        inside.headline("texts detected <at> level 0.05", stats.Estimate(0.95, 0.85, 0.98, 60))
        claim = {
            "claim": "power",
            "outcome": "not held",
            "value": 0.5,
            "low": 0.4,
            "high": 0.6,
            "n": 9,
            "expected": "at least 0.8",
            "needed": None,
        }
        inside.record(
            {
                "p_value": 3.21e-5,
                "power": {"at 0.05": 0.9},
                "trace": [71.25, 2.5],
                "claims": [claim],
            }
        )

    monkeypatch.setattr(kernel, "execute", execute)
    return names


class Page(HTMLParser):
    """What a test wants to know about a page: each tag with its attributes, and the text."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_shows_what_came_of_each_notebook(tmp_path, executed):
    done = tour(workers=1, progress=False, root=tmp_path / "runs")
    assert executed == ["00_good", "01_bad"]
    assert [stop.name for stop in done.stops] == ["00_good", "01_bad", "02_none"]
    assert [stop.name for stop in done.failed] == ["01_bad", "02_none"]
    page = Page(done.page)
    assert "Zero: one claim & more" in page.text
    assert "An alarm at level α rings\nrarely, where ⟨ξ,g⟩ is small." in page.text
    assert len(page.all("math")) == 4, "formulas are set, in each of two claims"
    assert "Time:" not in page.text
    assert "Of 1 expectation stated beforehand: 1 not held" in page.text
    assert "exceeds 1.645 with probability 5%" in page.text
    assert "power✗ not held; expected at least 0.8\n0.50 (0.40 to 0.60), n = 9" in page.text
    assert "3.21 × 10^−5" in page.text
    assert "71.25" not in page.text[: page.text.index("Everything it recorded")], (
        "lists are for who asks"
    )
    assert "power · at 0.05" in page.text
    assert "RuntimeError: <b>boom</b>" in page.text
    assert "E\n<b>boom</b>" in page.text, "the traceback, without colours"
    assert "expected exactly one code cell tagged 'parameters'" in page.text
    assert "2 failed" in page.text
    assert [attributes["id"] for attributes in page.all("article")] == [
        "00_good",
        "01_bad",
        "02_none",
    ]


def test_the_page_begins_with_what_it_is_about_and_the_headlines(tmp_path, executed, monkeypatch):
    monkeypatch.setattr(
        cards,
        "QUESTIONS",
        {"Does it work?": "00_good", "At what price?": "01_bad", "How fast?": "99_none"},
    )
    page = Page(tour(workers=1, progress=False, root=tmp_path / "runs").page)
    assert "ψ = ⟨ξ, G⟩ / (σ‖G‖)" in page.text[: page.text.index("One headline a notebook")]
    lines = [line.strip() for line in page.text.splitlines() if line.strip()]
    assert "Does it work? 95% of texts detected <at> level 0.05" in lines
    assert "(85% to 98%), n = 60 · notebook 00" in lines
    assert "At what price?" not in page.text, "its notebook failed"
    at = next(i for i, line in enumerate(lines) if line.startswith("One headline a notebook"))
    assert lines[at + 1 : at + 8] == [
        "Zero: one claim & more",
        "texts detected <at> level 0.05",
        "95% (85% to 98%), n = 60",
        "One: one claim & more",
        "✗ failed",
        "02_none",
        "✗ failed",
    ]
    links = [attributes["href"] for attributes in page.all("a")]
    assert links[:4] == ["#00_good", "#00_good", "#01_bad", "#02_none"]


def test_one_file_has_all_but_the_notebooks(tmp_path, executed):
    done = tour(workers=1, progress=False, root=tmp_path / "runs", single=tmp_path / "one.html")
    whole, page = Page(done.page), Page(tmp_path / "one.html")
    assert [image["src"][:23] for image in page.all("img")] == ["data:image/webp;base64,"] * 2
    assert [image["alt"] for image in page.all("img")] == [
        image["alt"] for image in whole.all("img")
    ]
    assert all(link["href"].startswith("#") for link in page.all("a"))
    with (
        Image.open(BytesIO(base64.b64decode(page.all("img")[0]["src"][23:]))) as image,
        Image.open(next(done.dir.glob("figures/00*"))) as file,
    ):
        assert image.size == file.size
    for wrong in (tmp_path, tmp_path / "none" / "one.html", ""):
        with pytest.raises(GaussMarkError, match="expected the name"):
            tour(workers=1, progress=False, root=tmp_path / "runs", single=wrong)
    assert len(list((tmp_path / "runs").glob("tour-*"))) == 1, "a wrong name is refused first"


def test_an_executed_notebook_shows_the_pages_figures_and_its_links_lead_on(tmp_path, executed):
    links = "[on](01_bad.ipynb#1) [the guide](../README.md) [the web](https://example.org) $x^2$"
    good = paths.NOTEBOOKS / "00_good.ipynb"
    write(
        good,
        markdown(CLAIM.format(name="Zero")),
        markdown(links),
        parameters(),
        code('runs.save_figure(figure, "power")'),
    )
    node = nbformat.read(good, as_version=4)
    picture, widget = (
        {"image/png": "AAAA", "text/plain": "<Figure>"},
        {
            "application/vnd.jupyter.widget-view+json": {},
            "text/plain": "Panel",
        },
    )
    node.cells[-1].outputs = [
        nbformat.v4.new_output("display_data", data=data) for data in (picture, widget)
    ]
    nbformat.write(node, good)
    page = Page(
        tour(workers=1, progress=False, root=tmp_path / "runs").dir / "notebooks" / "00_good.html"
    )
    assert [image["src"] for image in page.all("img")] == ["../figures/00_good-power.webp"]
    assert page.all("img")[0]["alt"] == 'Power, TPR at "0.05" against tokens.'
    assert [link["href"] for link in page.all("a")] == [
        "../index.html#00_good",
        "01_bad.html#1",
        "https://example.org",
    ]
    assert "the guide" in page.text
    assert page.all("msup")
    assert not page.all("script")
    assert "Panel" not in page.text


def test_the_page_is_whole_in_its_folder_and_accessible(tmp_path, executed):
    folder = tour(workers=1, progress=False, root=tmp_path / "runs").dir
    folder = folder.rename(tmp_path / "moved elsewhere")
    page = Page(folder / "index.html")
    assert page.all("html")[0]["lang"] == "en"
    assert page.all("meta")[1]["name"] == "viewport"
    links = [attributes["href"] for attributes in page.all("a")]
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {"#00_good", "#01_bad", "#02_none"} <= set(links)
    images = page.all("img")
    assert len(images) == 2
    for link in links + [image["src"] for image in images]:
        assert link[1:] in ids if link.startswith("#") else (folder / link).is_file(), link
    for image in images:
        assert image["alt"] == 'Power, TPR at "0.05" against tokens.'
        assert int(image["width"]) > 100
    assert "http" not in (folder / "index.html").read_text()
    assert not page.all("script")
    levels = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3")]
    assert levels == [1, 2, 2, 2]
    assert page.all("nav")[0]["aria-label"]
    assert "One: one claim" in Page(folder / "notebooks" / "01_bad.html").text


def _say_to_the_tour(name: str, **words) -> None:
    path = paths.NOTEBOOKS / f"{name}.ipynb"
    node = nbformat.read(path, as_version=4)
    node.metadata["gaussmark"] = words
    nbformat.write(node, path)


def test_side_by_side_the_longest_is_first_and_what_times_things_is_last(
    tmp_path, executed, monkeypatch
):
    """Without workers; the page is the same as that of one notebook after another."""
    fake_dask.use(monkeypatch)
    for name in ("03_long", "04_timings", "05_short"):
        write(
            paths.NOTEBOOKS / f"{name}.ipynb",
            markdown(CLAIM.format(name=name)),
            parameters(),
            code("x"),
        )
    _say_to_the_tour("03_long", seconds=90)
    _say_to_the_tour("04_timings", alone=True, seconds=200)
    done = tour(workers=2, progress=False, root=tmp_path / "runs")
    assert executed == ["03_long", "00_good", "01_bad", "05_short", "04_timings"]
    assert [stop.name for stop in done.stops] == [
        "00_good",
        "01_bad",
        "02_none",
        "03_long",
        "04_timings",
        "05_short",
    ]
    assert [stop.name for stop in done.failed] == ["01_bad", "02_none"]
    assert "E\n<b>boom</b>" in Page(done.page).text
    again = tour(workers=2, progress=False, root=tmp_path / "runs")
    assert executed[5:] == ["01_bad"]
    assert [bool(stop.run and stop.run.cached) for stop in again.stops] == [
        True,
        False,
        False,
        True,
        True,
        True,
    ]


def test_a_second_tour_is_answered_from_records_unless_forced(tmp_path, executed):
    first = tour(workers=1, progress=False, root=tmp_path / "runs")
    second = tour(workers=1, progress=False, root=tmp_path / "runs")
    assert executed == ["00_good", "01_bad", "01_bad"], "what failed is tried again"
    assert second.dir != first.dir
    assert "from its record" in Page(second.page).text
    tour(workers=1, progress=False, root=tmp_path / "runs", force=True)
    assert executed[3:] == ["00_good", "01_bad"]
    folders = [
        path for path in (tmp_path / "runs").iterdir() if path.name.startswith((".", "tour-"))
    ]
    assert len(folders) == 3
    assert all((folder / "index.html").exists() for folder in folders)


def test_an_interrupted_tour_leaves_no_page(tmp_path, executed, monkeypatch, capsys):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(kernel, "execute", stop)
    assert (
        cli.main(["tour", "--workers", "1", "--records", str(tmp_path / "runs")]) == cli.INTERRUPTED
    )
    assert "interrupted; 1 of 3 notebooks are done" in capsys.readouterr().err, (
        "the one that cannot start"
    )
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["00_good"]


def test_the_command_prints_outcomes_and_where_the_page_is(tmp_path, executed, capsys):
    assert cli.main(["tour", "--workers", "1", "--records", str(tmp_path / "runs")]) == cli.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["00_good", "01_bad", "02_none"]
    assert lines[-1].startswith("The tour is in ")
    assert Path(lines[-1].removeprefix("The tour is in ")).is_file()
    for name in ("01_bad", "02_none"):
        (paths.NOTEBOOKS / f"{name}.ipynb").unlink()
    assert cli.main(["tour", "--workers", "1", "--records", str(tmp_path / "runs")]) == 0


def test_no_notebooks_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    with pytest.raises(GaussMarkError, match="found none"):
        tour(root=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_its_words_stand_out(tmp_path, executed, browser, width, scheme):
    """No sideways scrolling, every figure loads, nothing is fetched, and text has the contrast that
    WCAG asks for (4.5 to 1).
    """
    done = tour(workers=1, progress=False, root=tmp_path / "runs")
    with browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme
    ) as context:
        page = context.new_page()
        fetched = []
        page.on("request", lambda request: fetched.append(request.url))
        page.goto(done.page.as_uri())
        page.evaluate("document.querySelectorAll('img').forEach(image => image.loading = 'eager')")
        page.wait_for_function(
            "[...document.images].every(image => image.complete && image.naturalWidth)"
        )
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert all(url.startswith("file://") for url in fetched)
        colours = page.evaluate(
            """() => [...document.querySelectorAll('p, a, td, th, figcaption, h1, h2, .bad, .good')].map(element => {
                let behind = element
                while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement
                return [element.textContent, getComputedStyle(element).color, getComputedStyle(behind).backgroundColor]
            })"""
        )
        for text, *pair in colours:
            dark, light = sorted(map(_luminance, pair))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, pair)


def _luminance(colour: str) -> float:
    """The relative luminance of ``rgb(r, g, b)`` as WCAG defines it."""
    channels = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
