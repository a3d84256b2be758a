"""Random models of seven architectures, small enough to check by the slow obvious way, and generic:
no weight is at its initial 0 or 1.

All have a non-square MLP, fewer key heads than query heads where the architecture can (so that q, k
and down_proj differ in shape), and weights large enough that the model is far from uniform.
"""

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gaussmark_lib.perturb import Watermark

VOCAB = 97
CONTEXT = 64

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
IDS = {"vocab_size": VOCAB, "max_position_embeddings": CONTEXT}
IDS |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_TIED = IDS | SIZES | {"tie_word_embeddings": True}
_UNTIED = IDS | SIZES | {"tie_word_embeddings": False}
_OF_GPT2 = {"n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48}

# transformers' name of an architecture → settings that differ from its usual ones
_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _UNTIED | {"num_hidden_layers": 3},
    "mistral": _UNTIED | {"sliding_window": 12},
    "phi3": _UNTIED,
    "qwen2": _TIED,
    "qwen2_moe": _UNTIED | _EXPERTS,
    "gemma": _TIED | {"head_dim": 16},
    "gpt2": {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2} | _OF_GPT2,
}
ARCHITECTURES = list(_CONFIGS)

# architecture → names of matrices: attention and MLP, first and last block
WEIGHTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
EVERY_WEIGHT = [
    (architecture, weight) for architecture, weights in WEIGHTS.items() for weight in weights
]


def alternating(*options) -> list[tuple]:
    """Every (architecture, weight) once, each with one of the options in turn: each option meets
    each kind of weight and architecture.
    """
    return [(*pair, options[i % len(options)]) for i, pair in enumerate(EVERY_WEIGHT)]


ONE_WEIGHT = {
    architecture: weights[-1] if architecture != "llama" else weights[-2]
    for architecture, weights in WEIGHTS.items()
}


def build(
    architecture: str = "llama", dtype: torch.dtype = torch.float32, seed: int = 0
) -> PreTrainedModel:
    """A fresh random model in evaluation mode: the same weights each time, and the same (rounded)
    in each dtype.
    """
    config = AutoConfig.for_model(architecture, **_CONFIGS[architecture])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                scale = 0.2 if parameter.ndim == 2 else 0.1
                parameter.add_(torch.randn_like(parameter), alpha=scale)
    model.to(dtype).eval()
    if dtype == torch.float64:
        _norms_in_float64(model)
        if model._can_set_experts_implementation():
            model.set_experts_implementation("eager")
    return model


def marked(
    architecture: str = "llama", dtype: torch.dtype = torch.float32, *rank: object
) -> tuple[PreTrainedModel, Watermark]:
    """A model, and a watermark of σ = 0.05 in its ``ONE_WEIGHT``; ``rank``: dropped, and side."""
    return build(architecture, dtype), Watermark(ONE_WEIGHT[architecture], 0.05, *rank)


def parameter(model: PreTrainedModel, weight: str) -> torch.nn.Parameter:
    """The parameter that a weight is, by its name alone."""
    return dict(model.named_parameters())[weight]


def next_logits(model: PreTrainedModel, prompt: list[int], response: list[int]) -> torch.Tensor:
    """The logits from which each token of the response came: one text by itself, unpadded."""
    return model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]


def log_p(model: PreTrainedModel, prompt: list[int], response: list[int]) -> torch.Tensor:
    """log p of each token of the response, of one text by itself."""
    return next_logits(model, prompt, response).log_softmax(-1)[range(len(response)), response]


def counted_passes(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which each pass through the model from now on adds its direction."""
    passes: list[str] = []
    backward = torch.autograd.grad

    def counted(*args, **kwargs):
        passes.append("backward")
        return backward(*args, **kwargs)

    model.register_forward_hook(lambda *_: passes.append("forward"))
    monkeypatch.setattr(torch.autograd, "grad", counted)
    return passes


def _norms_in_float64(model: PreTrainedModel) -> None:
    """transformers' RMSNorm rounds to float32 whatever comes in, which would leave float64 models
    with float32's errors.
    """
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            eps = getattr(module, "variance_epsilon", None) or module.eps
            offset = 1.0 if "Gemma" in type(module).__name__ else 0.0
            module.forward = partial(_rms_norm, weight=module.weight, eps=eps, offset=offset)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (offset + weight)


def random_ids(rng, *lengths: int) -> list[list[int]]:
    """A row of random token ids of each length."""
    return [rng.integers(VOCAB, size=n).tolist() for n in lengths]
