"""Bad input to scoring: each is a named error that says what was expected and what came."""

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import perturb, score
from gaussmark_lib.errors import (
    DegenerateScoreError,
    InvalidModelError,
    InvalidTextError,
    PerturbedModelError,
    UnknownWeightError,
)
from gaussmark_lib.perturb import Key, Watermark


def refused(
    message: str, model, prompts, responses, wm, keys, error=InvalidTextError, **kwargs
) -> None:
    with pytest.raises(error, match=message):
        score.score(model, prompts, responses, wm, keys, **kwargs)


def test_tensors_arrays_and_tuples_are_ids_too(model, wm, key):
    expected = score.score(model, [[1, 2]], [[3, 4, 5]], wm, [key])
    for kind in (
        torch.tensor,
        np.array,
        tuple,
        lambda ids: np.array(ids, dtype=np.int16),
        lambda ids: [torch.tensor(i) for i in ids],
    ):
        table = score.score(model, [kind([1, 2])], [kind([3, 4, 5])], wm, [key])
        np.testing.assert_array_equal(table["psi"], expected["psi"])


def test_no_prompts(model, wm, key):
    refused("at least one prompt with its response, got none", model, [], [], wm, [key])


def test_an_empty_response(model, wm, key):
    refused(
        "response 1: expected at least one token to score, got none",
        model,
        [[1], [2]],
        [[3], []],
        wm,
        [key],
    )


def test_one_token_is_enough(model, wm, key):
    [row] = score.score(model, [[1, 2]], [[3]], wm, [key]).itertuples()
    assert row.n_tokens == 1
    assert np.isfinite(row.psi)


def test_one_token_after_an_empty_prompt_is_enough(model, wm, key):
    [row] = score.score(model, [[]], [[3]], wm, [key]).itertuples()
    assert np.isfinite(row.psi)


@pytest.mark.parametrize("bad", [-1, tiny_models.VOCAB, 10**9, 2**70])
@pytest.mark.parametrize("where", ["prompt", "response"])
def test_an_id_outside_the_vocabulary(model, wm, key, bad, where):
    prompts, responses = ([[1, bad]], [[3]]) if where == "prompt" else ([[1]], [[3, bad]])
    refused(
        rf"{where} 0: expected token ids from 0 to 96, got {bad} at position 1; was it made by"
        r" another tokenizer\?",
        model,
        prompts,
        responses,
        wm,
        [key],
    )


def test_the_last_id_of_the_vocabulary_is_inside(model, wm, key):
    assert np.isfinite(score.score(model, [[0, 96]], [[96, 0]], wm, [key])["psi"][0])


@pytest.mark.parametrize("where", ["prompt", "response"])
@pytest.mark.usefixtures("wrong_types")
def test_text_instead_of_ids(model, wm, key, where):
    prompts, responses = (["Once upon"], [[3]]) if where == "prompt" else ([[1]], ["a time"])
    refused(
        rf"{where} 0: expected token ids, got text; encode it first",
        model,
        prompts,
        responses,
        wm,
        [key],
    )


@pytest.mark.parametrize("bad", ["1", 1.0, 1.5, None, True, [1], np.float32(1)])
@pytest.mark.usefixtures("wrong_types")
def test_ids_that_are_no_whole_numbers(model, wm, key, bad):
    refused(
        "response 0: expected whole numbers, got .* at position 1",
        model,
        [[1]],
        [[3, bad]],
        wm,
        [key],
    )


@pytest.mark.parametrize("bad", [np.array([1.0, 2.0]), torch.tensor([1.0]), np.array([True])])
@pytest.mark.usefixtures("wrong_types")
def test_arrays_that_are_no_whole_numbers(model, wm, key, bad):
    refused("response 0: expected whole numbers", model, [[1]], [bad], wm, [key])


@pytest.mark.parametrize("bad", [5, None, 1.5, torch.tensor(5)])
@pytest.mark.usefixtures("wrong_types")
def test_a_response_that_is_no_list(model, wm, key, bad):
    refused("response 0: expected a list of token ids, got", model, [[1]], [bad], wm, [key])


@pytest.mark.parametrize(("n", "m"), [(1, 2), (2, 1), (0, 1), (1, 0)])
def test_prompts_and_responses_of_different_number(model, wm, key, n, m):
    refused(
        f"one prompt a response, got {n} prompts and {m} responses",
        model,
        [[1]] * n,
        [[2]] * m,
        wm,
        [key],
    )


@pytest.mark.usefixtures("wrong_types")
def test_one_text_instead_of_a_list_of_texts(model, wm, key):
    refused("one prompt a response", model, [[1]] * 3, "abc", wm, [key])
    refused("prompt 0: expected a list of token ids, got 1", model, [1, 2], [3, 4], wm, [key])


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_beyond_the_context(architecture, key):
    model, wm = (
        tiny_models.build(architecture),
        Watermark(tiny_models.ONE_WEIGHT[architecture], 0.05),
    )
    message = (
        r"response 0: expected at most 64 tokens \(the model's context\), got 60 of prompt \+ 5 of"
        r" response = 65; shorten"
    )
    refused(message, model, [[1] * 60], [[2] * 5], wm, [key])
    assert np.isfinite(score.score(model, [[1] * 60], [[2] * 4], wm, [key])["psi"][0])


def test_no_keys(model, wm):
    refused("at least one key to test for, got none", model, [[1]], [[2]], wm, [])


@pytest.mark.usefixtures("wrong_types")
def test_a_key_instead_of_a_list_of_keys(model, wm, key):
    refused(r"expected a list of keys, got one; write keys=\[key\]", model, [[1]], [[2]], wm, key)


def test_an_unknown_way_with_errors(model, wm, key):
    refused(
        "on_error: expected 'raise' or 'record', got 'ignore'",
        model,
        [[1]],
        [[2]],
        wm,
        [key],
        on_error="ignore",
    )


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, None])
@pytest.mark.usefixtures("wrong_types")
def test_a_batch_size_below_one(model, wm, key, batch_size):
    refused(
        f"batch_size: expected a whole number ≥ 1, got {batch_size}",
        model,
        [[1]],
        [[2]],
        wm,
        [key],
        batch_size=batch_size,
    )


def test_an_unknown_weight(model, key):
    refused(
        "nearest names",
        model,
        [[1]],
        [[2]],
        Watermark("model.layers.9.mlp.up_proj.weight", 0.05),
        [key],
        error=UnknownWeightError,
    )


def test_under_watermarked(model, wm, key):
    with perturb.watermarked(model, wm, key):
        refused(
            r"expected the base model, got one inside watermarked\(\) or moved\(\); leave the"
            r" `with`",
            model,
            [[1]],
            [[2]],
            wm,
            [key],
            error=PerturbedModelError,
        )


def test_under_watermarked_with_another_weight_and_key(model, wm, key):
    with perturb.watermarked(
        model, Watermark("model.layers.0.mlp.up_proj.weight", 0.05), Key.from_seed(9)
    ):
        refused(
            r"inside watermarked\(\)", model, [[1]], [[2]], wm, [key], error=PerturbedModelError
        )


def test_watermarking_between_two_texts_of_one_run(model, wm, key):
    """gradients() is lazy: what its reader does between two texts must not move θ under it."""
    texts = score.gradients(model, [[1]] * 3, [[2, 3]] * 3, wm, batch_size=1)
    next(texts)
    with perturb.watermarked(model, wm, key), pytest.raises(PerturbedModelError):
        next(texts)


def test_a_nan_in_the_weight_itself(model, wm, key):
    wm.on(model).linear.parameter.data[0, 0] = float("nan")
    refused(
        "NaN or infinite numbers in model.layers.2.mlp.down_proj.weight",
        model,
        [[1]],
        [[2]],
        wm,
        [key],
        error=InvalidModelError,
    )


def test_a_nan_in_another_weight(model, wm, key):
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = float("nan")
    refused(
        "text 0: expected a finite, non-zero gradient, got ‖G‖ = nan",
        model,
        [[1, 2]],
        [[3, 4]],
        wm,
        [key],
        error=DegenerateScoreError,
    )


def test_an_overflow_in_half_precision(wm, key):
    model = tiny_models.build("llama", torch.float16)
    model.lm_head.weight.data *= 60_000
    refused(
        r"finite, non-zero gradient.*overflow in this dtype \(try float32\)",
        model,
        [[1, 2]],
        [[3, 4]],
        wm,
        [key],
        error=DegenerateScoreError,
    )


def test_a_weight_whose_output_is_multiplied_by_zero(model, key):
    """up_proj after a gate that is shut: the text is computed, but does not depend on the
    weight.
    """
    model.model.layers[1].mlp.gate_proj.weight.data.zero_()
    wm = Watermark("model.layers.1.mlp.up_proj.weight", 0.05)
    refused(
        r"text 0: .*non-zero gradient, got ‖G‖ = 0\.0",
        model,
        [[1, 2]],
        [[3, 4]],
        wm,
        [key],
        error=DegenerateScoreError,
    )


def test_attention_weights_of_a_text_of_one_token(model, key):
    """One position attends to itself alone whatever the query: its gradient is exactly 0."""
    wm = Watermark("model.layers.1.self_attn.q_proj.weight", 0.05)
    refused(r"‖G‖ = 0\.0", model, [[]], [[3]], wm, [key], error=DegenerateScoreError)


@pytest.mark.parametrize("weight", ["self_attn.q_proj", "self_attn.k_proj"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_is_no_gradient(model, key, weight, dtype):
    """What another processor's sums leave of a gradient that is 0: 1e-8 of what the block's other
    layers have.
    """
    wm = Watermark(f"model.layers.1.{weight}.weight", 0.05)
    real = torch.autograd.grad

    def with_rounding(*args, **options):
        first, *rest = real(*args, **options)
        return first + torch.rand_like(first) * torch.finfo(first.dtype).eps / 10, *rest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", with_rounding)
        refused(
            r"‖G‖ = 0\.0", model, [[]], [[3]], wm, [key], error=DegenerateScoreError, dtype=dtype
        )


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_a_weight_of_any_scale_has_a_gradient(model, key, factor):
    """Zero is relative: a layer with tiny numbers, or one that hardly counts, is not taken for
    rounding.
    """
    model.model.layers[1].mlp.up_proj.weight.data *= factor
    wm = Watermark("model.layers.1.mlp.up_proj.weight", 0.05)
    assert np.isfinite(score.score(model, [[1, 2]], [[3, 4]], wm, [key])["psi"][0])


def test_a_gradient_within_the_directions_left_out_is_none(model, key):
    """All of G lies in one direction of the output, since the layer above reads no other one, and
    the noise avoids that direction.
    """
    above, below = (
        model.model.layers[1].mlp.down_proj.weight.data,
        model.model.layers[1].mlp.up_proj.weight.data,
    )
    above[:, 1:] = 0
    below[0] = 10 * below[0]
    below[1:] -= (below[1:] @ below[0])[:, None] * below[0] / below[0].square().sum()
    wm = Watermark("model.layers.1.mlp.up_proj.weight", 0.05, rank_dropped=1)
    assert np.isfinite(
        score.score(model, [[1, 2]], [[3, 4]], Watermark(wm.weight, 0.05), [key])["psi"][0]
    )
    refused(r"‖G‖ = 0\.0", model, [[1, 2]], [[3, 4]], wm, [key], error=DegenerateScoreError)


def test_a_weight_that_the_model_never_uses(model, key):
    model.spare = torch.nn.Linear(32, 48)
    wm = Watermark("spare.weight", 0.05)
    refused(
        r"expected texts that depend on spare\.weight",
        model,
        [[1, 2]],
        [[3, 4]],
        wm,
        [key],
        error=DegenerateScoreError,
    )
    refused(
        r"spare\.weight",
        model,
        [[1, 2]],
        [[3, 4]],
        wm,
        [key],
        error=DegenerateScoreError,
        on_error="record",
    )
