"""Random models of seven architectures, small enough to check by the slow obvious way, and generic:
no weight is at its initial 0 or 1.

All have a non-square MLP, fewer key heads than query heads where the architecture can (so that q, k
and down_proj differ in shape), and weights large enough that the model is far from uniform.
"""

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

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
IDS = {
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

_MAKERS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(**IDS, **SIZES | {"num_hidden_layers": 3}, tie_word_embeddings=False)
    ),
    "mistral": lambda: MistralForCausalLM(
        MistralConfig(**IDS, **SIZES, sliding_window=12, tie_word_embeddings=False)
    ),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**IDS, **SIZES, tie_word_embeddings=False)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**IDS, **SIZES, tie_word_embeddings=True)),
    "qwen2_moe": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(**IDS, **SIZES, **_EXPERTS, tie_word_embeddings=False)
    ),
    "gemma": lambda: GemmaForCausalLM(
        GemmaConfig(**IDS, **SIZES, head_dim=16, tie_word_embeddings=True)
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_positions=CONTEXT,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_inner=48,
            bos_token_id=1,
            eos_token_id=2,
        )
    ),
}
ARCHITECTURES = list(_MAKERS)

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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _MAKERS[architecture]()
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


def _norms_in_float64(model: PreTrainedModel) -> None:
    """transformers' RMSNorm rounds to float32 whatever comes in, which would leave float64 models
    with float32's errors.
    """
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            eps = getattr(module, "variance_epsilon", None) or module.eps
            module.forward = partial(
                _rms_norm,
                weight=module.weight,
                eps=eps,
                offset=1.0 if "Gemma" in type(module).__name__ else 0.0,
            )


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (offset + weight)


def random_ids(rng, *lengths: int) -> list[list[int]]:
    """A row of random token ids of each length."""
    return [rng.integers(VOCAB, size=n).tolist() for n in lengths]
