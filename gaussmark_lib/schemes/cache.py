"""Texts of a scheme, written once: whichever notebook asks for the same again reads them.

A text's name is a hash of everything that it depends on: the code that writes it (``runs.identity``), the versions of the packages that compute,
every bit of the model, the scheme with its key's public fingerprint of 256 bits, the prompts, the length and the seed. So nothing stale is
ever read, and no secret is written.
"""

import hashlib
import json
import os
import weakref
from functools import cache
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from gaussmark_lib import binding, generate, paths, perturb
from gaussmark_lib.runs import identity
from gaussmark_lib.scheme import Scheme
from gaussmark_lib.tokens import Texts

_known: "weakref.WeakKeyDictionary[PreTrainedModel, tuple[tuple, str]]" = weakref.WeakKeyDictionary()


def responses(
    model: PreTrainedModel, scheme: Scheme | None, prompts: Texts, n_tokens: int, *, seed: int = 0, folder: Path | None = None
) -> list[list[int]]:
    """``scheme.generate``'s continuations (None: ``generate.sample``'s), from the folder, or written and then kept there.

    PerturbedModelError for a watermarked model, whose texts are not kept.
    """
    perturb.refuse_perturbed(model)
    generate.checked(model, prompts, n_tokens, 1.0, 1.0, 1)
    folder = folder or paths.TEXTS
    path = folder / f"{_name(model, scheme, prompts, n_tokens, seed)}.json"
    if path.exists():
        return json.loads(path.read_text())
    write = scheme.generate if scheme else generate.sample
    texts = write(model, prompts, n_tokens, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(texts))
    partial.replace(path)  # a reader never sees half a file
    return texts


def _name(model: PreTrainedModel, scheme: Scheme | None, prompts: Texts, n_tokens: int, seed: int) -> str:
    versions = [_code(type(scheme).__module__ if scheme else generate.__name__), torch.__version__, transformers.__version__, str(model.device)]
    who = [type(scheme).__qualname__, repr(scheme), scheme.key.fingerprint, repr(scheme.key.binding)] if scheme else []
    question = [versions, sha256(model), who, [list(map(int, prompt)) for prompt in prompts], n_tokens, seed]
    return hashlib.sha256(json.dumps(question).encode()).hexdigest()[:24]


@cache
def _code(module: str) -> str:
    """The version of a module's code when it was first asked for: a kernel goes on with the code that it imported, even if the file changes."""
    return identity.of_module(module)


def sha256(model: PreTrainedModel) -> str:
    """Of every tensor's name, dtype, shape and bits, and of the config; computed anew after a write (``binding.state``)."""
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
