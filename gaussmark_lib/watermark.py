"""What a watermark is, apart from its key: one weight matrix, the strength of the noise on it, and
the directions that the noise avoids.

A :class:`Watermark` is a description and knows no model. :meth:`Watermark.on` looks its matrix up
in a model and checks it, once; what it returns is again a watermark, and every function that takes
one takes it too, without another look-up. The paper's θ is ``on(model).linear``, its P
``on(model).project``.
"""

from dataclasses import dataclass, field, fields
from functools import cached_property

import torch
from transformers import PreTrainedModel

from gaussmark_lib import checks, rank_reduce, weights
from gaussmark_lib.errors import InvalidModelError, InvalidWatermarkError, UnknownWeightError


@dataclass(frozen=True)
class Watermark:
    """Where the noise goes and how strong it is; public, unlike the key.

    Args:
        weight: full name of a linear layer's matrix, e.g.
            ``"model.layers.4.mlp.down_proj.weight"``.
        sigma: σ > 0, standard deviation of each entry of ξ, in the unit of the weights (the paper's
            tables give σ²).
        rank_dropped: k ≥ 0, how many top singular directions of θ the noise avoids; 0 is the
            vanilla scheme.
        side: which singular directions: ``"left"`` as in the paper, ``"right"``, or ``"both"``.
            With ``rank_dropped=0`` the side is ignored.

    Raises:
        InvalidWatermarkError: a value outside its range; UnknownWeightError: a weight that is no
            name.
    """

    weight: str
    sigma: float
    rank_dropped: int = 0
    side: str = "left"

    def __post_init__(self):
        if not isinstance(self.weight, str):
            raise UnknownWeightError(
                f"weight: expected the name of a weight, got {checks.kind(self.weight)}"
            )
        sigma = checks.positive(
            self.sigma, "sigma, the standard deviation of the noise", InvalidWatermarkError
        )
        object.__setattr__(self, "sigma", sigma)  # a float, also where a fraction came
        if not 1e-30 <= self.sigma <= 1e30:
            raise InvalidWatermarkError(
                f"sigma = {self.sigma!r} is out of the range of float32, the noise's dtype:"
                " expected 1e-30 to 1e30"
            )
        k = checks.whole(
            self.rank_dropped,
            "rank_dropped, the number of singular directions",
            InvalidWatermarkError,
            least=0,
        )
        object.__setattr__(self, "rank_dropped", k)  # Python's integer, also where NumPy's came
        if self.side not in rank_reduce.SIDES:
            raise InvalidWatermarkError(
                f"side: expected one of {', '.join(rank_reduce.SIDES)}, got"
                f" {checks.shown(self.side)}"
            )

    def on(self, model: PreTrainedModel) -> "PlacedWatermark":
        """This watermark with its matrix in a model.

        Raises:
            UnknownWeightError: the model has no such matrix.
            InvalidModelError: the matrix has NaN or infinite entries.
            InvalidWatermarkError: ``rank_dropped`` leaves nothing of the matrix.
        """
        linear = weights.linear(model, self.weight)
        if not torch.isfinite(linear.parameter).all():
            raise InvalidModelError(
                f"expected finite weights, got NaN or infinite numbers in {self.weight}; load the"
                " model again"
            )
        if self.rank_dropped >= min(linear.shape):
            raise InvalidWatermarkError(
                f"rank_dropped = {self.rank_dropped} leaves nothing of {self.weight}: expected less"
                f" than min{linear.shape} = {min(linear.shape)}"
            )
        return PlacedWatermark(
            *(getattr(self, f.name) for f in fields(Watermark)), model=model, linear=linear
        )


@dataclass(frozen=True, eq=False)
class PlacedWatermark(Watermark):
    """A watermark whose matrix has been found in ``model`` and checked; made by
    :meth:`Watermark.on`.
    """

    model: PreTrainedModel = field(kw_only=True, repr=False)
    linear: weights.Linear = field(kw_only=True, repr=False)

    def on(self, model: PreTrainedModel) -> "PlacedWatermark":
        """Itself; on another model, or where this one has another parameter by now
        (``load_state_dict(assign=True)``), the same watermark there.
        """
        still = model is self.model and any(
            parameter is self.linear.stored for parameter in model.parameters()
        )
        return self if still else super().on(model)

    @cached_property
    def project(self) -> rank_reduce.Projector:
        """The projector for noise and gradient, which removes the base weight's top singular
        directions.
        """
        return rank_reduce.projector(self.linear.value(), self.rank_dropped, self.side)


def checked(wm: Watermark) -> Watermark:
    """Itself; InvalidWatermarkError for anything but a watermark."""
    if not isinstance(wm, Watermark):
        raise InvalidWatermarkError(
            f"wm: expected a Watermark, got {checks.kind(wm)}; perturb.Watermark(weight, sigma)"
            " makes one"
        )
    return wm


def placed(model: PreTrainedModel, wm: Watermark) -> PlacedWatermark:
    """``wm.on(model)``, at the doors of the library; further errors as there."""
    return checked(wm).on(model)
