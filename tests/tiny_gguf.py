"""A tiny language model as a GGUF file, as llama.cpp's converter writes it, whole or broken in one
place.
"""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from gaussmark_experiments.doclm import train

TEXTS = ["The quick brown fox jumps over the lazy dog, and naïve cafés open at 9:30. " * 9]
START = "<s>"
END = "</s>"


def model_and_tokenizer() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A Llama with byte-level BPE and tied embeddings, generic enough to notice a wrong order."""
    tokenizer = train.train_tokenizer(TEXTS, 320)
    recipe = train.Recipe(
        vocab=len(tokenizer), hidden=64, blocks=3, heads=4, intermediate=96, context=128
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = train.new_model(recipe)
        # norms begin at 1: a wrong order of them would not be noticed
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
    return model.eval(), tokenizer


def grouped(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A Llama whose four query heads share two key heads, with rows of 64 and 512 numbers."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


def write(
    path: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    architecture: str = "llama",
    tensor_type: str = "F32",
    has_tokenizer: bool = True,
    n_parts: int = 1,
    unreadable: str | None = None,
) -> Path:
    """Write the file, with each matrix in this type. The tensor ``unreadable`` has zeros in a type
    that gguf's Python cannot dequantise.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    if n_parts > 1:
        writer.add_uint16("split.count", n_parts)
    if has_tokenizer:
        _add_tokenizer(writer, tokenizer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        theta = parameter.detach().float().numpy()
        theirs = names.get_name(name, try_suffixes=(".weight",))  # llama.cpp's name
        if theirs.endswith("attn_q.weight"):
            theta = _alternating(theta, config.num_attention_heads)
        if theirs.endswith("attn_k.weight"):
            theta = _alternating(theta, config.num_key_value_heads)
        if theirs == unreadable:
            # Q8_K has blocks of 256 numbers in 292 bytes
            zeros = np.zeros((len(theta), theta.shape[1] // 256 * 292), np.uint8)
            writer.add_tensor(theirs, zeros, raw_dtype=gguf.GGMLQuantizationType.Q8_K)
            continue
        kind = gguf.GGMLQuantizationType[tensor_type if theta.ndim == 2 else "F32"]
        writer.add_tensor(theirs, gguf.quants.quantize(theta, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerBase) -> None:
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = tokenizer.get_vocab()
    special = {entry["content"] for entry in state["added_tokens"]}
    pieces = sorted(vocabulary, key=vocabulary.get)  # in the order of their ids
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    kinds = {True: gguf.TokenType.CONTROL, False: gguf.TokenType.NORMAL}
    writer.add_token_types([kinds[piece in special] for piece in pieces])
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)


def _alternating(theta: np.ndarray, n_heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of q and k: the two halves of each head alternate."""
    rows_of_half = len(theta) // n_heads // 2
    halves = theta.reshape(n_heads, 2, rows_of_half, -1)  # (heads, halves, rows, columns)
    return halves.swapaxes(1, 2).reshape(theta.shape)
