"""A random tiny language model that reads and writes characters: 94 printable ones, and the three
special tokens of ``tiny_models``.
"""

import tiny_models
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from gaussmark_lib.models import LM

WEIGHT = "model.layers.1.mlp.down_proj.weight"
PROMPTS = ["The function", "A list of", "Returns the first", "Values are"]


def build() -> LM:
    special = ["<pad>", "<s>", "</s>"]
    vocabulary = {token: i for i, token in enumerate([*special, *map(chr, range(32, 126))])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    return LM(tiny_models.build(), fast, "tiny")
