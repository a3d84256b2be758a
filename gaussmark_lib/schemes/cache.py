"""Texts of a scheme, written once: whichever notebook asks for the same again reads them.

A text's name is a hash of everything that it depends on: the code that writes it
(``runs.identity``), the versions of the packages that compute, every bit of the model, the scheme
with its key's public fingerprint of 256 bits, the prompts, the length and the seed. So nothing
stale is ever read, and no secret is written.
"""

import hashlib
import json
import logging
import os
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from gaussmark_lib import binding, files, generate, paths, perturb
from gaussmark_lib.errors import CorpusError
from gaussmark_lib.runs import identity
from gaussmark_lib.scheme import Scheme
from gaussmark_lib.tokens import Texts

_log = logging.getLogger(__name__)
_known: "weakref.WeakKeyDictionary[PreTrainedModel, tuple[tuple, str]]" = (
    weakref.WeakKeyDictionary()
)


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

    Args:
        sampling: ``top_p, temperature, until_end`` of ``generate.sample``.

    PerturbedModelError for a watermarked model, whose texts are not kept. Nor are those of a scheme
    outside this library, whose code has no version.
    """
    perturb.refuse_perturbed(model)
    prompts = generate.checked(
        model, prompts, n_tokens, sampling.get("top_p", 1.0), sampling.get("temperature", 1.0), 1
    )
    write = scheme.generate if scheme else generate.sample
    if scheme and not type(scheme).__module__.startswith("gaussmark_lib."):
        return write(model, prompts, n_tokens, seed=seed, **sampling)
    folder = paths.TEXTS if folder is None else files.named(folder, "folder", CorpusError)
    path = folder / f"{_name(model, scheme, prompts, int(n_tokens), int(seed), sampling)}.json"
    if (kept := _read(path)) is not None:
        return kept
    texts = write(model, prompts, n_tokens, seed=seed, **sampling)
    _keep(path, texts)
    return texts


def _read(path: Path) -> list[list[int]] | None:
    """The texts in a file; None without one, and for one that is damaged, which one line in the log
    says.
    """
    if not os.path.exists(path):
        return None
    try:
        content = json.loads(path.read_text())
        if content["sha256"] == _sha256(content["texts"]):
            return content["texts"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    _log.warning("the texts kept in %s are damaged, and are written again", path)
    return None


def _keep(path: Path, texts: list[list[int]]) -> None:
    """Writes the texts with their checksum. If the folder takes none, the next one who asks has to
    wait again, and that is all.
    """
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"sha256": _sha256(texts), "texts": texts}))
        partial.replace(path)  # a reader never sees half a file
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        _log.warning(
            "texts cannot be kept in %s: %s; make room there, or they are written each time",
            path.parent,
            error.strerror,
        )


def _sha256(texts: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _name(
    model: PreTrainedModel,
    scheme: Scheme | None,
    prompts: Texts,
    n_tokens: int,
    seed: int,
    sampling: dict,
) -> str:
    versions = [
        _code(type(scheme).__module__ if scheme else generate.__name__),
        torch.__version__,
        transformers.__version__,
        str(model.device),
    ]
    who = (
        [type(scheme).__qualname__, repr(scheme), scheme.key.fingerprint, repr(scheme.key.binding)]
        if scheme
        else []
    )
    options = sorted(
        (name, value if isinstance(value, str) else float(value))
        for name, value in sampling.items()
    )
    ends = sorted(map(str, generate.end_tokens(model))) if sampling.get("until_end") else []
    question = [versions, sha256(model), who, prompts, n_tokens, seed, options, ends]
    return hashlib.sha256(json.dumps(question).encode()).hexdigest()[:24]


@cache
def _code(module: str) -> str:
    """The version of a module's code when it was first asked for: a kernel goes on with the code
    that it imported, even if the file changes.
    """
    return identity.of_module(module)


def sha256(model: PreTrainedModel) -> str:
    """Of every tensor's name, dtype, shape and bits, and of the config; computed anew after a write
    (``binding.state``).
    """
    tensors = model.state_dict()
    config = model.config.to_json_string()
    state = (config, *((name, *binding.state(tensor)) for name, tensor in tensors.items()))
    if (known := _known.get(model)) and known[0] == state:
        return known[1]
    digest = hashlib.sha256(config.encode())
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    _known[model] = state, digest.hexdigest()
    return _known[model][1]
