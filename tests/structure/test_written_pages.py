"""The site's written pages: their numbers are those of the reference records. Sphinx checks their
links when CI builds the site.
"""

import importlib.util
import json
import shutil
from types import SimpleNamespace

import jinja2
import pandas as pd
import pytest
from PIL import Image

from gaussmark_experiments import references
from gaussmark_experiments.after_release import MEAN
from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench import words

PAGES = files.NOTEBOOKS / "pages"


def _conf():
    """The site's settings, which import nothing of Sphinx."""
    specification = importlib.util.spec_from_file_location("conf", PAGES / "conf.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


CONF = _conf()
README = (files.ROOT / "README.md").read_text(encoding="utf-8")
RECORDS = references.records()
SECURITY = (files.ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_a_page_says_what_its_record_says(tmp_path):
    law = (PAGES / "short_paper.md").read_text(encoding="utf-8")
    shutil.copytree(CONF.REFERENCE, tmp_path, dirs_exist_ok=True)
    assert CONF.filled(law, tmp_path) == CONF.filled(law)
    path = tmp_path / "one_key_in_production" / "results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    results["audit"]["source"]["max ψ"] = 0.123
    path.write_text(json.dumps(results), encoding="utf-8")
    row = "| source | 150 | 0.697 | 14.3% | 14.1% | 1.8% | 1.8% | 12% |"
    assert row in CONF.filled(law, tmp_path)
    assert len(CONF.filled(law).split()) < 2_500


def test_the_page_of_figures_shows_each_figure_with_its_title_and_its_sentence(tmp_path):
    page = CONF.filled((PAGES / "figures.md").read_text(encoding="utf-8"))
    paths = sorted(CONF.REFERENCE.glob("*/figures/*.png"))
    assert len(paths) > 50
    for path in paths:
        assert page.count(f"](/{path.relative_to(files.ROOT).as_posix()})") == 1
    assert page.index("## SmolLM2") < page.index("02_level_check.ipynb") < page.index("## doclm")
    assert "**Which of the three has a ψ beyond the threshold?**" in page
    assert "plain (mean -0.00). doclm, model.layers.4.mlp.down\\_proj.weight; 250 pairs" in page
    Image.new("L", (1, 1)).save(tmp_path / "bare.png")
    with pytest.raises(ValueError, match="expected a description in the file"):
        CONF._figure(tmp_path / "bare.png")


def test_a_number_of_a_page_is_the_mean_of_the_rows_of_its_table(tmp_path):
    run = CONF.folder.Run(tmp_path, "a run", {}, {}, {})
    table = {"p": [0.01, 0.04, 0.2, 0.3], "kind": ["a", "a", "a", "b"], "key": [0, 0, 1, 1]}
    pd.DataFrame(table).to_parquet(tmp_path / "t.parquet")
    assert CONF._measured(run, "t", "p", 0.05, kind="a").startswith("67% (")
    assert CONF._measured(run, "t", "p", kind="a").startswith("0.08 (")
    assert CONF._measured(run, "t", "p", cluster="key").endswith(", n = 2")
    with pytest.raises(GaussMarkError, match="expected at least one"):
        CONF._measured(run, "t", "p", kind="c")


def test_the_site_prints_the_short_paper_if_there_is_a_browser(tmp_path, monkeypatch):
    pages = tmp_path / "notebooks" / "pages"
    pages.mkdir(parents=True)
    browser = tmp_path / "browser"  # "prints" by copying the page, its last argument, to the PDF
    browser.write_text('#!/bin/sh\ncp "${6#file://}" "${5#--print-to-pdf=}"\n')
    browser.chmod(0o755)
    monkeypatch.setattr(CONF, "CHROMIUM", str(browser))
    CONF._print(SimpleNamespace(outdir=tmp_path), None)
    assert list(pages.iterdir()) == []
    link = '<a href="https://c">c</a>'
    (pages / "short_paper.html").write_text(f'<a id="a" href="b.html">b</a> {link}')
    CONF._print(SimpleNamespace(outdir=tmp_path), None)
    assert sorted(path.name for path in pages.iterdir()) == ["short_paper.html", "short_paper.pdf"]
    assert (pages / "short_paper.pdf").read_text() == f'<a id="a" >b</a> {link}'


def test_the_page_of_the_bench_prints_its_record_if_there_is_one(tmp_path):
    text = (PAGES / "bench.md").read_text(encoding="utf-8")
    assert "There is no reference record yet" in CONF.filled(text, tmp_path)
    estimate = {"scheme": "KGW-1", "value": 0.5, "low": 0.25, "high": 0.75, "n": 40}
    rates = [estimate | {"column": "clean", "level": level} for level in (0.01, 0.001)]
    contents = {
        "params": {"n_pairs": 40, "text": "news"},
        "status": {"status": "complete", "finished": "2026-01-02T03:04"},
        "results": {
            "schemes": ["KGW-1"],
            "columns": ["clean", "rewritten"],
            "rates": rates,
            "prices": [estimate | {"price": "kl"}, estimate | {"price": "change", "low": None}],
            "tokens": [{"scheme": "KGW-1", "in_words": "at most 25"}],
            "price": {"title": "Tiny", "n_tokens": 9, "sigma": 0.1, "nats": 0.2, "n_pilot": 8},
        },
    }
    contents["results"]["likeness"] = [estimate | {"way": "by Gemma", "quantity": "meaning"}]
    for record, n in {"bench_smollm2": 1, "bench_rewriting_smollm2": 2}.items():
        (tmp_path / record).mkdir()
        for name, content in contents.items():
            (tmp_path / record / f"{name}.json").write_text(json.dumps(content))
        filled = CONF.filled(text, tmp_path)
        assert filled.count("| KGW-1 | 50% (25% to 75%), n = 40 | – |") == 2 * n
        assert filled.count("| KGW-1 | 0.500 (0.250 to 0.750) | 0.500 | at most 25 |") == n
    assert "| by Gemma | 0.50 (0.25 to 0.75) |" in filled


def test_the_page_on_real_models_prints_what_is_recorded(tmp_path):
    page = (PAGES / "doclm_and_real_models.md").read_text(encoding="utf-8")
    for path in CONF.REFERENCE.iterdir():
        if path.name != "likeness.json":
            (tmp_path / path.name).symlink_to(path)
    sigma_of = "| σ ÷ standard deviation of the weight, for a predicted ψ of 4 in 100 tokens |"
    assert f"{sigma_of} not recorded yet |" in CONF.filled(page, tmp_path)
    half = {"value": 0.5, "low": 0.4, "high": 0.6}
    row = {
        "design": {"n_pairs": 24, "n_tokens": 100, "n_kind": 16},
        "sd of the weight": 0.2,
        "cosine": dict.fromkeys(("docs", "licences", "source", "speeches", "news"), half),
        "detected": {"edited": half},
    }
    named = ("entropy", "largest over smallest norm", "kept at a low temperature")
    row |= dict.fromkeys((*named, "kept after substitution"), half)
    sigmas = {"doclm": 0.8, "smollm2": 0.2, "gemma-3-270m": 0.2}
    rows = {model: row | {"sigma": sigma} for model, sigma in sigmas.items()}
    (tmp_path / "likeness.json").write_text(json.dumps(rows), encoding="utf-8")
    text = CONF.filled(page, tmp_path)
    assert f"{sigma_of} 4.00 | 1.00 | 1.00 |" in text
    assert "**Not alike.** Never copy σ from doclm" in text
    assert "**Alike.** The share that an edit leaves on doclm" in text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{{ headline("no_such") }}', KeyError),
        ('{{ claim("speed", "no such claim") }}', ValueError),
        ('{{ records["speed"].results["no such number"] }}', jinja2.UndefinedError),
    ],
)
def test_what_a_record_does_not_have_is_an_error(text, error):
    with pytest.raises(error):
        CONF.filled(text)


def test_formulas_of_docstrings_are_set_other_blocks_are_literal_and_arguments_stay():
    lines = [
        *("A sum.", "", "    |a| + b", "", "See :func:`score.score`, |x|::", "", "    code(x)", ""),
        *("A law:", "", "    p_θ = √(n(1 − γ)),   X^(b) ~ N(0, σ² I) of shape (d_out, K_ij)", ""),
        *("    y = Σ_t log f(y_<t)", "", "Args:", "    x: a"),
    ]
    CONF._set(None, "", "", None, None, lines)
    assert lines == [
        *("A sum.", "", "::", "", "    |a| + b", ""),
        *(r"See :func:`.score.score`, \|x\|::", "", "    code(x)", "", "A law:", ""),
        *(".. math::", ""),
        r"   p_{θ} = \sqrt{n(1 - γ)}, \quad X^{(b)} \sim  N(0, σ^2  I) \text{ of shape }"
        r" (d_{out}, K_{ij})",
        *("", ".. math::", "", r"   y = \sum _{t} \log\,  f(y_{<t})", "", "Args:", "    x: a"),
    ]


def test_formulas_are_set_in_html_too_and_one_that_is_left_ends_the_build():
    html = r"<details>about $\sqrt2 &lt; x$, <code>$HOME $x</code>, $ 5</details>"
    done = CONF._set_formulas(html)
    assert "<msqrt><mn>2</mn></msqrt><mo>&#x0003C;</mo>" in done
    assert done.endswith("</math>, <code>$HOME $x</code>, $ 5</details>")
    CONF._check(None, "page", "", {"body": done}, None)
    with pytest.raises(ValueError, match="page: expected formulas that are set"):
        CONF._check(None, "page", "", {"body": html}, None)


def test_the_front_page_begins_with_the_picture_and_the_library_with_its_core():
    page = CONF.filled((PAGES / "index.md").read_text(encoding="utf-8"))
    assert "](/notebooks/pages/first_glance.png)\n\n*SmolLM2 answers" in page[:400]
    assert page.index("GaussMark (Block") < page.index("**Try it**") < page.index("{toctree}")
    page = CONF.filled((PAGES / "library.md").read_text(encoding="utf-8"))
    headings = [line.removeprefix("## ") for line in page.splitlines() if line[:3] == "## "]
    assert (headings[:3], headings[-1]) == (["models", "texts", "tokens"], "engine")
    for name in ("beyond", "workbench", "experiments"):
        assert "automodule:: gaussmark_" in CONF.filled((PAGES / f"library_{name}.md").read_text())


def results(reference=CONF.REFERENCE) -> str:
    """The table of results by model, as the page has it."""
    page = CONF.filled((PAGES / "results.md").read_text(encoding="utf-8"), reference)
    return "\n".join(line for line in page.splitlines() if line.startswith("|"))


def test_the_readme_has_the_table_of_results_that_the_records_make():
    assert results() in README


def test_a_result_without_a_record_is_said_to_be_missing(tmp_path):
    reference = tmp_path / "reference"
    shutil.copytree(CONF.REFERENCE, reference)
    before = results(reference)
    shutil.copytree(reference / "robustness", reference / "robustness_smollm2", dirs_exist_ok=True)
    path = reference / "robustness_smollm2" / "results.json"
    recorded = json.loads(path.read_text(encoding="utf-8"))
    recorded["headline"] |= {"value": 0.311, "low": 0.3, "high": 0.325}
    path.write_text(json.dumps(recorded), encoding="utf-8")
    [smollm2] = [line for line in results(reference).splitlines() if "SmolLM2" in line]
    assert "31.1% (30.0% to 32.5%)" in smollm2
    assert "31.1%" not in before
    shutil.rmtree(reference / "detectability")
    [doclm] = [line for line in results(reference).splitlines() if "doclm" in line]
    assert doclm.startswith("| doclm 6M | – | +0.062")


def test_the_length_at_which_half_is_detected_is_interpolated():
    def run(*shares: float) -> SimpleNamespace:
        rows = [
            {"kind": "own key", "level": "level 0.01", "n_tokens": 100 * i, "value": share}
            for i, share in enumerate(shares)
        ]
        other = [row | {"kind": "wrong key", "value": 0.0} for row in rows]
        return SimpleNamespace(id="a run", results={"power": other + rows[::-1]})

    assert CONF._half_detected(run(0.0, 0.2, 0.6, 0.9), "level 0.01") == 175
    for shares in ((0.1, 0.2), (0.6, 0.9)):
        with pytest.raises(ValueError, match="a run: expected a length"):
            CONF._half_detected(run(*shares), "level 0.01")


def test_a_short_number_loses_no_digit_but_a_leading_zero():
    assert CONF._short({"value": 10.44, "low": -0.05, "high": 20.4}) == "10.44 (−.05 to 20.40)"


def test_security_prints_the_figures_of_attacks_on_smollm2():
    """The page is read where it lies, so its numbers are typed."""
    attacks = RECORDS["after_release_attacks_smollm2"].results
    merged = RECORDS["after_release_more_attacks_smollm2"].results["texts"][MEAN]
    texts, nats = attacks["texts"], attacks["nats"]
    phrases = [
        f"{CONF._short(texts['fine-tuned, 40 steps'])} after 40 steps of full fine-tuning",
        f"{CONF._short(texts['half the base'])} is left after averaging with the base",
        f"{CONF._short(texts['shrunk'])} if an attacker shrinks the singular values",
        f"{CONF._short(texts['one matrix retrained'])} if the attacker retrains this matrix",
        f"on human text by {CONF._short(nats['one matrix retrained'])} nats per token",
        f"three fine-tuned copies of the base leaves {CONF._short(merged)}",
    ]
    assert [phrase for phrase in phrases if phrase not in SECURITY] == []


def test_security_prints_the_worst_keys():
    toy = RECORDS["one_key_in_production"]
    real = RECORDS["one_key_in_production_smollm2"]
    level = RECORDS["level_check_smollm2"]
    worst, of_real = (run.results["audit"]["source"]["max ψ"] for run in (toy, real))
    real_worst = max(of_real, level.results["spread"]["source"]["largest"])
    n_keys = real.params["n_keys"] + level.params["n_fixed_keys"]
    assert f"flags {words.percent(worst, 0)} of 150 files of source code on doclm" in SECURITY
    assert f"({toy.params['n_keys']:,} keys)" in SECURITY
    assert f"{words.percent(real_worst, 0)} on SmolLM2 ({n_keys} keys" in SECURITY
