"""Texts of a scheme, written once: whichever notebook asks for the same again reads them.

A notebook of robustness, one of rank reduction and one of the baselines compare schemes on the same prompts with the same luck. What a text
depends on is its name here: the library's sources and the versions of the packages that compute, every bit of the model, the scheme with its
key's public id, the prompts, the length and the seed. So nothing stale is ever read, and no secret is written.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from gaussmark_lib import generate, notebooks, perturb, schemes
from gaussmark_lib.paths import CACHE

FOLDER = CACHE / "written"


def responses(
    model: PreTrainedModel,
    scheme: "schemes.Scheme | None",
    prompts: Sequence[Sequence[int]],
    n_tokens: int,
    *,
    seed: int = 0,
    folder: Path | None = None,
) -> list[list[int]]:
    """``scheme.generate``'s continuations (None: the model's own, ``generate.sample``), from the folder if they are there, else written into it.

    Raises:
        PerturbedModelError: the texts of a watermarked model are not kept.
    """
    perturb.refuse_perturbed(model)
    folder = folder or FOLDER
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


def _name(model: PreTrainedModel, scheme, prompts, n_tokens: int, seed: int) -> str:
    versions = [notebooks.source_version(), torch.__version__, transformers.__version__, str(model.device)]
    question = [versions, _sha256(model), _described(scheme), [list(map(int, prompt)) for prompt in prompts], n_tokens, seed]
    return hashlib.sha256(json.dumps(question).encode()).hexdigest()[:24]


def _sha256(model: PreTrainedModel) -> str:
    """Of every parameter's and buffer's name, type, shape and bits, and of the config, which holds what no tensor does."""
    digest = hashlib.sha256(model.config.to_json_string().encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _described(scheme) -> list:
    """The scheme's class and fields; of a key its public id and what it is bound to."""
    if scheme is None:
        return []
    fields = {field.name: getattr(scheme, field.name) for field in dataclasses.fields(scheme)}
    return [type(scheme).__qualname__, *(f"{name} = {value!r}" for name, value in fields.items())]
