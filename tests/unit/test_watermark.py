"""Which watermarks there are, and what is said of those that cannot be."""

from fractions import Fraction

import pytest
import tiny_models
import torch

from gaussmark_lib import models, perturb
from gaussmark_lib.errors import InvalidModelError, InvalidWatermarkError, UnknownWeightError
from gaussmark_lib.perturb import Watermark

W = "model.layers.2.mlp.down_proj.weight"


@pytest.mark.parametrize(
    "sigma",
    [
        0,
        0.0,
        -0.0,
        -1,
        -1e-9,
        float("nan"),
        float("inf"),
        -float("inf"),
        True,
        "0.05",
        None,
        [0.05],
        1j,
    ],
)
@pytest.mark.usefixtures("wrong_types")
def test_sigma_must_be_a_finite_positive_number(sigma):
    with pytest.raises(InvalidWatermarkError, match=r"sigma, .*expected a finite number > 0, got"):
        Watermark(W, sigma)


@pytest.mark.parametrize("sigma", [1e-300, 1e-31, 1e31, 1e300])
def test_sigma_must_fit_into_float32(sigma):
    with pytest.raises(InvalidWatermarkError, match=r"range of float32.*1e-30 to 1e30"):
        Watermark(W, sigma)


@pytest.mark.parametrize("rank", [-1, 1.0, 2.5, True, "1", None, float("nan")])
@pytest.mark.usefixtures("wrong_types")
def test_rank_dropped_must_be_a_whole_number(rank):
    with pytest.raises(
        InvalidWatermarkError, match=r"rank_dropped, .*expected a whole number ≥ 0, got"
    ):
        Watermark(W, 0.05, rank)


@pytest.mark.parametrize("rank", [32, 33, 1000])
def test_rank_dropped_must_leave_something(model, rank):
    with pytest.raises(
        InvalidWatermarkError,
        match=(
            rf"rank_dropped = {rank} leaves nothing of {W}: expected less than min\(32, 48\) = 32"
        ),
    ):
        Watermark(W, 0.05, rank).on(model)


@pytest.mark.usefixtures("wrong_types")
def test_a_fraction_is_a_number_too(model, key):
    wm = Watermark(W, Fraction(1, 10))
    assert wm == Watermark(W, 0.1)
    with perturb.watermarked(model, wm, key):
        pass


def test_where_a_parameter_was_exchanged_the_watermark_is_placed_anew(model, key):
    """As by load_state_dict(assign=True). Else the noise would go into a matrix that the model has
    no longer, and nothing would be marked.
    """
    placed, ids = Watermark(W, 0.1).on(model), torch.tensor([[3, 4, 5]])
    model.load_state_dict(
        {name: value.clone() for name, value in model.state_dict().items()}, assign=True
    )
    before = model(ids).logits
    with perturb.watermarked(model, placed, key):
        assert not torch.equal(model(ids).logits, before)
    assert torch.equal(model(ids).logits, before)


@pytest.mark.parametrize("xi", [torch.tensor(0.1), torch.ones(1, 1), torch.ones(3, 2)])
@pytest.mark.usefixtures("wrong_types")
def test_a_noise_of_another_shape_is_refused(model, xi):
    complaint = r"xi: expected a noise of .*'s shape, \(32, 48\), got"
    with (
        pytest.raises(InvalidWatermarkError, match=complaint),
        perturb.moved(model, Watermark(W, 0.1), xi),
    ):
        pass


def test_placed_on_a_model_it_is_itself_there_and_placed_anew_on_another(model):
    other = tiny_models.build(seed=1)
    wm = Watermark(W, 0.05, rank_dropped=2).on(model)
    assert wm.on(model) is wm
    assert wm.on(other).model is other
    assert wm.on(other).linear.parameter is other.get_parameter(W)
    assert not torch.allclose(
        wm.on(other).project(torch.ones(32, 48)), wm.project(torch.ones(32, 48))
    )


def test_one_direction_left_is_enough(model, key):
    xi = perturb.noise(model, Watermark(W, 0.05, rank_dropped=31), key)
    assert torch.linalg.matrix_rank(xi, rtol=1e-4) == 1


@pytest.mark.parametrize(
    ("weight", "near"),
    [
        ("model.layers.2.mlp.downproj.weight", "model.layers.2.mlp.down_proj.weight"),
        ("layers.2.mlp.down_proj.weight", "model.layers.2.mlp.down_proj.weight"),
        ("model.layers.2.mlp.down_proj", "model.layers.2.mlp.down_proj.weight"),
        ("model.layers.12.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight"),
        ("", "model.layers.0.self_attn.q_proj.weight"),
        ("zzz", "model.layers.0.self_attn.q_proj.weight"),
    ],
)
def test_an_unknown_weight_lists_the_nearest_names(model, weight, near):
    with pytest.raises(
        UnknownWeightError, match=r"nearest names are: .*watermarkable\(model\) lists all 22"
    ) as error:
        Watermark(weight, 0.05).on(model)
    assert near in str(error.value)
    assert repr(weight) in str(error.value)


def test_a_weight_that_is_not_a_matrix(model):
    with pytest.raises(
        UnknownWeightError,
        match=(
            r"model\.norm\.weight of shape \(32,\) cannot carry the watermark: .*not 2-D\. Try:"
            r" model\."
        ),
    ):
        Watermark("model.norm.weight", 0.05).on(model)


@pytest.mark.parametrize("name", ["bias", "conv1d bias"])
def test_a_bias(name):
    model, weight = (
        (tiny_models.build("qwen2"), "model.layers.0.self_attn.q_proj.bias")
        if name == "bias"
        else (tiny_models.build("gpt2"), "transformer.h.0.mlp.c_fc.bias")
    )
    with pytest.raises(UnknownWeightError, match="not 2-D"):
        Watermark(weight, 0.05).on(model)


@pytest.mark.parametrize(
    ("architecture", "weight"),
    [
        ("llama", "model.embed_tokens.weight"),
        ("gpt2", "transformer.wpe.weight"),
        ("gemma", "model.embed_tokens.weight"),
        ("gemma", "lm_head.weight"),
        ("gpt2", "lm_head.weight"),
    ],
)
def test_embeddings_and_tied_heads(architecture, weight):
    with pytest.raises(
        UnknownWeightError,
        match="cannot carry the watermark: expected a linear layer's own matrix, but it is shared",
    ):
        Watermark(weight, 0.05).on(tiny_models.build(architecture))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite(model, key, value):
    wm = Watermark(W, 0.05)
    wm.on(model).linear.parameter.data[3, 4] = value
    with pytest.raises(
        InvalidModelError, match=f"expected finite weights, got NaN or infinite numbers in {W}"
    ):
        perturb.noise(model, wm, key)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_watermarkable_weights_are_the_linear_layers_own_matrices(architecture):
    model = tiny_models.build(architecture)
    names = models.watermarkable(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    per_block = {"phi3": 4, "gpt2": 4}.get(architecture, 7)
    blocks, head = model.config.num_hidden_layers, not model.config.tie_word_embeddings
    assert len(names) == len(set(names)) == per_block * blocks + head
    assert (
        {name for name in tiny_models.WEIGHTS[architecture] if "[" not in name}
        <= set(names)
        <= set(parameters)
    )
    assert not any(
        "norm" in name or "embed" in name or "wte" in name or "wpe" in name for name in names
    )
    for name in names:
        assert models.linear(model, name).parameter is parameters[name]


def test_the_shape_is_out_times_in_whatever_the_layout():
    assert models.linear(tiny_models.build("llama"), "model.layers.0.mlp.up_proj.weight").shape == (
        48,
        32,
    )
    assert models.linear(
        tiny_models.build("phi3"), "model.layers.0.mlp.gate_up_proj.weight"
    ).shape == (96, 32)
    conv1d = models.linear(tiny_models.build("gpt2"), "transformer.h.0.mlp.c_fc.weight")
    assert conv1d.shape == (48, 32)
    assert conv1d.parameter.shape == (32, 48)
    assert conv1d.transposed


def test_side_is_left_right_or_both():
    assert Watermark(W, 0.05).side == "left"
    with pytest.raises(
        InvalidWatermarkError, match="side: expected one of left, right, both, got 'top'"
    ):
        Watermark(W, 0.05, 2, "top")
