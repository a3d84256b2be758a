"""Checkpoints before they are loaded: whether they fit into the free memory, and whether the model
hub answers within seconds. Also a digest of a loaded model.

The hub's client tries every file six times and sleeps in between: without a network that takes most
of a minute.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

import psutil
import torch
from huggingface_hub import constants
from huggingface_hub.utils import get_session
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import CONFIG_NAME, cached_file, logging

from gaussmark_lib.errors import InvalidModelError

PATIENCE = 5  # seconds in which the hub must answer
MOST_BUILT = 1000  # layers, experts or labels; more take hours to build, even without numbers
_BUILT = re.compile("(layers?|experts|labels)$")
UNFIT = "the checkpoint does not fit its config.json"


def check_size(
    source: Path | str, terms: dict, dtype: str | torch.dtype, device: torch.device
) -> None:
    """Raise InvalidModelError if config.json describes a model that does not fit into memory.

    Nothing of the model is built before.
    """
    _check_counts(source, terms)
    config = AutoConfig.from_pretrained(source, **terms)
    settings = {} if dtype == "auto" else {"dtype": dtype}
    with torch.device("meta"):  # shapes without numbers
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False, **settings)
    if getattr(model.config, "quantization_config", None):
        return  # its numbers are packed, and take less memory than their shapes say
    tensors = (*model.parameters(), *model.buffers())
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    _require_bytes(sum(sizes), device)


def require_memory(n_numbers: int, dtype: str | torch.dtype, device: torch.device) -> None:
    """Raise InvalidModelError if so many numbers of this dtype do not fit into the free memory."""
    dtype = getattr(torch, str(dtype).removeprefix("torch."))
    _require_bytes(n_numbers * dtype.itemsize, device)


def _require_bytes(n_bytes: int, device: torch.device) -> None:
    for where, free in _free_memory(device).items():
        if n_bytes > free:
            raise InvalidModelError(
                f"expected {n_bytes / 2**30:.1f} GiB of free memory on {where}, got"
                f" {free / 2**30:.1f} GiB; choose another dtype, or a smaller model"
            )


def _check_counts(source: Path | str, terms: dict) -> None:
    """Raise InvalidModelError if so many layers, experts or labels would take hours to build.

    The number may stand anywhere in config.json, from which transformers builds while it reads.
    """
    file = cached_file(source, CONFIG_NAME, _raise_exceptions_for_missing_entries=False, **terms)
    if file is None:
        return
    settings: list[tuple[str, object]] = []  # of all objects in the file, nested ones too

    def collect(pairs: list[tuple[str, object]]) -> list:
        settings.extend(pairs)
        return pairs

    json.loads(Path(file).read_bytes(), object_pairs_hook=collect)
    for name, value in settings:
        if _BUILT.search(name) and isinstance(value, int) and value > MOST_BUILT:
            raise InvalidModelError(f"{UNFIT}: expected {name} ≤ {MOST_BUILT}, got {value}")


def _free_memory(device: torch.device) -> dict[str, int]:
    """Return the free bytes of each device that a model passes through.

    It is read into the machine's memory first.
    """
    free = {"the CPU": psutil.virtual_memory().available}
    if device.type == "cuda":
        free["the GPU"] = torch.cuda.mem_get_info(device)[0]
    return free


def hub_reachable() -> bool:
    """Return whether the hub (or the mirror named by ``HF_ENDPOINT``) answers at all.

    It is False with ``HF_HUB_OFFLINE=1``.
    """
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # its kind depends on the HTTP library below, and on the proxy
        return False
    return True


def hub_terms(*, local: bool = False) -> dict[str, bool]:
    """Return the arguments of every ``from_pretrained`` in this library.

    Python code in a model's files is never run, whatever the files or the terminal say.
    """
    return {"local_files_only": local or not hub_reachable(), "trust_remote_code": False}


def reason(error: Exception) -> str:
    """Return why a model's files could not be loaded, in one line."""
    if "trust_remote_code" in str(error):
        return (
            "it needs Python code of its own (auto_map in its json files), which is never run;"
            " expected an architecture that transformers has"
        )
    return first_line(error)


FOLDER_ADVICE = (
    "Expected config.json, tokenizer files and whole *.safetensors, or the name of a .gguf file;"
    " copy or download it again"
)


@contextmanager
def loading(name: str, *, is_local: bool, advice: str = FOLDER_ADVICE) -> Iterator[None]:
    """Turn every failure inside the ``with`` into an InvalidModelError that says what to do.

    Local files are read without a progress bar.
    """
    has_bar = logging.is_progress_bar_enabled()
    if is_local:
        logging.disable_progress_bar()
        what = f"cannot read the model in {name}"
    else:
        what = f"cannot get {name!r} from the model hub"
        advice = (
            "Check the name and the network (a gated model also needs your hub token);"
            " models.load('doclm') needs no network"
        )
    try:
        yield
    except InvalidModelError as error:
        raise InvalidModelError(f"{name}: {error}") from None
    except Exception as error:  # each library below has its own errors
        raise InvalidModelError(f"{what}: {reason(error)}. {advice}") from error
    finally:
        if has_bar:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the error's type if it has no message.

    Clients of the hub write messages of a page.

    >>> first_line(ValueError("no such file\\n\\nSee the documentation …"))
    'no such file'
    """
    message = str(error).strip() or type(error).__name__
    return message.splitlines()[0]


def check_finite(parameter: Tensor, name: str) -> None:
    """Raise InvalidModelError for a parameter with NaN or infinite entries."""
    n_bad = int((~torch.isfinite(parameter)).sum())
    if n_bad > 0:
        expected = f"expected finite weights, got {n_bad} NaN or infinite numbers in {name}"
        raise InvalidModelError(f"{expected}; the model is damaged: load it again, or get it again")


# model → the state of its parameters, and the digest that they had then
_digests: "WeakKeyDictionary[PreTrainedModel, tuple[tuple, str]]" = WeakKeyDictionary()


def digest(model: PreTrainedModel) -> str:
    """Return the SHA-256 of all parameters with their names.

    Floats are rounded to bfloat16, so that a model has the same digest in bfloat16, float32 and
    float64. The digest is kept until a parameter is exchanged or written to.
    """
    parameters = dict(sorted(model.named_parameters()))
    state = tuple(map(_state, parameters.values()))
    if model not in _digests or _digests[model][0] != state:
        with ThreadPoolExecutor(4) as pool:
            hashes = pool.map(_sha256, parameters.values())
        lines = [f"{name} {sha}\n" for name, sha in zip(parameters, hashes, strict=True)]
        sha256 = hashlib.sha256("".join(lines).encode())
        _digests[model] = (state, sha256.hexdigest())
    _, digest_of_state = _digests[model]
    return digest_of_state


def _state(parameter: Tensor) -> tuple[int, int]:
    """Return the memory of a parameter, and how often torch has written to it."""
    n_writes = 0 if parameter.is_inference() else parameter._version
    return parameter.data_ptr(), n_writes


def _sha256(parameter: Tensor) -> str:
    value = parameter.detach()
    if value.is_floating_point():
        value = value.to(torch.bfloat16)
    sha256 = hashlib.sha256(str(tuple(parameter.shape)).encode())
    sha256.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return sha256.hexdigest()


def device_of(name: str | torch.device | None) -> torch.device:
    """Return the device of this name, by default the GPU if there is one.

    Raise InvalidModelError if this machine has no such device.
    """
    default = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name or default)
        # fails if this machine does not have the device, or if it holds no numbers ("meta")
        torch.zeros(1, device=device).item()
        return device
    except (RuntimeError, AssertionError, TypeError):
        raise InvalidModelError(
            f"device: expected 'cpu', 'cuda' or another that this machine has, got {name!r}"
        ) from None
