"""Ten benchmarks from local files: the prompts of a made-up row each, real items against
lm-evaluation-harness, and the likeliest choice against a direct sum.
"""

import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tiny_lm
import tiny_models
import torch

from gaussmark_experiments.measures import benchmarks, harness, reading
from gaussmark_lib import models, perturb
from gaussmark_lib.errors import ParameterError

TABLE = Path(__file__).with_name("benchmark_rows.toml").read_text(encoding="utf-8")
EXPECTED = tomllib.loads(TABLE)
ROWS = {task: expected["row"] for task, expected in EXPECTED.items()}


def write(folder, task, *rows):
    (folder / f"{task}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.parametrize("task", benchmarks.READERS)
def test_a_row_becomes_the_harness_s_prompt(task, tmp_path):
    [item] = benchmarks.read(task, write(tmp_path, task, ROWS[task]))
    expected = EXPECTED[task]
    assert item.choices[item.answer] == (expected["context"], expected["ending"])
    assert len(item.choices) == len(set(item.choices)) == expected["n_choices"]


@torch.no_grad()
def log_lik(lm, context, ending):
    """log p(ending | context), summed."""
    return tiny_models.log_p(lm.model, lm.encode(context), lm.encode(ending)).sum().item()


def test_spaces_at_the_end_of_a_context_are_scored(lm, tmp_path):
    folder = write(tmp_path, "openbookqa", ROWS["openbookqa"])
    asked = benchmarks.prepare(lm, ["openbookqa"], tasks_data=folder)
    [item] = asked.questions["openbookqa"]
    context, ending = item.choices[item.answer]
    assert (lm.decode(context), lm.decode(ending)) == ("Fish live", "  four")


def question(i):
    return {"goal": f"{i}", "sol1": "ab" * (i % 5 + 1), "sol2": f"d {i}", "label": i % 2}


@pytest.fixture
def asked(lm, tmp_path):
    folder = write(tmp_path, "piqa", *map(question, range(60)))
    return benchmarks.prepare(lm, ["piqa"], tasks_data=folder)


def test_an_item_is_right_where_its_answer_is_the_likeliest_by_a_direct_sum(lm, asked):
    scores = benchmarks.evaluate(asked)["piqa"]
    for i in range(30):
        context = f"Question: {i}\nAnswer:"
        sums = [log_lik(lm, context, f" {question(i)[name]}") for name in ("sol1", "sol2")]
        assert scores[i] == float(np.argmax(sums) == i % 2)
    assert 0 < scores.mean() < 1
    assert benchmarks.chance(asked) == {"piqa": 0.5}
    assert benchmarks.evaluate(asked, slice(1, None, 3))["piqa"].equals(scores[1::3])


def test_small_batches_give_what_large_ones_do(lm, asked, monkeypatch):
    pairs = [pair for item in asked.questions["piqa"] for pair in item.choices]
    together = reading.log_p(lm.model, pairs)
    monkeypatch.setattr(reading, "TOKENS", 60)
    assert max(len(batch) for batch in reading.batches(pairs, 1000)) <= 3
    assert sum(len(batch) for batch in reading.batches(pairs, 20)) == len(pairs)
    np.testing.assert_allclose(reading.log_p(lm.model, pairs), together, atol=1e-4)


def test_the_watermarked_model_is_what_is_measured(lm, asked):
    base = benchmarks.evaluate(asked)["piqa"]
    wm = perturb.Watermark(tiny_lm.WEIGHT, 3.0)
    with perturb.watermarked(lm.model, wm, perturb.Key.from_seed(0)):
        assert not benchmarks.evaluate(asked)["piqa"].equals(base)
    assert benchmarks.evaluate(asked)["piqa"].equals(base)


def test_items_too_long_for_the_context_are_left_out_and_named(lm, tmp_path):
    folder = write(tmp_path, "piqa", question(0), question(0) | {"goal": "x" * 70}, question(1))
    asked = benchmarks.prepare(lm, ["piqa"], tasks_data=folder, limit=2)
    assert [item.number for item in asked.questions["piqa"]] == [0, 2]
    assert asked.dropped["item"].tolist() == [1]
    assert asked.dropped["context"].tolist() == [64]
    write(tmp_path, "piqa", question(0) | {"goal": "x" * 70})
    with pytest.raises(ParameterError, match="none of its 1 items fits"):
        benchmarks.prepare(lm, ["piqa"], tasks_data=folder)


@pytest.mark.parametrize("content", ["no json", '{"goal": "no solutions"}', "[1]", '"text"'])
def test_another_file_is_refused(lm, tmp_path, content):
    (tmp_path / "piqa.jsonl").write_text(content)
    with pytest.raises(ParameterError, match=r"tasks_data: expected .*piqa\.jsonl"):
        benchmarks.prepare(lm, ["piqa"], tasks_data=tmp_path)


def test_a_missing_file_and_an_unknown_task_are_refused(lm, tmp_path):
    with pytest.raises(ParameterError, match=r"expected .*piqa\.jsonl.* No such file"):
        benchmarks.prepare(lm, ["piqa"], tasks_data=tmp_path)
    with pytest.raises(ParameterError, match="tasks: expected 'arc_easy' or"):
        benchmarks.prepare(lm, ["gsm8k"], tasks_data=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif("GAUSSMARK_BENCHMARKS" not in os.environ, reason="needs benchmark files")
@pytest.mark.parametrize("task", ["arc_easy", "copa"])
def test_the_harness_itself_scores_real_items_alike(task):
    """With files of JSON lines in the folder GAUSSMARK_BENCHMARKS."""
    lm = models.load("doclm")
    folder = Path(os.environ["GAUSSMARK_BENCHMARKS"])
    ours = benchmarks.prepare(lm, [task], tasks_data=folder, limit=100)
    theirs = harness.prepare(lm, [task], tasks_data=folder, limit=100)
    base = harness.evaluate(theirs)[task]
    assert benchmarks.evaluate(ours)[task].tolist() == base.tolist()
    assert benchmarks.chance(ours)[task] == pytest.approx(harness.chance(theirs)[task])
    assert 0 < base.mean() < 1
