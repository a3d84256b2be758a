"""A GGUF file in another quantisation, such as a user of a release makes.

All matrices get the same type, as with llama.cpp's ``llama-quantize --pure``; published files are
mostly mixtures that keep a few matrices finer. K-quants divide a row into blocks of 256 numbers. A
row whose length is no multiple of 256 gets the type that llama.cpp falls back to (Q6_K → Q8_0,
Q5_K → Q5_1, Q4_K → Q5_0). A row whose length is no multiple of 32 becomes float16. Norms and other
vectors do not change, and neither does ``general.file_type``, a remark in the header.

To test such a file, compare it with the *unwatermarked* base in the same quantisation, too: then
the part of the rounding that both files share cancels in θ′ − θ.
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
ENGINES_OWN = {Kind.Q6_K, Kind.Q5_K, Kind.Q4_K}  # gguf's Python reads but does not write them
# both write these, with the same bytes; llama.cpp is four times as fast
EITHER = {Kind.Q5_1, Kind.Q5_0, Kind.Q4_0}
# Matrices that llama.cpp never quantises.
KEPT = ("_norm.weight", "ffn_gate_inp.weight", "position_embd.weight", "token_types.weight")
KEPT_PARTS = ("ssm_conv1d", "shortconv.conv")
ROWS = 4096  # converted at once


def write(
    source: str | Path | gguf_files.Reader, path: str | Path, tensor_type: str
) -> dict[str, str]:
    """Write a GGUF file in another quantisation.

    Args:
        source: a GGUF file, watermarked or not, or what ``gguf_files.read`` returns of it.
        path: a new file.
        tensor_type: one of ``TYPES``.

    Returns:
        The tensors that fell back to another type, with that type.

    Raises:
        InvalidModelError: if ``source`` is not a GGUF file of a language model, a tensor cannot be
            read by gguf's Python, ``path`` exists, or a K-quant lacks the extra ``engine``.
    """
    require_one_of(tensor_type, "type", TYPES, InvalidModelError)
    path = files.as_path(path, "cannot write a GGUF file", InvalidModelError)
    if path.exists():
        raise InvalidModelError(f"expected a new file, but {path} exists")
    reader = source
    if not isinstance(source, gguf_files.Reader):
        source = files.as_path(source, "cannot read the model", InvalidModelError)
        reader = gguf_files.read(source)
    wanted = Kind[tensor_type]
    kinds = {
        tensor.name: fitting(tensor, wanted) for tensor in reader.tensors if is_quantised(tensor)
    }
    if ENGINES_OWN & set(kinds.values()):
        _ggml()  # raises before anything is written

    def content(tensor: gguf.gguf_reader.ReaderTensor) -> np.ndarray:
        return converted(tensor, kinds[tensor.name])

    gguf_writing.write(reader, path, kinds, content)
    return {name: kind.name for name, kind in kinds.items() if kind != wanted}


def fitting(tensor: gguf.gguf_reader.ReaderTensor, kind: Kind) -> Kind:
    """Return the type that llama.cpp gives to a tensor if this type is requested."""
    n_columns = int(tensor.shape[0])
    for candidate in (kind, FALLBACK.get(kind, kind)):
        block, _ = gguf.GGML_QUANT_SIZES[candidate]
        if n_columns % block == 0:
            return candidate
    return Kind.F16


def is_quantised(tensor: gguf.gguf_reader.ReaderTensor) -> bool:
    """Return whether llama.cpp quantises this tensor."""
    is_kept = tensor.name.endswith(KEPT) or any(part in tensor.name for part in KEPT_PARTS)
    return len(tensor.shape) > 1 and tensor.name.endswith(".weight") and not is_kept


def converted(tensor: gguf.gguf_reader.ReaderTensor, kind: Kind) -> np.ndarray:
    """Return the bytes of a tensor in another type; converts some rows at a time."""
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
    is_by_engine = kind in ENGINES_OWN or (kind in EITHER and _library() is not None)
    if not is_by_engine:
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
        floats(),  # a null pointer: all columns are equally important
    )
    assert n_bytes == content.nbytes
    return content


def _ggml() -> ctypes.CDLL:
    """Return llama.cpp's arithmetic; raise InvalidModelError without the extra ``engine``."""
    library = _library()
    if library is None:
        raise InvalidModelError(
            "K-quants need llama.cpp's library, which is not installed; `pip install"
            " gaussmark[engine]` installs it. Q8_0 and Q4_0 do not need it"
        )
    return library


@cache
def _library() -> ctypes.CDLL | None:
    """Return the shared library of the extra ``engine``, or None without the extra."""
    package = importlib.util.find_spec("xllamacpp")
    paths = [*Path(package.origin).parent.glob("xllamacpp*.so")] if package else []
    if not paths:
        return None
    library = ctypes.CDLL(str(paths[0]))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library
