"""lm-evaluation-harness on a tiny model in memory."""

import logging

import numpy as np
import pytest
import tiny_lm
import torch
from datasets import Dataset

from gaussmark_lib import perturb
from gaussmark_lib.errors import HarnessError
from gaussmark_lib.quality import harness


def choice_task(items, name="toy", **more):
    return {
        "task": name,
        "custom_dataset": lambda **_: {"test": Dataset.from_list(items)},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "q",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": " ",
        "metric_list": [{"metric": "acc"}],
    } | more


ITEMS = [
    {"q": f"{i} and {i}", "choices": ["is", "are now", "was"], "answer": i % 3} for i in range(6)
]


@pytest.fixture(scope="module")
def lm():
    return tiny_lm.build()


@torch.no_grad()
def direct(lm, context, continuation):
    """log p(continuation | context), summed, and whether each token is the likeliest."""
    x, y = lm.encode(context) or [lm.tokenizer.bos_token_id], lm.encode(continuation)
    log_p = lm.model(torch.tensor([x + y])).logits[0, len(x) - 1 : -1].log_softmax(-1)
    return sum(log_p[t, token].item() for t, token in enumerate(y)), log_p.argmax(-1).tolist() == y


def test_log_likelihoods_are_a_direct_computation(lm):
    found = harness.evaluate(
        lm,
        {
            "toy": choice_task(
                [*ITEMS, {"q": "", "choices": ["a", "bcd", "e f"], "answer": 0}],
                target_delimiter="",
            )
        },
    )
    assert len(found.log_likelihoods) == 7 * 3
    for row in found.log_likelihoods.itertuples():
        log_lik, greedy = direct(lm, row.context, row.continuation)
        assert row.log_lik == pytest.approx(log_lik, abs=1e-3)
        assert row.greedy == greedy


def test_the_score_of_an_item_is_whether_its_answer_is_the_likeliest(lm):
    found = harness.evaluate(lm, {"toy": choice_task(ITEMS)})
    log_liks = found.log_likelihoods.pivot(
        index="item", columns="request", values="log_lik"
    ).to_numpy()
    assert found.of("toy").tolist() == [
        float(row.argmax() == item["answer"]) for row, item in zip(log_liks, ITEMS, strict=True)
    ]
    assert f"{found.of('toy').mean():.4g}"[:5] in found.table
    assert "|toy" in found.table.replace(" ", "")
    assert found.dropped.empty


def test_items_too_long_for_the_context_are_left_out_and_named(lm, caplog):
    long = {"q": "x" * 70, "choices": ["is", "are", "was"], "answer": 0}
    found = harness.evaluate(lm, {"toy": choice_task([ITEMS[0], long, ITEMS[1]])})
    assert found.dropped.to_dict("records") == [
        {"task": "toy", "item": 1, "tokens": 73, "context": 64}
    ]
    assert found.of("toy").index.tolist() == [0, 2]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], (
        "the harness had nothing to cut"
    )


def test_a_limit_counts_items_that_fit(lm):
    long = {"q": "x" * 70, "choices": ["is", "are", "was"], "answer": 0}
    found = harness.evaluate(lm, {"toy": choice_task([long, *ITEMS])}, limit=2)
    assert found.of("toy").index.tolist() == [1, 2]


def test_a_task_of_which_nothing_fits_is_an_error(lm):
    with pytest.raises(
        HarnessError,
        match=(
            r"none of its 1 items fits the model's context of 64 tokens \(the shortest takes 73\)"
        ),
    ):
        harness.evaluate(
            lm, {"toy": choice_task([{"q": "x" * 70, "choices": ["is", "are"], "answer": 0}])}
        )


def test_generation_tasks_run_too(lm):
    task = {
        "task": "gen",
        "custom_dataset": lambda **_: {
            "test": Dataset.from_list([{"q": "ab", "a": "c"}, {"q": "y" * 60, "a": "c"}])
        },
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "q",
        "doc_to_target": "a",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    found = harness.evaluate(lm, {"gen": task})
    assert found.of("gen").index.tolist() == [0]
    assert found.dropped["tokens"].tolist() == [68]


def test_the_watermarked_model_is_what_is_measured_and_the_base_model_is_left_as_it_was(lm):
    wm, key = perturb.Watermark(tiny_lm.WEIGHT, 1.0), perturb.Key.from_seed(0)
    before, random_state = (
        lm.model.get_parameter(tiny_lm.WEIGHT).clone(),
        torch.random.get_rng_state(),
    )
    base = harness.evaluate(lm, {"toy": choice_task(ITEMS)})
    with perturb.watermarked(lm.model, wm, key):
        marked = harness.evaluate(lm, {"toy": choice_task(ITEMS)})
    again = harness.evaluate(lm, {"toy": choice_task(ITEMS)})
    assert base.log_likelihoods.equals(again.log_likelihoods), (
        "the base model against itself is exactly equal"
    )
    assert not np.allclose(
        base.log_likelihoods["log_lik"], marked.log_likelihoods["log_lik"], atol=1e-3
    )
    assert torch.equal(before, lm.model.get_parameter(tiny_lm.WEIGHT))
    assert torch.equal(random_state, torch.random.get_rng_state()), (
        "nobody else's random numbers change"
    )


@pytest.mark.parametrize("wrong", ["boolq", [], {}])
def test_tasks_are_a_list_or_definitions(lm, wrong):
    with pytest.raises(HarnessError, match="expected"):
        harness.evaluate(lm, wrong)


@pytest.mark.slow
def test_tasks_by_name(lm):
    """One test, since the harness takes seconds to find its tasks."""
    with pytest.raises(HarnessError, match=r"no task 'bolq'; near names: boolq"):
        harness.evaluate(lm, ["bolq"])
    for name in ("super-glue-lm-eval-v1", "gsm8k_cot"):
        with pytest.raises(HarnessError, match=r"cannot load .* the hub cannot be reached"):
            harness.evaluate(lm, [name])
