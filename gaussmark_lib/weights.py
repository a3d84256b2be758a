"""What a watermark is, apart from its key, and the matrices of a model that can carry one.

A :class:`Watermark` does not depend on a model. A function that a user calls looks the watermark's
matrices up in the model, and so gets a :class:`PlacedWatermark`.

A linear layer computes y = W·x with W of shape (d_out, d_in). GPT-2's ``Conv1D`` stores Wᵀ: a
:class:`Weight` hides the difference. Fused layers (Phi's ``gate_up_proj``) are one matrix. A matrix
that two layers share (a tied head) cannot be marked.
"""

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gaussmark_lib import rank_reduce, tokens
from gaussmark_lib.engine import hooks
from gaussmark_lib.engine.checkpoints import check_finite
from gaussmark_lib.errors import (
    InvalidWatermarkError,
    kind,
    require_between,
    require_int,
    require_list,
    require_one_of,
    shown,
)

# The bounds of σ, within the range of float32, the noise's dtype.
LEAST_SIGMA = 1e-31
MOST_SIGMA = 1e31
SETTINGS = ("weight", "sigma", "rank_dropped", "side", "weights", "sigmas")


@dataclass(frozen=True)
class Watermark:
    """Where the noise goes and how strong it is; public, unlike the key.

    >>> wm = Watermark("model.layers.4.mlp.down_proj.weight", sigma=0.01)
    >>> wm.weights, wm.sigmas
    (('model.layers.4.mlp.down_proj.weight',), (0.01,))

    Args:
        weight: a matrix, such as ``"model.layers.4.mlp.down_proj.weight"``, or a list of them.
        sigma: σ > 0, standard deviation of each entry of ξ, in the unit of the weights (the paper's
            tables give σ²); a number for all weights, or a list.
        rank_dropped: k ≥ 0, how many top singular directions of each θ the noise avoids.
        side: which singular directions: ``"left"`` as in the paper, ``"right"``, or ``"both"``.

    Attributes:
        weights, sigmas: the tuples of all names, and of their σ, even for a single weight.

    Raises:
        InvalidWatermarkError: a value is out of its range.
    """

    weight: str | Sequence[str]
    sigma: float | Sequence[float]
    rank_dropped: int = 0
    side: str = "left"

    def __post_init__(self):
        names = _checked_names(self.weight)
        sigmas = _checked_sigmas(self.sigma, len(names))
        rank_dropped = require_int(
            self.rank_dropped,
            "rank_dropped, the number of singular directions",
            InvalidWatermarkError,
            least=0,
        )
        require_one_of(self.side, "side", rank_reduce.SIDES, InvalidWatermarkError)
        is_single = len(names) == 1
        checked = {
            "weight": names[0] if is_single else names,
            "sigma": sigmas[0] if is_single else sigmas,
            "rank_dropped": rank_dropped,
            "weights": names,
            "sigmas": sigmas,
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # the class is frozen

    def on(self, model: PreTrainedModel) -> "PlacedWatermark":
        """Return this watermark on the matrices of a model.

        >>> from gaussmark_lib import models
        >>> model = models.load("doclm").model
        >>> Watermark(models.default_weight(model), sigma=0.01).on(model).linear.shape
        (256, 768)
        """
        return PlacedWatermark(model, self)


def require_single(wm: Watermark, what: str) -> None:
    """Raise InvalidWatermarkError if the watermark is on several weights. ``what`` needs one.

    >>> require_single(Watermark("lm_head.weight", 0.01), "a stream")
    """
    if len(wm.weights) > 1:
        raise InvalidWatermarkError(
            f"{what}: expected a watermark on one weight, got {len(wm.weights)}; use"
            " Watermark(name, sigma) with the name of one of them"
        )


def _checked_names(weight: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of all weights; raise InvalidWatermarkError if two of them are equal."""
    expected = "weight: expected the name of a weight, or of several different ones"
    names = [weight] if isinstance(weight, str) else weight
    names = require_list(names, expected, InvalidWatermarkError, least=1)
    are_names = all(type(name) is str for name in names)
    if not are_names or len(set(names)) < len(names):
        raise InvalidWatermarkError(f"{expected}, got {shown(names)}")
    return tuple(names)


def _checked_sigmas(sigma: float | Sequence[float], n: int) -> tuple[float, ...]:
    """Return σ of each of n weights."""
    sigmas = sigma if isinstance(sigma, list | tuple) else [sigma for _ in range(n)]
    if len(sigmas) != n:
        raise InvalidWatermarkError(
            f"sigma: expected one, or one for each of {n} weights, got {len(sigmas)}"
        )
    return tuple(
        require_between(
            sigma,
            "sigma, the standard deviation of the noise",
            InvalidWatermarkError,
            low=LEAST_SIGMA,
            high=MOST_SIGMA,
        )
        for sigma in sigmas
    )


class PlacedWatermark(Watermark):
    """A watermark on the matrices of a model.

    Functions that a user calls make it and check it; functions behind them take it as it is.

    Args:
        linears: the matrices, if they come without their model (:meth:`Weight.alone`).

    Attributes:
        model, reader: the model and its :class:`tokens.Reader`; None if matrices were given.
        linears: a :class:`Weight` for each matrix; ``linear`` is the first.
        d: Σ d_out·d_in over the matrices: how many numbers of a key's stream the noise takes.

    Raises:
        InvalidWatermarkError: ``wm`` is not a watermark, the model has no such matrix, or
            ``rank_dropped`` leaves nothing of it.
        InvalidModelError: ``model`` is not a model, or a matrix is not finite.
    """

    def __init__(
        self,
        model: PreTrainedModel | None,
        wm: Watermark,
        linears: "Sequence[Weight] | None" = None,
    ):
        if not isinstance(wm, Watermark):
            raise InvalidWatermarkError(f"wm: expected a perturb.Watermark, got {kind(wm)}")
        reader = None
        if linears is None:
            reader = tokens.Reader(model)  # raises if it is not a model
            linears = [Weight(model, name) for name in wm.weights]
        # Only the settings: ``wm`` may have been placed on another model, with other projectors.
        attributes = {name: getattr(wm, name) for name in SETTINGS}
        attributes |= {
            "model": model,
            "reader": reader,
            "linears": linears,
            "linear": linears[0],
            "d": sum(linear.parameter.numel() for linear in linears),
        }
        for name, value in attributes.items():
            object.__setattr__(self, name, value)  # the class is frozen
        for linear in linears:
            check_finite(linear.parameter, linear.name)
            if self.rank_dropped >= min(linear.shape):
                raise InvalidWatermarkError(
                    f"rank_dropped = {self.rank_dropped} leaves nothing of {linear.name}: expected"
                    f" less than min{linear.shape} = {min(linear.shape)}"
                )

    @cached_property
    def projectors(self) -> list[rank_reduce.Projector]:
        """Return P of each matrix, which removes the matrix's top singular directions."""
        return [
            rank_reduce.projector(linear.value(), self.rank_dropped, self.side)
            for linear in self.linears
        ]


class Weight:
    """One matrix θ of a model, by its full name.

    Attributes:
        name, module: the full name, and the linear layer that the matrix belongs to.
        parameter: θ as the model stores it; if ``transposed``, that is (d_in, d_out).
        shape: (d_out, d_in), however θ is stored.

    Raises:
        InvalidWatermarkError: no matrix of this name can carry a watermark.

    >>> from gaussmark_lib import models
    >>> Weight(models.load("doclm").model, "model.layers.4.mlp.down_proj.weight").shape
    (256, 768)
    """

    def __init__(self, model: PreTrainedModel, name: str):
        layers = hooks.own_linears(model)
        if not isinstance(name, str) or name not in layers:
            similar = difflib.get_close_matches(str(name), layers, n=3, cutoff=0.4)
            nearest = similar or list(layers)[:3]
            raise InvalidWatermarkError(
                "weight: expected the matrix of a single linear layer (2-D, more than one row, not"
                f" shared), got {shown(name)}; the nearest names are: {', '.join(nearest)};"
                f" `gaussmark list weights --model MODEL` lists all {len(layers)}"
            )
        self.name = name
        self.module = layers[name]
        self.parameter: nn.Parameter = self.module.weight  # θ as stored, perhaps transposed
        self.transposed = isinstance(self.module, Conv1D)
        self.shape = tuple(self.oriented(self.parameter).shape)  # (d_out, d_in)

    @classmethod
    def alone(cls, name: str, theta: Float[Tensor, "d_out d_in"]) -> "Weight":
        """Make a matrix without its model, such as one that was read from a file."""
        weight = cls.__new__(cls)
        weight.name = name
        weight.module = None
        weight.parameter = nn.Parameter(theta, requires_grad=False)
        weight.transposed = False
        weight.shape = tuple(theta.shape)
        return weight

    def value(self) -> Float[Tensor, "d_out d_in"]:
        """Return θ itself, detached; it shares memory with the model."""
        return self.oriented(self.parameter.detach())

    def oriented(self, matrix: Tensor) -> Tensor:
        """Turn (d_out, d_in) into the layout that θ is stored in, or back."""
        return matrix.T if self.transposed else matrix

    def sha256(self) -> str:
        """Return the hash of the values, rounded to bfloat16.

        So a model in float32 and the same model in float64 have the same hash.
        """
        rounded = self.value().to(torch.bfloat16).cpu().contiguous()
        return hashlib.sha256(rounded.view(torch.uint8).numpy()).hexdigest()


def names(model: PreTrainedModel) -> list[str]:
    """Return the full names of the matrices that can carry a watermark, in the model's order.

    >>> from gaussmark_lib import models
    >>> names(models.load("doclm").model)[0]
    'model.layers.0.self_attn.q_proj.weight'
    """
    tokens.config(model)  # raises if it is not a model
    return list(hooks.own_linears(model))


def some_weights(model: PreTrainedModel, n: int | None) -> list[str]:
    """Return n of the MLP matrices, evenly spread from the first block to the last; None for all.

    If no name says ``mlp``, they are the matrices in blocks that do not belong to the attention.
    Raise InvalidWatermarkError for n below 1.

    >>> from gaussmark_lib import models
    >>> some_weights(models.load("doclm").model, 2)
    ['model.layers.0.mlp.gate_proj.weight', 'model.layers.5.mlp.down_proj.weight']
    """
    in_blocks = [name for name in names(model) if block(name)]
    mlp = [name for name in in_blocks if ".mlp." in name]
    no_attention = [name for name in in_blocks if "attn" not in name and "attention" not in name]
    candidates = mlp or no_attention or names(model)
    n_candidates = len(candidates)
    if n is not None:
        require_int(n, "n", InvalidWatermarkError)
    n_chosen = min(n or n_candidates, n_candidates)
    places = np.linspace(0, n_candidates - 1, n_chosen)
    return [candidates[round(place)] for place in places]


def block(weight: str) -> str | None:
    """Return the number of the block that a weight of this name lies in, or None.

    >>> block("model.layers.4.mlp.down_proj.weight")
    '4'
    """
    return next((part for part in weight.split(".") if part.isdigit()), None)
