"""The noise that a key stands for, and a model that carries it (paper, Alg. 1).

    θ(ξ) = θ + ξ,   ξ ~ N(0, σ² I)   over one weight matrix θ of shape (d_out, d_in), or several

Let z be the first d numbers of a key's stream, cut into matrices in the order of the weights. Then
ξ = σz, or σPz where rank_dropped > 0, with each weight's own σ and P.
"""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gaussmark_lib import files, models, tokens
from gaussmark_lib.errors import (
    GaussMarkWarning,
    InvalidModelError,
    InvalidWatermarkError,
    PerturbedModelError,
)
from gaussmark_lib.keys import SPAN, Binding, Key, listed, purpose
from gaussmark_lib.keys import checked as checked_key
from gaussmark_lib.weights import PlacedWatermark, Watermark, checked

LEAST_CHANGED = 0.99  # of a weight's numbers; below it, rounding took a part of the watermark
_MARK = "gaussmark"  # on a perturbed model, and in the config of an exported checkpoint


def streams(wm: PlacedWatermark, keys: Sequence[Key]) -> Float[Tensor, "k d"]:
    """σz of each key, σ being the first weight's, float32 on the CPU; no projection."""
    xi = torch.empty(len(keys), wm.d, dtype=torch.float32, device="cpu")

    def draw(key: Key, row: Tensor) -> None:
        key.normals(wm.d, wm.sigmas[0], out=row.numpy())

    if len(keys) > 1 and wm.d <= SPAN:  # a larger one uses several threads itself
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(draw, keys, xi))
    else:
        list(map(draw, keys, xi))
    return xi


def noise(
    model: PreTrainedModel, wm: Watermark, key: Key
) -> Float[Tensor, "d_out d_in"] | list[Tensor]:
    """ξ of a key, float32 on the CPU; of several weights a list, in their order. The same on every
    machine to 1e-6, and for rank_dropped > 0 up to the rounding of the SVD.

    Raises:
        KeyMismatchError: the key is bound to another weight, sigma, rank or base model; further
            errors as ``Watermark.on``.
    """
    xis = noises(model, wm, [checked_key(key)])
    return [xi[0] for xi in xis] if isinstance(xis, list) else xis[0]


def noises(
    model: PreTrainedModel, wm: Watermark, keys: Sequence[Key]
) -> Float[Tensor, "k d_out d_in"] | list[Tensor]:
    """:func:`noise` of each of K keys."""
    keys, wm = listed(keys), checked(wm).on(model)
    for key in keys:
        key.check(wm)
    xis = wm.cut(streams(wm, keys))
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
    xis = noise(model, wm, key)
    carried = [rounded(wm, i, xi)[1] for i, xi in enumerate(xis if wm.linears[1:] else [xis])]
    note = {"sigma_carried": carried[0] if len(carried) == 1 else tuple(carried)}
    note["model_sha256"] = models.digest(model)
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


def rounded(wm: PlacedWatermark, i: int, xi: Float[Tensor, "d_out d_in"]) -> tuple[Tensor, float]:
    """θ + ξ of weight i as the model stores it, and the σ that it carries: σ⟨ξ, Δ⟩/‖ξ‖² with Δ what
    was added to θ indeed.

    The sum is rounded once to the weight's dtype. Where that leaves some numbers of θ as they were,
    a GaussMarkWarning says so; InvalidWatermarkError where it leaves all.
    """
    linear, sigma = wm.linears[i], wm.sigmas[i]
    theta = linear.parameter.data
    if tuple(xi.shape) != linear.shape:
        raise InvalidWatermarkError(
            f"xi: expected a noise of {linear.name}'s shape, {linear.shape}, got {tuple(xi.shape)}"
        )
    wide = torch.promote_types(theta.dtype, torch.float32)
    xi = linear.oriented(xi).to(theta.device)
    moved = (theta.to(wide) + xi).to(theta.dtype)
    added = moved.to(wide) - theta
    changed = added.count_nonzero().item() / added.numel()
    what = f"of the numbers of {linear.name}, which are {theta.dtype}".replace("torch.", "")
    if changed == 0:
        raise InvalidWatermarkError(
            f"sigma = {sigma:g} changes none {what}: there is no watermark. Choose a larger"
            " sigma, or load in float32"
        )
    z = xi / sigma
    along = (added * z).sum(dtype=torch.float64) / z.square().sum(dtype=torch.float64)
    sigma_carried = float(f"{along.item():.6g}")
    if not math.isfinite(sigma_carried):
        raise InvalidWatermarkError(
            f"sigma = {sigma:g} takes {linear.name} out of the range of its dtype, {theta.dtype};"
            " choose a smaller sigma"
        )
    if changed < LEAST_CHANGED:
        warnings.warn(
            f"sigma = {sigma:g} changes only {changed:.2%} {what}: they carry a watermark of sigma"
            f" = {sigma_carried:.2g}. Choose a larger sigma, or load in float32, to lose less",
            GaussMarkWarning,
            stacklevel=3,
        )
    return moved, sigma_carried


@contextmanager
def watermarked(model: PreTrainedModel, wm: Watermark, key: Key) -> Iterator[PreTrainedModel]:
    """Inside the ``with``, the model is p_{θ+ξ}; after it, bit for bit p_θ again.
    PerturbedModelError if it was perturbed before.

    What ``model.save_pretrained`` writes inside is marked as watermarked. A bare
    ``model.state_dict()`` holds θ + ξ and cannot carry a mark: loaded into another model, it is
    scored as if it were a base model, with a mean of ψ far from 0.
    """
    refuse_perturbed(model)  # before the work of drawing a noise
    wm = checked(wm).on(model)
    check_key(wm, checked_key(key))
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
    """Inside the ``with``, the weights are θ + ξ for any ξ, :func:`rounded`, and the model is
    :func:`marked`. Only here are weights exchanged.
    """
    wm = checked(wm).on(model)
    with marked(model, by), ExitStack() as exchanged:
        sums = [rounded(wm, i, x) for i, x in enumerate([xi] if isinstance(xi, Tensor) else xi)]
        carried = [sigma for _, sigma in sums]
        mark = {"key_id": by, "weight": wm.weight}
        mark["sigma_carried"] = carried[0] if len(carried) == 1 else carried
        setattr(model.config, _MARK, mark)  # what save_pretrained writes
        exchanged.callback(delattr, model.config, _MARK)
        for linear, (matrix, _) in zip(wm.linears, sums, strict=True):
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
        with files.hidden_folder(folder) as partial:
            checkpoint = Path(partial) / "checkpoint"
            with watermarked(model, wm, key):
                model.save_pretrained(checkpoint)
            if tokenizer is not None:
                tokenizer.save_pretrained(checkpoint)
            return checkpoint.rename(folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", error)
        raise InvalidModelError(
            f"cannot export the model to {folder}: {reason}; expected a name in a folder with room"
        ) from None


def __getattr__(name: str):  # of an earlier version, until its last users have changed
    if name.startswith("__"):
        raise AttributeError(name)
    from gaussmark_lib import _old

    return getattr(_old, name)
