"""Copy a GGUF file and replace some of its tensors.

The header's values and all other tensors are copied byte for byte. The writer of the package gguf
would rebuild the header and drop empty strings and empty lists. Layout of a file (versions 2, 3):

    "GGUF", version, number of tensors, number of values    4 + 4 + 8 + 8 bytes
    the values: name, type, content of each
    the tensors: name, shape, type, offset of each
    the tensors' data in the same order, each at a multiple of the alignment
"""

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np

from gaussmark_lib import files
from gaussmark_lib.engine import gguf_files
from gaussmark_lib.errors import InvalidModelError

COUNTS = 8  # where the number of tensors stands
VALUES = 24  # where the values begin
PLACE = struct.Struct("<IQ")  # the end of a tensor's entry: its type, and its offset
AT_ONCE = 1 << 24  # bytes that are copied at once

Kind = gguf.GGMLQuantizationType
Tensor = gguf.gguf_reader.ReaderTensor


def write(
    reader: gguf_files.Reader,
    path: Path,
    kinds: Mapping[str, Kind],
    data: Callable[[Tensor], np.ndarray],
    added: Mapping[str, str | float] | None = None,
) -> None:
    """Write a copy of a file, complete or not at all. It needs no more memory than ``data`` does
    for a single tensor.

    Args:
        reader: of the file that is copied.
        path: where nothing may be yet.
        kinds: the types of the tensors that are replaced, by the file's names.
        data: the new bytes of such a tensor, for its new type.
        added: values for the header, after those that it has.
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


def n_bytes(tensor: Tensor, kind: Kind) -> int:
    """How many bytes a tensor of this type has; InvalidModelError where its rows do not fit."""
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
    """All that stands before the data."""
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
        parts += [reader.data[begin : end - PLACE.size].tobytes(), PLACE.pack(kind, offset)]
        offset += _padded(n_bytes(tensor, kind), reader.alignment)
    return b"".join(parts)


def _value(name: str, value: str | float) -> bytes:
    """A value of the header: its name, its type and itself."""
    if isinstance(value, str):
        kind = gguf.GGUFValueType.STRING
        content = _text(value)
    else:
        kind = gguf.GGUFValueType.FLOAT64
        content = struct.pack("<d", value)
    return _text(name) + struct.pack("<I", kind) + content


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _copy(base: BinaryIO, tensor: Tensor, out: BinaryIO) -> None:
    """The bytes of a tensor, a part at a time: of a mapped file, all would stay in memory."""
    base.seek(tensor.data_offset)
    left = int(tensor.n_bytes)
    while left:
        part = base.read(min(left, AT_ONCE))
        if not part:
            raise InvalidModelError(f"the base file became shorter while {tensor.name} was copied")
        out.write(part)
        left -= len(part)


def _pad(out: BinaryIO, alignment: int) -> None:
    out.write(bytes(_padded(out.tell(), alignment) - out.tell()))


def _padded(size: int, alignment: int) -> int:
    return int(-(-size // alignment) * alignment)
