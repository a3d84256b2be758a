"""Rows of one batch under watermarks of their own, against models whose weight is swapped, one
watermark at a time.
"""

from itertools import cycle

import closeness
import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import generate, generate_many, perturb, score
from gaussmark_lib.errors import (
    InvalidModelError,
    InvalidWatermarkError,
    KeyMismatchError,
    PerturbedModelError,
)
from gaussmark_lib.perturb import Key, Watermark

KEYS = [Key.from_seed(i) for i in range(3)]
PROMPTS = tiny_models.random_ids(np.random.default_rng(3), 5, 1, 9)


def cells_of(weight: str) -> list[generate_many.Cell]:
    """Keys and σ mixed, the base model in between, one cell twice."""
    marks = [
        (Watermark(weight, sigma, dropped), key)
        for sigma, dropped in ((0.05, 0), (0.3, 0), (0.1, 2))
        for key in KEYS[:2]
    ]
    return [*marks[:3], None, *marks[3:], marks[0]]


@pytest.mark.parametrize(
    ("architecture", "weight", "dtype"), tiny_models.alternating(torch.float32, torch.float64)
)
def test_logits_are_those_of_the_swapped_weight(architecture, weight, dtype):
    model = tiny_models.build(architecture, dtype)
    # in float64 what differs is ξ, which is rounded to float32 at each σ
    tolerance = {torch.float32: 1e-4, torch.float64: closeness.of_sum(torch.float32, 48)}[dtype]
    cells = cells_of(weight)
    owner = [0, 0, 2, 1, 3, 4, 4, 5, 7]
    ids = torch.randint(
        tiny_models.VOCAB, (len(owner), 12), generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        base = model(ids).logits
        with generate_many.watermarked_rows(model, generate_many.Noises(model, cells), owner):
            found = model(ids).logits
        for row, cell in enumerate(owner):
            if cells[cell] is None:
                assert torch.equal(found[row], base[row])
                continue
            with perturb.watermarked(model, *cells[cell]):
                expected = model(ids[row : row + 1]).logits[0]
            torch.testing.assert_close(found[row], expected, rtol=tolerance, atol=tolerance)
            assert (found[row] - base[row]).abs().max() > 100 * tolerance, (
                "and they are not the base model's"
            )
        assert torch.equal(model(ids).logits, base), "afterwards nothing is left"


@pytest.mark.parametrize(
    ("architecture", "batch_size"), list(zip(tiny_models.ARCHITECTURES, cycle([1, 4, 128])))
)
def test_texts_are_those_of_one_watermark_at_a_time(architecture, batch_size):
    model = tiny_models.build(architecture, torch.float64)
    cells = cells_of(tiny_models.ONE_WEIGHT[architecture])
    seeds = list(range(40, 40 + len(cells)))
    found = generate_many.sample(model, PROMPTS, cells, 15, seed=seeds, batch_size=batch_size)
    for cell, seed, responses in zip(cells, seeds, found, strict=True):
        if cell is None:
            assert responses == generate.sample(model, PROMPTS, 15, seed=seed)
            continue
        with perturb.watermarked(model, *cell):
            assert responses == generate.sample(model, PROMPTS, 15, seed=seed)
    assert found[0] != found[1]


def test_every_way_of_sampling_is_that_of_one_watermark_at_a_time(wm):
    model = tiny_models.build("llama", torch.float64)
    sampling = {"top_p": 0.6, "temperature": 1.7, "until_end": True}
    plain, marked = generate_many.sample(
        model, PROMPTS * 9, [None, (wm, KEYS[0])], 20, seed=1, **sampling
    )
    assert plain == generate.sample(model, PROMPTS * 9, 20, seed=1, **sampling)
    with perturb.watermarked(model, wm, KEYS[0]):
        assert marked == generate.sample(model, PROMPTS * 9, 20, seed=1, **sampling)
    for name, value in {"top_p": 1.0, "temperature": 1.0, "until_end": False}.items():
        assert plain != generate.sample(
            model, PROMPTS * 9, 20, seed=1, **sampling | {name: value}
        ), name


def test_one_seed_gives_all_cells_the_same_luck(model, wm):
    base, again, marked = generate_many.sample(
        model, PROMPTS, [None, None, (wm, KEYS[0])], 30, seed=5
    )
    assert base == again == generate.sample(model, PROMPTS, 30, seed=5)
    assert base != marked


def test_inside_the_model_counts_as_watermarked(model, wm, key):
    with generate_many.watermarked_rows(model, generate_many.Noises(model, [(wm, key)]), [0]):
        with pytest.raises(PerturbedModelError):
            score.score(model, [[3]], [[4]], wm, [key])
        with pytest.raises(PerturbedModelError), perturb.watermarked(model, wm, key):
            pass
    score.score(model, [[3]], [[4]], wm, [key])


def test_another_number_of_rows_is_refused_and_the_model_is_itself_again(model, wm, key):
    with (
        pytest.raises(InvalidModelError, match="2 texts"),
        generate_many.watermarked_rows(model, generate_many.Noises(model, [(wm, key)]), [0, 0]),
    ):
        model(torch.zeros(3, 4, dtype=torch.long))
    model(torch.zeros(3, 4, dtype=torch.long))


@pytest.mark.parametrize(
    ("cells", "match"), [([], "none"), ([None], "none"), ("two", "one weight")]
)
def test_cells_must_share_one_weight(model, wm, key, cells, match):
    if cells == "two":
        cells = [(wm, key), (Watermark("model.layers.0.mlp.up_proj.weight", 0.1), key)]
    with pytest.raises(InvalidWatermarkError, match=match):
        generate_many.sample(model, PROMPTS, cells, 3)


def test_a_seed_too_few(model, wm, key):
    with pytest.raises(InvalidWatermarkError, match="each of 2 cells, got 1"):
        generate_many.sample(model, PROMPTS, [(wm, key), None], 3, seed=[1])


def test_a_bound_key_is_checked_in_each_of_its_cells(model, wm, key):
    bound = perturb.bind(model, wm, key)
    generate_many.sample(model, PROMPTS, [(wm, bound), (wm, bound)], 2)
    with pytest.raises(KeyMismatchError, match="sigma"):
        generate_many.sample(
            model, PROMPTS, [(wm, bound), (Watermark(wm.weight, 2 * wm.sigma), bound)], 2
        )
