"""The watermark itself: a secret key, the Gaussian noise it stands for, and a model that carries it (paper, Alg. 1).

    θ(ξ) = θ + ξ,   ξ ~ N(0, σ² I)   over one weight matrix θ of shape (d_out, d_in)

====================  ==========================================
paper                 here
====================  ==========================================
ξ                     ``noise(key, wm, model)``
σ                     ``wm.sigma`` (a standard deviation; the paper's tables give σ²)
θ                     the matrix named ``wm.weight``
k (rank reduction)    ``wm.rank_dropped``
p_{θ+ξ}               the model inside ``with watermarked(model, wm, key):``
====================  ==========================================
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gaussmark_lib import models, normal, rank_reduce
from gaussmark_lib.errors import InvalidModelError, InvalidWatermarkError, PerturbedModelError
from gaussmark_lib.keys import Key

if TYPE_CHECKING:
    from gaussmark_lib.models import Linear

__all__ = ["Key", "Watermark", "bind", "export", "noise", "noises", "refuse_perturbed", "watermarked"]

_MARK = "gaussmark"  # on the model object inside watermarked(), and in the config of an exported checkpoint


@dataclass(frozen=True)
class Watermark:
    """Where the noise goes and how strong it is; public, unlike the key.

    Args:
        weight: full name of a linear layer's matrix, e.g. ``"model.layers.4.mlp.down_proj.weight"``.
        sigma: σ > 0, standard deviation of each entry of ξ, in the unit of the weights.
        rank_dropped: k ≥ 0, how many top singular directions of θ the noise avoids; 0 is the vanilla scheme.
        side: of which kind: ``"left"`` as in the paper, ``"right"``, or ``"both"``. Without a rank it has no meaning.
    """

    weight: str
    sigma: float
    rank_dropped: int = 0
    side: str = "left"

    def __post_init__(self):
        if not isinstance(self.sigma, Real) or isinstance(self.sigma, bool) or not math.isfinite(self.sigma) or self.sigma <= 0:
            raise InvalidWatermarkError(f"sigma is the standard deviation of the noise: expected a finite number > 0, got {self.sigma!r}")
        if not 1e-30 <= self.sigma <= 1e30:
            raise InvalidWatermarkError(f"sigma = {self.sigma!r} is out of the range of float32, which the noise is in: expected 1e-30 to 1e30")
        if not isinstance(self.rank_dropped, int) or isinstance(self.rank_dropped, bool) or self.rank_dropped < 0:
            raise InvalidWatermarkError(f"rank_dropped counts singular directions: expected an integer ≥ 0, got {self.rank_dropped!r}")
        if self.side not in rank_reduce.SIDES:
            raise InvalidWatermarkError(f"side: expected one of {', '.join(rank_reduce.SIDES)}, got {self.side!r}")

    def find(self, model: PreTrainedModel) -> "Linear":
        """This watermark's matrix in a model, checked: it exists, is finite, and its rank exceeds ``rank_dropped``."""
        linear = models.linear(model, self.weight)
        if not torch.isfinite(linear.parameter).all():
            raise InvalidModelError(f"expected finite weights, got NaN or infinite numbers in {self.weight}; load the model again")
        if self.rank_dropped >= min(linear.shape):
            raise InvalidWatermarkError(
                f"rank_dropped = {self.rank_dropped} leaves nothing of {self.weight}: expected less than min{linear.shape} = {min(linear.shape)}"
            )
        return linear

    def projector(self, linear: "Linear") -> rank_reduce.Projector:
        """What noise and gradient are projected by: off the top singular directions of the base weight."""
        return rank_reduce.projector(linear.value(), self.rank_dropped, self.side)


def noise(key: Key, wm: Watermark, model: PreTrainedModel) -> Float[Tensor, "d_out d_in"]:
    """ξ, or Pξ where rank_dropped > 0: the first d_out·d_in numbers of the key's stream in row order, times σ.

    Returns:
        float32 on the CPU, the same bits on every machine (for rank_dropped > 0, up to the rounding of the SVD).

    Raises:
        KeyMismatchError: if the key is bound to another weight, sigma, rank or base model.
        UnknownWeightError, InvalidWatermarkError, InvalidModelError: as ``Watermark.find``.
    """
    return noises([key], wm, model)[0]


def noises(keys: Sequence[Key], wm: Watermark, model: PreTrainedModel) -> Float[Tensor, "k d_out d_in"]:
    """``noise`` of each of K keys, with one singular value decomposition for all."""
    linear = wm.find(model)
    project = wm.projector(linear)
    xis = torch.stack([_isotropic(key, wm.sigma, linear.shape) for key in keys])
    for key, xi in zip(keys, xis, strict=True):
        if key.binding:
            key.check(wm, linear, xi)
    return torch.stack([project(xi) for xi in xis]) if wm.rank_dropped else xis


def _isotropic(key: Key, sigma: float, shape: tuple[int, int]) -> Float[Tensor, "d_out d_in"]:
    z = normal.standard_normal(key.seed, math.prod(shape))
    z *= sigma
    return torch.from_numpy(z.astype("float32")).view(shape)


def bind(key: Key, wm: Watermark, model: PreTrainedModel) -> Key:
    """The key with a note of what it is for (weight, shape, σ, rank, hashes of θ and ξ), so that a wrong use is an error, not a wrong answer."""
    linear = wm.find(model)
    return key.bound(wm, linear, _isotropic(key, wm.sigma, linear.shape))


@contextmanager
def watermarked(model: PreTrainedModel, wm: Watermark, key: Key) -> Iterator[PreTrainedModel]:
    """Inside the ``with``, the model is p_{θ+ξ}; after it, bit for bit p_θ again, also after an exception.

    θ + ξ is computed in float32 (or the weight's own precision where that is higher) and rounded once to the weight's dtype.

    Raises:
        PerturbedModelError: if the model carries a watermark already.
    """
    with marked(model, key.key_id):
        linear = wm.find(model)
        xi = linear.oriented(noise(key, wm, model)).to(linear.parameter.device)
        theta = linear.parameter.data
        linear.parameter.data = added(theta, xi)
        try:
            yield model
        finally:
            linear.parameter.data = theta


@contextmanager
def marked(model: PreTrainedModel, by: str) -> Iterator[None]:
    """Inside the ``with``, the model is known as perturbed, so that nothing scores or watermarks it."""
    refuse_perturbed(model)
    setattr(model, _MARK, by)
    try:
        yield
    finally:
        delattr(model, _MARK)


def added(theta: Tensor, xi: Tensor) -> Tensor:
    """θ + ξ in θ's precision, rounded once."""
    return (theta + xi if theta.dtype == torch.float64 else theta.float() + xi).to(theta.dtype)


def refuse_perturbed(model: PreTrainedModel) -> None:
    """Raises PerturbedModelError for a model inside ``watermarked()`` and for a loaded watermarked checkpoint.

    Scored at θ + ξ, ψ is not N(0, 1) under the null (its mean went to −6 in a toy), and every p-value would be wrong.
    """
    if hasattr(model, _MARK):
        raise PerturbedModelError(
            "expected the base model, got one inside watermarked(); leave the `with` block first: the gradient is taken at θ, never at θ + ξ"
        )
    if hasattr(model.config, _MARK):
        key_id = getattr(model.config, _MARK)["key_id"]
        raise PerturbedModelError(f"expected the base model, got a checkpoint with the watermark of key {key_id}; load the model it was made from")


def export(model: PreTrainedModel, wm: Watermark, key: Key, folder: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> Path:
    """Writes the watermarked model as an ordinary checkpoint that any inference engine serves; never the key.

    Its config names the weight and the key's public id, by which :func:`refuse_perturbed` knows it. The folder must not exist.
    """
    folder = Path(folder)
    if folder.exists():
        raise InvalidModelError(f"expected a new folder to export to, but {folder} exists; name another or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as partial:
        whole = Path(partial) / "checkpoint"
        with watermarked(model, wm, key):
            setattr(model.config, _MARK, {"key_id": key.key_id, "weight": wm.weight})
            try:
                model.save_pretrained(whole)
            finally:
                delattr(model.config, _MARK)
        if tokenizer is not None:
            tokenizer.save_pretrained(whole)
        return whole.rename(folder)
