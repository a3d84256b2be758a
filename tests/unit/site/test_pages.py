"""What the site checks, and the pages that it makes."""

import nbformat
import pytest

from gaussmark_lib.experiments import claims
from gaussmark_lib.joint import batch, law
from gaussmark_lib.runs import folder
from gaussmark_lib.site import check, docstrings, pages, sources, written
from gaussmark_lib.stats import Estimate


@pytest.mark.parametrize(
    ("html", "faults"),
    [
        ('<img src="a.png" alt="ψ against σ">', 0),
        ('<img src="a.png">', 1),
        ('<img src="a.png" alt="">', 1),
        ('<img src="../_images/a.png" alt="figures/a.png">', 1),
        ('<script src="_static/a.js"></script><a href="https://arxiv.org">paper</a>', 0),
        (
            (
                '<script src="https://cdn.example/a.js"></script><link rel="stylesheet"'
                ' href="//cdn.example/a.css">'
            ),
            2,
        ),
        ('<link rel="canonical" href="https://example.org/">', 0),
    ],
)
def test_images_have_texts_and_nothing_is_fetched(tmp_path, html, faults):
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    found = check.faults(tmp_path)
    assert len(found) == faults
    assert all(fault.startswith("page.html: ") for fault in found)


def test_a_record_s_page_has_its_claims_figures_and_tables():
    run = folder.read(written.REFERENCE / "first_watermark")
    page = pages.record(run)
    assert page.startswith("# first_watermark\n")
    assert "](/notebooks/00_first_watermark.ipynb)" in page
    assert page.count(":alt: ") == len(folder.figures(run.dir)) == 2
    assert page.count("<details>") == 3
    assert f"and {48 - pages.ROWS} more in" in page
    claims = pages.record(folder.read(written.REFERENCE / "speed"))
    assert "✓ held" in claims
    assert "0.98</" not in claims.partition("What was expected")[0]


def test_every_module_has_a_place_in_the_reference():
    made = pages.modules()
    assert list(made)[:2] == ["errors", "checks"], "the map's order"
    assert ".. automodule:: gaussmark_lib.joint.law\n   :members:" in made["joint"]
    assert ":members:" in made["score"]


def test_presets_are_shown_by_kind():
    page = pages.all_presets()
    assert (
        page.index("## Presets")
        < page.index("### level_check_reference")
        < page.index("## Grids")
        < page.index("### level_check_grid")
    )


def test_what_is_indented_becomes_a_literal_block_and_arguments_stay():
    lines = [
        "A sum.",
        "",
        "    |a| + b",
        "",
        "See :func:`score.score` and ``a | b``, or |x|.",
        "",
        "Args:",
        "    x: a number.",
        "",
        "    y: another.",
    ]
    docstrings.mend(lines)
    assert lines[:5] == ["A sum.", "", "::", "", "    |a| + b"]
    several = ["Args:", "    psi: of each text. K: ``gram``. n, seed: of simulations, e.g. 9."]
    docstrings.mend(several)
    assert several == [
        "Args:",
        "    psi: of each text.",
        "    K: ``gram``.",
        "    n, seed: of simulations, e.g. 9.",
    ]
    assert lines[6:] == [
        r"See :func:`.score.score` and ``a | b``, or \|x\|.",
        "",
        "Args:",
        "    x: a number.",
        "",
        "    y: another.",
    ]


def test_signatures_are_those_of_the_file():
    assert docstrings.signature(batch.family) == (
        "(psi: ArrayLike, K: ArrayLike, *, n: int=9999, seed: int=0)",
        "Float[np.ndarray, ' texts']",
    )
    assert docstrings.signature(Estimate.row) == ("(name: str='')", "dict[str, float]")
    assert docstrings.signature(claims.verdict)[1] == "gaussmark_lib.experiments.claims.Verdict", (
        "there is another Verdict"
    )
    assert "wm: gaussmark_lib.watermark.Watermark" in docstrings.signature(law.gram)[0]


def test_outputs_that_need_a_kernel_are_left_out(tmp_path):
    widget = nbformat.v4.new_output(
        "execute_result", {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "Panel()"}
    )
    cell = nbformat.v4.new_code_cell(
        "panel", outputs=[widget, nbformat.v4.new_output("stream", text="kept")]
    )
    path = tmp_path / "a.ipynb"
    nbformat.write(
        nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_markdown_cell("# A"), cell], metadata={"widgets": {}}
        ),
        path,
    )
    shown = nbformat.reads(sources.without_widgets(path), as_version=4)
    assert [output.output_type for output in shown.cells[1].outputs] == ["stream"]
    assert "widgets" not in shown.metadata
