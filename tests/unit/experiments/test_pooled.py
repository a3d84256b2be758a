"""Pooled records: the rows of all parts together, over documents, and nothing of other runs."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from gaussmark_experiments import detectability, intervals, pooled
from gaussmark_lib import files, stats
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench import claims
from gaussmark_lib.workbench.pairs import OWN, PLAIN, WRONG
from gaussmark_lib.workbench.runs import folder

N = 24  # pairs of a part
SIGMA = {5: 0.04, 6: 0.05}
EXPERIMENT = pooled.experiment_of("detectability_tiny")
GAP = "measured less predicted TPR at 0.05, mean over the lengths"
RATIO = "mean ψ divided by the mean σ‖G‖ of plain texts, over the lengths"
SPREAD = "largest ‖G‖ of the answers to a prompt divided by the smallest, mean over prompts"


def rows(seed: int) -> pd.DataFrame:
    """The texts of a part: N pairs at two lengths."""
    cells = [(pair, n, kind) for pair in range(N) for n in (10, 40) for kind in (OWN, WRONG, PLAIN)]
    table = pd.DataFrame(cells, columns=["prompt", "n_tokens", "kind"])
    rng = np.random.default_rng(seed)
    table["psi"] = rng.normal(2.0 * (table["kind"] == OWN))
    table["grad_norm"] = (30 + rng.random(len(table))) * np.sqrt(table["n_tokens"] / 10)
    return table.assign(text=table["prompt"] + N * (table["kind"] == PLAIN))


def write_part(path: Path, prompts: Path, seed: int, texts: pd.DataFrame, **changed) -> folder.Run:
    """A complete record of 03 with these texts; ``changed`` parameters."""
    path.mkdir()
    params = {"model": "doclm", "text": str(prompts), "n_prompts": N, "prompt_tokens": 8}
    params |= {"seed": seed, "batch_size": seed, "temperatures": [1.0]}
    nothing = Estimate(0.0, -1.0, 1.0, N)
    findings = [
        claims.finding(GAP, nothing, least=-0.05, most=0.05, law=1.0),
        claims.finding(RATIO, nothing, least=0.9, most=1.1, law=1.0),
        claims.finding(SPREAD, Estimate(2.0, 1.5, 2.5, 20), most=10.0),
    ]
    headline = {"sentence": "texts detected at level 0.05 after 40 tokens", "unit": ""}
    results = {
        "σ": SIGMA[seed],
        "claims": [finding.row() for finding in findings],
        "checks": [claims.check("one is one", ok=True)],
        "headline": headline | Estimate(0.5, 0.4, 0.6, N).row(),
        "max/min of ‖G‖": 3.0 + seed,
        "rates": {"plain": stats.share(np.arange(N) < seed - 4).row()},
    }
    status = {"status": "complete", "code": "c", "commit": "a", "weights": {"doclm": "w"}}
    status |= {"started": f"{seed}", "finished": f"{seed + 1}", "seconds": 1.5}
    status |= {"versions": {}, "platform": "p"}
    texts.to_parquet(path / "texts.parquet")
    kept = {"n_tokens": 10, "ratio": detectability.KEPT, **Estimate(0.8, 0.7, 0.9, N).row()}
    pd.DataFrame([kept]).to_parquet(path / "ratios.parquet")
    files.write_json(path / "params.json", params | changed)
    files.write_json(path / "results.json", results)
    files.write_json(path / "status.json", status)
    return folder.load(path)


@pytest.fixture
def prompts(tmp_path):
    """A file of N texts reserves no pilot, so all seeds have the same documents in one order."""
    path = tmp_path / "prompts.txt"
    lines = [f"text {i} has eight words or more, as it should have." for i in range(N)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def parts(tmp_path, prompts):
    return [write_part(tmp_path / f"{seed}", prompts, seed, rows(seed)) for seed in (5, 6)]


def gaps(seed: int) -> list[float]:
    """Measured less predicted power of each pair, by a loop."""
    table = rows(seed).set_index(["prompt", "n_tokens", "kind"])
    tau = norm.isf(0.05)

    def gap(pair: int, n: int) -> float:
        predicted = norm.cdf(SIGMA[seed] * table.loc[(pair, n, PLAIN), "grad_norm"] - tau)
        return (table.loc[(pair, n, OWN), "psi"] >= tau) - predicted

    return [np.mean([gap(pair, 10), gap(pair, 40)]) for pair in range(N)]


def test_a_pooled_finding_is_that_of_all_rows_over_documents(parts, tmp_path):
    whole = pooled.pool(parts[::-1], EXPERIMENT, (5, 6))  # in any order
    found = {row["claim"]: row for row in whole.results["claims"]}
    of_pairs = [*gaps(5), *gaps(6)]
    documents = [*range(N), *range(N)]
    both = [stats.mean(of_pairs), stats.mean(of_pairs, cluster=documents)]
    wider = max(both, key=lambda estimate: estimate.high - estimate.low)
    gap = found[GAP]
    assert gap["value"] == pytest.approx(np.mean(of_pairs))
    assert (gap["low"], gap["high"]) == pytest.approx((wider.low, wider.high))
    assert gap["n"] == 2 * N
    assert gap["pooled"] == "rows of parts 5, 6"
    # each part has its own σ
    psi = np.concatenate([rows(seed).query("kind == @OWN")["psi"] for seed in (5, 6)])
    norms = [SIGMA[s] * rows(s).query("kind == @PLAIN")["grad_norm"].mean() for s in (5, 6)]
    assert found[RATIO]["value"] == pytest.approx(psi.mean() / np.mean(norms))

    pooled.write(whole, tmp_path / "whole")
    run = folder.load(tmp_path / "whole")
    texts = run.table("texts")
    assert texts.groupby("kind")["prompt"].nunique().eq(2 * N).all()
    assert texts["text"].nunique() == 4 * N
    assert texts.groupby("part")["sigma"].first().to_dict() == SIGMA
    assert run.params["seed"] == [5, 6]
    assert run.params["n_prompts"] == 2 * N
    assert [source["seed"] for source in run.status["pooled"]] == [5, 6]
    assert run.status["of the first part alone"] == ["σ", "max/min of ‖G‖", "figures"]
    assert run.results["rates"]["plain"]["value"] == 3 / 48  # 1 and 2 of 24
    assert run.status["documents of the prompts"] == N
    assert run.results["max/min of ‖G‖"] == 8.0
    each = json.loads((run.dir / "parts.json").read_text(encoding="utf-8"))["parts"]
    assert [part["results"] for part in each] == [part.results for part in parts]


def test_the_same_rows_twice_are_not_twice_the_evidence(tmp_path, prompts, monkeypatch):
    """Another seed has the same documents here. If their rows agree, it adds nothing."""
    monkeypatch.setitem(SIGMA, 6, SIGMA[5])
    parts = [write_part(tmp_path / f"{seed}", prompts, seed, rows(5)) for seed in (5, 6)]
    whole = pooled.pool(parts, EXPERIMENT, (5, 6))
    [gap] = [row for row in whole.results["claims"] if row["claim"] == GAP]
    alone = stats.mean(gaps(5))
    assert (gap["low"], gap["high"]) == pytest.approx((alone.low, alone.high))


def test_parts_differ_in_their_declared_seeds_alone(parts, tmp_path, prompts):
    with pytest.raises(GaussMarkError, match="each with a seed of its own"):
        pooled.pool([parts[0], parts[0]], EXPERIMENT, (5, 6))
    with pytest.raises(GaussMarkError, match=r"the declared seeds \(5, 7\), got \[5, 6\]"):
        pooled.pool(parts, EXPERIMENT, (5, 7))
    other = write_part(tmp_path / "other", prompts, 6, rows(6), temperatures=[0.5])
    with pytest.raises(GaussMarkError, match="seeds alone, but temperatures differ"):
        pooled.pool([parts[0], other], EXPERIMENT, (5, 6))
    weights = parts[1].status | {"weights": {"doclm": "v"}}
    files.write_json(parts[1].dir / "status.json", weights)
    with pytest.raises(GaussMarkError, match="the same weights"):
        pooled.pool([parts[0], folder.load(parts[1].dir)], EXPERIMENT, (5, 6))


def test_a_finding_is_at_the_edge_only_if_all_declared_parts_are_there(parts):
    for declared, outcome in (((5, 6), "at the edge"), ((5, 6, 7), "too little data")):
        whole = pooled.pool(parts, EXPERIMENT, declared)
        by_claim = {row["claim"]: row["outcome"] for row in whole.results["claims"]}
        assert by_claim[GAP] == outcome


def test_estimates_without_rows_are_combined_from_their_intervals(parts):
    whole = pooled.pool(parts, EXPERIMENT, (5, 6))
    [spread] = [row for row in whole.results["claims"] if row["claim"] == SPREAD]
    assert spread["pooled"] == "intervals of parts 5, 6"
    assert (spread["low"], spread["high"]) == pytest.approx((2 - 0.5**0.5 / 2, 2 + 0.5**0.5 / 2))
    # as good as the rows for means, where the interval can be checked
    rng = np.random.default_rng(0)
    samples = [rng.normal(1.0, 2.0, n) for n in (150, 100)]
    together = stats.mean(np.concatenate(samples))
    apart = pooled.combined([stats.mean(sample) for sample in samples])
    assert apart.value == pytest.approx(together.value)
    assert apart.high - apart.low == pytest.approx(together.high - together.low, rel=0.03)
    [kept] = whole.tables["ratios"].query("ratio == @detectability.KEPT").to_dict("records")
    assert kept["n"] == 2 * N


def test_a_part_of_a_commit_is_unpacked(tmp_path):
    if not (files.ROOT / ".git").exists():
        pytest.skip("a copy without history")
    inside = "papermill_runs/reference/motivation"
    assert pooled.load(f"HEAD:{inside}", tmp_path).params["model"] == "doclm"
    with pytest.raises(GaussMarkError, match="HEAD:nowhere"):
        pooled.load("HEAD:nowhere", tmp_path)
    with pytest.raises(GaussMarkError, match="a complete record of one part"):
        pooled.load(str(tmp_path), tmp_path)


@pytest.mark.parametrize("name", pooled.DECLARED)
def test_a_record_says_what_its_rows_say(name):
    """Of a first part as of a pooled record: the notebook's findings are those of its tables."""
    run = folder.reference(name)
    if run is None:
        pytest.skip("not recorded yet")
    experiment = pooled.experiment_of(name)
    tables = {path.stem: run.table(path.stem) for path in run.dir.glob("*.parquet")}
    for table in experiment.pairs:
        if "σ" in run.results and "sigma" not in tables[table]:
            tables[table] = tables[table].assign(sigma=run.results["σ"])
    found = experiment.module.estimates(tables, run.params)
    recorded = {row["claim"]: row for row in run.results["claims"]}
    headline = run.results["headline"]
    recorded[headline["sentence"]] = headline
    of_rows = {
        sentence for sentence, row in recorded.items() if row.get("pooled", "").startswith("rows")
    }
    assert of_rows <= found.keys()
    for sentence in found.keys() & recorded.keys():
        again = intervals.of_row(recorded[sentence])
        assert again.row() == pytest.approx(found[sentence].row(), nan_ok=True), sentence
