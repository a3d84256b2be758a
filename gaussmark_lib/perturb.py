"""The noise that a key stands for, and a model that carries it (paper, Alg. 1).

    θ(ξ) = θ + ξ,   ξ ~ N(0, σ² I)   over one weight matrix θ of shape (d_out, d_in), or several

Let z be the first d numbers of a key's stream, cut into matrices in the order of the weights. Then
ξ = σz, or σPz where rank_dropped > 0, with each weight's own σ and P.
"""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gaussmark_lib import files, models, tokens
from gaussmark_lib.engine.arithmetic import rounded_sum
from gaussmark_lib.engine.stream import in_rows
from gaussmark_lib.errors import (
    GaussMarkWarning,
    InvalidModelError,
    PerturbedModelError,
)
from gaussmark_lib.keys import Binding, Key, listed, purpose
from gaussmark_lib.weights import PlacedWatermark, Watermark, checked

_MARK = "gaussmark"  # on a perturbed model, and in the config of an exported checkpoint


def streams(wm: PlacedWatermark, keys: Sequence[Key]) -> Float[Tensor, "k d"]:
    """σz of each key, σ being the first weight's, float32 on the CPU; no projection."""
    return torch.from_numpy(in_rows([key.normals for key in keys], wm.d, wm.sigmas[0]))


def noise(
    model: PreTrainedModel, wm: Watermark, key: Key
) -> Float[Tensor, "d_out d_in"] | list[Tensor]:
    """ξ of a key, float32 on the CPU; of several weights a list, in their order. The same on every
    machine to 1e-6, and for rank_dropped > 0 up to the rounding of the SVD.

    Raises:
        KeyMismatchError: the key is bound to another weight, sigma, rank or base model; further
            errors as ``Watermark.on``.
    """
    xis = noises(model, wm, [key])
    return [xi[0] for xi in xis] if isinstance(xis, list) else xis[0]


def noises(
    model: PreTrainedModel, wm: Watermark, keys: Sequence[Key]
) -> Float[Tensor, "k d_out d_in"] | list[Tensor]:
    """:func:`noise` of each of K keys."""
    keys, wm = listed(keys), checked(wm).on(model)
    for key in keys:
        key.check(wm)
    parts = streams(wm, keys).split([math.prod(weight.shape) for weight in wm.linears], dim=1)
    each = zip(parts, wm.linears, strict=True)
    xis = [part.unflatten(1, weight.shape) for part, weight in each]  # (k, d_out, d_in) of each
    for i, part in enumerate(xis):
        if i > 0:
            part *= wm.sigmas[i] / wm.sigmas[0]
        for xi in part if wm.rank_dropped else ():
            xi.copy_(wm.projectors[i](xi))
    return xis[0] if len(xis) == 1 else xis


def bind(model: PreTrainedModel, wm: Watermark, key: Key) -> Key:
    """The key with a note of what it is for (``keys.Binding``): a wrong use is then an error.

    Raises:
        InvalidWatermarkError: the weights' dtype rounds the watermark away; KeyMismatchError: the
            key is bound already, to another use.
    """
    refuse_perturbed(model)
    wm = checked(wm).on(model)
    _, carried = _sums(wm, noise(model, wm, key))
    note = {"sigma_carried": carried, "model_sha256": models.digest(model)}
    return replace(key, binding=Binding(**purpose(wm), **note))


def check_key(wm: PlacedWatermark, key: Key) -> None:
    """``key.check``, and a GaussMarkWarning where the model has the key's θ and other weights than
    those that the key was made with, as a fine-tuned one has.
    """
    key.check(wm)
    made_with = key.binding and key.binding.model_sha256
    if made_with and made_with != models.digest(wm.model):
        warnings.warn(
            f"key {key.key_id}: the model has the matrix that the key was made for, but other"
            " weights are not those of the key's model. The test stays exact, with less power; load"
            " the model that the key was made with, if you have it",
            GaussMarkWarning,
            stacklevel=3,
        )


def _sums(
    wm: PlacedWatermark, xi: Tensor | Sequence[Tensor]
) -> tuple[list[Tensor], float | tuple[float, ...]]:
    """θ + ξ of each weight, rounded, and the σ that it carries: one, or one per weight."""
    xis = [xi] if isinstance(xi, Tensor) else xi
    sums = [
        rounded_sum(weight.parameter.data, weight.oriented(x), sigma, weight.name)
        for weight, x, sigma in zip(wm.linears, xis, wm.sigmas, strict=True)
    ]
    matrices, carried = zip(*sums, strict=True)
    return list(matrices), carried[0] if len(carried) == 1 else carried


@contextmanager
def watermarked(model: PreTrainedModel, wm: Watermark, key: Key) -> Iterator[PreTrainedModel]:
    """Inside the ``with``, the model is p_{θ+ξ}; after it, bit for bit p_θ again.
    PerturbedModelError if it was perturbed before.

    What ``model.save_pretrained`` writes inside is marked as watermarked. A bare
    ``model.state_dict()`` holds θ + ξ and cannot carry a mark: loaded into another model, it is
    scored as if it were a base model, with a mean of ψ far from 0.
    """
    refuse_perturbed(model)  # before the work of drawing a noise
    wm, [key] = checked(wm).on(model), listed([key])
    check_key(wm, key)
    with moved(model, wm, noise(model, wm, key), by=key.key_id):
        yield model


@contextmanager
def moved(
    model: PreTrainedModel,
    wm: Watermark,
    xi: Float[Tensor, "d_out d_in"] | Sequence[Tensor],
    *,
    by: str = "a given noise",
) -> Iterator[PreTrainedModel]:
    """Inside the ``with``, the weights are θ + ξ for any ξ, rounded to their dtype, and the model
    is :func:`marked`. Only here are weights exchanged.
    """
    wm = checked(wm).on(model)
    with marked(model, by), ExitStack() as exchanged:
        matrices, carried = _sums(wm, xi)
        mark = {"key_id": by, "weight": wm.weight, "sigma_carried": carried}
        setattr(model.config, _MARK, mark)  # what save_pretrained writes
        exchanged.callback(delattr, model.config, _MARK)
        for linear, matrix in zip(wm.linears, matrices, strict=True):
            exchanged.enter_context(linear.replaced(matrix))
        yield model


@contextmanager
def marked(model: PreTrainedModel, by: str) -> Iterator[None]:
    """Inside the ``with``, the model is known as perturbed, and refused as a base model."""
    refuse_perturbed(model)
    setattr(model, _MARK, by)
    try:
        yield
    finally:
        delattr(model, _MARK)


def refuse_perturbed(model: PreTrainedModel) -> None:
    """PerturbedModelError for a model inside ``watermarked()`` and for a watermarked checkpoint,
    where ψ is not N(0, 1) under the null.
    """
    tokens.check_model(model)
    if hasattr(model, _MARK):
        raise PerturbedModelError(
            "expected the base model, got one inside watermarked() or moved(); leave the `with`"
            " block first: G is taken at θ, never at θ + ξ"
        )
    if mark := getattr(model.config, _MARK, None):
        key_id = mark.get("key_id") if isinstance(mark, dict) else mark
        raise PerturbedModelError(
            f"expected the base model, got a checkpoint with the watermark of key {key_id}; load"
            " the model it was made from"
        )


def export(
    model: PreTrainedModel,
    wm: Watermark,
    key: Key,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Path:
    """Writes the watermarked model as an ordinary checkpoint that any inference engine serves;
    never the key. The folder must not exist.

    Its config names the weight, the key's public id and the σ that the rounded weights carry.
    """
    folder = files.named(folder, "cannot export the model", InvalidModelError)
    if os.path.lexists(folder):
        raise InvalidModelError(
            f"expected a new folder to export to, but {folder} exists; name another or remove it"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with files.hidden_folder(folder) as partial, watermarked(model, wm, key):
            checkpoint = Path(partial) / "checkpoint"
            for part in (model, tokenizer):
                if part is not None:
                    part.save_pretrained(checkpoint)
            return checkpoint.rename(folder)
    except (OSError, SafetensorError) as error:
        raise InvalidModelError(
            f"cannot export the model to {folder}: {getattr(error, 'strerror', error)}; expected a"
            " name in a folder with room"
        ) from None
