"""What a watermark is, apart from its key, and the matrices of a model that can carry one.

A :class:`Watermark` knows no model; a door finds its matrices: :class:`PlacedWatermark`.

A linear layer computes y = W·x with W of shape (d_out, d_in). GPT-2's ``Conv1D`` stores Wᵀ: a
:class:`Weight` hides the difference. Fused layers (Phi's ``gate_up_proj``) are one matrix; a matrix
that two layers share (a tied head) is none.
"""

import difflib
import hashlib
from collections import Counter
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

LEAST, MOST = 1e-31, 1e31  # a σ, within the range of float32, the noise's dtype


@dataclass(frozen=True)
class Watermark:
    """Where the noise goes and how strong it is; public, unlike the key. InvalidWatermarkError for
    a value out of its range.

    Args:
        weight: a matrix, such as ``"model.layers.4.mlp.down_proj.weight"``, or a list of them.
        sigma: σ > 0, standard deviation of each entry of ξ, in the unit of the weights (the paper's
            tables give σ²); one for all weights, or a list.
        rank_dropped: k ≥ 0, how many top singular directions of each θ the noise avoids.
        side: which singular directions: ``"left"`` as in the paper, ``"right"``, or ``"both"``.

    Attributes:
        weights, sigmas: the tuples of all names, and of their σ, also where there is one.
    """

    weight: str | Sequence[str]
    sigma: float | Sequence[float]
    rank_dropped: int = 0
    side: str = "left"

    def __post_init__(self):
        refusal = InvalidWatermarkError
        expected = "weight: expected the name of a weight, or of several different ones"
        names = [self.weight] if isinstance(self.weight, str) else self.weight
        names = require_list(names, expected, refusal, least=1)
        if {*map(type, names)} != {str} or len({*names}) < len(names):
            raise refusal(f"{expected}, got {shown(names)}")
        sigmas = self.sigma if isinstance(self.sigma, list | tuple) else [self.sigma] * len(names)
        if len(sigmas) != len(names):
            one = f"sigma: expected one, or one for each of {len(names)} weights"
            raise refusal(f"{one}, got {len(sigmas)}")
        what = "sigma, the standard deviation of the noise"
        sigmas = [require_between(sigma, what, refusal, low=LEAST, high=MOST) for sigma in sigmas]
        what = "rank_dropped, the number of singular directions"
        k = require_int(self.rank_dropped, what, refusal, least=0)
        require_one_of(self.side, "side", rank_reduce.SIDES, refusal)
        weight, sigma = (names[0], sigmas[0]) if len(names) == 1 else (tuple(names), tuple(sigmas))
        vars(self).update(weight=weight, sigma=sigma, rank_dropped=k)  # which is frozen
        vars(self).update(weights=tuple(names), sigmas=tuple(sigmas))

    def on(self, model: PreTrainedModel) -> "PlacedWatermark":
        """This watermark on the matrices of a model."""
        return PlacedWatermark(model, self)


class PlacedWatermark(Watermark):
    """A watermark on the matrices of a model: each door makes one, and rooms take it.

    Args:
        linears: the matrices, where they come without their model (:meth:`Weight.alone`).

    Attributes:
        model, reader: the model and its :class:`tokens.Reader`; None beside given matrices.
        linears: a :class:`Weight` for each matrix; ``linear`` is the first.
        d: Σ d_out·d_in over them, the numbers of a key's stream that it uses.

    Raises:
        InvalidWatermarkError: no watermark, no such matrix, or ``rank_dropped`` leaves nothing.
        InvalidModelError: no model, or a matrix that is not finite.
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
            reader = tokens.Reader(model)  # refuses what is no model
            linears = [Weight(model, name) for name in wm.weights]
        d = sum(linear.parameter.numel() for linear in linears)
        vars(self).update(vars(wm))
        vars(self).update(model=model, reader=reader, linears=linears, linear=linears[0], d=d)
        vars(self).pop("projectors", None)  # of the model that it was placed on before
        for linear in linears:
            check_finite(linear.parameter, linear.name)
            if self.rank_dropped >= min(linear.shape):
                nothing = f"rank_dropped = {self.rank_dropped} leaves nothing of {linear.name}"
                least = f"min{linear.shape} = {min(linear.shape)}"
                raise InvalidWatermarkError(f"{nothing}: expected less than {least}")

    @cached_property
    def projectors(self) -> list[rank_reduce.Projector]:
        """P of each matrix, which removes its own top singular directions."""
        k, side = self.rank_dropped, self.side
        return [rank_reduce.projector(weight.value(), k, side) for weight in self.linears]


class Weight:
    """One matrix θ of a model, by its full name; InvalidWatermarkError where there is none."""

    def __init__(self, model: PreTrainedModel, name: str):
        layers = _layers(model)
        if not isinstance(name, str) or name not in layers:
            near = difflib.get_close_matches(str(name), layers, n=3, cutoff=0.4) or [*layers][:3]
            raise InvalidWatermarkError(
                "weight: expected a matrix that is one linear layer's own (2-D, more than one row,"
                f" not shared), got {shown(name)}; the nearest names are: {', '.join(near)};"
                f" `gaussmark list weights --model MODEL` lists all {len(layers)}"
            )
        self.name, self.module = name, layers[name]
        self.parameter: nn.Parameter = self.module.weight  # θ as stored, perhaps transposed
        self.transposed = isinstance(self.module, Conv1D)
        self.shape = tuple(self.oriented(self.parameter).shape)  # (d_out, d_in)

    @classmethod
    def alone(cls, name: str, theta: Float[Tensor, "d_out d_in"]) -> "Weight":
        """A matrix without its model, such as one that was read from a file."""
        weight = cls.__new__(cls)
        weight.name = name
        weight.module = None
        weight.parameter = nn.Parameter(theta, requires_grad=False)
        weight.transposed = False
        weight.shape = tuple(theta.shape)
        return weight

    def value(self) -> Float[Tensor, "d_out d_in"]:
        """θ itself, detached; shares memory with the model."""
        return self.oriented(self.parameter.detach())

    def oriented(self, matrix: Tensor) -> Tensor:
        """(d_out, d_in) → the layout that θ is stored in, and back."""
        return matrix.T if self.transposed else matrix

    def sha256(self) -> str:
        """Of the values rounded to bfloat16: in float32 and float64 a model is the same base."""
        rounded = self.value().to(torch.bfloat16).cpu().contiguous()
        return hashlib.sha256(rounded.view(torch.uint8).numpy()).hexdigest()


def names(model: PreTrainedModel) -> list[str]:
    """Full names of the matrices that can carry a watermark, in the model's order."""
    tokens.config(model)  # refuses what is no model
    return list(_layers(model))


def some_weights(model: PreTrainedModel, n: int | None) -> list[str]:
    """n of the MLP matrices, evenly spread from the first block to the last; None for all. Where no
    name says ``mlp``, the matrices in blocks that are not of the attention.
    """
    in_blocks = [name for name in names(model) if block(name)]
    mlp = [name for name in in_blocks if ".mlp." in name]
    others = [name for name in in_blocks if "attn" not in name and "attention" not in name]
    candidates = mlp or others or names(model)
    chosen = np.linspace(0, len(candidates) - 1, min(n or len(candidates), len(candidates)))
    return [candidates[round(i)] for i in chosen]


def block(weight: str) -> str | None:
    """The number of the block that a weight of this name lies in.

    >>> block("model.layers.4.mlp.down_proj.weight")
    '4'
    """
    return next((part for part in weight.split(".") if part.isdigit()), None)


def _layers(model: PreTrainedModel) -> dict[str, nn.Module]:
    uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    return {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module.weight.ndim == 2
        and min(module.weight.shape) > 1
        and uses[id(module.weight)] == 1
    }
