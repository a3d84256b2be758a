"""Prints, as JSON, what scoring takes on two blocks with the widths of an 8-billion-parameter
Llama. Run by test_paper_scale.py.

python tests/unit/paper_scale.py --keys 64 --texts 8 --tokens 180
python tests/unit/paper_scale.py --keys 2 --texts 16 --stream
"""

import argparse
import json
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gaussmark_experiments import speed
from gaussmark_lib import perturb, score
from gaussmark_lib.beyond import joint

SIZES = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 2,
}
VOCABULARY, PROMPT = 2000, 8
WM = perturb.Watermark("model.layers.1.mlp.down_proj.weight", 0.02)  # 58.7 million numbers


def build() -> LlamaForCausalLM:
    """Random weights, in a tenth of the time that their usual initial values take."""
    kept = torch.nn.init.normal_
    torch.nn.init.normal_ = lambda tensor, *_, **__: tensor.data.uniform_(-0.03, 0.03)
    try:
        torch.manual_seed(0)
        return LlamaForCausalLM(
            LlamaConfig(
                **SIZES,
                vocab_size=VOCABULARY,
                max_position_embeddings=2048,
                tie_word_embeddings=False,
            )
        ).eval()
    finally:
        torch.nn.init.normal_ = kept


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("keys", 16), ("texts", 8), ("tokens", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--stream", action="store_true", help="by joint.sequence")
    asked = parser.parse_args()
    model = build()
    ids = torch.randint(
        3,
        VOCABULARY,
        (asked.texts, PROMPT + asked.tokens),
        generator=torch.Generator().manual_seed(0),
    )
    x, y, keys = (
        ids[:, :PROMPT].tolist(),
        ids[:, PROMPT:].tolist(),
        [perturb.Key.from_seed(i) for i in range(asked.keys)],
    )
    own = sum(parameter.nbytes for parameter in model.parameters())
    state, test = joint.State(), joint.sequence if asked.stream else score.score
    start = time.perf_counter()
    table, mebibytes = speed.peak_memory(
        lambda: test(model, x, y, WM, keys, **{"state": state} if asked.stream else {})
    )
    found = {
        "s": time.perf_counter() - start,
        "kept": state.n_kept,
        "psi": table["psi"].tolist(),
        "GiB of the model": own / 2**30,
        "GiB at the peak": own / 2**30 + mebibytes / 2**10,
    }
    if asked.stream:
        plain = score.score(model, x, y, WM, keys, batch_size=1)
        found |= {
            "innovation": table["innovation"].tolist(),
            "|Δψ|": float((plain["psi"] - table["psi"]).abs().max()),
        }
    print(json.dumps(found))
