"""The whole comparison on the embedded model: the base model against itself is equal everywhere,
and a destroyed model is flagged by every metric.
"""

import numpy as np
import pytest
import torch

from gaussmark_lib import models, perturb, texts
from gaussmark_lib.quality import accuracy, compare, harness, tasks
from gaussmark_lib.quality.compare import Contender
from gaussmark_lib.quality.offline_judge import LikelihoodJudge, Ngram

pytestmark = pytest.mark.slow
WEIGHT = "model.layers.4.mlp.down_proj.weight"
SIGMA = 0.1  # mean ψ about 3 at 200 tokens
KEY = perturb.Key.from_seed(0)
BASE, AGAIN, OTHER_SEED = (
    Contender("base"),
    Contender("the same again"),
    Contender("another seed", seed=1),
)
MARKED = Contender("watermarked", perturb.Watermark(WEIGHT, SIGMA), KEY, seed=2)
DESTROYED = Contender("destroyed", perturb.Watermark(WEIGHT, 100 * SIGMA), KEY, seed=3)
WRITERS = [BASE, AGAIN, OTHER_SEED, DESTROYED]
N_PASSAGES, N_ITEMS, N_PROMPTS, N_TOKENS = (
    24,
    40,
    96,
    64,
)  # so many that some of the base model's texts end


@pytest.fixture(scope="module")
def lm() -> models.LM:
    return models.load("doclm")


@pytest.fixture(scope="module")
def corpus():
    return texts.load("docs", min_chars=400)


@pytest.fixture(scope="module")
def judge(lm):
    human = texts.load("docs", split="train", n=300)["text"]
    return LikelihoodJudge(
        Ngram(
            [lm.encode(text) for text in human], len(lm.tokenizer), start=lm.tokenizer.bos_token_id
        ),
        lm.encode,
    )


@pytest.fixture(scope="module")
def evaluations(lm, corpus):
    definitions = tasks.build(corpus, N_ITEMS)
    found = compare.evaluations(lm, [BASE, MARKED, DESTROYED], definitions)
    return found | {AGAIN.name: harness.evaluate(lm, definitions)}


@pytest.fixture(scope="module")
def table(lm, corpus, judge, evaluations):
    passages = [lm.encode(text)[:100] for text in corpus["text"][:N_PASSAGES]]
    characters = [len(lm.decode(passage)) for passage in passages]
    nats = compare.cross_entropies(lm, [BASE, MARKED, DESTROYED], passages)
    nats |= compare.cross_entropies(lm, [AGAIN], passages)
    prompts = [lm.encode(text)[:24] for text in corpus["text"][N_PASSAGES : N_PASSAGES + N_PROMPTS]]
    written = compare.write(lm, WRITERS, prompts, N_TOKENS)
    judged, _ = compare.judge_rows(lm, prompts, written, judge)
    rows = compare.cross_entropy_rows(nats, list(map(len, passages)), characters)
    return compare.table(
        [*rows, *compare.task_rows(evaluations), *compare.text_rows(lm, prompts, written), *judged]
    )


def test_every_metric_is_there(table):
    assert len(table[table["model"] == DESTROYED.name]) == 2 + 3 + 6 + 1


def test_the_base_model_against_itself_is_equal_everywhere(table):
    same = table[table["model"] == AGAIN.name]
    assert len(same) == 12
    assert (same["difference"] == 0).all()
    assert not same["flagged"].any()
    assert same["verdict"].str.startswith("equal on every one of").all()


def test_another_seed_is_the_same_model(table):
    """Other texts by the same model: win rate ½ within its interval, nothing flagged but by
    chance.
    """
    other = table[table["model"] == OTHER_SEED.name].set_index("metric")
    assert other.loc["win rate", "low"] <= 0 <= other.loc["win rate", "high"]
    assert (other["p_value"] > 0.05 / len(other)).all()
    assert not other["verdict"].str.startswith("equal").any()


def test_a_destroyed_model_is_flagged_by_every_metric(table):
    destroyed = table[table["model"] == DESTROYED.name].set_index("metric")
    assert destroyed["flagged"].all(), destroyed[~destroyed["flagged"]]["verdict"].to_dict()
    harmed = destroyed.loc[["cross-entropy", *tasks.CHANCE, "win rate"], "verdict"]
    assert harmed.str.startswith("worse by").all()


def test_no_claim_is_made_of_few_items(table):
    """The watermark at its working strength, few items: not significant, and not called harmless
    either.
    """
    marked = table[table["model"] == MARKED.name].set_index("metric")
    assert not marked.loc[list(tasks.CHANCE), "flagged"].any()
    assert marked.loc["next_paragraph", "verdict"].startswith(
        f"n = {N_ITEMS} is too small for a claim"
    )


def test_the_tasks_are_above_chance(evaluations):
    for task, chance in tasks.CHANCE.items():
        assert evaluations["base"].of(task).mean() > chance + 0.1


@torch.no_grad()
def test_the_harness_computes_what_a_direct_sum_does(lm, evaluations):
    """On every request whose token boundary is where the text's is, empty contexts included, to a
    thousandth of a nat.
    """
    rows = evaluations["base"].log_likelihoods
    rows = rows[rows["item"] < 12]
    compared = 0
    for row in rows.itertuples():
        x, y = lm.encode(row.context), lm.encode(row.continuation)
        if lm.encode(row.context + row.continuation) != x + y:
            continue
        x = x or [lm.tokenizer.bos_token_id]
        log_p = lm.model(torch.tensor([x + y])).logits[0, len(x) - 1 : -1].double().log_softmax(-1)
        assert row.log_lik == pytest.approx(
            sum(log_p[t, token].item() for t, token in enumerate(y)), abs=1e-3
        )
        compared += 1
    assert compared == len(rows), "the tasks are built so that no boundary falls inside a token"
    assert set(rows["task"]) == set(tasks.CHANCE)
    assert (rows["context"] == "").any()


def test_a_five_point_drop_would_be_seen_at_300_items(evaluations):
    """At the rate at which the watermark changes answers."""
    for task in tasks.CHANCE:
        found = accuracy.paired(evaluations["base"].of(task), evaluations["watermarked"].of(task))
        churn = 1 - found.n_equal / found.change.n
        assert np.isfinite(churn)
        assert churn <= 0.12
        assert accuracy.power(300, 0.05, 0.03) > 0.8
