"""What 20 measures of a trained model, page by page."""

import lzma

import numpy as np
import pytest
import tiny_lm
import tiny_models
import torch

from gaussmark_experiments import train_doclm
from gaussmark_experiments.doclm import train
from gaussmark_lib import models
from gaussmark_lib.workbench import pairs

LM = tiny_lm.build()
PAGES = ["One page of text.", "Another page, somewhat longer than the first."]


def test_each_page_is_measured_under_each_model():
    table = train_doclm.by_page({"a": (LM.model, LM.tokenizer)}, PAGES)
    expected = [train.bits_per_character(LM.model, LM.tokenizer, [page]) for page in PAGES]
    assert table.drop(columns=["model", "page"]).to_dict("records") == expected


def test_xz_compresses_the_pages_together_and_a_spread_is_even():
    text = "\n\n".join(PAGES)
    assert train_doclm.xz(PAGES) == 8 * len(lzma.compress(text.encode(), preset=9)) / len(text)
    assert train_doclm.spread(list("abcdefgh"), 3) == ["a", "c", "e"]
    assert train_doclm.spread(list("ab"), 3) == ["a", "b"]


def test_the_code_that_is_read_is_of_other_packages_than_the_code_that_is_tested():
    from gaussmark_lib.engine import corpus

    read = set(train_doclm.code(40, seed=1))
    tested = {path.read_text("utf-8") for _, path in corpus.source_files("dask", "distributed")}
    assert len(read) > 30
    assert not read & {text for text in tested if text.strip()}
    assert train_doclm.code(3, seed=2) != train_doclm.code(3, seed=1)


def test_a_copy_learns_its_pages_and_the_model_stays():
    before = {name: value.clone() for name, value in LM.model.state_dict().items()}
    pages = ["Returns the values of a matrix, one by one. " * 40] * 4
    further = train_doclm.trained_further(
        LM, pages, 12, batch_tokens=64, context=32, rate=1e-2, seed=3
    )
    for name, value in LM.model.state_dict().items():
        assert torch.equal(value, before[name])
    nats = [train.bits_per_character(lm.model, lm.tokenizer, pages[:1]) for lm in (LM, further)]
    assert nats[1]["bits_per_char"] < 0.8 * nats[0]["bits_per_char"]


def test_a_mean_cosine_leaves_out_a_text_and_itself():
    K = np.array([[1.0, 0.2, 0.4], [0.2, 1.0, 0.6], [0.4, 0.6, 1.0]])
    assert train_doclm.mean_cosine(K) == pytest.approx(0.4)
    assert train_doclm.mean_cosine(K, np.array([0, 0, 1])) == pytest.approx(0.2)
    many = np.full((30, 30), 0.3) + 0.7 * np.eye(30)
    ratio = train_doclm.change_of_cosine(many / 2, many)
    assert (ratio.value, ratio.n) == (pytest.approx(0.5), 30)


def test_no_file_of_the_pilot_is_measured():
    _, of_pilot = pairs.passages(models.load("doclm"), "source", 40, 16, 128, seed=0)
    _, measured = train_doclm.files_outside_pilot(models.load("doclm"), 30, seed=0)
    assert len({*map(tuple, measured)} - {*map(tuple, of_pilot)}) == 30


def test_cosines_are_those_of_the_gradients():
    prompts = [[5, 6], [7, 8], [5, 9]]
    responses = [[1, 2, 3, 4], [4, 3, 2, 1], [9, 9, 1, 2]]
    K = train_doclm.cosines(LM, prompts, responses, tiny_lm.WEIGHT)
    weight = LM.model.get_parameter(tiny_lm.WEIGHT).requires_grad_()
    rows = []
    for prompt, response in zip(prompts, responses, strict=True):
        log_p = tiny_models.log_p(LM.model, prompt, response).sum()
        (gradient,) = torch.autograd.grad(log_p, weight)
        rows.append(gradient.flatten() / gradient.norm())
    weight.requires_grad_(False)
    np.testing.assert_allclose(K, torch.stack(rows) @ torch.stack(rows).T, atol=1e-5)
