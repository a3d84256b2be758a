"""lm-evaluation-harness on a tiny model in memory."""

import json
import logging
from functools import cache
from pathlib import Path

import lm_eval.tasks
import numpy as np
import pytest
import tiny_lm
import tiny_models
import torch
from datasets import Dataset

from gaussmark_experiments.measures import harness
from gaussmark_lib import perturb
from gaussmark_lib.errors import ParameterError

ITEMS = [
    {"q": f"{i} and {i}", "choices": ["is", "are now", "was"], "answer": i % 3} for i in range(6)
]
LONG = {"q": "x" * 70, "choices": ["is", "are", "was"], "answer": 0}


def tasks(*items, **more):
    definition = {
        "task": "toy",
        "custom_dataset": lambda **_: {"test": Dataset.from_list(list(items))},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "q",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": " ",
        "metric_list": [{"metric": "acc"}],
    }
    return {"toy": definition | more}


def evaluate(lm, asked, part=slice(None), **options):
    """The scores of the toy task, and the items that were left out."""
    prepared = harness.prepare(lm, asked, **options)
    return harness.evaluate(prepared, part)["toy"], prepared.dropped


@torch.no_grad()
def log_lik(lm, context, continuation):
    """log p(continuation | context), summed."""
    before = lm.encode(context) or [lm.tokenizer.bos_token_id]
    return tiny_models.log_p(lm.model, before, lm.encode(continuation)).sum().item()


def test_an_item_is_right_where_its_answer_is_the_likeliest_by_a_direct_sum(lm):
    items = [{"q": f"{i}", "choices": ["a", "bc", "d "], "answer": i % 3} for i in range(12)]
    items.append({"q": "", "choices": ["a", "bcd", "e f"], "answer": 0})
    scores, dropped = evaluate(lm, tasks(*items, target_delimiter=""))
    likeliest = [np.argmax([log_lik(lm, i["q"], c) for c in i["choices"]]) for i in items]
    assert scores.tolist() == [
        float(likeliest[i] == item["answer"]) for i, item in enumerate(items)
    ]
    assert dropped.empty


def test_items_too_long_for_the_context_are_left_out_and_named(lm, caplog):
    scores, dropped = evaluate(lm, tasks(ITEMS[0], LONG, ITEMS[1]))
    assert dropped.to_dict("records") == [{"task": "toy", "item": 1, "tokens": 73, "context": 64}]
    assert scores.index.tolist() == [0, 2]
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not warnings, "the harness had nothing to cut"


@pytest.mark.parametrize(
    ("limit", "part", "items"), [(2, slice(None), [1, 2]), (5, slice(1, None, 2), [2, 4])]
)
def test_a_limit_and_a_part_count_items_that_fit(lm, limit, part, items):
    scores, _ = evaluate(lm, tasks(LONG, *ITEMS), part, limit=limit)
    assert scores.index.tolist() == items


def test_generation_tasks_run_too(lm):
    short = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}
    more = {"output_type": "generate_until", "doc_to_choice": None, "generation_kwargs": short}
    items = [{"q": "ab", "answer": "c"}, {"q": "y" * 60, "answer": "c"}]
    scores, dropped = evaluate(lm, tasks(*items, **more, metric_list=[{"metric": "exact_match"}]))
    assert scores.index.tolist() == [0]
    assert dropped["tokens"].tolist() == [68]


def test_the_watermarked_model_is_what_is_measured_and_nothing_else_changes(lm):
    wm, key = perturb.Watermark(tiny_lm.WEIGHT, 3.0), perturb.Key.from_seed(0)
    before, state = lm.model.get_parameter(tiny_lm.WEIGHT).clone(), torch.random.get_rng_state()
    many = [{"q": f"q {i}", "choices": ["a", "b", "c"], "answer": 0} for i in range(40)]
    asked = harness.prepare(lm, tasks(*many))
    base = harness.evaluate(asked)["toy"]
    with perturb.watermarked(lm.model, wm, key):
        marked = harness.evaluate(asked)["toy"]
    assert harness.evaluate(asked)["toy"].equals(base)
    assert not marked.equals(base)
    assert torch.equal(before, lm.model.get_parameter(tiny_lm.WEIGHT))
    assert torch.equal(state, torch.random.get_rng_state()), "nobody else's random numbers change"


# ---- the harness's own tasks, with items from local files

LETTERS = {"text": ["a", "bc", "d"], "label": ["A", "B", "C"]}
ARC = [{"question": f"{i} is", "choices": LETTERS, "answerKey": "ABC"[i % 3]} for i in range(5)]
BOOLQ = [{"question": f"is {i}", "passage": f"It {i}.", "answer": i % 2 == 0} for i in range(4)]
FOLDERS = {"arc_easy": "arc", "boolq": "super_glue/boolq", "gsm8k": "gsm8k"}


def write(folder: Path, name: str, items: list[dict]) -> None:
    lines = [json.dumps(item, ensure_ascii=False) + "\n" for item in items]
    (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")


@pytest.fixture
def few_definitions(monkeypatch):
    """The harness's definitions of the tasks above, without a search through all of them."""
    root = Path(lm_eval.tasks.__file__).parent
    folders = [root / folder for folder in FOLDERS.values()]
    monkeypatch.setattr(harness, "_definitions", lambda names: folders)


def test_named_tasks_have_the_harnesss_prompts_and_the_items_of_local_files(lm, tmp_path):
    """Against a direct sum. A line separator inside a JSON string does not end its line."""
    arc = [*ARC, ARC[0] | {"question": "a\u2028b"}]
    write(tmp_path, "arc_easy", arc)
    write(tmp_path, "boolq", BOOLQ)
    asked = harness.prepare(lm, ["arc_easy", "boolq"], tasks_data=tmp_path)
    scores = harness.evaluate(asked)

    def right(choices: list[str], questions: list[tuple[str, int]]) -> list[bool]:
        return [
            np.argmax([log_lik(lm, prompt, f" {choice}") for choice in choices]) == answer
            for prompt, answer in questions
        ]

    of_arc = [(f"Question: {q['question']}\nAnswer:", "ABC".index(q["answerKey"])) for q in arc]
    assert scores["arc_easy"].tolist() == right(LETTERS["text"], of_arc)
    of_boolq = [
        (f"{q['passage']}\nQuestion: {q['question']}?\nAnswer:", q["answer"]) for q in BOOLQ
    ]
    assert scores["boolq"].tolist() == right(["no", "yes"], of_boolq)
    assert harness.chance(asked) == pytest.approx({"arc_easy": 1 / 3, "boolq": 1 / 2})


@pytest.mark.usefixtures("few_definitions")
def test_a_named_task_has_at_most_so_many_items_the_same_in_each_run(lm, tmp_path, monkeypatch):
    write(tmp_path, "arc_easy", ARC)
    monkeypatch.setattr(harness, "MOST_ITEMS", 2)
    asked = harness.prepare(lm, ["arc_easy"], tasks_data=tmp_path)
    for _ in range(2):
        assert harness.evaluate(asked)["arc_easy"].index.tolist() == [0, 1]
    more = harness.prepare(lm, ["arc_easy"], tasks_data=str(tmp_path), limit=3)
    assert harness.evaluate(more)["arc_easy"].index.tolist() == [0, 1, 2]
    assert len(evaluate(lm, tasks(*ITEMS))[0]) == len(ITEMS), "a definition has all"


@pytest.mark.usefixtures("few_definitions")
@pytest.mark.parametrize(
    ("name", "lines", "expected"),
    [
        ("arc_easy", None, r"expected .*arc_easy\.jsonl, .*allenai/ai2_arc, found no such file"),
        ("arc_easy", "", r"arc_easy\.jsonl: expected a JSON object on each line, got an empty"),
        ("arc_easy", '{"question": "a"}\n', "cannot load arc_easy from .*expected the columns"),
        ("arc_easy", '{"a": 1}\n{"a"\n', r"arc_easy\.jsonl:2: expected a JSON object, got"),
        ("gsm8k", '{"question": "a", "answer": "b"}\n', "gsm8k: .*5 examples .*gsm8k_cot"),
        ("arc", "{}", "expected names of single tasks .*got 'arc'"),
    ],
)
def test_local_files_that_do_not_fit_are_named(lm, tmp_path, name, lines, expected):
    if lines is not None:
        (tmp_path / f"{name}.jsonl").write_text(lines, "utf-8")
    with pytest.raises(ParameterError, match=expected):
        harness.prepare(lm, [name], tasks_data=tmp_path)


@pytest.mark.slow
def test_tasks_by_name(lm, monkeypatch):
    """The harness takes half a minute to find its tasks: once is enough."""
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", cache(lm_eval.tasks.TaskManager))
    with pytest.raises(ParameterError, match=r"cannot load bolq: .*bolq"):
        harness.prepare(lm, ["bolq"])
    for name in ("super-glue-lm-eval-v1", "gsm8k_cot"):
        with pytest.raises(ParameterError, match=r"cannot load .* the hub cannot be reached"):
            harness.prepare(lm, [name])
