"""Texts of a scheme, written once: whichever notebook asks for the same again reads them.

They are kept (``joblib.Memory``) by a hash of everything that they depend on: the code that writes
them (``runs.identity``), the versions of the packages that compute, every bit of the model, the
scheme with its key's public fingerprint of 256 bits, the prompts, the length and the seed. So
nothing stale is ever read, and no secret is written.
"""

import hashlib
import logging
import weakref
from functools import cache
from pathlib import Path

import torch
import transformers
from joblib import Memory
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import files, generate, perturb
from gaussmark_lib.errors import CorpusError
from gaussmark_lib.runs import identity
from gaussmark_lib.scheme import Scheme
from gaussmark_lib.tokens import Texts

_log = logging.getLogger(__name__)
_code = cache(identity.of_module)  # a kernel goes on with the code that it imported
_known: "weakref.WeakKeyDictionary[PreTrainedModel, tuple]" = weakref.WeakKeyDictionary()


def responses(
    model: PreTrainedModel,
    scheme: Scheme | None,
    prompts: Texts,
    n_tokens: int,
    *,
    seed: int = 0,
    folder: str | Path | None = None,
    **sampling,
) -> list[list[int]]:
    """``scheme.generate``'s continuations (None: ``generate.sample``'s), from the folder, or
    written and then kept there.

    Not kept are texts of a scheme outside this library, whose code has no version.

    Args:
        sampling: ``top_p, temperature, until_end`` of ``generate.sample``.
    """
    perturb.refuse_perturbed(model)
    shape = (sampling.get(name, 1.0) for name in ("top_p", "temperature"))
    prompts = generate.checked(model, prompts, n_tokens, *shape, 1)
    write = scheme.generate if scheme else generate.sample
    settings = {"n_tokens": int(n_tokens), "seed": int(seed), **sampling}
    if scheme and not type(scheme).__module__.startswith("gaussmark_lib."):
        return write(model, prompts, **settings)
    writer = (
        _code(type(scheme).__module__ if scheme else generate.__name__),
        scheme and (type(scheme).__qualname__, repr(scheme), scheme.key.fingerprint),
        scheme and repr(scheme.key.binding),
        (torch.__version__, transformers.__version__, str(model.device)),
        sha256(model),
        sorted(generate.end_tokens(model)) if sampling.get("until_end") else None,
    )
    folder = files.TEXTS if folder is None else files.named(folder, "folder", CorpusError)
    try:
        kept = Memory(folder, verbose=0).cache(_written, ignore=["write", "model"])
    except OSError as error:
        _log.warning("texts cannot be kept, and are written each time: %s", error)
        return write(model, prompts, **settings)
    return kept(writer, write, model, prompts, settings)


def _written(writer, write, model, prompts, settings) -> list[list[int]]:
    """``writer`` names who writes, for the hash; ``write`` and ``model`` are no part of it."""
    return write(model, prompts, **settings)


def sha256(model: PreTrainedModel) -> str:
    """Of every tensor's name, dtype, shape and bits, and of the config; computed anew after a write
    (``_state``).
    """
    tensors, config = model.state_dict(), model.config.to_json_string()
    state = (config, *((name, *_state(tensor)) for name, tensor in tensors.items()))
    if (known := _known.get(model)) and known[0] == state:
        return known[1]
    digest = hashlib.sha256(config.encode())
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    _known[model] = state, digest.hexdigest()
    return digest.hexdigest()


def _state(weight: Tensor) -> tuple:
    value = weight.detach().contiguous().cpu().view(-1)
    version = 0 if weight.is_inference() else weight._version
    return weight.data_ptr(), version, hashlib.sha256(str(value.double().sum()).encode()).digest()
