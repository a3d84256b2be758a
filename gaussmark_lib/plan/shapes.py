"""The shapes of a decoder-only model's matrices, from its config.json alone: nothing is loaded, and no torch is imported.

A block's matrices stand in the order in which a text passes them, in four stages:

    0  queries, keys, values  →  (attention)  →  1  output of the attention  →  2  up (and gate)  →  3  down

Scoring differentiates what comes *after* the watermarked matrix: its block's later stages, all later blocks and the head.
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
    "window": ("sliding_window",),
}
