"""One matrix of a suspect, without the rest of its model: from a loaded model, a folder of
safetensors (in any dtype, in shards), a quantised checkpoint, or a GGUF file.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import files, models
from gaussmark_lib.engine.arithmetic import wide
from gaussmark_lib.engine.checkpoints import check_finite
from gaussmark_lib.errors import InvalidModelError, shown
from gaussmark_lib.weights import Weight

if TYPE_CHECKING:
    from gguf import GGUFReader

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

Suspect = PreTrainedModel | models.LM | str | Path


def matrix(suspect: Suspect, weight: Weight) -> Float[Tensor, "d_out d_in"]:
    """θ′: the suspect's matrix of this name, float32 at least, on the CPU.

    Raises:
        InvalidModelError: no such matrix, another shape, numbers that are not finite, an adapter
            that was not merged, or files that cannot be read.
    """
    if isinstance(suspect, models.LM):
        suspect = suspect.model
    if isinstance(suspect, PreTrainedModel):
        source, theta = type(suspect).__name__, _of_model(suspect, weight)
    else:
        source = files.named(suspect, "cannot read the suspect", InvalidModelError)
        if str(suspect) == models.EMBEDDED:
            source = files.DATA / models.EMBEDDED
        try:
            theta = (_of_gguf if source.suffix == ".gguf" else _of_folder)(source, weight)
        except InvalidModelError:
            raise
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            raise InvalidModelError(
                f"cannot read the suspect in {source}: {type(error).__name__}: {error}; expected"
                " config.json and whole *.safetensors, or a .gguf file"
            ) from None
    theta = wide(theta.detach().cpu())
    if tuple(theta.shape) != weight.shape:
        raise InvalidModelError(
            f"{source}: expected {weight.name} of shape {weight.shape}, got {tuple(theta.shape)};"
            " it is another architecture or size, and no version of this base"
        )
    check_finite(theta, f"{weight.name} of {source}")
    return theta


def _of_model(model: PreTrainedModel, weight: Weight) -> Tensor:
    found = dict(model.named_parameters()).get(weight.name)
    if found is None:
        adapted = any("lora_" in name for name, _ in model.named_parameters())
        raise _missing(type(model).__name__, weight, is_adapted=adapted)
    if type(found.data) is not Tensor or not found.is_floating_point():  # packed by some library
        found = found.dequantize()
    return weight.oriented(found)


def _of_folder(folder: Path, weight: Weight) -> Tensor:
    """A folder's matrix, from the one shard that has it."""
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise _missing(folder, weight, is_adapted=True)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("quantization_config"):  # packed: only its own library can unpack it
        lm = models.load(folder, dtype="auto")
        return _of_model(lm.model.dequantize(), weight)
    index = folder / INDEX
    if index.exists():
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    else:
        with safe_open(folder / SINGLE, "pt") as file:
            shards = dict.fromkeys(file.keys(), SINGLE)
    # a checkpoint of the bare body leaves out what the head's class calls it
    _, _, inner = weight.name.partition(".")
    if not (name := next((n for n in (weight.name, inner) if n in shards), None)):
        raise _missing(folder, weight, is_adapted=any("lora_" in n for n in shards))
    with safe_open(folder / shards[name], "pt") as file:
        return weight.oriented(file.get_tensor(name))


def _of_gguf(path: Path, weight: Weight) -> Tensor:
    """A matrix of a GGUF file, by that format's own name for it, dequantised."""
    try:
        import gguf
    except ImportError:
        raise InvalidModelError("a GGUF file needs the package gguf: pip install gguf") from None
    reader = gguf.GGUFReader(path)
    architecture = str(_field(reader, "general.architecture"))
    [number] = (n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    n_blocks = int(_field(reader, f"{architecture}.block_count"))
    known = gguf.get_tensor_name_map(number, n_blocks)
    name = known.get_name(weight.name, try_suffixes=(".weight",))
    tensor = next((t for t in reader.tensors if t.name == name), None)
    if tensor is None:
        raise _missing(path, weight, is_adapted=False)
    theta = torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    heads = {"attn_q": "head_count", "attn_k": "head_count_kv"}.get(name.split(".")[-2])
    if architecture == "llama" and heads:
        theta = _in_halves(theta, int(_field(reader, f"llama.attention.{heads}")))
    return theta


def _field(reader: "GGUFReader", name: str) -> str | int:
    """A value of a GGUF file's header."""
    if (field := reader.get_field(name)) is None:
        raise InvalidModelError(f"expected a GGUF file with {name} in its header, found none")
    return field.contents()


def _in_halves(theta: Float[Tensor, "d_out d_in"], n_heads: int) -> Float[Tensor, "d_out d_in"]:
    """Undoes llama.cpp's order of the rows of q and k, in which the two halves of each head, which
    a rotation pairs, alternate.
    """
    d_out, d_in = theta.shape
    return (
        theta.reshape(n_heads, d_out // n_heads // 2, 2, d_in).transpose(1, 2).reshape(d_out, d_in)
    )


def _missing(source: object, weight: Weight, *, is_adapted: bool) -> InvalidModelError:
    expected = f"{source}: expected a matrix {shown(weight.name)}, found none"
    if is_adapted:
        advice = "its low-rank adapter is not merged: merge it first (peft's merge_and_unload)"
    else:
        advice = "it is another architecture, or not a checkpoint of the whole model"
    return InvalidModelError(f"{expected}; {advice}")
