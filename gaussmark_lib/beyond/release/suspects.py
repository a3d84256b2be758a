"""One matrix of a suspect, read without the rest of the model.

A suspect is a loaded model, a folder of safetensors (in any dtype, in shards), a quantised
checkpoint, or a GGUF file.
"""

import json
from pathlib import Path

from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import files, models
from gaussmark_lib.engine import gguf_files
from gaussmark_lib.engine.arithmetic import wide
from gaussmark_lib.engine.checkpoints import check_finite
from gaussmark_lib.errors import InvalidModelError, shown
from gaussmark_lib.weights import Weight

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

Suspect = PreTrainedModel | models.LM | str | Path


def matrix(suspect: Suspect, weight: Weight) -> Float[Tensor, "d_out d_in"]:
    """Return θ′, the suspect's matrix of this name, in float32 or wider, on the CPU.

    Raises:
        InvalidModelError: if there is no such matrix, it has another shape or numbers that are not
            finite, an adapter was not merged, or a file cannot be read.
    """
    if isinstance(suspect, models.LM):
        suspect = suspect.model
    if isinstance(suspect, PreTrainedModel):
        source = type(suspect).__name__
        theta = _of_model(suspect, weight)
    else:
        source = files.as_path(suspect, "cannot read the suspect", InvalidModelError)
        if str(suspect) == models.EMBEDDED:  # doclm, by its name
            source = files.DATA / models.EMBEDDED
        try:
            is_file = gguf_files.is_gguf(source) and not source.is_dir()
            read = _of_gguf if is_file else _of_folder
            theta = read(source, weight)
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
            " the suspect has another architecture or size, and is not a version of this base"
        )
    check_finite(theta, f"{weight.name} of {source}")
    return theta


def _of_model(model: PreTrainedModel, weight: Weight) -> Tensor:
    parameters = dict(model.named_parameters())
    if weight.name not in parameters:
        is_adapted = any("lora_" in name for name in parameters)
        raise _missing(type(model).__name__, weight, is_adapted=is_adapted)
    parameter = parameters[weight.name]
    is_packed = type(parameter.data) is not Tensor or not parameter.is_floating_point()
    if is_packed:  # by a library for quantised models
        parameter = parameter.dequantize()
    return weight.oriented(parameter)


def _of_folder(folder: Path, weight: Weight) -> Tensor:
    """The matrix from the shard of a folder that contains it."""
    is_adapter = (folder / "adapter_config.json").exists()
    if is_adapter and not (folder / "config.json").exists():
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
            shards = dict.fromkeys(file.keys(), SINGLE)  # tensor → its file
    # A checkpoint without the output layer has the names without their first part ("model.").
    _, _, inner = weight.name.partition(".")
    for name in (weight.name, inner):
        if name in shards:
            with safe_open(folder / shards[name], "pt") as file:
                return weight.oriented(file.get_tensor(name))
    raise _missing(folder, weight, is_adapted=any("lora_" in name for name in shards))


def _of_gguf(path: Path, weight: Weight) -> Tensor:
    """The matrix from a GGUF file, dequantised; the format has its own names."""
    reader = gguf_files.Reader(path)
    try:
        return gguf_files.matrix(reader, weight.name)
    except InvalidModelError as error:
        raise InvalidModelError(f"{path}: {error}") from None


def _missing(source: object, weight: Weight, *, is_adapted: bool) -> InvalidModelError:
    expected = f"{source}: expected a matrix {shown(weight.name)}, found none"
    if is_adapted:
        advice = "merge the low-rank adapter into the model first (peft's merge_and_unload)"
    else:
        advice = "the suspect has another architecture, or is not a checkpoint of a whole model"
    return InvalidModelError(f"{expected}; {advice}")
