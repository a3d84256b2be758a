"""What a key was made for, and whether a use of it is that.

A binding holds the watermark, a hash of the marked matrix θ, a hash of the noise ξ, and a short
hash of every other weight of the model. Another θ is an error, since ψ would be a number without a
meaning. Other weights elsewhere, as in a quantised or a fine-tuned model, are a warning: the test
stays exact, and has less power.
"""

import hashlib
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib.errors import BaseModelWarning, KeyMismatchError
from gaussmark_lib.watermark import PlacedWatermark, Watermark

AT_ONCE = 4  # tensors that are read side by side
NAMED = 5  # weights that a warning names


class Binding(BaseModel):
    """What a key was made for. ``base_sha256`` is of θ, ``noise_sha256`` of ξ before any
    projection; files of earlier versions lack the last three.

    ``noise_sha256`` is None where nobody drew the noise: in the key of a codebook's user.
    ``sigma_carried`` is the σ that θ + ξ has after rounding to the weights' dtype. ``model_sha256``
    is of all weights; ``weights`` holds the name of each one and the first 16 digits of its own
    SHA-256.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    weight: str
    shape: tuple[int, int]
    sigma: float
    rank_dropped: int
    base_sha256: str
    noise_sha256: str | None
    side: str = "left"  # what files say that are older than the choice
    sigma_carried: float | None = None
    model_sha256: str | None = None
    weights: tuple[tuple[str, str], ...] | None = None

    @property
    def watermark(self) -> Watermark:
        return Watermark(self.weight, self.sigma, self.rank_dropped, self.side)


class Use:
    """A use of keys: a watermark on its model. The weights are hashed once for however many bound
    keys are checked, and never for unbound ones.
    """

    def __init__(self, wm: PlacedWatermark):
        self.wm = wm

    @cached_property
    def purpose(self) -> dict:
        return purpose(self.wm)

    @cached_property
    def weights(self) -> set[tuple[str, str]]:
        """Each weight's name, and the first 16 digits of its SHA-256."""
        return set(_short(self.wm.model))


def of(
    wm: PlacedWatermark, xi: Float[Tensor, "d_out d_in"], sigma_carried: float | None = None
) -> Binding:
    """The binding to this watermark on its model; ``xi`` is the key's noise before any
    projection.
    """
    return Binding(
        **purpose(wm),
        **_noise(xi),
        sigma_carried=sigma_carried,
        model_sha256=whole(wm.model),
        weights=_short(wm.model),
    )


def check(
    binding: Binding, key_id: str, use: Use, xi: Float[Tensor, "d_out d_in"] | None = None
) -> None:
    """KeyMismatchError, which names each difference, where a bound key's purpose is not its use;
    BaseModelWarning for other weights elsewhere.

    ``xi`` is the key's noise before any projection, where the caller has it.
    """
    used_for = use.purpose
    drawn = xi is not None and binding.noise_sha256 is not None
    if drawn and (binding.sigma, binding.shape) == (
        used_for["sigma"],
        used_for["shape"],
    ):  # otherwise ξ differs for that reason alone
        used_for = used_for | _noise(xi)
    made_for = binding.model_dump()
    wrong = [
        f"{name}: the key was made for {made_for[name]!r}, got {value!r}"
        for name, value in used_for.items()
        if made_for[name] != value
    ]
    if wrong:
        what = "; ".join(wrong)
        raise KeyMismatchError(
            f"key {key_id} does not fit this use; {what}. Use the watermark and the base model it"
            " was made with"
        )
    if other := sorted(_other_weights(binding, use)):
        more = f" and {len(other) - NAMED} more" if len(other) > NAMED else ""
        warnings.warn(
            f"key {key_id}: the model has the matrix that the key was made for, but {len(other)}"
            f" other weights are not those of the key's model: {', '.join(other[:NAMED])}{more}."
            " The test stays exact, with less power; load the model that the key was made with, if"
            " you have it",
            BaseModelWarning,
            stacklevel=2,
        )


def purpose(wm: PlacedWatermark) -> dict:
    """What a key, or what is kept of its use, is for: the watermark, and a hash of the marked
    matrix.
    """
    return {
        "weight": wm.weight,
        "shape": wm.linear.shape,
        "sigma": float(wm.sigma),
        "rank_dropped": wm.rank_dropped,
        "side": wm.side if wm.rank_dropped else "left",  # with rank_dropped = 0 the side is ignored
        "base_sha256": wm.linear.sha256(),
    }


def _noise(xi: Tensor) -> dict:
    return {"noise_sha256": hashlib.sha256(xi.contiguous().numpy()).hexdigest()}


def _other_weights(binding: Binding, use: Use) -> set[str]:
    """Names of the weights, without the marked one, that differ, are missing, or are there only
    now.
    """
    if binding.weights is None:
        return set()
    return {name for name, _ in use.weights ^ set(binding.weights)} - {use.wm.weight}


def _short(model: PreTrainedModel) -> tuple[tuple[str, str], ...]:
    return tuple((name, digest[:16]) for name, digest in digests(model).items())


def whole(model: PreTrainedModel) -> str:
    """A SHA-256 of all weights with their names."""
    return hashlib.sha256(
        "".join(f"{name} {digest}\n" for name, digest in digests(model).items()).encode()
    ).hexdigest()


class _Read(NamedTuple):
    """A weight's SHA-256, and the state that it was read in."""

    state: tuple
    sha256: str


_read: "WeakKeyDictionary[PreTrainedModel, dict[str, _Read]]" = WeakKeyDictionary()


def digests(model: PreTrainedModel) -> dict[str, str]:
    """Weight → SHA-256 of its values, of floats those rounded to bfloat16: a model is the same in
    bfloat16, float32 and float64, but not in float16.

    A weight is read in full once a process, and again after a change.
    """
    before, named = _read.setdefault(model, {}), sorted(model.named_parameters())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(
            lambda name, weight: _digest(weight, before.get(name)), *zip(*named, strict=True)
        )
        now = dict(zip((name for name, _ in named), found, strict=True))
    before.update(now)  # here alone, not in the threads
    return {name: read.sha256 for name, read in now.items()}


def _digest(weight: Tensor, before: _Read | None) -> _Read:
    now = state(weight)
    if before and before.state == now:
        return before
    value = weight.detach().to(torch.bfloat16) if weight.is_floating_point() else weight.detach()
    digest = hashlib.sha256(str(tuple(weight.shape)).encode())
    digest.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return _Read(now, digest.hexdigest())


@torch.no_grad()
def state(weight: Tensor) -> tuple:
    """Equal as long as nobody wrote to a tensor, and found as fast as memory is read: its place,
    its version, and the sum of each row's bits.

    A write through ``.data`` counts as no version, so the sums are what sees it, unless it only
    exchanges words within rows.
    """
    value = weight.detach().contiguous()
    rows = value if value.ndim else value[None]
    whole_words = rows.numel() and rows.shape[-1] * rows.element_size() % 8 == 0
    sums = (
        rows.view(torch.int64).sum(-1)
        if whole_words
        else rows.view(torch.uint8).sum(-1, dtype=torch.int64)
    )
    version = 0 if weight.is_inference() else weight._version
    return (
        weight.data_ptr(),
        version,
        value.dtype,
        tuple(value.shape),
        hashlib.sha256(sums.cpu().numpy()).digest(),
    )
