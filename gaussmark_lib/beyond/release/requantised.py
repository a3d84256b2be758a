"""A GGUF file in another quantisation, as somebody who downloads a release makes one.

All matrices get one type, as by llama.cpp's ``llama-quantize --pure``; what people share is mostly
a mixture that keeps a few matrices finer. K-quants divide a row into blocks of 256 numbers. A row
of another length gets the type that llama.cpp falls back to (Q6_K → Q8_0, Q5_K → Q5_1, Q4_K →
Q5_0), and a row that is no multiple of 32 stays float16. Norms and other vectors stay as they are,
and so does ``general.file_type``, which is a remark in the header.

To test such a file, also compare it with the *unmarked* base in the same quantisation: the part of
the rounding that both files share then cancels in θ′ − θ.
"""

import ctypes
import importlib.util
from functools import cache
from pathlib import Path

import gguf
import numpy as np

from gaussmark_lib import files
from gaussmark_lib.engine import gguf_files, gguf_writing
from gaussmark_lib.engine.gguf_writing import Kind
from gaussmark_lib.errors import InvalidModelError, require_one_of

TYPES = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0")
FALLBACK = {Kind.Q6_K: Kind.Q8_0, Kind.Q5_K: Kind.Q5_1, Kind.Q4_K: Kind.Q5_0}
ENGINES_OWN = {Kind.Q6_K, Kind.Q5_K, Kind.Q4_K}  # which gguf's Python reads and does not write
# matrices that llama.cpp never quantises
KEPT = ("_norm.weight", "ffn_gate_inp.weight", "position_embd.weight", "token_types.weight")
KEPT_PARTS = ("ssm_conv1d", "shortconv.conv")
ROWS = 4096  # that are converted at once


def write(source: str | Path, path: str | Path, tensor_type: str) -> dict[str, str]:
    """Write a GGUF file in another quantisation.

    Args:
        source: a GGUF file, marked or not.
        path: where nothing may be yet.
        tensor_type: one of ``TYPES``.

    Returns:
        The tensors that fell back to another type, with that type.

    Raises:
        InvalidModelError: no GGUF file of a language model, a tensor that gguf's Python cannot
            read, a name that exists, or a K-quant without the extra ``engine``.
    """
    require_one_of(tensor_type, "type", TYPES, InvalidModelError)
    source = files.as_path(source, "cannot read the model", InvalidModelError)
    path = files.as_path(path, "cannot write a GGUF file", InvalidModelError)
    if path.exists():
        raise InvalidModelError(f"expected a new file, but {path} exists")
    reader = gguf_files.read(source)
    wanted = Kind[tensor_type]
    kinds = {
        tensor.name: fitting(tensor, wanted) for tensor in reader.tensors if is_quantised(tensor)
    }
    if ENGINES_OWN & set(kinds.values()):
        _ggml()  # is missed before anything is written
    gguf_writing.write(reader, path, kinds, lambda tensor: converted(tensor, kinds[tensor.name]))
    return {name: kind.name for name, kind in kinds.items() if kind != wanted}


def fitting(tensor: gguf.gguf_reader.ReaderTensor, kind: Kind) -> Kind:
    """The type that llama.cpp gives to a tensor of which this type is wanted."""
    n_columns = int(tensor.shape[0])
    for fit in (kind, FALLBACK.get(kind, kind)):
        block, _ = gguf.GGML_QUANT_SIZES[fit]
        if n_columns % block == 0:
            return fit
    return Kind.F16


def is_quantised(tensor: gguf.gguf_reader.ReaderTensor) -> bool:
    """Whether llama.cpp quantises this tensor."""
    is_kept = tensor.name.endswith(KEPT) or any(part in tensor.name for part in KEPT_PARTS)
    return len(tensor.shape) > 1 and tensor.name.endswith(".weight") and not is_kept


def converted(tensor: gguf.gguf_reader.ReaderTensor, kind: Kind) -> np.ndarray:
    """The bytes of a tensor in another type, some rows at a time."""
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    parts = []
    for start in range(0, len(rows), ROWS):
        try:
            numbers = gguf.quants.dequantize(rows[start : start + ROWS], tensor.tensor_type)
        except NotImplementedError as error:
            raise InvalidModelError(f"{tensor.name}: {error}; expected another type") from None
        parts.append(_quantised(np.ascontiguousarray(numbers, np.float32), kind))
    return np.concatenate(parts)


def _quantised(numbers: np.ndarray, kind: Kind) -> np.ndarray:
    if kind not in ENGINES_OWN:
        return gguf.quants.quantize(numbers, kind)
    n_rows, n_columns = numbers.shape
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    content = np.empty((n_rows, n_columns // block * block_bytes), np.uint8)
    floats = ctypes.POINTER(ctypes.c_float)
    n_bytes = _ggml().ggml_quantize_chunk(
        int(kind),
        numbers.ctypes.data_as(floats),
        content.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(0),
        ctypes.c_int64(n_rows),
        ctypes.c_int64(n_columns),
        floats(),  # no importance of columns
    )
    assert n_bytes == content.nbytes
    return content


@cache
def _ggml() -> ctypes.CDLL:
    """llama.cpp's arithmetic, from the library of the extra ``engine``."""
    package = importlib.util.find_spec("xllamacpp")
    libraries = [*Path(package.origin).parent.glob("xllamacpp*.so")] if package else []
    if not libraries:
        raise InvalidModelError(
            "K-quants are written by llama.cpp's own library, found none; `pip install"
            " gaussmark[engine]` installs it. Q8_0 and Q4_0 do not need it"
        )
    library = ctypes.CDLL(str(libraries[0]))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library
