"""Files in the format of llama.cpp (GGUF), which transformers loads: checked before they are read.

A GGUF file holds a model whole: a *header* of named values (the configuration and the tokenizer),
and its *tensors* (the weights). Most tensors are *quantised*: stored in 4 to 8 bits per number, in
blocks with a common scale. They are *dequantised*, turned into float32 again, when they are loaded.
A single matrix can be read without the rest: :func:`matrix`. ``engine.gguf_writing`` writes such
files.

A matrix has two names: ``model.layers.20.mlp.down_proj.weight`` in transformers, which this library
uses, and ``blk.20.ffn_down.weight`` in the file. For some architectures llama.cpp also stores the
rows of q and k in another order; :func:`decoded` and :func:`encoded` translate both ways.
"""

import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import torch
from gguf import GGUFValueType as ValueType
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel, modeling_gguf_pytorch_utils
from transformers.integrations.gguf import GGUF_CONFIG_ARCHS
from transformers.utils.quantization_config import GgufConfig

from gaussmark_lib.errors import InvalidModelError, shown

SUFFIX = ".gguf"
MAGIC = b"GGUF"
LENGTH = struct.Struct("=Q")  # of a string, in bytes
SAME_AS_HERE = "I"  # gguf's word for a file in this processor's byte order
TOKENIZER = ("tokenizer.ggml.model", "tokenizer.ggml.tokens")
SPLIT = "split.count"
ADVICE = "Expected a whole .gguf file of a language model; copy or download it again"
# names in transformers' table that are not architectures of language models that continue text
NOT_MODELS = {"general", "tokenizer", "t5", "umt5"}
# architectures that transformers reads under another name than the file's
OTHER_NAMES = {"qwen2moe", "qwen3moe", "gpt-oss", "minimax-m2"}
# architectures whose files store each matrix of a linear layer as it is, (d_out, d_in)
PLAIN = {
    "gemma2",
    "gemma3",
    "gpt-oss",
    "gpt2",
    "lfm2",
    "mamba",
    "nemotron",
    "phi3",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "stablelm",
    "starcoder2",
}
# the same, except for the order of the rows of q and k
PERMUTED = {"llama"}
N_HEADS = {"attn_q": "head_count", "attn_k": "head_count_kv"}  # the header's name for each
EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
# what a marked file says of itself
KEY_ID = "gaussmark.key_id"
MARKED_TENSOR = "gaussmark.tensor"
SIGMA = "gaussmark.sigma"

# Texts and a paragraph that show whether the conversion of a model from another format went wrong.
# A wrongly converted model writes fluent rubbish.
AWKWARD = (
    "Two  spaces,\ta tab,\nand a new line.\n\n",
    "    indented and with a trailing space ",
    "Don't, won't, I'll; (brackets) [and] {others}!",
    "naïve café, Ångström, Straße, Łódź",
    "3.14159, 1,000,000 and 2026-11-27",
    "x_1 = {'key': [0, 1]}  # code",
    "<b>html</b> &amp; https://example.org/?q=1",
    "日本語の文章です。",
    "Русский текст, Ελληνικά",
    "👩\u200d🔬 and 🇪🇺",
    "∇θ ≤ ∑ ξ²/σ",
    "ALL CAPITALS and CamelCase",
)
PARAGRAPH = (
    "The museum opens at nine o'clock every morning except Monday. Visitors can buy their tickets"
    " at the door, but in summer the line is often long, so it is better to order them a day"
    " before. Children under twelve do not pay. There is a small garden behind the main building,"
    " where people can sit in the shade, eat what they brought with them, and listen to the water"
    " of an old fountain."
)

_one_at_a_time = threading.Lock()


class Reader(gguf.GGUFReader):
    """gguf's reader, faster for headers that list 50,000 names of tokens.

    It slices a plain array instead of a mapped array, and reads a list in one go instead of item by
    item. A header takes a fifth of a second instead of four seconds.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        super().__init__(self.path)

    @property
    def data(self) -> np.ndarray:
        """Return the bytes of the file, still mapped."""
        return self._bytes

    @data.setter
    def data(self, mapped: np.memmap) -> None:
        self._bytes = mapped.view(np.ndarray)

    def _get_field_parts(self, start: int, raw_type: int) -> tuple[int, list, Iterable, list]:
        """Return a value's number of bytes, its parts, the indices of its content, and its types.

        A part is an array over the file's bytes. The first two parts of a list are the type and
        the number of its items.
        """
        if raw_type != ValueType.ARRAY or self.byte_order != SAME_AS_HERE:
            return super()._get_field_parts(start, raw_type)
        of_type, n_items = self._get(start, np.uint32), self._get(start + 4, np.uint64)
        item_type = ValueType(of_type[0])
        first = start + of_type.nbytes + n_items.nbytes
        if item_type == ValueType.STRING:
            items, end = self._strings(first, int(n_items[0]))
        elif item_type in self.gguf_scalar_to_np:
            dtype = self.gguf_scalar_to_np[item_type]
            numbers = np.frombuffer(self._bytes, dtype, int(n_items[0]), first)
            items, end = [*numbers.reshape(-1, 1)], first + numbers.nbytes
        else:  # a list of lists
            return super()._get_field_parts(start, raw_type)
        parts = [of_type, n_items, *items]
        return end - start, parts, range(2, len(parts)), [ValueType.ARRAY, item_type]

    def _strings(self, start: int, n: int) -> tuple[list[np.ndarray], int]:
        """Return n strings, each stored after its length, and where the last one ends."""
        strings = []
        for _ in range(n):
            [length] = LENGTH.unpack_from(self._bytes, start)
            start += LENGTH.size + length
            strings.append(self._bytes[start - length : start])
        return strings, start


@contextmanager
def parsed_once() -> Iterator[None]:
    """Parse a file's header and names only once inside the ``with``, without a progress bar.

    transformers parses them again for the configuration, the tokenizer, the weights, and the names
    of each block, which takes three times as long.
    """
    readers = cache(Reader)

    def parsed(path: str | Path) -> Reader:
        return readers(str(path))

    def without_bar(tensors: Any, **_: Any) -> Any:
        return tensors

    name_maps = cache(gguf.get_tensor_name_map)
    with (
        _one_at_a_time,  # the patches are for the whole process
        patch.object(gguf, "GGUFReader", parsed),
        patch(f"{__name__}._parsed", parsed),
        patch.object(gguf, "get_tensor_name_map", name_maps),
        patch.object(modeling_gguf_pytorch_utils, "tqdm", without_bar),
    ):
        yield


def is_gguf(name: object) -> bool:
    """Return whether a model's name is that of a GGUF file, in any capitalisation.

    >>> is_gguf("folder/MODEL.GGUF"), is_gguf("folder")
    (True, False)
    """
    return str(name).lower().endswith(SUFFIX)


def architectures() -> list[str]:
    """Return the architectures, by GGUF's names, that transformers can read."""
    names = {
        *modeling_gguf_pytorch_utils.GGUF_SUPPORTED_ARCHITECTURES,
        *GGUF_CONFIG_ARCHS,
        *OTHER_NAMES,
    }
    return sorted(names - NOT_MODELS)


def terms(path: Path) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` for a file.

    They are its name in its folder, and that its weights are to become plain numbers.
    """
    return {"gguf_file": path.name, "quantization_config": GgufConfig(dequantize=True)}


def read(path: Path) -> Reader:
    """Return the header and the places of the tensors of a file that can be loaded.

    Raises:
        InvalidModelError: it is not a GGUF file, is truncated, is a part of several, has an
            architecture that transformers cannot read, or has no tokenizer.
    """
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start != MAGIC:
        raise InvalidModelError(f"expected a GGUF file, which begins with {MAGIC!r}, got {start!r}")
    try:
        reader = _parsed(path)
    except Exception as error:  # NumPy's, if a header leads behind the file's end
        if "GGMLQuantizationType" in str(error):
            raise InvalidModelError(
                f"expected tensors of types that gguf's Python package can read, but {error};"
                " upgrade gguf, or quantise the model to another type"
            ) from None
        raise InvalidModelError(
            "expected a whole GGUF file, got one that ends too early or is damaged"
            f" ({type(error).__name__}); copy or download it again"
        ) from None
    _check_whole(reader, path)
    n_parts = field(reader, SPLIT, 1)
    if n_parts > 1:
        raise InvalidModelError(
            f"expected one whole file, got a part of {n_parts}; join them first, by llama.cpp's"
            " `llama-gguf-split --merge FIRST-PART WHOLE.gguf`"
        )
    architecture = field(reader, "general.architecture", "")
    if architecture not in architectures():
        raise InvalidModelError(
            f"expected an architecture that transformers reads from GGUF, got {architecture!r};"
            f" it reads {', '.join(architectures())}. Load the model from its safetensors instead"
        )
    missing = [name for name in TOKENIZER if reader.get_field(name) is None]
    if missing:
        raise InvalidModelError(
            f"expected a GGUF file with a tokenizer, found no {missing[0]}; convert the model"
            " again, with its vocabulary"
        )
    return reader


def _parsed(path: Path) -> Reader:
    """Parse a file; :func:`parsed_once` replaces this function."""
    return Reader(path)


def field(reader: gguf.GGUFReader, name: str, default: Any = None) -> Any:
    """Return a value of the header, or the default if the file has no value of that name."""
    header_field = reader.get_field(name)
    return default if header_field is None else header_field.contents()


def mark(reader: gguf.GGUFReader) -> dict[str, Any] | None:
    """Return what a marked file says about its watermark, or None.

    It has the form that the config of a marked folder has.
    """
    key_id = field(reader, KEY_ID)
    if key_id is None:
        return None
    return {
        "key_id": key_id,
        "weight": field(reader, MARKED_TENSOR),
        "sigma_carried": field(reader, SIGMA),
    }


def tensor(reader: gguf.GGUFReader, weight: str) -> gguf.gguf_reader.ReaderTensor:
    """Return the file's tensor that holds a matrix, by transformers' name of the matrix.

    Its ``name``, ``tensor_type`` (how its numbers are stored) and ``data`` (its bytes) are those of
    the file: ``tensor(reader, "model.layers.20.mlp.down_proj.weight").name`` is
    ``"blk.20.ffn_down.weight"``.

    Raises:
        InvalidModelError: there is no such tensor, it is shared or not a matrix, or its layout in
            files of this architecture is not known.
    """
    architecture = field(reader, "general.architecture", "")
    if architecture not in PLAIN | PERMUTED:
        raise InvalidModelError(
            f"expected an architecture whose layout of {shown(weight)} in GGUF files is known"
            f" ({', '.join(sorted(PLAIN | PERMUTED))}), got {architecture!r}; use safetensors"
        )
    name = _name(reader, architecture, weight)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if name in (EMBEDDING, OUTPUT) and OUTPUT not in tensors:
        raise InvalidModelError(
            f"expected the matrix of a single linear layer, but {shown(weight)} is shared with the"
            " embedding; choose a matrix inside a block"
        )
    if name not in tensors:
        raise InvalidModelError(
            f"expected a matrix {shown(weight)}, found none; it is another architecture, or not a"
            " checkpoint of the whole model"
        )
    n_dimensions = len(tensors[name].shape)
    if n_dimensions != 2:
        raise InvalidModelError(
            f"expected a matrix {shown(weight)}, but {name} has {n_dimensions} dimensions; choose"
            " the matrix of a linear layer"
        )
    return tensors[name]


def matrix(reader: gguf.GGUFReader, weight: str) -> Float[Tensor, "d_out d_in"]:
    """Return a matrix of a file, (d_out, d_in), float32, by transformers' name and in transformers'
    order of rows. A quantised matrix is dequantised.

    Raises:
        InvalidModelError: as :func:`tensor`, and for a type that gguf's Python cannot read.
    """
    stored = tensor(reader, weight)
    return decoded(reader, stored.name, stored.data, stored.tensor_type)


def decoded(
    reader: gguf.GGUFReader, name: str, data: np.ndarray, kind: gguf.GGMLQuantizationType
) -> Float[Tensor, "d_out d_in"]:
    """Return the numbers that a tensor's bytes stand for: (d_out, d_in), float32.

    The rows are in transformers' order. Raise InvalidModelError for a type that gguf's Python
    cannot read.

    Args:
        name: the tensor's name in the file, which says whether its rows are in another order.
        kind: how the bytes store the numbers, such as ``Q4_1`` or ``F16``.
    """
    try:
        theta = torch.tensor(gguf.quants.dequantize(data, kind))
    except NotImplementedError:
        raise InvalidModelError(
            f"expected a tensor of a type that gguf's Python package can read, but {name} is"
            f" {kind.name}; quantise the model to another type"
        ) from None
    n_heads = _permuted_heads(reader, name)
    return _in_halves(theta, n_heads) if n_heads else theta


def encoded(
    reader: gguf.GGUFReader,
    name: str,
    theta: Float[Tensor, "d_out d_in"],
    kind: gguf.GGMLQuantizationType,
) -> np.ndarray:
    """Return the bytes that store a matrix (d_out, d_in) as this kind, rows in llama.cpp's order.

    It is the inverse of :func:`decoded`, up to the rounding of the kind.
    """
    n_heads = _permuted_heads(reader, name)
    stored = _alternating(theta, n_heads) if n_heads else theta
    with np.errstate(over="ignore"):  # ``arithmetic.carried`` refuses an infinity
        return gguf.quants.quantize(stored.contiguous().numpy(), kind)


def n_numbers(reader: gguf.GGUFReader) -> int:
    """Return how many numbers all tensors have once they are dequantised."""
    return sum(int(tensor.n_elements) for tensor in reader.tensors)


def as_plain(model: PreTrainedModel) -> PreTrainedModel:
    """Remove transformers' note that the model was quantised, and return the model.

    Its weights are plain numbers now, and ``save_pretrained`` refuses a quantised model.
    """
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def _check_whole(reader: gguf.GGUFReader, path: Path) -> None:
    """Raise InvalidModelError if the file ends before its last tensor."""
    ends = [int(tensor.data_offset + tensor.n_bytes) for tensor in reader.tensors]
    end = max(ends, default=0)
    size = path.stat().st_size
    if end > size or not reader.tensors:
        raise InvalidModelError(
            f"expected a whole GGUF file of {end:,} bytes, got {size:,}; copy or download it again"
        )


def _name(reader: gguf.GGUFReader, architecture: str, weight: str) -> str | None:
    """Return the file's name for a matrix that transformers calls ``weight``."""
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    n_blocks = int(_required(reader, f"{architecture}.block_count"))
    names = gguf.get_tensor_name_map(numbers[architecture], n_blocks)
    return names.get_name(weight, try_suffixes=(".weight",))


def _required(reader: gguf.GGUFReader, name: str) -> Any:
    """Return a value of the header that the file must have."""
    value = field(reader, name)
    if value is None:
        raise InvalidModelError(f"expected a GGUF file with {name} in its header, found none")
    return value


def _permuted_heads(reader: gguf.GGUFReader, name: str) -> int | None:
    """Return the number of heads if llama.cpp permutes the rows of each head in this tensor."""
    architecture = field(reader, "general.architecture")
    heads = N_HEADS.get(name.split(".")[-2])  # "blk.0.attn_q.weight" → "attn_q"
    if architecture not in PERMUTED or heads is None:
        return None
    n_heads = _required(reader, f"{architecture}.attention.head_count")
    return int(field(reader, f"{architecture}.attention.{heads}", n_heads))


def _in_halves(theta: Float[Tensor, "d_out d_in"], n_heads: int) -> Float[Tensor, "d_out d_in"]:
    """Undo llama.cpp's order of the rows of q and k.

    A rotation pairs the two halves of each head; in llama.cpp's order the rows of the two halves
    alternate.
    """
    d_out, d_in = theta.shape
    alternating = theta.reshape(n_heads, d_out // n_heads // 2, 2, d_in)
    return alternating.transpose(1, 2).reshape(d_out, d_in)


def _alternating(theta: Float[Tensor, "d_out d_in"], n_heads: int) -> Float[Tensor, "d_out d_in"]:
    """Put the rows into llama.cpp's order, in which the two halves of each head alternate."""
    d_out, d_in = theta.shape
    halves = theta.reshape(n_heads, 2, d_out // n_heads // 2, d_in)
    return halves.transpose(1, 2).reshape(d_out, d_in)


def dtype_of(dtype: str | torch.dtype) -> str | torch.dtype:
    """Return the dtype to dequantise to: float32 for ``"auto"``, as a GGUF file has many types."""
    return "float32" if dtype == "auto" else dtype
