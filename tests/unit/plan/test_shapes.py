"""Shapes from configurations, beside the models that transformers builds of them."""

import json

import pytest
import tiny_models
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    Qwen2MoeConfig,
)

from gaussmark_lib import likelihood, models
from gaussmark_lib.errors import InvalidModelError
from gaussmark_lib.plan import device, shapes, words
from gaussmark_lib.plan.estimate import Plan
from gaussmark_lib.plan.steps import Setting

PUBLISHED = {  # hub id → parameters
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "microsoft/Phi-3.5-mini-instruct": 3_821_079_552,
}


def test_the_committed_configurations_have_the_published_sizes():
    assert {
        str(path.relative_to(shapes.CONFIGS))[:-5] for path in shapes.CONFIGS.rglob("*.json")
    } == set(PUBLISHED)
    for name, parameters in PUBLISHED.items():
        shape = shapes.of(name)
        assert shape.parameters == parameters
        assert shape.dtype == "bfloat16"
        assert (shapes.CONFIGS / f"{name}.json").stat().st_size < 1024


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_a_shape_is_that_of_the_model(architecture):
    model = tiny_models.build(architecture)
    shape = shapes.read(model.config.to_dict())
    assert shape.parameters == model.num_parameters()
    for block, small in ((None, False), (None, True), (-1, False), (-1, True)):
        assert shape.weight(None, block=block, small=small).name == models.default_weight(
            model, block=block, small=small
        )
    for name in {*models.watermarkable(model), *tiny_models.WEIGHTS[architecture]}:
        weight = shape.weight(name)
        assert (weight.name, (weight.matrix.d_out, weight.matrix.d_in)) == (
            name,
            models.linear(model, name).shape,
        )


SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    "config",
    [
        MixtralConfig(**SIZES, num_local_experts=4),
        Qwen2MoeConfig(**SIZES, num_experts=8, moe_intermediate_size=24),
    ],
)
def test_a_mixture_of_experts(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = shapes.read(config.to_dict())
    assert shape.parameters == pytest.approx(model.num_parameters(), rel=0.01)
    assert shape.block_size < sum(
        matrix.held * matrix.size for matrix in shape.matrices.values()
    ), "a token passes some of the experts"


@pytest.mark.parametrize("name", ["[8]", "[-1]", "[x]", "", ".weight"])
def test_a_name_that_no_expert_has_counts_as_the_default_one(name):
    shape = shapes.read(Qwen2MoeConfig(**SIZES, num_experts=8, moe_intermediate_size=24).to_dict())
    assert shape.weight(f"model.layers.0.mlp.experts.down_proj{name}") == shape.weight(None)


def test_doclm_and_a_folder_are_the_same(tmp_path):
    (tmp_path / "config.json").write_text((models.DATA / "doclm" / "config.json").read_text())
    here, there = shapes.of("doclm"), shapes.of(str(tmp_path))
    assert here.parameters == there.parameters == 6_163_712


WIDTHS = (
    '{"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 9,'
    ' "head_dim": '
)
DAMAGED = [
    ("{", "cannot be read"),
    ("[]", "cannot be read"),
    ("{}", "without hidden_size"),
    ("[" * 100_000, "cannot be read"),
]
DAMAGED += [
    (f"{WIDTHS}{value}}}", "expected head_dim to be a whole number below")
    for value in ('"x"', "-1", "1.5", "1e400", "[]", "1" + "0" * 30)
]


@pytest.mark.parametrize(("content", "what"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_configuration_says_so(tmp_path, content, what):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InvalidModelError, match=what):
        shapes.of(str(tmp_path))


def test_an_unknown_model_says_what_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InvalidModelError, match=r"a plan asks no network.*Llama-3\.1-8B"):
        shapes.of("nobody/nothing")
    folder = tmp_path / "models--nobody--nothing" / "snapshots" / "1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SIZES))
    assert shapes.of("nobody/nothing").hidden == 32, "as it was downloaded before"


CHANGED = [
    Gemma2Config(**SIZES, head_dim=8),
    GraniteConfig(**SIZES, logits_scaling=8.0),
    CohereConfig(**SIZES),
]


@pytest.mark.parametrize(
    "config",
    [
        *CHANGED,
        GraniteConfig(**SIZES),
        Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=None),
    ],
)
def test_what_is_done_to_logits_after_the_head_is_known(config):
    model = AutoModelForCausalLM.from_config(config)
    assert shapes.read(config.to_dict()).ends_in_its_head == likelihood.ends_in_its_head(model)


FUSED = [LlamaConfig(**SIZES), Gemma3TextConfig(**SIZES, head_dim=8)]
EAGER = [
    Gemma2Config(**SIZES, head_dim=8),
    GptOssConfig(**SIZES, head_dim=8, num_local_experts=4),
    BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4),
]


@pytest.mark.parametrize("config", [*FUSED, *EAGER], ids=lambda config: config.model_type)
def test_attention_without_a_fused_kernel_holds_its_scores(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shapes.read(config.to_dict()).pair == (
        4 if model.config._attn_implementation == "eager" else 0
    )


def test_a_kind_whose_names_are_not_known_says_so():
    config = OPTConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = shapes.read(config.to_dict())
    assert not shape.named
    assert shape.weight(None).name not in dict(model.named_parameters())
    assert (
        "the plan does not know this model's own"
        in words._model(Plan("", Setting(shape, shape.weight(None)), device.of("cpu"), (), (), ()))[
            0
        ]
    )
    assert all(shapes.of(name).named for name in ["doclm", *PUBLISHED])


def test_all_experts_that_a_token_passes_are_at_work_at_once():
    shape = shapes.read(
        Qwen2MoeConfig(
            **SIZES, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24
        ).to_dict()
    )
    assert shape.intermediate == 3 * 24 + Qwen2MoeConfig().shared_expert_intermediate_size


def test_a_kind_that_no_plan_knows_is_refused():
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    for more in ({"kv_lora_rank": 512}, {"n_routed_experts": 64}):
        with pytest.raises(InvalidModelError, match="knows no models of this kind, deepseek"):
            shapes.read(sizes | more | {"model_type": "deepseek_v2"})


def test_what_comes_after_a_weight():
    shape = shapes.of("meta-llama/Llama-3.1-8B")
    down, up, query = (
        shape.weight(f"model.layers.30.{name}.weight")
        for name in ("mlp.down_proj", "mlp.up_proj", "self_attn.q_proj")
    )
    assert shape.after(down) == (shape.block_size, 1)
    assert shape.after(up) == (shape.block_size + 4096 * 14336, 1)
    assert shape.after(query) == (shape.block_size + 3 * 4096 * 14336 + 4096**2, 2)
    assert shape.after(shape.weight("lm_head.weight")) == (0, 0)
