"""On what terms files of models are loaded: never with code of theirs, and from the model hub only if it answers within seconds.

The hub's own client tries every file six times and sleeps in between, which takes most of a minute without a network.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from huggingface_hub import constants
from huggingface_hub.utils import get_session
from transformers import PreTrainedModel
from transformers.utils import logging

from gaussmark_lib.errors import InvalidModelError

PATIENCE = 5  # seconds


def reachable() -> bool:
    """True if the hub (or the mirror named by ``HF_ENDPOINT``) answers at all; False with ``HF_HUB_OFFLINE=1``."""
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # its kind depends on the HTTP library below, and on the proxy
        return False
    return True


def terms(*, local: bool = False) -> dict[str, bool]:
    """What every ``from_pretrained`` of this library is told. A model's own Python is never run, whatever its files or the terminal say."""
    return {"local_files_only": local or not reachable(), "trust_remote_code": False}


def reason(error: Exception) -> str:
    """Why a model's files could not be loaded, in one line."""
    if "trust_remote_code" in str(error):
        return "it needs Python code of its own (auto_map in its json files), which is never run; expected an architecture that transformers has"
    return first_line(error)


def why_not_loaded(name: str, is_local: bool, error: Exception) -> str:
    if is_local:
        expected = "Expected config.json, tokenizer files and whole *.safetensors; copy or download it again"
        return f"cannot read the model in {name}: {reason(error)}. {expected}"
    return (
        f"cannot get {name!r} from the model hub: {reason(error)}. Check the name and the network"
        " (a gated model also needs your hub token); models.load('doclm') needs no network"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bar of transformers while a local file is read."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the error's kind where it has none: clients of the hub write pages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def check_finite(model: PreTrainedModel, name: str) -> None:
    """InvalidModelError for a checkpoint with a weight that is not finite."""
    for weight, parameter in model.named_parameters():
        if bad := int((~torch.isfinite(parameter)).sum()):
            raise InvalidModelError(f"{name}: expected finite weights, got {bad} NaN or infinite numbers in {weight}; the checkpoint is damaged")
