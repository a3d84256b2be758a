"""Files in the format of llama.cpp (GGUF), which transformers loads: checked before they are read.

A GGUF file holds a model whole: its configuration, its tokenizer, and its weights, mostly in 4 to 8
bits. They are dequantised when they are loaded. A single matrix can be read without the rest:
:func:`matrix`. ``engine.gguf_writing`` writes such files.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel, modeling_gguf_pytorch_utils
from transformers.integrations.gguf import GGUF_CONFIG_ARCHS
from transformers.utils.quantization_config import GgufConfig

from gaussmark_lib.errors import InvalidModelError, shown

SUFFIX = ".gguf"
MAGIC = b"GGUF"
TOKENIZER = ("tokenizer.ggml.model", "tokenizer.ggml.tokens")
SPLIT = "split.count"
ADVICE = "Expected a whole .gguf file of a language model; copy or download it again"
# names in transformers' table that are no architecture of a language model that continues text
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
# the same, but for the order of the rows of q and k
PERMUTED = {"llama"}
N_HEADS = {"attn_q": "head_count", "attn_k": "head_count_kv"}  # the header's name for each
EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
# what a marked file says of itself
KEY_ID = "gaussmark.key_id"
MARKED_TENSOR = "gaussmark.tensor"
SIGMA = "gaussmark.sigma"

_one_at_a_time = threading.Lock()


class Reader(gguf.GGUFReader):
    """gguf's reader, over a plain array in place of a mapped one: slices of it are cheap, and a
    header with 50,000 names is parsed more than three times as fast.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        super().__init__(self.path)

    @property
    def data(self) -> np.ndarray:
        """The bytes of the file, still mapped."""
        return self._bytes

    @data.setter
    def data(self, mapped: np.memmap) -> None:
        self._bytes = mapped.view(np.ndarray)


@contextmanager
def parsed_once() -> Iterator[None]:
    """Inside the ``with``, a file's header and names are parsed once for all who ask, without a
    progress bar: transformers parses them for the configuration, the tokenizer, the weights, and
    each block's names, which takes three times as long.
    """
    readers = cache(Reader)

    def once(path: str | Path) -> Reader:
        return readers(str(path))

    name_maps = cache(gguf.get_tensor_name_map)
    with (
        _one_at_a_time,
        patch.object(gguf, "GGUFReader", once),
        patch(f"{__name__}._parsed", once),
        patch.object(gguf, "get_tensor_name_map", name_maps),
        patch.object(modeling_gguf_pytorch_utils, "tqdm", lambda tensors, **_: tensors),
    ):
        yield


def is_gguf(name: object) -> bool:
    """Whether a model's name is that of a GGUF file, in whatever capitals."""
    return str(name).lower().endswith(SUFFIX)


def architectures() -> list[str]:
    """The architectures, by GGUF's names, that transformers can read."""
    known = {
        *modeling_gguf_pytorch_utils.GGUF_SUPPORTED_ARCHITECTURES,
        *GGUF_CONFIG_ARCHS,
        *OTHER_NAMES,
    }
    return sorted(known - NOT_MODELS)


def terms(path: Path) -> dict[str, Any]:
    """What ``from_pretrained`` is told of a file: its name in its folder, and that its weights are
    to be plain numbers.
    """
    return {"gguf_file": path.name, "quantization_config": GgufConfig(dequantize=True)}


def read(path: Path) -> Reader:
    """The header and the places of the tensors of a file that can be loaded.

    Raises:
        InvalidModelError: something else than a GGUF file, one that is truncated, one part of
            several, one of an architecture that transformers cannot read, or one without a
            tokenizer.
    """
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start != MAGIC:
        raise InvalidModelError(f"expected a GGUF file, which begins with {MAGIC!r}, got {start!r}")
    try:
        reader = _parsed(path)
    except Exception as error:  # of NumPy: it reads behind the file's end
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
    if (n_parts := field(reader, SPLIT, 1)) > 1:
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
    if missing := [name for name in TOKENIZER if reader.get_field(name) is None]:
        raise InvalidModelError(
            f"expected a GGUF file with a tokenizer, found no {missing[0]}; convert the model"
            " again, with its vocabulary"
        )
    return reader


def _parsed(path: Path) -> Reader:
    """What :func:`parsed_once` replaces."""
    return Reader(path)


def field(reader: gguf.GGUFReader, name: str, default: Any = None) -> Any:
    """A value of the header, or the default where the file has none of that name."""
    found = reader.get_field(name)
    return default if found is None else found.contents()


def mark(reader: gguf.GGUFReader) -> dict[str, Any] | None:
    """What a marked file says of its watermark, as the config of a marked folder does, or None."""
    key_id = field(reader, KEY_ID)
    if key_id is None:
        return None
    return {
        "key_id": key_id,
        "weight": field(reader, MARKED_TENSOR),
        "sigma_carried": field(reader, SIGMA),
    }


def tensor(reader: gguf.GGUFReader, weight: str) -> gguf.gguf_reader.ReaderTensor:
    """The file's tensor that holds a matrix, by transformers' name of it.

    Raises:
        InvalidModelError: no such tensor, one that is shared or no matrix, or one whose layout in
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
            f"expected a matrix that is one linear layer's own, but {shown(weight)} is shared with"
            " the embedding; choose a matrix inside a block"
        )
    if name not in tensors:
        raise InvalidModelError(
            f"expected a matrix {shown(weight)}, found none; it is another architecture, or not a"
            " checkpoint of the whole model"
        )
    if (n_dimensions := len(tensors[name].shape)) != 2:
        raise InvalidModelError(
            f"expected a matrix {shown(weight)}, but {name} has {n_dimensions} dimensions; choose"
            " the matrix of a linear layer"
        )
    return tensors[name]


def matrix(reader: gguf.GGUFReader, weight: str) -> Float[Tensor, "d_out d_in"]:
    """A matrix of a file by transformers' name of it, dequantised, its rows in transformers' order.

    Raises:
        InvalidModelError: as :func:`tensor`, and for a type that gguf's Python cannot read.
    """
    found = tensor(reader, weight)
    return decoded(reader, found.name, found.data, found.tensor_type)


def decoded(
    reader: gguf.GGUFReader, name: str, data: np.ndarray, kind: gguf.GGMLQuantizationType
) -> Float[Tensor, "d_out d_in"]:
    """The numbers of a tensor's bytes, float32, its rows in transformers' order."""
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
    """The bytes of a tensor with these numbers, its rows in llama.cpp's order; the inverse of
    :func:`decoded`, up to rounding.
    """
    n_heads = _permuted_heads(reader, name)
    stored = _alternating(theta, n_heads) if n_heads else theta
    with np.errstate(over="ignore"):  # an infinity is seen by who asks what was rounded away
        return gguf.quants.quantize(stored.contiguous().numpy(), kind)


def n_numbers(reader: gguf.GGUFReader) -> int:
    """Numbers in all tensors, once they are dequantised."""
    return sum(int(tensor.n_elements) for tensor in reader.tensors)


def as_plain(model: PreTrainedModel) -> PreTrainedModel:
    """The model without transformers' note that it was quantised: its weights are plain numbers
    now, and ``save_pretrained`` refuses a quantised model.
    """
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def _check_whole(reader: gguf.GGUFReader, path: Path) -> None:
    end = max((int(tensor.data_offset + tensor.n_bytes) for tensor in reader.tensors), default=0)
    size = path.stat().st_size
    if end > size or not reader.tensors:
        raise InvalidModelError(
            f"expected a whole GGUF file of {end:,} bytes, got {size:,}; copy or download it again"
        )


def _name(reader: gguf.GGUFReader, architecture: str, weight: str) -> str | None:
    """A file's own name for a matrix that transformers calls ``weight``."""
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    n_blocks = int(_required(reader, f"{architecture}.block_count"))
    names = gguf.get_tensor_name_map(numbers[architecture], n_blocks)
    return names.get_name(weight, try_suffixes=(".weight",))


def _required(reader: gguf.GGUFReader, name: str) -> Any:
    """A value of the header that the file must have."""
    if (value := field(reader, name)) is None:
        raise InvalidModelError(f"expected a GGUF file with {name} in its header, found none")
    return value


def _permuted_heads(reader: gguf.GGUFReader, name: str) -> int | None:
    """The number of heads over whose rows llama.cpp alternates, where it does so in this tensor."""
    architecture = field(reader, "general.architecture")
    heads = N_HEADS.get(name.split(".")[-2])
    if architecture not in PERMUTED or heads is None:
        return None
    of_all = _required(reader, f"{architecture}.attention.head_count")
    return int(field(reader, f"{architecture}.attention.{heads}", of_all))


def _in_halves(theta: Float[Tensor, "d_out d_in"], n_heads: int) -> Float[Tensor, "d_out d_in"]:
    """Undo llama.cpp's order of the rows of q and k, in which the two halves of each head, which a
    rotation pairs, alternate.
    """
    d_out, d_in = theta.shape
    alternating = theta.reshape(n_heads, d_out // n_heads // 2, 2, d_in)
    return alternating.transpose(1, 2).reshape(d_out, d_in)


def _alternating(theta: Float[Tensor, "d_out d_in"], n_heads: int) -> Float[Tensor, "d_out d_in"]:
    """The order of llama.cpp: the two halves of each head alternate."""
    d_out, d_in = theta.shape
    halves = theta.reshape(n_heads, 2, d_out // n_heads // 2, d_in)
    return halves.transpose(1, 2).reshape(d_out, d_in)


def dtype_of(dtype: str | torch.dtype) -> str | torch.dtype:
    """The dtype to dequantise to: float32 for ``"auto"``, as a GGUF file has many types."""
    return "float32" if dtype == "auto" else dtype
