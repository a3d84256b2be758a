"""One expert's matrix in a mixture of experts: against autograd on the parameter of all experts,
and against a model with the sum in place.

Mixtures of every kind: with a shared expert (Qwen), without (Mixtral), transposed, with biases and
a gate of its own (gpt-oss), without a gate (Nemotron-H).
"""

from collections.abc import Callable

import numpy as np
import pytest
import tiny_models
import torch
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    PreTrainedModel,
)

from gaussmark_lib import (
    evidence,
    generate_many,
    gradients,
    joint,
    likelihood,
    models,
    perturb,
    score,
    weights,
)
from gaussmark_lib.errors import (
    BaseModelWarning,
    DegenerateScoreError,
    KeyMismatchError,
    UnknownWeightError,
)
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.token_level import divergence as token_divergence
from gaussmark_lib.token_level import gradients as token_gradients
from gaussmark_lib.token_level import keys as token_keys

SIZES = (
    tiny_models._IDS | tiny_models._SIZES | {"num_experts_per_tok": 2, "tie_word_embeddings": False}
)
STATES = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "n_groups": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 4,
}
STATES |= {
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 16,
    "layers_block_type": ["attention", "moe", "attention", "moe"],
}
MAKERS: dict[str, Callable[[], PreTrainedModel]] = {
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4)),
    "gpt_oss": lambda: GptOssForCausalLM(
        GptOssConfig(**SIZES, num_local_experts=4, head_dim=8, layer_types=["full_attention"] * 2)
    ),
    "nemotron_h": lambda: NemotronHForCausalLM(
        NemotronHConfig(**SIZES | STATES | {"num_hidden_layers": 4}, head_dim=8)
    ),
}
FIRST = {  # of each, the parameters in its lower mixture
    "qwen2_moe": (
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.mlp.experts.down_proj",
    ),
    "mixtral": ("model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"),
    "gpt_oss": ("model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"),
    "nemotron_h": (
        "model.layers.1.mixer.experts.up_proj",
        "model.layers.1.mixer.experts.down_proj",
    ),
}
KINDS = [(architecture, name) for architecture, names in FIRST.items() for name in names]
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 9, 2)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), 12, 7, 20)
KEYS = [Key.from_seed(i) for i in range(2)]
WEIGHT = "model.layers.0.mlp.experts.down_proj[1]"


def build(architecture: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    with pytest.MonkeyPatch.context() as also:
        for name, maker in MAKERS.items():
            also.setitem(tiny_models._MAKERS, name, maker)
        return tiny_models.build(architecture, dtype)


def slopes(
    model: PreTrainedModel, name: str, prompt: list[int], response: list[int]
) -> tuple[torch.Tensor, float]:
    """∇ log p of one text with respect to a parameter of all experts, and log p, by autograd."""
    logits = model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[
        0, len(prompt) - 1 : -1
    ]
    log_p = logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None]).sum()
    [gradient] = torch.autograd.grad(log_p, tiny_models.parameter(model, name))
    return gradient.detach(), log_p.item()


@pytest.mark.parametrize(("architecture", "name"), KINDS)
def test_every_experts_gradient_is_its_part_of_the_parameters(architecture, name):
    model = build(architecture, torch.float64)
    close = (
        {"rtol": 1e-9, "atol": 1e-12}
        if architecture != "nemotron_h"
        else {"rtol": 1e-4, "atol": 1e-6}
    )  # which rounds its logits to float32
    by_hand = [slopes(model, name, x, y) for x, y in zip(PROMPTS, RESPONSES, strict=True)]
    unused = 0
    for number in range(4):
        for found in gradients.gradients(
            model, PROMPTS, RESPONSES, Watermark(f"{name}[{number}]", 1.0)
        ):
            whole, log_lik = by_hand[found.text]
            G = whole[number].T if architecture == "gpt_oss" else whole[number]
            torch.testing.assert_close(found.G.double(), G, **close)
            assert found.log_lik == pytest.approx(log_lik, rel=1e-6)
            unused += not G.any()
    assert unused < 6, "the texts use most of the experts"


@pytest.mark.parametrize(("architecture", "name"), KINDS)
def test_every_way_to_compute_experts_is_scored_alike(architecture, name):
    wm, tables = Watermark(f"{name}[1]", 0.05), []
    model = build(architecture)
    for implementation in ("eager", "batched_mm", "grouped_mm"):
        model.set_experts_implementation(implementation)
        tables.append(score.score(model, PROMPTS, RESPONSES, wm, KEYS, lengths=[7], batch_size=2))
    exact = score.score(model, PROMPTS, RESPONSES, wm, KEYS, lengths=[7], dtype="float64")
    for table in tables:
        np.testing.assert_allclose(
            table[["psi", "grad_norm", "log_lik"]],
            exact[["psi", "grad_norm", "log_lik"]],
            rtol=1e-3,
            atol=1e-4,
        )
    assert set(model.get_experts_implementation().values()) == {"grouped_mm"}, (
        "as it was before float64"
    )


@pytest.mark.parametrize(("architecture", "name"), KINDS)
def test_the_slope_along_the_noise_and_the_evidence(architecture, name):
    """Both directions of differentiation, and central differences of a model with the sum
    in place.
    """
    model, wm = build(architecture, torch.float64), Watermark(f"{name}[1]", 1.0)
    [row] = score.score(model, PROMPTS[:1], RESPONSES[:1], wm, KEYS[:1]).itertuples()
    xi, ends = perturb.noise(model, wm, KEYS[0]), []
    for step in (1e-4, -1e-4):
        with perturb.moved(model, wm, step * xi):
            ends.append(
                -likelihood.cross_entropy(model, RESPONSES[:1], prompts=PROMPTS[:1])[0]
                * len(RESPONSES[0])
            )
    rounded = architecture == "nemotron_h"
    assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(
        row.psi * row.grad_norm, rel=0.05 if rounded else 1e-3
    )  # routers round to float32 as well
    e = evidence.per_token(model, PROMPTS[0], RESPONSES[0], wm, KEYS[0])["evidence"]
    assert e.sum() == pytest.approx(row.psi, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("architecture", "name"), KINDS)
def test_inside_it_is_the_expert_at_theta_plus_xi_and_outside_every_bit_is_back(architecture, name):
    model, wm = build(architecture), Watermark(f"{name}[2]", 0.05)
    before = {other: p.detach().clone() for other, p in model.named_parameters()}
    xi = perturb.noise(model, wm, KEYS[0])
    expected = before[name].clone()
    expected[2] += xi.T if architecture == "gpt_oss" else xi
    with perturb.watermarked(model, wm, KEYS[0]):
        for other, p in model.named_parameters():
            assert torch.equal(p, expected if other == name else before[other])
    assert all(torch.equal(p, before[other]) for other, p in model.named_parameters())
    assert wm.on(model).linear.value().shape == xi.shape
    assert torch.equal(
        wm.on(model).linear.value(),
        before[name][2].T if architecture == "gpt_oss" else before[name][2],
    )


@pytest.mark.parametrize(("architecture", "name"), KINDS)
def test_rows_of_a_batch_are_those_of_the_expert_with_the_sum_in_place(architecture, name):
    model = build(architecture, torch.float64)
    cells = [(Watermark(f"{name}[1]", sigma), key) for sigma in (0.05, 0.3) for key in KEYS]
    owner, ids = (
        [0, 3, 1, 2],
        torch.tensor(tiny_models.random_ids(np.random.default_rng(2), *[15] * 4)),
    )
    with torch.no_grad():
        base = model(ids, use_cache=False).logits
        with generate_many.watermarked_rows(model, generate_many.Noises(model, cells), owner):
            found = model(ids, use_cache=False).logits
        for row, cell in enumerate(owner):
            with perturb.watermarked(model, *cells[cell]):
                expected = model(ids[row : row + 1], use_cache=False).logits[0]
            torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-5)
        assert (found - base).abs().amax((1, 2)).max() > 1e-3
        torch.testing.assert_close(model(ids, use_cache=False).logits, base, rtol=0, atol=0)


def test_every_expert_in_one_pass_with_layers_below():
    model = build("mixtral", torch.float64)
    names = [f"{name}[{i}]" for name in FIRST["mixtral"] for i in range(4)]
    names += [
        "model.layers.0.self_attn.v_proj.weight",
        *(name.replace("layers.0", "layers.1") for name in names),
    ]
    together = gradients.norms(model, PROMPTS, RESPONSES, names, lengths=[5, 7])
    for name in names[::3]:
        alone = gradients.norms(model, PROMPTS, RESPONSES, [name], lengths=[5, 7])
        assert together[together["weight"] == name]["grad_norm"].tolist() == pytest.approx(
            alone["grad_norm"].tolist(), rel=1e-9
        )


@pytest.mark.parametrize("name", FIRST["mixtral"])
def test_an_expert_that_no_token_is_routed_to(name):
    """It has no gradient, whatever its numbers are, and would overflow if it were computed."""
    model, every, seen = build("mixtral"), [f"{name}[{i}]" for i in range(4)], []
    with model.get_submodule("model.layers.0.mlp.experts").register_forward_hook(
        lambda _, inputs, output: seen.append(set(inputs[1].flatten().tolist()))
    ):
        for token in range(50):
            model(torch.tensor([[3, token]]))
    token = next(token for token in range(50) if len(seen[token]) < 4)
    [unused, *_] = {0, 1, 2, 3} - seen[token]
    text = [[3]], [[token]]
    before = gradients.norms(model, *text, every)
    for of_all in FIRST["mixtral"]:
        tiny_models.parameter(model, of_all).data[unused] = 1e38
    assert gradients.norms(model, *text, every).equals(before)
    wm = Watermark(f"{name}[{unused}]", 1.0)
    with pytest.raises(
        DegenerateScoreError, match="such as an expert that none of its tokens is routed to"
    ):
        score.score(model, *text, wm, KEYS)
    assert (
        score.score(model, *text, wm, KEYS, on_error="record")["error"].str.contains("expert").all()
    )


@pytest.mark.parametrize("architecture", ["qwen2_moe", "gpt_oss"])
def test_what_is_local_does_not_depend_on_the_tokens_that_are_tried(architecture):
    model = build(architecture)
    for name in FIRST[architecture]:
        for i in range(4):
            assert not token_gradients.is_local(model, models.linear(model, f"{name}[{i}]"))
            assert token_gradients.is_local(
                model, models.linear(model, f"{name.replace('layers.0', 'layers.1')}[{i}]")
            )


def test_bfloat16_where_the_processor_has_it(monkeypatch):
    monkeypatch.setattr(models, "native_bfloat16", lambda device: True)
    model, wm = build("qwen2_moe"), Watermark(WEIGHT, 0.05)
    exact = score.score(model, PROMPTS, RESPONSES, wm, KEYS)
    narrow = score.score(model, PROMPTS, RESPONSES, wm, KEYS, dtype="bfloat16")
    assert 0 < (narrow["psi"] - exact["psi"]).abs().max() < 0.3
    in_bfloat16 = score.score(build("qwen2_moe", torch.bfloat16), PROMPTS, RESPONSES, wm, KEYS)
    assert (in_bfloat16["psi"] - exact["psi"]).abs().max() < 0.5


def test_a_key_is_bound_to_the_expert_that_it_was_made_for():
    model, wm = build("qwen2_moe"), Watermark(WEIGHT, 0.05, rank_dropped=3)
    key = perturb.bind(model, wm, KEYS[0])
    assert (
        key.binding.base_sha256
        == wm.on(model).linear.sha256()
        != Watermark(WEIGHT[:-2] + "2]", 1.0).on(model).linear.sha256()
    )
    score.score(model, PROMPTS, RESPONSES, wm, [key])
    with pytest.raises(
        KeyMismatchError,
        match=r"weight: the key was made for '.*down_proj\[1\]', got '.*down_proj\[2\]'",
    ):
        perturb.noise(model, Watermark(WEIGHT[:-2] + "2]", 0.05, rank_dropped=3), key)
    experts = tiny_models.parameter(model, WEIGHT).data
    experts[2] *= 1.5
    with pytest.warns(
        BaseModelWarning,
        match=(
            r"1 other weights are not those of the key's model:"
            r" model.layers.0.mlp.experts.down_proj\."
        ),
    ):
        perturb.noise(model, wm, key)
    experts[1] *= 1.5
    with pytest.raises(KeyMismatchError, match="base_sha256"):
        perturb.noise(model, wm, key)


@pytest.mark.parametrize("architecture", ["qwen2_moe", "mixtral", "gpt_oss"])
def test_an_exported_checkpoint_has_the_sum(architecture, tmp_path):
    model, wm = build(architecture), Watermark(WEIGHT, 0.05)
    exported = AutoModelForCausalLM.from_pretrained(
        perturb.export(model, wm, KEYS[0], tmp_path / "out")
    )
    assert exported.config.gaussmark["weight"] == WEIGHT
    with perturb.watermarked(model, wm, KEYS[0]):
        expected = {name: p.clone() for name, p in model.state_dict().items()}
    for name, p in exported.state_dict().items():
        assert torch.equal(p, expected[name]), name


def test_joint_and_token_level():
    model, wm = build("qwen2_moe"), Watermark("model.layers.1.mlp.experts.gate_up_proj[2]", 0.3)
    before = {name: p.clone() for name, p in model.named_parameters()}
    together = joint.sequence(model, PROMPTS, RESPONSES, wm, KEYS)
    assert together["psi"].tolist() == pytest.approx(
        score.score(model, PROMPTS, RESPONSES, wm, KEYS)["psi"].tolist(), rel=1e-3, abs=1e-4
    )
    texts = token_keys.sample(model, PROMPTS, 12, wm, KEYS[0], seed=3)
    found = token_keys.from_gammas(token_keys.per_token(model, PROMPTS, texts, wm, KEYS[0]))
    assert np.isfinite(found["psi"]).all()
    assert (token_divergence.per_text(model, PROMPTS, texts, wm, KEYS[0]) > 0).all()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


BARE = WEIGHT[:-3]
UNKNOWN = {
    BARE: (
        r"has the matrices of 4 experts: name one expert's slice, .*down_proj\[0\] to"
        r" .*down_proj\[3\], got 'model"
    ),
    **dict.fromkeys(
        [f"{BARE}[{i}" for i in ("4]", "-1]", "x]", "01]", "1", "]", "1].weight", "²]", "1, 2]")],
        "name one expert's slice",
    ),
    "model.layers.0.mlp.gate.weight": "not the matrix of a linear layer",
    "model.layers.0.mlp.gate.weight[1]": "no weight 'model.layers.0.mlp.gate.weight",
    "model.layers.0.mlp.experts.up_proj[1]": "no weight 'model.layers.0.mlp.experts.up_proj",
}


@pytest.mark.parametrize("weight", UNKNOWN)
def test_names_that_are_none(weight):
    with pytest.raises(UnknownWeightError, match=UNKNOWN[weight]):
        weights.linear(build("qwen2_moe"), weight)


STRANGE = {
    "has_post_expert_norm": "end in a norm of their own",
    "_is_expert_parallel": "lie on several devices",
    "has_gate": r"not 2-D, nor of experts that are computed in a known way \(MixtralExperts\)",
}


@pytest.mark.parametrize("attribute", STRANGE)
def test_experts_of_an_unknown_kind_are_refused_by_name(attribute):
    model = build("mixtral")
    experts = model.get_submodule("model.layers.0.mlp.experts")
    setattr(experts, attribute, not getattr(experts, attribute))
    with pytest.raises(UnknownWeightError, match=STRANGE[attribute]):
        weights.linear(model, FIRST["mixtral"][0] + "[1]")
    experts.gate_up_proj = model.get_submodule("model.layers.1.mlp.experts").gate_up_proj
    with pytest.raises(UnknownWeightError):
        weights.linear(model, "model.layers.1.mlp.experts.gate_up_proj[1]")


def test_experts_are_not_listed():
    model = build("qwen2_moe")
    assert not [name for name in models.watermarkable(model) if "experts" in name]
    assert models.default_weight(model) == "model.layers.1.mlp.shared_expert.down_proj.weight"
