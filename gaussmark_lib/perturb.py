"""The noise that a key stands for, and a model that carries it (paper, Alg. 1).

    θ(ξ) = θ + ξ,   ξ ~ N(0, σ² I)   over one weight matrix θ of shape (d_out, d_in)

θ and σ are those of a ``watermark.Watermark``, ξ is ``noise(model, wm, key)``, and p_{θ+ξ} the
model inside ``watermarked(model, wm, key)``.
"""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gaussmark_lib import binding, files, normal, tokens
from gaussmark_lib.errors import (
    InvalidModelError,
    InvalidWatermarkError,
    PerturbedModelError,
    RoundingWarning,
)
from gaussmark_lib.keys import Key, checked, listed
from gaussmark_lib.watermark import PlacedWatermark, Watermark, placed

LEAST_A_THREAD = 1 << 14  # numbers, below which starting a thread takes longer than they do
LEAST_CHANGED = 0.99  # of the numbers of a weight; below it, rounding took a part of the watermark
_MARK = (  # on the model object while it is perturbed, and in the config of an exported checkpoint
    "gaussmark"
)


def noise(model: PreTrainedModel, wm: Watermark, key: Key) -> Float[Tensor, "d_out d_in"]:
    """ξ, or Pξ where rank_dropped > 0: the first d_out·d_in numbers of the key's stream in row
    order, times σ; float32 on the CPU.

    The same bits on every machine; for rank_dropped > 0, up to the rounding of the SVD.

    Raises:
        KeyMismatchError: the key is bound to another weight, sigma, rank or base model; further
            errors as ``Watermark.on``.
    """
    [xi] = noises(model, wm, [checked(key)])
    return xi


def noises(
    model: PreTrainedModel, wm: Watermark, keys: Sequence[Key]
) -> Float[Tensor, "k d_out d_in"]:
    """``noise`` of each of K keys, with one singular value decomposition for all. Written in place:
    K noises take the memory of K noises.
    """
    keys = listed(keys)
    [xis] = in_parts(placed(model, wm), keys, len(keys))
    return xis


def in_parts(
    wm: PlacedWatermark, keys: Sequence[Key], at_a_time: int
) -> Iterator[Float[Tensor, "k d_out d_in"]]:
    """:func:`noises` of at most ``at_a_time`` keys after those of others, all written to the same
    memory: a part is gone when the next one comes.

    The weights that bound keys are for are hashed once for all of them.
    """
    room, use = (
        torch.empty(min(at_a_time, len(keys)), *wm.linear.shape, dtype=torch.float32, device="cpu"),
        binding.Use(wm),
    )

    def draw(key: Key, into: Tensor) -> None:
        isotropic(key, wm.sigma, wm.linear.shape, into)

    for start in range(0, len(keys), at_a_time):
        part, its = room[: len(keys) - start], keys[start : start + at_a_time]
        if (at_once := torch.get_num_threads()) > 1 and LEAST_A_THREAD <= part[
            0
        ].numel() <= normal.SPAN:
            with ThreadPoolExecutor(at_once) as threads:
                list(threads.map(draw, its, part))
        else:  # each is too small for a thread of its own, or uses several itself
            list(map(draw, its, part))
        for key, xi in zip(its, part, strict=True):
            key.check(use, xi)
            if wm.rank_dropped:
                xi.copy_(wm.project(xi))
        yield part


def isotropic(
    key: Key, sigma: float, shape: tuple[int, int], into: Float[Tensor, "d_out d_in"] | None = None
) -> Float[Tensor, "d_out d_in"]:
    """ξ before any projection, for a matrix of this shape; float32 on the CPU, or written to
    ``into`` in its dtype.
    """
    out = None if into is None else into.view(-1).numpy()
    return torch.from_numpy(checked(key).normals(math.prod(shape), sigma, np.float32, out)).view(
        shape
    )


def bind(model: PreTrainedModel, wm: Watermark, key: Key) -> Key:
    """The key with a note of what it is for (``binding.Binding``). A wrong use is then an error,
    not a wrong answer.

    Raises:
        InvalidWatermarkError: the weights' dtype rounds the watermark away; KeyMismatchError: the
            key is bound already, to another use.
    """
    refuse_perturbed(model)
    wm = placed(model, wm)
    xi = noise(model, wm, key)
    _, sigma_carried = rounded(wm, xi)
    return key.bound(
        wm, isotropic(key, wm.sigma, wm.linear.shape) if wm.rank_dropped else xi, sigma_carried
    )


def rounded(wm: PlacedWatermark, xi: Float[Tensor, "d_out d_in"]) -> tuple[Tensor, float]:
    """θ + ξ as the model stores it, and the σ that it carries: σ⟨ξ, Δ⟩/‖ξ‖² with Δ what was added
    to θ indeed.

    θ + ξ is computed in float32 (or the weight's own precision where that is higher) and rounded
    once to the weight's dtype. Where that leaves some numbers of θ as they were, a RoundingWarning
    says so; InvalidWatermarkError where it leaves all.
    """
    theta = wm.linear.parameter.data
    if tuple(xi.shape) != wm.linear.shape:
        raise InvalidWatermarkError(
            f"xi: expected a noise of {wm.weight}'s shape, {wm.linear.shape}, got {tuple(xi.shape)}"
        )
    xi = wm.linear.oriented(xi).to(theta.device)
    moved = (theta + xi if theta.dtype == torch.float64 else theta.float() + xi).to(theta.dtype)
    added = moved.to(torch.promote_types(theta.dtype, torch.float32)) - theta
    changed = added.count_nonzero().item() / added.numel()
    what = f"of the numbers of {wm.weight}, which are {theta.dtype}".replace("torch.", "")
    if changed == 0:
        raise InvalidWatermarkError(
            f"sigma = {wm.sigma:g} changes none {what}: there is no watermark. Choose a larger"
            " sigma, or load in float32"
        )
    z = xi / wm.sigma
    sigma_carried = float(
        f"{((added * z).sum(dtype=torch.float64) / z.square().sum(dtype=torch.float64)).item():.6g}"
    )
    if not math.isfinite(sigma_carried):
        raise InvalidWatermarkError(
            f"sigma = {wm.sigma:g} takes {wm.weight} out of the range of its dtype, {theta.dtype};"
            " choose a smaller sigma"
        )
    if changed < LEAST_CHANGED:
        carried = (
            f"they carry a watermark of sigma = {sigma_carried:.2g}. Choose a larger sigma, or load"
            " in float32, to lose less"
        )
        warnings.warn(
            f"sigma = {wm.sigma:g} changes only {changed:.2%} {what}: {carried}",
            RoundingWarning,
            stacklevel=3,
        )
    return moved, sigma_carried


@contextmanager
def watermarked(model: PreTrainedModel, wm: Watermark, key: Key) -> Iterator[PreTrainedModel]:
    """Inside the ``with``, the model is p_{θ+ξ}; after it, bit for bit p_θ again.
    PerturbedModelError if it was perturbed before.

    What ``model.save_pretrained`` writes inside is marked as watermarked, as what :func:`export`
    writes. A bare ``model.state_dict()`` holds θ + ξ and cannot carry a mark: loaded into another
    model, it is scored as if it were a base model, with a mean of ψ far from 0.
    """
    refuse_perturbed(model)  # before the work of drawing a noise
    wm = placed(model, wm)
    with moved(model, wm, noise(model, wm, key), by=key.key_id):
        yield model


@contextmanager
def moved(
    model: PreTrainedModel,
    wm: Watermark,
    xi: Float[Tensor, "d_out d_in"],
    *,
    by: str = "a given noise",
) -> Iterator[PreTrainedModel]:
    """Inside the ``with``, the weight is θ + ξ for any ξ, :func:`rounded`, and the model is
    :func:`marked`. Only here is a weight exchanged.
    """
    wm = placed(model, wm)
    with marked(model, by):
        sum_, sigma_carried = rounded(wm, xi)
        setattr(
            model.config, _MARK, {"key_id": by, "weight": wm.weight, "sigma_carried": sigma_carried}
        )  # what save_pretrained writes
        try:
            with wm.linear.holding(sum_):
                yield model
        finally:
            delattr(model.config, _MARK)


@contextmanager
def marked(model: PreTrainedModel, by: str) -> Iterator[None]:
    """Inside the ``with``, the model is known as perturbed by this noise: every function that needs
    the base model refuses it.
    """
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
    if hasattr(model.config, _MARK):
        mark = getattr(model.config, _MARK)
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
    never the key.

    Its config names the weight, the key's public id and the σ that the rounded weights carry; by it
    :func:`refuse_perturbed` knows the checkpoint. The folder must not exist.
    """
    folder = files.named(folder, "cannot export the model", InvalidModelError)
    if os.path.lexists(folder):
        raise InvalidModelError(
            f"expected a new folder to export to, but {folder} exists; name another or remove it"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with files.hidden_folder(folder) as partial:
            whole = Path(partial) / "checkpoint"
            with watermarked(model, wm, key):
                model.save_pretrained(whole)
            if tokenizer is not None:
                tokenizer.save_pretrained(whole)
            return whole.rename(folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", error)
        raise InvalidModelError(
            f"cannot export the model to {folder}: {reason}; expected a name in a folder with room"
        ) from None
