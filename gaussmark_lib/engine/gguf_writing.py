"""Copy a GGUF file and replace some of its tensors.

The header's values and all other tensors are copied byte for byte. The writer of the package gguf
would rebuild the header and drop empty strings and empty lists. Layout of a file (versions 2, 3):

    "GGUF", version, number of tensors, number of values    4 + 4 + 8 + 8 bytes
    the values: name, type, content of each
    the tensors: name, shape, type, offset of each
    the tensors' data in the same order, each at a multiple of the alignment
"""

import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np

from gaussmark_lib import files
from gaussmark_lib.engine import gguf_files
from gaussmark_lib.errors import InvalidModelError

COUNTS = 8  # the place of the number of tensors
VALUES = 24  # the place of the first value
PLACE = struct.Struct("<IQ")  # the end of a tensor's entry: its type, and its offset
AT_ONCE = 1 << 24  # bytes that are copied at a time

Kind = gguf.GGMLQuantizationType
Tensor = gguf.gguf_reader.ReaderTensor


def write(
    reader: gguf_files.Reader,
    path: Path,
    kinds: Mapping[str, Kind],
    data: Callable[[Tensor], np.ndarray],
    added: Mapping[str, str | float] | None = None,
) -> None:
    """Write a copy of a file, complete or not at all.

    It needs no more memory than ``data`` does for a single tensor.

    Args:
        reader: the file that is copied.
        path: the new file, which must not exist.
        kinds: the new types of the tensors that are replaced, by the file's names.
        data: returns the new bytes of such a tensor, in its new type.
        added: more values for the header, after the values of the copied file.
    """
    if reader.byte_order != "I":
        raise InvalidModelError(
            "expected a GGUF file in this machine's order of bytes, got the opposite order; convert"
            " it first (gguf's gguf_convert_endian)"
        )
    with reader.path.open("rb") as base, files.hidden_folder(path) as folder:
        partial = Path(folder) / path.name
        with partial.open("xb") as out:
            out.write(_header(reader, kinds, added or {}))
            _pad(out, reader.alignment)
            for tensor in reader.tensors:
                if tensor.name in kinds:
                    out.write(data(tensor).tobytes())
                else:
                    _copy(base, tensor, out)
                _pad(out, reader.alignment)
        partial.rename(path)


def copy_file(base: Path, path: Path) -> None:
    """Copy a file as it is, complete or not at all."""
    with files.hidden_folder(path) as folder:
        partial = Path(folder) / path.name
        shutil.copyfile(base, partial)
        partial.rename(path)


def n_bytes(tensor: Tensor, kind: Kind) -> int:
    """Return how many bytes a tensor takes if its numbers are stored as this kind.

    A quantised kind stores blocks of numbers, such as 34 bytes for 32 numbers (``Q8_0``). Raise
    InvalidModelError if a row is not a whole number of blocks.
    """
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    n_columns = int(tensor.shape[0])
    if n_columns % block:
        raise InvalidModelError(
            f"{tensor.name}: expected rows of a multiple of {block} numbers for {kind.name}, got"
            f" {n_columns}; choose another type"
        )
    return int(tensor.n_elements) // block * block_bytes


def _header(
    reader: gguf.GGUFReader, kinds: Mapping[str, Kind], added: Mapping[str, str | float]
) -> bytes:
    """Return everything before the data."""
    n_values = reader.fields["GGUF.kv_count"].contents() + len(added)
    entries_begin = reader.tensors[0].field.offset
    parts = [
        reader.data[:COUNTS].tobytes(),
        struct.pack("<QQ", len(reader.tensors), n_values),
        reader.data[VALUES:entries_begin].tobytes(),
        *(_value(name, value) for name, value in added.items()),
    ]
    offset = 0
    for tensor in reader.tensors:
        begin = tensor.field.offset
        end = begin + sum(int(part.nbytes) for part in tensor.field.parts)
        kind = kinds.get(tensor.name, tensor.tensor_type)
        unchanged = reader.data[begin : end - PLACE.size]  # the tensor's name and shape
        parts.append(unchanged.tobytes())
        parts.append(PLACE.pack(kind, offset))
        offset += _padded(n_bytes(tensor, kind), reader.alignment)
    return b"".join(parts)


def _value(name: str, value: str | float) -> bytes:
    """Return a value of the header: its name, its type and its content."""
    if isinstance(value, str):
        kind = gguf.GGUFValueType.STRING
        content = _text(value)
    else:
        kind = gguf.GGUFValueType.FLOAT64
        content = struct.pack("<d", value)
    return _text(name) + struct.pack("<I", kind) + content


def _text(text: str) -> bytes:
    """Return a text as GGUF stores it: its length in bytes, then UTF-8."""
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _copy(base: BinaryIO, tensor: Tensor, out: BinaryIO) -> None:
    """Copy the bytes of a tensor, a part at a time.

    They are read, because the bytes of a mapped file would all stay in memory.
    """
    base.seek(tensor.data_offset)
    n_remaining = int(tensor.n_bytes)
    while n_remaining:
        part = base.read(min(n_remaining, AT_ONCE))
        if not part:
            raise InvalidModelError(f"the base file became shorter while {tensor.name} was copied")
        out.write(part)
        n_remaining -= len(part)


def _pad(out: BinaryIO, alignment: int) -> None:
    """Write zero bytes up to the next multiple of the alignment."""
    size = out.tell()
    n_zeros = _padded(size, alignment) - size
    out.write(bytes(n_zeros))


def _padded(size: int, alignment: int) -> int:
    """Return the smallest multiple of the alignment that is at least ``size``."""
    n_units = -(-size // alignment)  # rounded up
    return int(n_units * alignment)
