"""Prints, as JSON, the bytes that a plan predicts for some calls and those that they take, on a
wide model of two blocks. Run by test_cost.py.
"""

import json
from collections.abc import Callable

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from gaussmark_lib import divergence, generate, generate_many, likelihood, perturb, score
from gaussmark_lib.experiments import peak_memory
from gaussmark_lib.plan import shapes
from gaussmark_lib.plan.cost import Read, Score, Write
from gaussmark_lib.plan.steps import Setting, Step

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1792,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}
LAST, FIRST, HEAD = (
    "model.layers.1.mlp.down_proj.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "lm_head.weight",
)
KEYS = [perturb.Key.from_seed(i) for i in range(6)]

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        **SIZES,
        vocab_size=8000,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=2,
    )
).eval()
shape, found = shapes.read(model.config.to_dict()), {}


def texts(n: int, prompt: int, tokens: int) -> tuple[list[list[int]], list[list[int]]]:
    one = list(range(3, 3 + prompt + tokens))
    return [[i + 3, *one[1:prompt]] for i in range(n)], [one[prompt:] for _ in range(n)]


def compare(
    what: str, step: Step, call: Callable[[], object], weight: str = LAST, top_p: float = 1.0
) -> None:
    predicted = step.bytes(Setting(shape, shape.weight(weight), top_p=top_p)).total
    found[what] = predicted, peak_memory.measured(call)[1] * 2**20


x, y = texts(8, 8, 56)
last, first, head = (perturb.Watermark(weight, 0.1) for weight in (LAST, FIRST, HEAD))
score.score(model, x, y, first, KEYS[:1])  # libraries then have what they keep
generate.sample(model, x[:1], 2)
divergence.per_text(model, x[:1], y[:1], last, KEYS[0])
likelihood.cross_entropy(model, y[:1], prompts=x[:1])

compare(
    "scored, last block",
    Score("", 8, 8, 56, keys=1, drawn=1),
    lambda: score.score(model, x, y, last, KEYS[:1]),
)
compare(
    "scored, first block",
    Score("", 8, 8, 56, keys=1, drawn=1),
    lambda: score.score(model, x, y, first, KEYS[:1]),
    FIRST,
)
compare(
    "scored, 6 keys",
    Score("", 8, 8, 56, keys=6, drawn=6),
    lambda: score.score(model, x, y, last, KEYS),
)
compare("read", Read("", 8, 8, 56), lambda: likelihood.cross_entropy(model, y, prompts=x))
compare(
    "compared",
    Read("", 8, 8, 56, times=2, whole=True, drawn=1),
    lambda: divergence.per_text(model, x, y, last, KEYS[0]),
)

long, _ = texts(48, 64, 2)
compare("written", Write("", 48, 64, 2), lambda: generate.sample(model, long, 2))
short, _ = texts(160, 2, 2)
compare(
    "drawn, top-p",
    Write("", 160, 2, 2, 160),
    lambda: generate.sample(model, short, 2, top_p=0.9, batch_size=160),
    top_p=0.9,
)
cells = [(last, key) for key in KEYS]
compare(
    "6 cells",
    Write("", 48, 64, 2, keys=6, drawn=6),
    lambda: generate_many.sample(model, long[:8], cells, 2),
)

compare(
    "scored, head",
    Score("", 8, 8, 56, keys=1, drawn=1),
    lambda: score.score(model, x, y, head, KEYS[:1]),
    HEAD,
)
model = Gemma2ForCausalLM(
    Gemma2Config(
        **SIZES,
        head_dim=64,
        vocab_size=8000,
        max_position_embeddings=512,
        final_logit_softcapping=30.0,
    )
).eval()
shape = shapes.read(model.config.to_dict())
score.score(model, x[:1], y[:1], last, KEYS[:1])
compare(
    "scored, soft cap",
    Score("", 8, 8, 56, keys=1, drawn=1),
    lambda: score.score(model, x, y, last, KEYS[:1]),
)
compare("read, soft cap", Read("", 8, 8, 56), lambda: likelihood.cross_entropy(model, y, prompts=x))
x, y = texts(8, 128, 256)  # so long that the scores of all pairs of positions are the most
score.score(model, x[:1], y[:1], last, KEYS[:1])
compare(
    "scored, eager",
    Score("", 8, 128, 256, keys=1, drawn=1),
    lambda: score.score(model, x, y, last, KEYS[:1]),
)
compare(
    "scored, eager, first",
    Score("", 8, 128, 256, keys=1, drawn=1),
    lambda: score.score(model, x, y, first, KEYS[:1]),
    FIRST,
)
compare("read, eager", Read("", 8, 128, 256), lambda: likelihood.cross_entropy(model, y, prompts=x))
compare(
    "written, eager",
    Write("", 8, 384, 2),
    lambda: generate.sample(model, [one + two for one, two in zip(x, y, strict=True)], 2),
)
print(json.dumps(found))
