"""Checkpoints before they are loaded: whether they fit the free memory, and whether the model hub
answers within seconds. Its own client tries every file six times and sleeps in between, which takes
most of a minute without a network. And one digest of a model.
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

PATIENCE = 5  # seconds that the hub has to answer
MOST_BUILT = 1000  # of what is built one by one; more take hours, also without numbers
_BUILT = re.compile("(layers?|experts|labels)$")
UNFIT = "the checkpoint does not fit its config.json"


def check_size(
    source: Path | str, terms: dict, dtype: str | torch.dtype, device: torch.device
) -> None:
    """InvalidModelError, before anything is built, for a config.json that describes more numbers
    than the free memory takes.
    """
    _check_counts(source, terms)
    config = AutoConfig.from_pretrained(source, **terms)
    settings = {} if dtype == "auto" else {"dtype": dtype}
    with torch.device("meta"):  # shapes without numbers
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False, **settings)
    if getattr(model.config, "quantization_config", None):
        return  # its numbers are packed, and take less than their shapes say
    tensors = (*model.parameters(), *model.buffers())
    _require_bytes(sum(tensor.numel() * tensor.element_size() for tensor in tensors), device)


def require_memory(n_numbers: int, dtype: str | torch.dtype, device: torch.device) -> None:
    """InvalidModelError where so many numbers of this dtype do not fit into the free memory."""
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
    """InvalidModelError for a number of layers, experts or labels that would take hours to build,
    anywhere in config.json, which transformers builds from as it reads it.
    """
    if file := cached_file(
        source, CONFIG_NAME, _raise_exceptions_for_missing_entries=False, **terms
    ):
        pairs: list[tuple[str, object]] = []
        content = Path(file).read_bytes()
        json.loads(content, object_pairs_hook=lambda some: pairs.extend(some) or some)
        for name, value in pairs:
            if _BUILT.search(name) and isinstance(value, int) and value > MOST_BUILT:
                raise InvalidModelError(f"{UNFIT}: expected {name} ≤ {MOST_BUILT}, got {value}")


def _free_memory(device: torch.device) -> dict[str, int]:
    """Bytes per device that a model passes: it is read into the machine's memory first."""
    free = {"the CPU": psutil.virtual_memory().available}
    if device.type == "cuda":
        free["the GPU"] = torch.cuda.mem_get_info(device)[0]
    return free


def hub_reachable() -> bool:
    """True if the hub (or the mirror named by ``HF_ENDPOINT``) answers at all; False with
    ``HF_HUB_OFFLINE=1``.
    """
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # its kind depends on the HTTP library below, and on the proxy
        return False
    return True


def hub_terms(*, local: bool = False) -> dict[str, bool]:
    """What every ``from_pretrained`` of this library is told. A model's own Python is never run,
    whatever its files or the terminal say.
    """
    return {"local_files_only": local or not hub_reachable(), "trust_remote_code": False}


def reason(error: Exception) -> str:
    """Why a model's files could not be loaded, in one line."""
    if "trust_remote_code" in str(error):
        return (
            "it needs Python code of its own (auto_map in its json files), which is never run;"
            " expected an architecture that transformers has"
        )
    return first_line(error)


FOLDER_ADVICE = (
    "Expected config.json, tokenizer files and whole *.safetensors; copy or download it again"
)


@contextmanager
def loading(name: str, *, is_local: bool, advice: str = FOLDER_ADVICE) -> Iterator[None]:
    """Inside the ``with``, whatever fails is an InvalidModelError that says what to do, and local
    files are read without a progress bar.
    """
    bar = logging.is_progress_bar_enabled()
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
    except Exception as error:  # it fails in as many ways as there are libraries below
        raise InvalidModelError(f"{what}: {reason(error)}. {advice}") from error
    finally:
        if bar:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the error's kind where it has none: clients of the
    hub write pages.
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def check_finite(parameter: Tensor, name: str) -> None:
    """InvalidModelError for a parameter with NaN or infinite entries."""
    if bad := int((~torch.isfinite(parameter)).sum()):
        expected = f"expected finite weights, got {bad} NaN or infinite numbers in {name}"
        raise InvalidModelError(f"{expected}; the model is damaged: load it again, or get it again")


_digests: "WeakKeyDictionary[PreTrainedModel, tuple[tuple, str]]" = WeakKeyDictionary()


def digest(model: PreTrainedModel) -> str:
    """SHA-256 of all parameters with their names, floats rounded to bfloat16: a model is the same
    in bfloat16, float32 and float64. Kept until a parameter is exchanged or written to.
    """
    named = sorted(model.named_parameters())
    state = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for _, p in named)
    if model not in _digests or _digests[model][0] != state:
        with ThreadPoolExecutor(4) as pool:
            each = pool.map(_sha256, (p for _, p in named))
        lines = [f"{name} {sha}\n" for (name, _), sha in zip(named, each, strict=True)]
        _digests[model] = state, hashlib.sha256("".join(lines).encode()).hexdigest()
    return _digests[model][1]


def _sha256(parameter: Tensor) -> str:
    value = parameter.detach()
    value = value.to(torch.bfloat16) if value.is_floating_point() else value
    sha256 = hashlib.sha256(str(tuple(parameter.shape)).encode())
    sha256.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return sha256.hexdigest()


def device_of(name: str | torch.device | None) -> torch.device:
    """The device of this name, by default the GPU if there is one. InvalidModelError if this
    machine has none of that name.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device).item()  # it need not be there; and "meta" holds no numbers
        return device
    except (RuntimeError, AssertionError, TypeError):
        raise InvalidModelError(
            f"device: expected 'cpu', 'cuda' or another that this machine has, got {name!r}"
        ) from None
