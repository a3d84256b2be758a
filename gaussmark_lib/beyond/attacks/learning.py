"""What outputs and answers say of ξ, and text written with what was learnt.

**The cosine law.** To first order in σ a marked text's gradient is G = Fξ + e, F being the Fisher
information of a text, the mean of GGᵀ over plain texts, and e of mean 0 and covariance F. So
⟨ξ, Fξ⟩ = σ² tr F = ψ² (of a mean text), and for the mean Ḡ of n texts

    cos(Ḡ, ξ) = √(x/(1 + κx)),   x = nψ²/d,   κ = d tr F²/(tr F)² ≥ 1

κ, how uneven F's spectrum is, needs no key. The plain law is κ = 1; the most that Ḡ alone reaches
is 1/√κ. Text written at θ + s·ξ̂, for ξ̂ = Ḡ of ξ's length, has under ξ's key

    ψ = κ·cos·s·ψ_0   (ψ_0: of text that the key itself writes),   and pays about κs² of its price

since a gradient leans to where F is large. With d/κ dimensions in place of d, it is as if F were
even. **Answers**: an asker who is told n exact ψ knows ξ on the span of their directions, which is
a cosine of √(n/d): each marked text is worth ψ² answers.

**K copies.** Text of their average has ψ/K under each key and pays 1/K of one copy's price; their
averaged weights have √(d/K) under each.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import generate, gradients, likelihood, perturb
from gaussmark_lib.beyond import joint
from gaussmark_lib.errors import GaussMarkError, KeyMismatchError
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tokens import Texts

Matrix = Float[Tensor, "d_out d_in"]


def estimates(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    ends: Sequence[int],
    **options,
) -> Iterator[Matrix]:
    """Σ G of the first n texts, for each n of ``ends``, ascending. Options are those of
    ``gradients.gradients``.

    Raises:
        GaussMarkError: an end below 1, or beyond the texts.
    """
    if not ends or min(ends) < 1 or max(ends) > len(responses):
        raise GaussMarkError(
            f"ends: expected numbers of texts from 1 to {len(responses)}, got {[*ends]}"
        )
    total = torch.zeros(wm.on(model).linear.shape)
    parts = zip([0, *ends[:-1]], ends, strict=True)
    for first, last in parts:
        several = prompts[first:last], responses[first:last]
        for one in gradients.gradients(model, *several, wm, **options):
            total += one.G.cpu()
        yield total.clone()


def shrunk(
    total: Float[Tensor, "*shape"], n: int, fisher: Float[Tensor, "*shape"], sigma: float
) -> Float[Tensor, "*shape"]:
    """The mean of ξ given ΣG of n texts, where F were diagonal: ΣG/(nF + 1/σ²)."""
    return total / (n * fisher + sigma**-2)


def solved(units: Float[Tensor, "n d"], psi: Float[np.ndarray, " n"]) -> Float[Tensor, " d"]:
    """ξ/σ on the span of directions whose exact ψ was told, 0 outside."""
    K = joint.directions.inner(units, units)
    return torch.from_numpy(np.linalg.lstsq(K, psi, rcond=None)[0]).to(units) @ units


def cosine(a: Tensor, b: Tensor) -> float:
    """Of two directions."""
    a, b = a.double().flatten(), b.to(a.device).double().flatten()
    return float(a @ b / (a.norm() * b.norm()))


def unevenness(plain: Sequence[TextGradient]) -> float:
    """κ = d tr F²/(tr F)² from two or more texts of the base model: tr F is the mean of ‖G‖², and
    tr F² that of ⟨G_i, G_j⟩², i ≠ j.
    """
    units = torch.stack([joint.directions.kept(one) for one in plain])
    norms = np.array([one.norm for one in plain])
    squares = (joint.directions.inner(units, units) * np.outer(norms, norms)) ** 2
    others = squares[~np.eye(len(squares), dtype=bool)].mean()
    return float(units.shape[1] * others / (norms**2).mean() ** 2)


def law(n: int, psi: float, d: int, kappa: float = 1.0) -> float:
    """cos(Ḡ, ξ) after n marked texts of root mean square ψ."""
    x = n * psi**2 / d
    return np.sqrt(x / (1 + kappa * x))


def texts_needed(wanted: float, psi: float, d: int, kappa: float = 1.0) -> float:
    """Marked texts until the cosine is so much; inf where it never is."""
    left = 1 - kappa * wanted**2
    return d / psi**2 * wanted**2 / left if left > 0 else float("inf")


def of_length(estimate: Matrix, wm: Watermark) -> Matrix:
    """An estimate as long as a key's noise, σ√d."""
    return estimate * (wm.sigma * estimate.numel() ** 0.5 / estimate.norm())


def averaged(model: PreTrainedModel, wm: Watermark, keys: Sequence[Key]) -> Matrix:
    """ξ of K copies' average; KeyMismatchError where two of them are of one key."""
    if len({key.key_id for key in keys}) < max(1, len(keys)):
        raise KeyMismatchError("copies: expected one or more, each of a key of its own")
    return perturb.noises(model, wm, keys).mean(0)


def sample_with_noise(
    model: PreTrainedModel,
    prompts: Texts,
    wm: Watermark,
    noise: Matrix,
    n_tokens: int,
    *,
    seed: int = 0,
    **sampling,
) -> tuple[list[list[int]], Float[np.ndarray, " texts"]]:
    """Text of the model at θ + a given noise, and its log q(y) − log p_θ(y), whose mean is the
    price: s·ξ̂ forges, ξ − a·ξ̂ scrubs.
    """
    with perturb.moved(wm.on(model), [noise]):
        texts = generate.sample(model, prompts, n_tokens, seed=seed, **sampling)
        of_q = likelihood.cross_entropy(model, texts, prompts=prompts)
    of_p = likelihood.cross_entropy(model, texts, prompts=prompts)
    return texts, (of_p - of_q) * np.array([len(text) for text in texts])
