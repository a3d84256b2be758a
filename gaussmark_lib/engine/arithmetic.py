"""The dtype in which a model computes, the modes that a function puts it into for a while, and what
the rounding of its weights takes away.
"""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib.errors import GaussMarkWarning, InvalidModelError, InvalidWatermarkError

LEAST_CHANGED = 0.99  # share of a weight's numbers; below it, rounding took a part of the noise
TOKENS_AT_ONCE = 64  # the log-probabilities of so many tokens are computed together
N_TRIALS = 5  # of the speed of bfloat16
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def wide(x: Tensor) -> Tensor:
    """Return the same numbers in float32 at least.

    >>> wide(torch.ones(1, dtype=torch.bfloat16)).dtype, wide(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def log_softmax_(logits: Float[Tensor, "texts n v"]) -> Float[Tensor, "texts n v"]:
    """Replace logits by their log-probabilities, a few tokens at a time.

    In place, because new memory for a second tensor of this size costs more time than the
    arithmetic.
    """
    for text in logits:
        for part in text.split(TOKENS_AT_ONCE):
            part.copy_(part.log_softmax(-1))
    return logits


def slope_(
    p: Float[Tensor, "texts n vocabulary"],
    targets: Int[Tensor, "texts n"],
    weights: Float[Tensor, "texts n"],
) -> Float[Tensor, "texts n vocabulary"]:
    """Return ∂/∂logits of Σ_t w_t log p_t, which is w_t (onehot(y_t) − p_t), in place of ``p``."""
    w = weights[..., None]
    slope = p.mul_(-w)
    return slope.scatter_add_(-1, targets[..., None], w)


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Put the model into evaluation mode (no dropout) inside the ``with``.

    Afterwards each module has its earlier mode again.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def eager_experts(model: PreTrainedModel) -> Iterator[None]:
    """Compute the experts of a mixture one after the other inside the ``with``.

    The product of a group of experts has no second derivative, and no float64.
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
    """Let no parameter require a gradient inside the ``with``, and use evaluation mode.

    So the graph begins at the traced layer. Afterwards everything is as before.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        p.requires_grad_(False)
    try:
        with evaluating(model), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for p in trainable:
            p.requires_grad_(True)


def native_bfloat16(device: torch.device) -> bool:
    """Return whether the device computes bfloat16 products itself, and whether that is worth it.

    On a CPU they must also be faster than float32's: some processors have the instructions, but are
    slower with them.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return _has_bfloat16() and _bfloat16_is_faster()
    return True


def _has_bfloat16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@cache
def _bfloat16_is_faster() -> bool:
    """Try both, which takes some 20 milliseconds, once per process.

    The trial is autocast's product, which rounds one of the factors, against float32's.
    """
    x, w = torch.ones(2, 512, 512)

    def seconds(w: torch.Tensor) -> float:
        started = time.perf_counter()
        x.to(w.dtype).mm(w)
        return time.perf_counter() - started

    bfloat16_times = []
    float32_times = []
    for _ in range(1 + N_TRIALS):
        bfloat16_times.append(seconds(w.bfloat16()))
        float32_times.append(seconds(w))
    # The first product of each kind also compiles.
    return min(bfloat16_times[1:]) < min(float32_times[1:])


def arithmetic(model: PreTrainedModel, dtype: str | torch.dtype | None) -> torch.dtype:
    """Return the dtype to compute in, if ``dtype`` (None: the model's) is precise enough.

    It is float32 instead of an emulated bfloat16, which is slower.
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
    """Let the model compute in a dtype inside the ``with``.

    A wider dtype widens the weights that are narrower, but not weights of 8 bits, which mean
    nothing without their scale. A narrower dtype means autocast, which rounds only the factors of
    matrix products: half the error of rounding everything. Afterwards the weights are the same
    tensors as before.
    """
    bits = torch.finfo(dtype).bits
    if bits < torch.finfo(model.dtype).bits:
        with torch.autocast(model.device.type, dtype):
            yield
        return
    originals = {p: p.data for p in model.parameters() if _can_be_widened(p, dtype)}
    for p in originals:
        p.data = p.data.to(dtype)
    # torch multiplies groups of matrices in float32 at most
    experts = eager_experts(model) if dtype == torch.float64 else nullcontext()
    try:
        with experts:
            yield
    finally:
        for p, data in originals.items():
            p.data = data


def _can_be_widened(p: Tensor, dtype: torch.dtype) -> bool:
    if not p.is_floating_point() or p.dtype == dtype:
        return False
    return 16 <= torch.finfo(p.dtype).bits <= torch.finfo(dtype).bits


def rounded_sum(
    theta: Float[Tensor, "rows columns"], xi: Tensor, sigma: float, name: str
) -> tuple[Tensor, float]:
    """Return θ + ξ, rounded once to θ's dtype, and the σ that it carries (:func:`carried`)."""
    if xi.shape != theta.shape:
        raise InvalidWatermarkError(
            f"xi: expected a noise of {name}'s shape, {tuple(theta.shape)}, got {tuple(xi.shape)}"
        )
    xi = xi.to(theta.device)
    moved = (wide(theta) + xi).to(theta.dtype)  # to round ξ first would lose more of it
    kind = str(theta.dtype).removeprefix("torch.")
    return moved, carried(theta, moved, xi, sigma, f"numbers of {name}, which are {kind}")


def carried(
    unmoved: Float[Tensor, "rows columns"],
    moved: Float[Tensor, "rows columns"],
    xi: Float[Tensor, "rows columns"],
    sigma: float,
    what: str,
) -> float:
    """Return the σ that is left of ξ after rounding: σ⟨ξ, Δ⟩/‖ξ‖².

    Δ is what was really added to θ, the difference of θ + ξ and θ, both rounded. Give a
    GaussMarkWarning if rounding leaves some numbers as they were without ξ. Raise
    InvalidWatermarkError if it leaves all numbers so, or if a number is not finite.
    """
    added = wide(moved) - unmoved
    z = xi / sigma  # σ⟨ξ, Δ⟩/‖ξ‖² = ⟨z, Δ⟩/‖z‖²
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
    sigma_carried = float(f"{along.item():.6g}")  # the same digits on every machine
    if changed < LEAST_CHANGED:
        warnings.warn(
            f"sigma = {sigma:g} changes only {changed:.2%} of the {what}: they carry a watermark of"
            f" sigma = {sigma_carried:.2g}. Choose a larger sigma, or load in float32, to lose"
            " less",
            GaussMarkWarning,
            stacklevel=3,
        )
    return sigma_carried
