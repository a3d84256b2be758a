"""Print, as JSON, the time and memory of scoring on two blocks with the widths of an
8-billion-parameter Llama.

    python -m gaussmark_experiments.paper_scale --keys 64 --texts 8 --tokens 180
    python -m gaussmark_experiments.paper_scale --keys 2 --texts 16 --stream
"""

import argparse
import json
import time

import pandas as pd
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
VOCABULARY = 2000
PROMPT = 8  # tokens
WM = perturb.Watermark("model.layers.1.mlp.down_proj.weight", 0.02)  # 58.7 million numbers


def build() -> LlamaForCausalLM:
    """Make a model with random weights, in a tenth of the time of the usual initial values."""
    config = LlamaConfig(
        **SIZES,
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )
    usual_normal = torch.nn.init.normal_
    torch.nn.init.normal_ = lambda tensor, *_, **__: tensor.data.uniform_(-0.03, 0.03)
    try:
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()
    finally:
        torch.nn.init.normal_ = usual_normal


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=16)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--stream", action="store_true", help="by joint.sequence")
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    model = build()
    ids = torch.randint(
        3,
        VOCABULARY,
        (options.texts, PROMPT + options.tokens),
        generator=torch.Generator().manual_seed(0),
    )
    prompts = ids[:, :PROMPT].tolist()
    responses = ids[:, PROMPT:].tolist()
    keys = [perturb.Key.from_seed(seed) for seed in range(options.keys)]
    state = joint.State()

    def scored() -> pd.DataFrame:
        if options.stream:
            return joint.sequence(model, prompts, responses, WM, keys, state=state)
        return score.score(model, prompts, responses, WM, keys)

    start = time.perf_counter()
    table, mebibytes = speed.peak_memory(scored)
    seconds = time.perf_counter() - start
    gibibytes_of_model = sum(parameter.nbytes for parameter in model.parameters()) / 2**30
    results = {
        "s": seconds,
        "kept": state.n_kept,
        "psi": table["psi"].tolist(),
        "GiB of the model": gibibytes_of_model,
        "GiB at the peak": gibibytes_of_model + mebibytes / 2**10,
    }
    if options.stream:
        plain = score.score(model, prompts, responses, WM, keys, batch_size=1)
        results["innovation"] = table["innovation"].tolist()
        results["|Δψ|"] = float((plain["psi"] - table["psi"]).abs().max())
    print(json.dumps(results))


if __name__ == "__main__":
    main(arguments())
