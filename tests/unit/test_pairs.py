"""Pairs of a prompt and a key, and a notebook's set-up."""

import numpy as np
import pandas as pd
import pytest
import tiny_lm

from gaussmark_lib import generate, perturb, score, stats, texts
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.workbench import begin, pairs
from gaussmark_lib.workbench.pairs import OWN, PLAIN, WRONG


@pytest.fixture(scope="module")
def jsonl(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "mine.jsonl"
    path.write_text("".join(f'{{"text": "line {i} has many words"}}\n' for i in range(20)))
    return str(path)


def test_each_text_is_written_by_its_own_key_and_tested_with_it_and_the_next(lm, jsonl):
    drawn, wm = pairs.draw(lm, jsonl, 3, 6, seed=2), perturb.Watermark(tiny_lm.WEIGHT, 0.5)
    assert len({key.key_id for key in drawn.keys}) == drawn.n == 3
    marked, plain = pairs.marked_and_plain(lm, drawn, wm, 12, seed=5)
    assert plain == generate.sample(lm.model, drawn.prompts * 2, 12, seed=5)[3:]
    with perturb.watermarked(lm.model, wm, drawn.keys[1]):
        assert generate.sample(lm.model, drawn.prompts, 12, seed=5)[1] == marked[1]
    table = pairs.scored(lm, drawn, marked, plain, wm, lengths=[4, 12])
    assert table["kind"].value_counts().to_dict() == {OWN: 6, WRONG: 6, PLAIN: 6}
    keys = {OWN: drawn.keys, WRONG: drawn.keys[1:] + drawn.keys[:1], PLAIN: drawn.keys}
    for (kind, n_tokens), rows in table.groupby(["kind", "n_tokens"]):
        for row, key in zip(rows.itertuples(), keys[kind], strict=True):
            text = (marked + plain)[row.text]
            [slow] = score.score(
                lm.model, [drawn.prompts[row.prompt]], [text[:n_tokens]], wm, [key]
            ).itertuples()
            assert row.psi == pytest.approx(slow.psi, rel=1e-3, abs=1e-4)
            assert (row.key_id, row.text >= 3) == (slow.key_id, kind == PLAIN)


def test_texts_of_several_watermarks_are_tested_with_the_keys_that_wrote_them(lm, jsonl):
    drawn = pairs.draw(lm, jsonl, 3, 6, seed=2)
    wms = [perturb.Watermark(tiny_lm.WEIGHT, sigma) for sigma in (0.2, 0.5)]
    responses, table = pairs.under_own_keys(lm, drawn, wms, 12, seed=5)
    assert table["sigma"].tolist() == [0.2] * 3 + [0.5] * 3
    for row in table.itertuples():
        prompt, key = drawn.prompts[row.prompt], drawn.keys[row.prompt]
        slow = score.score(lm.model, [prompt], [responses[row.text]], wms[0], [key])
        assert row.key_id == key.key_id
        assert row.psi == pytest.approx(slow["psi"].item(), rel=1e-3, abs=1e-4)


def test_a_marked_text_is_read_once_for_both_keys_and_plain_texts_may_be_missing(
    lm, jsonl, monkeypatch
):
    drawn, wm = pairs.draw(lm, jsonl, 3, 6, seed=2), perturb.Watermark(tiny_lm.WEIGHT, 0.5)
    marked, plain = pairs.marked_and_plain(lm, drawn, wm, 12, seed=5)
    table = pairs.scored(lm, drawn, marked, plain, wm)
    read = []
    gradients = score.gradients
    monkeypatch.setattr(
        pairs.score,
        "gradients",
        lambda model, prompts, responses, *rest, **options: (
            read.extend(responses) or gradients(model, prompts, responses, *rest, **options)
        ),
    )
    without = pairs.scored(lm, drawn, marked, [], wm)
    assert read == marked
    pd.testing.assert_frame_equal(without, table[table["kind"] != PLAIN], rtol=1e-4)


def test_a_sigma_that_is_not_named_is_solved_on_plain_text(lm, jsonl, monkeypatch, capsys):
    monkeypatch.setattr(begin.models, "load", lambda *names, **options: lm)
    of_both = {"weight": tiny_lm.WEIGHT, "prompt_tokens": 6, "seed": 3, "n_pairs": 5}
    _, wm, _, n_tokens = begin.begin("tiny", jsonl, n_tokens=12, psi=2.0, **of_both)
    reserved = begin.pilot_prompts(lm, jsonl, 6, 5)
    assert len(reserved) == 5
    plain = generate.sample(lm.model, reserved, 12)
    norms = [gradient.norm for gradient in score.gradients(lm.model, reserved, plain, wm)]
    assert wm.sigma * np.median(norms) == pytest.approx(2.0)
    assert n_tokens == 12
    named = begin.begin("tiny", jsonl, n_tokens=9_999, sigma=0.3, rank_dropped=2, **of_both)
    assert (named.wm.sigma, named.wm.rank_dropped) == (0.3, 2)
    assert named.n_tokens < 9_999
    said = capsys.readouterr().out
    assert f"Watermarked matrix: {tiny_lm.WEIGHT} " in said
    assert "the noise has σ = 0.3" in said
    assert "because 9999 do not fit into the context" in said


def test_sigma_is_of_the_pilot_and_pairs_are_not(lm, tmp_path, monkeypatch):
    path = tmp_path / "many.jsonl"
    path.write_text("".join(f'{{"text": "line {i} has many words"}}\n' for i in range(300)))
    monkeypatch.setattr(begin.models, "load", lambda *names, **options: lm)
    size = {"n_pairs": 30, "n_tokens": 8, "prompt_tokens": 9, "weight": tiny_lm.WEIGHT}
    first, other = (begin.begin("tiny", str(path), seed=seed, **size) for seed in (0, 1))
    reserved = begin.pilot_prompts(lm, path, 9, 30)
    assert first.wm.sigma == other.wm.sigma
    assert set(map(tuple, first.pairs.prompts)) != set(map(tuple, other.pairs.prompts))
    assert not set(map(tuple, reserved)) & set(map(tuple, first.pairs.prompts))
    assert {key.key_id for key in first.pairs.keys}.isdisjoint(k.key_id for k in other.pairs.keys)


def test_no_seed_reaches_the_keys_of_the_pilot(lm, jsonl):
    drawn = [pairs.draw(lm, jsonl, 3, 6, seed=seed, split="pilot") for seed in (0, 7)]
    assert drawn[0] == drawn[1]
    reserved = {key.key_id for key in drawn[0].keys}
    for seed in (0, 1, 7):
        assert reserved.isdisjoint(key.key_id for key in pairs.demonstration_keys(9, seed))
    with pytest.raises(InvalidTextError, match="seed: expected a whole number ≥ 0, got -1"):
        pairs.demonstration_keys(9, -1)


def test_each_human_response_follows_its_prompt_in_the_corpus(lm, jsonl):
    prompts, responses = pairs.passages(lm, jsonl, 3, 6, 10)
    corpus = lm.decode(lm.encode("\n\n".join(texts.load(jsonl)["text"])))
    for prompt, response in zip(prompts, responses, strict=True):
        assert (len(prompt), len(response)) == (6, 10)
        assert lm.decode([*prompt, *response]) in corpus


def test_means_and_shares_are_those_of_each_cell():
    table = pd.DataFrame(
        {"x": ["b", "b", "a"], "value": [1.0, 5.0, 2.0], "p_value": [0.01, 0.05, 0.06]}
    )
    mean = pairs.means(table, ["x"], "value").set_index("x")
    assert mean["value"].to_dict() == {"b": 3.0, "a": 2.0}
    assert mean.loc["b", "low"] == stats.interval([1.0, 5.0]).low
    assert pairs.shares(table, ["x"], 0.05)["value"].tolist() == [1.0, 0.0]


def test_documents_widen_shares_of_texts_and_differences():
    """Ten documents, each with three texts that agree: as much evidence as ten texts."""
    hits = np.repeat([True, False], [12, 18])
    table = pd.DataFrame({"p_value": np.where(hits, 0.01, 0.5), "scheme": "a"})
    documents = np.repeat(np.arange(10), 3)
    [row] = pairs.shares(table.assign(document=documents), ["scheme"], 0.05).to_dict("records")
    clustered = stats.share(hits, cluster=documents)
    assert (row["low"], row["high"]) == (clustered.low, clustered.high)
    assert row["n"] == 30
    by_pair = pd.Series(hits.astype(float), pd.Index(documents, name="document"))
    ends = [stats.mean(by_pair, cluster=labels) for labels in (documents, None)]
    widths = [estimate.high - estimate.low for estimate in ends]
    assert pairs.times_wider(by_pair) == pytest.approx(widths[0] / widths[1])
    assert pairs.times_wider(pd.Series(hits.astype(float))) == 1.0
    # next to a run without documents, a pooled record's rows count as that run's
    assert pairs.numbering(table.assign(document=None), "pair") == ["pair"]
