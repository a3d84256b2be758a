"""In which arithmetic a model computes, the modes that it is put into for a while, and what its
weights round away.
"""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib.errors import GaussMarkWarning, InvalidModelError, InvalidWatermarkError

LEAST_CHANGED = 0.99  # of a weight's numbers; below it, rounding took a part of the watermark
TOKENS_AT_ONCE = 64  # whose log-probabilities are computed together
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def wide(x: Tensor) -> Tensor:
    """The same numbers in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def log_softmax_(logits: Float[Tensor, "texts n v"]) -> Float[Tensor, "texts n v"]:
    """Replace logits by their log-probabilities, a few tokens at a time: a second tensor of this
    size costs more time in new memory pages than the arithmetic does.
    """
    for text in logits:
        for part in text.split(TOKENS_AT_ONCE):
            part.copy_(part.log_softmax(-1))
    return logits


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode (no dropout) inside the ``with``; after it, each module's own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def eager_experts(model: PreTrainedModel) -> Iterator[None]:
    """Inside the ``with``, a mixture's experts are one product each: those of a group at once have
    no second derivative, and no float64.
    """
    usual = model.get_experts_implementation()
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
    try:
        yield
    finally:
        if usual != model.get_experts_implementation():
            model.set_experts_implementation(usual)


@contextmanager
def frozen(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, and no parameter requires a gradient, so that the graph begins at the traced
    layer; restored afterwards.
    """
    wanted = [p for p in model.parameters() if p.requires_grad]
    for p in wanted:
        p.requires_grad_(False)
    try:
        with evaluating(model), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for p in wanted:
            p.requires_grad_(True)


def native_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 products are computed by the device itself, and on a CPU also faster than
    float32's: some processors with the instructions are slower with them.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type != "cpu" or (_has_bfloat16() and _bfloat16_is_faster())


def _has_bfloat16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@cache
def _bfloat16_is_faster() -> bool:
    """A trial of some 20 milliseconds, once per process: autocast's product, which rounds one
    factor, against float32's.
    """
    x, w = torch.ones(2, 512, 512)

    def seconds(w: torch.Tensor) -> float:
        started = time.perf_counter()
        x.to(w.dtype).mm(w)
        return time.perf_counter() - started

    trials = [[seconds(w.bfloat16()), seconds(w)] for _ in range(6)][1:]  # the first one compiles
    rounded, exact = map(min, zip(*trials, strict=True))
    return rounded < exact


def arithmetic(model: PreTrainedModel, dtype: str | torch.dtype | None) -> torch.dtype:
    """What to compute in, when ``dtype`` (None: the model's own) is the lowest precision that will
    do: float32 in place of an emulated bfloat16.
    """
    if dtype is None:
        return model.dtype
    wanted = DTYPES.get(str(dtype).removeprefix("torch."))
    if wanted is None:
        raise InvalidModelError(
            f"dtype: expected one of {', '.join(DTYPES)}, or None for the model's own, got"
            f" {dtype!r}"
        )
    emulated = wanted is torch.bfloat16 and not native_bfloat16(model.device)
    return torch.float32 if emulated else wanted


@contextmanager
def computing_in(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[None]:
    """Inside the ``with``, the model computes in a dtype; after it, its weights are the same
    tensors as before.

    A wider dtype widens the weights that are narrower, but not those of 8 bits, which mean nothing
    without their scale. A narrower one means autocast, which rounds only the factors of matrix
    products: half the error of rounding all.
    """
    if torch.finfo(dtype).bits < torch.finfo(model.dtype).bits:
        with torch.autocast(model.device.type, dtype):
            yield
        return
    widened = range(16, torch.finfo(dtype).bits + 1)
    kept = {
        p: p.data
        for p in model.parameters()
        if p.is_floating_point() and p.dtype != dtype and torch.finfo(p.dtype).bits in widened
    }
    for p in kept:
        p.data = p.data.to(dtype)
    try:
        # torch multiplies groups of matrices up to float32 only
        with eager_experts(model) if dtype == torch.float64 else nullcontext():
            yield
    finally:
        for p, data in kept.items():
            p.data = data


def rounded_sum(
    theta: Float[Tensor, "rows columns"], xi: Tensor, sigma: float, name: str
) -> tuple[Tensor, float]:
    """θ + ξ, rounded once to θ's dtype, and the σ that it carries (:func:`carried`)."""
    if xi.shape != theta.shape:
        raise InvalidWatermarkError(
            f"xi: expected a noise of {name}'s shape, {tuple(theta.shape)}, got {tuple(xi.shape)}"
        )
    xi = xi.to(theta.device)
    moved = (wide(theta) + xi).to(theta.dtype)
    kind = str(theta.dtype).removeprefix("torch.")
    return moved, carried(theta, moved, xi, sigma, f"numbers of {name}, which are {kind}")


def carried(
    unmoved: Float[Tensor, "rows columns"],
    moved: Float[Tensor, "rows columns"],
    xi: Float[Tensor, "rows columns"],
    sigma: float,
    what: str,
) -> float:
    """The σ that is left of ξ after rounding: σ⟨ξ, Δ⟩/‖ξ‖² with Δ what was added to θ indeed, the
    difference of θ + ξ and θ, both rounded.

    Where rounding leaves some numbers as they were without ξ, a GaussMarkWarning says so;
    InvalidWatermarkError where it leaves all, or one is not finite.
    """
    added = wide(moved) - unmoved
    z = xi / sigma
    along = (added * z).sum(dtype=torch.float64) / z.square().sum(dtype=torch.float64)
    changed = added.count_nonzero().item() / added.numel()
    if changed == 0:
        raise InvalidWatermarkError(
            f"sigma = {sigma:g} changes none of the {what}: choose a larger one, or load in float32"
        )
    if not torch.isfinite(along):
        raise InvalidWatermarkError(
            f"sigma = {sigma:g} takes {what}, out of their range: choose a smaller one"
        )
    left = float(f"{along.item():.6g}")
    if changed < LEAST_CHANGED:
        warnings.warn(
            f"sigma = {sigma:g} changes only {changed:.2%} of the {what}: they carry a watermark of"
            f" sigma = {left:.2g}. Choose a larger sigma, or load in float32, to lose less",
            GaussMarkWarning,
            stacklevel=3,
        )
    return left
