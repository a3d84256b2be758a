import json
import math
from base64 import b64decode
from io import BytesIO

import pytest
from PIL import Image

from gaussmark_lib import files
from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench import claims


@pytest.mark.parametrize(
    ("low", "high", "n", "outcome"),
    [
        (0.9, 1.1, 10, "held"),
        (0.8, 1.2, 10, "held"),
        (1.21, 1.4, 10, "not held"),
        (0.4, 0.79, 900, "not held"),
        (0.6, 1.1, 249, "too little data"),
        (0.6, 1.1, 250, "at the edge"),
        (1.1, 1.3, 900, "at the edge"),
        (math.nan, math.nan, 900, "too little data"),
    ],
)
def test_the_outcome_of_a_finding(low, high, n, outcome):
    found = claims.finding("x", Estimate(1.0, low, high, n), least=0.8, most=1.2)
    assert found.outcome == found.row()["outcome"] == outcome
    assert claims.finding("x", Estimate(1.0, 0.6, 1.1, 9), least=0.8, planned=8).outcome == (
        "at the edge"
    )


@pytest.mark.parametrize(
    ("law", "low", "high", "excludes", "says"),
    [
        (1.0, 0.82, 0.9, True, "Held, but differs from 1: x is"),
        (1.0, 0.9, 1.1, False, "Held: x is"),
        (1.0, 1.3, 1.4, True, "Not held, and differs from 1: x is"),
        (1.0, math.nan, math.nan, None, "Too little data: x is"),
        (None, 0.82, 0.9, None, "Held: x is"),
    ],
)
def test_a_finding_says_whether_its_interval_excludes_the_law(law, low, high, excludes, says):
    found = claims.finding("x", Estimate(1.0, low, high, 10), least=0.8, most=1.2, law=law)
    row = found.row()
    assert (row["law"], row["excludes_law"]) == (law, excludes)
    assert str(found).startswith(says)
    json.dumps(row)


def test_a_range_that_cannot_fail_is_said_to_be_no_test():
    narrow = Estimate(1.0, 0.95, 1.05, 300)
    wide = claims.finding("wide", narrow, least=0.0, most=1.2)
    sharp = claims.finding("sharp", narrow, least=0.8, most=1.2)
    one_sided = claims.finding("one-sided", narrow, least=0.0)
    assert [wide.is_too_wide, sharp.is_too_wide, one_sided.is_too_wide] == [True, False, False]
    page = claims.report("06_robustness", [wide, sharp, one_sided]).data
    assert page.count(claims.NO_TEST) == 1
    assert f"0 to 1.2 ({claims.NO_TEST})" in page
    assert all(text in page for text in ("held (no test): 1.00", "1 no test"))


def test_a_check_that_fails_stops_the_run():
    assert claims.check("one is one", ok=True) == {"check": "one is one", "ok": True}
    with pytest.raises(AssertionError, match="expected that one is two"):
        claims.check("one is two", ok=False)


def test_the_report_is_recorded_and_shows_the_reference_beside(reference, tmp_path, monkeypatch):
    monkeypatch.setenv("GAUSSMARK_RUN_DIR", str(tmp_path))
    small = [claims.finding(name, Estimate(1.0, 0.2, 1.8, 5), least=0.5) for name in ("a", "b < c")]
    page = claims.report("06_robustness", small, [claims.check("1 < 2", ok=True)], texts=5).data
    assert "doclm, reference: 2 held. this run: 2 too little data; checks passed: 1" in page
    assert "held: 1.00 (0.90 to 1.10), n = 5,000" in page
    assert "b &lt; c" in page
    assert "1 &lt; 2" in page
    assert "Reference run on doclm: 2026-01-02, with an older version" in page
    assert "held, but differs from 2: 1.00 (0.90 to 1.10), n = 5,000" in page
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["checks"] == [{"check": "1 < 2", "ok": True}]
    assert results["texts"] == 5
    assert [claim["outcome"] for claim in results["claims"]] == ["too little data"] * 2
    assert results["claims"][0]["expected"] == "at least 0.5"


def test_a_record_with_another_range_says_so(reference):
    """The column of ranges has that of this run."""
    for least in (0.5, 0):
        found = [claims.finding("a", Estimate(1.0, 0.9, 1.1, 9), least=least)]
        page = claims.report("06_robustness", found).data
        assert page.count("n = 5,000; its range was at least 0.5</td>") == (least != 0.5)


def test_the_larger_run_speaks_first_and_its_further_findings_are_shown(reference):
    found = [claims.finding("a", Estimate(1.0, -1.0, 1.0, 9), least=0)]
    page = claims.report("06_robustness", found).data
    assert page.index("<th>doclm, reference</th>") < page.index("<th>this run</th>")
    assert page.index("<td>a</td>") < page.index("<td>b &lt; c</td>")
    assert page.count("<td>not measured</td>") == 1
    alone = claims.report("16_theory_in_full", found).data  # has no record
    assert "Findings. this run: 1 too little data" in alone


@pytest.fixture
def reference(tmp_path, monkeypatch):
    """A reference record of 06 in which two claims are held; one excludes its law."""
    monkeypatch.setattr(files, "RUNS", tmp_path)
    record = tmp_path / "reference" / "robustness"
    record.mkdir(parents=True)
    big = claims.finding("a", Estimate(1.0, 0.9, 1.1, 5000), least=0.5)
    other = claims.finding("b < c", Estimate(1.0, 0.9, 1.1, 5000), least=0.5, law=2)
    (record / "notebook.ipynb").write_text("{}")
    times = {"started": "2026-01-02T03:04", "finished": "2026-01-02T03:05", "seconds": 60}
    files.write_json(record / "params.json", {"model": "doclm"})
    files.write_json(record / "results.json", {"claims": [big.row(), other.row()]})
    files.write_json(
        record / "status.json", {"status": "complete", "code": "of another day"} | times
    )
    return record


def test_a_larger_figure_is_the_reference_records_or_that_of_its_first_run(reference):
    assert claims.larger("06_robustness", "edits").data == ""
    figures = reference / "figures"
    figures.mkdir()
    Image.new("RGB", (40, 30), "orange").save(figures / "edits.png")
    page = claims.larger("06_robustness", "edits").data
    assert "reference record of doclm" in page
    assert "pooled" not in page
    data = page.partition("data:image/webp;base64,")[2].partition('"')[0]
    with Image.open(BytesIO(b64decode(data))) as shown:
        assert shown.size == (40, 30)
        assert shown.getpixel((1, 1)) == (255, 165, 0)
    status = json.loads((reference / "status.json").read_text())
    files.write_json(reference / "status.json", status | {"pooled": [{"seed": 5}, {"seed": 6}]})
    pooled = claims.larger("06_robustness", "edits").data
    assert "at larger n (the first of the 2 runs that are pooled in this record):" in pooled
