"""Files in the format of llama.cpp (GGUF), which transformers loads: checked before they are read.

A GGUF file holds a model whole: its configuration, its tokenizer, and its weights, mostly in 4 to 8
bits. They are dequantised when they are loaded.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import torch
from transformers import PreTrainedModel, modeling_gguf_pytorch_utils
from transformers.integrations.gguf import GGUF_CONFIG_ARCHS
from transformers.utils.quantization_config import GgufConfig

from gaussmark_lib.errors import InvalidModelError

SUFFIX = ".gguf"
MAGIC = b"GGUF"
TOKENIZER = ("tokenizer.ggml.model", "tokenizer.ggml.tokens")
SPLIT = "split.count"
ADVICE = "Expected a whole .gguf file of a language model; copy or download it again"
# names in transformers' table that are no architecture of a language model that continues text
NOT_MODELS = {"general", "tokenizer", "t5", "umt5"}
# architectures that transformers reads under another name than the file's
OTHER_NAMES = {"qwen2moe", "qwen3moe", "gpt-oss", "minimax-m2"}


_one_at_a_time = threading.Lock()


@contextmanager
def parsed_once() -> Iterator[None]:
    """Inside the ``with``, a file's header and names are parsed once for all who ask, without a
    progress bar: transformers parses them for the configuration, the tokenizer, the weights, and
    each block's names, which takes three times as long.
    """
    readers = cache(gguf.GGUFReader)
    name_maps = cache(gguf.get_tensor_name_map)
    with (
        _one_at_a_time,
        patch.object(gguf, "GGUFReader", lambda path: readers(str(path))),
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


def read(path: Path) -> gguf.GGUFReader:
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
        reader = gguf.GGUFReader(path)
    except Exception as error:  # of NumPy: it reads behind the file's end
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


def field(reader: gguf.GGUFReader, name: str, default: Any = None) -> Any:
    """A value of the header, or the default where the file has none of that name."""
    found = reader.get_field(name)
    return default if found is None else found.contents()


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


def dtype_of(dtype: str | torch.dtype) -> str | torch.dtype:
    """The dtype to dequantise to: float32 for ``"auto"``, as a GGUF file has many types."""
    return "float32" if dtype == "auto" else dtype
