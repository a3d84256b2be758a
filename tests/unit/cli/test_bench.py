"""``gaussmark bench`` on a tiny model: the table, a scheme of a user, an interruption."""

import re
import sys

import pytest
from command_lines import answer

from gaussmark_experiments import bench as experiment
from gaussmark_experiments import robustness
from gaussmark_lib import models
from gaussmark_lib import scheme as scheme_module
from gaussmark_lib.files import ROOT
from gaussmark_lib.workbench import cli
from gaussmark_lib.workbench.cli import bench
from gaussmark_lib.workbench.runs import folder

pytestmark = pytest.mark.usefixtures("no_table_of_selfhash")
RECIPE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SOURCE = re.search(r"### A scheme.*?```python\n(.*?)```", RECIPE, re.DOTALL).group(1)
SMALL = ["--quick", "--text", "licences", "--texts", "4", "--tokens", "16"]
DEFAULT = ["GaussMark", "KGW-1", "KGW-2", "SynthID", "Gumbel-max"]  # those that write


@pytest.fixture
def written(lm, monkeypatch) -> list[str]:
    """The schemes that have written texts, in order; the tiny model has room for hosts."""
    lm.model.config.max_position_embeddings = 512
    names = []
    usual = robustness.texts_by_scheme

    def noted(lm, tried, *arguments, **options):
        names.extend(tried)
        return usual(lm, tried, *arguments, **options)

    monkeypatch.setattr(robustness, "texts_by_scheme", noted)
    return names


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """The recipe's scheme, in a folder that Python searches."""
    (tmp_path / "favourites.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "favourites:favourites"
    sys.modules.pop("favourites", None)
    scheme_module.makers.pop("favourites", None)


def rows_of(out: str) -> list[str]:
    """The first words of the lines of the first table of rates."""
    table = out.partition("false-alarm rate of 1%\n")[2].partition("\n\n")[0]
    return [line for line in table.splitlines() if re.match(r"[A-Z]|fav", line)]


def test_an_interrupted_table_goes_on_and_a_scheme_of_ours_is_one_more_row(
    written, outside, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr(bench.runs, "references", lambda name: [])
    words = ["bench", *SMALL, "--records", str(tmp_path)]
    usual = robustness.texts_by_scheme

    def interrupted(lm, tried, *arguments, **options):
        if "SynthID" in tried:
            raise KeyboardInterrupt
        return usual(lm, tried, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(robustness, "texts_by_scheme", interrupted)
        code, out, err = answer(capsys, *words)
    assert (code, out, written) == (cli.INTERRUPTED, "", DEFAULT[:3])
    assert "26 of 42 cells are done, and the same command continues" in err

    code, out, _ = answer(capsys, *words)
    assert (code, written) == (0, DEFAULT)
    assert len(rows_of(out)) == 6
    assert "–" in rows_of(out)[0]
    assert "there is no reference record of doclm" in " ".join(out.split())
    record = folder.load(tmp_path / "bench" / out.split()[-1].rpartition("/")[2])
    assert record.params["n_pairs"] == 4
    assert len(record.table("tests")) == 6 * 4 * (5 + len({5, 8, 16}))

    page = tmp_path / "table.html"
    code, out, _ = answer(capsys, *words, "--scheme", outside, "--html", str(page))
    assert (code, written) == (0, [*DEFAULT, "favourites"]), "only the new cells are measured"
    assert len(rows_of(out)) == 7
    assert rows_of(out)[-1].startswith("favourites")
    assert page.read_text(encoding="utf-8").count("<td>favourites</td>") == 3
    assert answer(capsys, *words)[1].split()[-1].endswith(record.id), "from its record"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--scheme", "KGW-3"], "no scheme is called 'KGW-3'"),
        (["--scheme", "no_such_module:x"], "PYTHONPATH"),
        (["--html", "table.txt"], "--html: expected a file that ends in .html, got 'table.txt'"),
        (["--texts", "3"], "greater than or equal to 4"),
        (["--model", "doclm", "more"], "unexpected extra argument"),
    ],
)
def test_bad_input_is_refused_before_the_model_loads(words, reason, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(models, "load", lambda name: pytest.fail("the model is loaded"))
    code, _, err = answer(capsys, "bench", "--records", str(tmp_path), *words)
    assert (code, reason in " ".join(err.split())) == (cli.REFUSED, True), err


def made_up(value: float, columns: list[str], **params) -> folder.Run:
    """A record of one scheme whose rates are all the same."""
    estimate = {"value": value, "low": value - 0.1, "high": value + 0.1, "n": params["n_pairs"]}
    rates = [{"scheme": "KGW-1", "column": column, "level": 0.01, **estimate} for column in columns]
    why = [{"scheme": "KGW-1", "column": "LoRA, 200 steps", "why": "LoRA: only in weights"}]
    price = {"title": "Tiny", "weight": "w", "sigma": 0.1, "nats": 0.2}
    results = {
        "schemes": ["KGW-1"],
        "columns": columns,
        "rates": rates,
        "missing": why,
        "price": price | {"n_pilot": 8, "n_tokens": 20},
    }
    about = {"model": "tiny", "text": "news", "seed": 0, "n_tokens": 20} | params
    return folder.Run(ROOT, "id", about, results, {"finished": "2026-01-02T03:04"})


def test_columns_that_were_not_measured_come_from_the_reference_and_have_a_star():
    columns = ["clean", "round trip", "LoRA, 200 steps"]
    quick = made_up(0.5, columns[:1], n_pairs=24)
    full = made_up(0.75, columns[:2], n_pairs=100)
    shares, intervals, last = bench.rate_lines(quick.results, columns, 0.01, full)
    assert shares == {"scheme": "KGW-1", "clean": "50%", "round trip": "75%*", "LoRA 200": "–"}
    assert intervals == {"scheme": "", "clean": "40–60", "round trip": "65–85", "LoRA 200": ""}
    assert last == {"scheme": "n", "clean": "24", "round trip": "100*", "LoRA 200": ""}
    notes = " ".join(bench.notes(quick, full))
    assert "* not measured now: from the reference record of 2026-01-02, 100 texts" in notes
    assert "– LoRA: only in weights." in notes
    assert bench.rate_lines(quick.results, columns, 0.01)[0]["round trip"] == "–"


def test_a_way_of_rewriting_is_called_a_paraphrase_only_if_half_of_the_meaning_is_left():
    row = {"way": "by Spanish", "value": 0.7, "low": 0.6, "high": 0.8, "n": 9}
    results = {"likeness": [row | {"quantity": name} for name in ("meaning", experiment.ABOVE)]}
    [line] = bench.likeness_lines(results)
    assert (line["rewritten"], line["a paraphrase?"]) == ("by Spanish", "yes")
    results["likeness"][0]["low"] = 0.4
    assert bench.likeness_lines(results)[0]["a paraphrase?"] == "not shown"
