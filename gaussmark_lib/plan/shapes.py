"""The shapes of a decoder-only model's matrices, from its config.json alone: nothing is loaded, and
no torch is imported.

A block's matrices stand in the order in which a text passes them, in four stages:

    0  queries, keys, values  →  (attention)  →  1  output of the attention  →  2  up (and gate)  →  3  down

Scoring differentiates what comes *after* the watermarked matrix: its block's later stages, all
later blocks and the head.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaussmark_lib.errors import InvalidModelError, shown
from gaussmark_lib.paths import DATA

CONFIGS = DATA / "configs"  # of the presets' models, by hub id: what is public about their shapes
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
ALIASES = {  # our name → what configurations call it
    "hidden": ("hidden_size", "n_embd"),
    "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"),
    "vocabulary": ("vocab_size",),
    "context": ("max_position_embeddings", "n_positions"),
    "intermediate": ("moe_intermediate_size", "intermediate_size", "n_inner"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "experts": ("num_local_experts", "num_experts"),
    "active": ("num_experts_per_tok",),
    "shared": ("shared_expert_intermediate_size",),
    "dtype": ("dtype", "torch_dtype"),
}
TIED = {
    "gpt2",
    "opt",
    "bloom",
    "falcon",
    "starcoder2",
    "gpt_bigcode",
    "cohere",
    "cohere2",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
}  # by default
LLAMA = {
    "llama",
    "mistral",
    "phi3",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "smollm3",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
}  # its names
EAGER = {
    "gemma2",
    "gpt_oss",
    "bloom",
    "codegen",
}  # attention without a fused kernel, which holds the scores of all pairs of positions
NEEDED = ("hidden", "layers", "heads", "vocabulary")
MOST = 10**9  # of a width
AFTER_HEAD = (
    "final_logit_softcapping",
    "logits_scaling",
    "logit_scale",
    "lm_head_multiplier",
)  # what is done to logits, where it is not None or 1


@dataclass(frozen=True)
class Matrix:
    """One matrix of a block: its shape, its stage, and how many like it there are (experts) and are
    used by one token.
    """

    d_out: int
    d_in: int
    stage: int
    held: int = 1
    used: int = 1

    @property
    def size(self) -> int:
        return self.d_out * self.d_in


@dataclass(frozen=True)
class Weight:
    """The watermarked matrix: its full name, its block (the number of blocks for the head), and its
    shape and stage.
    """

    name: str
    block: int
    matrix: Matrix

    @property
    def of_expert(self) -> bool:
        return self.matrix.held > 1


@dataclass(frozen=True)
class Shape:
    """A model's widths. ``prefix`` is how its blocks are called; ``matrices`` are one block's, by
    their names there.

    ``intermediate`` is the width of all that one token passes in an MLP: of a mixture, of several
    experts.
    """

    name: str
    hidden: int
    layers: int
    vocabulary: int
    context: int | None
    q_width: int
    kv_width: int
    intermediate: int
    dtype: str
    tied: bool
    prefix: str
    matrices: Mapping[str, Matrix]
    named: bool = True  # whether the names of its matrices are known; else they are Llama's
    # attention scores that a block holds for a pair of positions; none where its kernel is fused
    pair: int = 0
    others: int = 0  # embeddings of positions, norms and biases, all blocks together
    ends_in_its_head: bool = True  # likelihood.ends_in_its_head

    @property
    def block_size(self) -> int:
        """Numbers in the matrices of a block that one token passes."""
        return sum(matrix.used * matrix.size for matrix in self.matrices.values())

    @property
    def head_size(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All numbers of the model."""
        blocks = self.layers * sum(matrix.held * matrix.size for matrix in self.matrices.values())
        return blocks + self.head_size * (1 if self.tied else 2) + self.others

    def weight(self, name: str | None, *, block: int | None = None, small: bool = False) -> Weight:
        """The weight of this full name; without one, that of ``models.default_weight``. A name that
        is not known counts as the default one.
        """
        if name == "lm_head.weight":
            return Weight(name, self.layers, Matrix(self.vocabulary, self.hidden, 0))
        if (
            name
            and (found := re.search(r"\.(\d+)\.(.+?)(?:\.weight|\[(\d+)\])$", name))
            and int(found[1]) < self.layers
        ):
            matrix = self.matrices.get(found[2])
            if matrix and (int(found[3]) < matrix.held if found[3] else matrix.held == 1):
                return Weight(name, int(found[1]), matrix)
        number = range(self.layers)[self.layers * 2 // 3 if block is None else block]
        own = {name: matrix for name, matrix in self.matrices.items() if matrix.held == 1}
        if small:
            short = min(reversed(own), key=lambda name: own[name].size)
        else:
            short = max(own, key=lambda name: (own[name].d_out == self.hidden, own[name].d_in))
        return Weight(f"{self.prefix}.{number}.{short}.weight", number, own[short])

    def after(self, weight: Weight) -> tuple[int, int]:
        """What is differentiated: numbers in the matrices after a weight, without the head, and the
        number of blocks whose attention is.
        """
        if weight.block == self.layers:
            return 0, 0
        above, last = (
            self.layers - 1 - weight.block,
            [matrix for matrix in self.matrices.values() if matrix.stage > weight.matrix.stage],
        )
        own = [matrix.size for matrix in last if matrix.held > 1]  # the rest of one expert
        later = sum(own) if weight.of_expert else sum(matrix.used * matrix.size for matrix in last)
        return above * self.block_size + later, above + (weight.matrix.stage == 0)

    def beside(self, weight: Weight) -> int:
        """Numbers in the matrices that are computed once more because the weight is one expert's:
        with a hook and without.
        """
        return (
            2 * sum(matrix.size for matrix in self.matrices.values() if matrix.held > 1)
            if weight.of_expert
            else 0
        )


def of(model: str) -> Shape:
    """The shape of a model: the embedded one, a local folder's, one of the presets', or one that
    the hub's client has on this disk.

    Raises:
        InvalidModelError: no config.json is at hand, or it lacks a width.
    """
    path = next((path for path in _places(model) if path.is_file()), None)
    if path is None:
        raise InvalidModelError(
            f"{model}: no config.json of it is at hand, and a plan asks no network; expected doclm,"
            " a folder, a model that was downloaded before,"
            " or one of"
            f" {', '.join(sorted(str(found.relative_to(CONFIGS))[:-5] for found in CONFIGS.rglob('*.json')))}"
        )
    try:
        return read(json.loads(path.read_text(encoding="utf-8")), model)
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise InvalidModelError(f"{model}: its shape cannot be read from {path}: {error}") from None


def _places(model: str):
    if model == "doclm":
        yield DATA / "doclm" / "config.json"
    yield Path(model).expanduser() / "config.json"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        yield CONFIGS / f"{model}.json"
        yield from cached(model).glob("snapshots/*/config.json")


def cached(model: str) -> Path:
    """Where the hub's client keeps a model, whether it is there or not."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{model.replace('/', '--')}"


def read(config: Mapping[str, Any], name: str = "model") -> Shape:
    """The shape that a configuration means; InvalidModelError for one without the widths of a
    decoder-only model.
    """
    config = config | config.get("text_config", {})
    known = {
        ours: next((config[their] for their in names if config.get(their) is not None), None)
        for ours, names in ALIASES.items()
    }
    if missing := [ours for ours in NEEDED if not isinstance(known[ours], int) or known[ours] < 1]:
        raise InvalidModelError(
            f"{name}: expected a decoder-only model's config.json, got one without"
            f" {ALIASES[missing[0]][0]}"
        )
    if wrong := [
        ours
        for ours, found in known.items()
        if ours != "dtype" and not (found is None or (isinstance(found, int) and 0 <= found < MOST))
    ]:
        raise InvalidModelError(
            f"{name}: expected {ALIASES[wrong[0]][0]} to be a whole number below {MOST:,}, got"
            f" {shown(known[wrong[0]])}"
        )
    H, n, heads, kind = known["hidden"], known["layers"], known["heads"], config.get("model_type")
    head_dim, inner = known["head_dim"] or H // heads, known["intermediate"] or 4 * H
    q, kv = heads * head_dim, (known["kv_heads"] or heads) * head_dim
    if config.get("kv_lora_rank") or config.get("n_routed_experts"):
        raise InvalidModelError(
            f"{name}: a plan knows no models of this kind, {kind}, with latent attention or routed"
            " beside dense layers"
        )
    tied = bool(config.get("tie_word_embeddings", kind in TIED))
    widths = {
        "hidden": H,
        "layers": n,
        "vocabulary": known["vocabulary"],
        "context": known["context"],
        "q_width": q,
        "kv_width": kv,
    }
    if kind == "gpt2":
        matrices, prefix = _gpt2(H, inner), "transformer.h"
        others = n * (9 * H + inner) + (2 + (known["context"] or 0)) * H
    else:
        experts, shared = known["experts"] or 0, known["shared"] or 0
        matrices, prefix = (
            _llama(H, q, kv, inner, kind, experts, known["active"] or 1, shared),
            "model.layers",
        )
        others = (
            n
            * (
                2 * H
                + (q + 2 * kv) * (kind in ("qwen2", "qwen2_moe"))
                + (experts + (shared > 0)) * H
            )
            + H
        )  # norms, biases, routers
    dtype = str(known["dtype"] or "float32").removeprefix("torch.")
    at_once = inner * (known["active"] or 1) + (known["shared"] or 0) if known["experts"] else inner
    more = {"intermediate": at_once, "dtype": dtype, "tied": tied, "others": others}
    more["ends_in_its_head"] = all(config.get(one) in (None, 1) for one in AFTER_HEAD)
    more |= {
        "named": kind == "gpt2" or kind in LLAMA or kind is None,
        "pair": heads if kind in EAGER else 0,
    }
    return Shape(name, **widths, **more, prefix=prefix, matrices=matrices)


def _llama(
    H: int, q: int, kv: int, inner: int, kind: str | None, experts: int, active: int, shared: int
) -> dict[str, Matrix]:
    """A block of Llama's kind: with fused matrices in Phi-3, and with experts in a mixture."""
    if kind == "phi3":
        attention = {
            "self_attn.o_proj": Matrix(H, q, 1),
            "self_attn.qkv_proj": Matrix(q + 2 * kv, H, 0),
        }
        return attention | {
            "mlp.gate_up_proj": Matrix(2 * inner, H, 2),
            "mlp.down_proj": Matrix(H, inner, 3),
        }
    block = {
        f"self_attn.{name}_proj": Matrix(width, H, 0)
        for name, width in (("q", q), ("k", kv), ("v", kv))
    }
    block["self_attn.o_proj"] = Matrix(H, q, 1)
    if experts:
        several = {"held": experts, "used": active}
        block |= {
            "mlp.experts.gate_up_proj": Matrix(2 * inner, H, 2, **several),
            "mlp.experts.down_proj": Matrix(H, inner, 3, **several),
        }
    if experts and not shared:
        return block
    at, width = ("mlp.shared_expert", shared) if experts else ("mlp", inner)
    return block | {
        f"{at}.gate_proj": Matrix(width, H, 2),
        f"{at}.up_proj": Matrix(width, H, 2),
        f"{at}.down_proj": Matrix(H, width, 3),
    }


def _gpt2(H: int, inner: int) -> dict[str, Matrix]:
    return {
        "attn.c_attn": Matrix(3 * H, H, 0),
        "attn.c_proj": Matrix(H, H, 1),
        "mlp.c_fc": Matrix(inner, H, 2),
        "mlp.c_proj": Matrix(H, inner, 3),
    }
