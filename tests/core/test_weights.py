"""Which watermarks there are, and what is said of those that cannot be."""

import re
from fractions import Fraction

import pytest
import tiny_models
import torch

from gaussmark_lib import perturb, weights
from gaussmark_lib.beyond.attacks import learning
from gaussmark_lib.beyond.release import served
from gaussmark_lib.beyond.token_level import keys as token_keys
from gaussmark_lib.errors import InvalidModelError, InvalidWatermarkError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import pairs

W, OTHER = "model.layers.2.mlp.down_proj.weight", "model.layers.0.mlp.up_proj.weight"
KEYS = [Key.from_seed(0)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(({"sigma": s}, r"above 1e-31 and below 1e\+31, got") for s in (1e-300, 1e31)),
        ({"sigma": [0.1, 0.2]}, "expected one, or one for each of 1 weights, got 2"),
        ({"weight": [W, OTHER], "sigma": [0.1]}, "one for each of 2 weights, got 1"),
        *(({"weight": w}, "weight: expected the name") for w in (7, [], [W, W], [W, 7])),
        *(({"rank_dropped": k}, "expected a whole number ≥ 0") for k in (1.0, True, None)),
    ],
)
@pytest.mark.usefixtures("wrong_types")
def test_a_watermark_out_of_range(wrong, message):
    with pytest.raises(InvalidWatermarkError, match=message):
        Watermark(**{"weight": W, "sigma": 0.05} | wrong)


@pytest.mark.usefixtures("wrong_types")
def test_equal_watermarks_are_equal_however_they_are_written():
    assert Watermark(W, Fraction(1, 10)) == Watermark([W], 0.1) == Watermark(W, [0.1])
    assert Watermark([W, OTHER], 0.1) == Watermark((W, OTHER), [0.1, 0.1])
    assert hash(Watermark([W, OTHER], 0.1))


@pytest.mark.parametrize("rank", [32, 1000])
def test_rank_dropped_must_leave_something(model, key, rank):
    complaint = f"rank_dropped = {rank} leaves nothing of {W}: .* = 32"
    with pytest.raises(InvalidWatermarkError, match=complaint):
        Watermark(W, 0.05, rank).on(model)
    xi = perturb.noise(model, Watermark(W, 0.05, rank_dropped=31), key)
    assert torch.linalg.matrix_rank(xi, rtol=1e-4) == 1


@pytest.mark.parametrize(
    ("weight", "near"),
    [
        ("model.layers.2.mlp.downproj.weight", W),
        ("model.layers.2.mlp.down_proj", W),
        ("zzz", "model.layers.0.self_attn.q_proj.weight"),
    ],
)
def test_an_unknown_weight_lists_the_nearest_names(model, weight, near):
    with pytest.raises(InvalidWatermarkError, match=r"nearest names are: .* lists all 22") as error:
        Watermark(weight, 0.05).on(model)
    assert near in str(error.value)


@pytest.mark.parametrize(
    ("architecture", "weight"),
    [
        ("llama", "model.norm.weight"),  # not 2-D
        ("qwen2", "model.layers.0.self_attn.q_proj.bias"),
        ("gpt2", "transformer.h.0.mlp.c_fc.bias"),
        ("llama", "model.embed_tokens.weight"),  # shared
        ("gemma", "lm_head.weight"),
        ("gpt2", "lm_head.weight"),
    ],
)
def test_what_is_no_linear_layers_own_matrix(architecture, weight):
    with pytest.raises(InvalidWatermarkError, match=rf"a single linear layer .*got '{weight}'"):
        Watermark(weight, 0.05).on(tiny_models.build(architecture))


@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj", "down_proj[2]"])
def test_the_stacked_experts_of_a_mixture_carry_none(name):
    """A matrix beside them, which sees every token, does, and the refusal names it."""
    model = tiny_models.build("qwen2_moe")
    expert = f"model.layers.1.mlp.experts.{name}"
    assert model.get_parameter(expert.partition("[")[0]).ndim == 3
    assert not [weight for weight in weights.names(model) if ".experts." in weight]
    complaint = f"a single linear layer .*got '{re.escape(expert)}'"
    with pytest.raises(InvalidWatermarkError, match=complaint) as error:
        Watermark(expert, 0.05).on(model)
    nearest = str(error.value).partition("nearest names are: ")[2].partition(";")[0].split(", ")
    assert any("shared_expert" in weight for weight in nearest)
    for weight in nearest:
        Watermark(weight, 0.05).on(model)


@pytest.mark.parametrize("is_tied", [True, False])
def test_an_embedding_carries_none(is_tied):
    """Of tokens or positions, whether or not the head shares its matrix."""
    model = tiny_models.build("gpt2")
    if not is_tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    assert ("lm_head.weight" in weights.names(model)) == (not is_tied)
    for name in ("transformer.wte.weight", "transformer.wpe.weight"):
        assert name not in weights.names(model)
        with pytest.raises(InvalidWatermarkError, match=f"a single linear layer .*got '{name}'"):
            Watermark(name, 0.05).on(model)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite(model, key, value):
    model.get_parameter(W).data[3, 4] = value
    with pytest.raises(InvalidModelError, match=f"NaN or infinite numbers in {W}"):
        perturb.noise(model, Watermark(W, 0.05), key)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_the_linear_layers_own_matrices(architecture):
    model = tiny_models.build(architecture)
    names, parameters = weights.names(model), dict(model.named_parameters(remove_duplicate=False))
    per_block = {"phi3": 4, "gpt2": 4}.get(architecture, 7)
    blocks, head = model.config.num_hidden_layers, not model.config.tie_word_embeddings
    assert len(names) == len(set(names)) == per_block * blocks + head
    assert set(tiny_models.WEIGHTS[architecture]) <= set(names) <= set(parameters)
    for name in names:
        weight = weights.Weight(model, name)
        assert weight.parameter is parameters[name]
        assert weight.transposed == (architecture == "gpt2")
        assert weight.shape == tuple(weight.value().shape)
        assert torch.equal(weight.oriented(weight.value()), weight.parameter)


def test_it_is_placed_anew_by_each_door(model, key):
    """Also where a parameter was exchanged: else nothing would be marked."""
    other = tiny_models.build(seed=1)
    wm = Watermark(W, 0.05, rank_dropped=2).on(model)
    assert wm.on(other).linear.parameter is other.get_parameter(W)
    ones = torch.ones(32, 48)
    own = wm.projectors[0](ones)  # kept from here on
    assert not torch.allclose(wm.on(other).projectors[0](ones), own)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(values, assign=True)
    ids = torch.tensor([[3, 4, 5]])
    before = model(ids).logits
    with perturb.watermarked(model, wm, key):
        assert not torch.equal(model(ids).logits, before)
    assert torch.equal(model(ids).logits, before)


def test_what_takes_one_weight_refuses_several_at_its_entrance(model, lm, tmp_path):
    several = Watermark([W, OTHER], [0.1, 0.2])
    pairs_of_keys = pairs.Pairs([[5]], KEYS)
    calls = [
        lambda: token_keys.ready(model, several, KEYS, 1),
        lambda: next(learning.estimates(model, [[5]], [[6, 7]], several, [1])),
        lambda: learning.of_length(torch.ones(2, 2), several),
        lambda: learning.averaged(model, several, KEYS),
        lambda: served.files(tmp_path / "base.gguf", several).__enter__(),
        lambda: perturb.export_gguf(tmp_path / "base.gguf", several, KEYS[0], tmp_path / "a.gguf"),
        lambda: pairs.under_own_keys(lm, pairs_of_keys, [several], 4),
    ]
    for call in calls:
        with pytest.raises(InvalidWatermarkError, match="expected a watermark on one weight, got"):
            call()
