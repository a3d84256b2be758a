"""How much outputs and answers reveal of ξ, and text written with the estimate.

**The cosine law.** Let F be the Fisher information of a text: the mean of GGᵀ over unwatermarked
texts. To first order in σ, the gradient of a watermarked text is G = Fξ + e, where e has mean 0 and
covariance F. So ⟨ξ, Fξ⟩ = σ² tr F = ψ² (of a mean text), and for the mean Ḡ of n texts

    cos(Ḡ, ξ) = √(x/(1 + κx)),   x = nψ²/d,   κ = d tr F²/(tr F)² ≥ 1

κ measures how uneven the spectrum of F is; it can be computed without a key. The plain law has
κ = 1. The largest cosine that Ḡ alone can reach is 1/√κ. Let ξ̂ be Ḡ scaled to the length of ξ.
Text written at θ + s·ξ̂ has, under the key of ξ,

    ψ = κ·cos·s·ψ_0   (ψ_0: ψ of text written with the key),   at about κs² of the key's price

because a gradient leans to where F is large. The law is that of an even F with d/κ dimensions
instead of d.

**Answers.** A user who learns n exact values of ψ knows ξ on the span of their directions: a cosine
of √(n/d). A watermarked text is worth ψ² answers.

**K copies.** Text written by the average of K copies has ψ/K under each key, at 1/K of the price of
one copy. The averaged weights themselves have ψ = √(d/K) under each key.
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
from gaussmark_lib.weights import require_single

Matrix = Float[Tensor, "d_out d_in"]


def estimates(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    ends: Sequence[int],
    **options,
) -> Iterator[Matrix]:
    """Yield Σ G of the first n texts, for each n of ``ends`` in ascending order.

    Options are those of ``gradients.gradients``.

    Raises:
        GaussMarkError: if an end is below 1 or above the number of texts.
        InvalidWatermarkError: if the watermark is on several weights.
    """
    require_single(wm, "learning a key")
    if not ends or min(ends) < 1 or max(ends) > len(responses):
        raise GaussMarkError(
            f"ends: expected numbers of texts from 1 to {len(responses)}, got {[*ends]}"
        )
    total = torch.zeros(wm.on(model).linear.shape)  # (d_out, d_in)
    start = 0
    for end in ends:
        new_prompts = prompts[start:end]
        new_responses = responses[start:end]
        for gradient in gradients.gradients(model, new_prompts, new_responses, wm, **options):
            total += gradient.G.cpu()
        yield total.clone()  # a copy, because the sum goes on
        start = end


def shrunk(
    total: Float[Tensor, "*shape"], n: int, fisher: Float[Tensor, "*shape"], sigma: float
) -> Float[Tensor, "*shape"]:
    """Return the posterior mean of ξ given ΣG of n texts, if F is diagonal: ΣG/(nF + 1/σ²)."""
    precision = n * fisher + sigma**-2  # of the texts and of the prior N(0, σ²I)
    return total / precision


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of two directions, in float64."""
    a = a.double().flatten()
    b = b.to(a.device).double().flatten()
    return float(a @ b / (a.norm() * b.norm()))


def unevenness(plain: Sequence[TextGradient]) -> float:
    """Estimate κ = d tr F²/(tr F)² from two or more texts of the base model.

    tr F is the mean of ‖G‖², and tr F² the mean of ⟨G_i, G_j⟩² over i ≠ j.
    """
    units = torch.stack([joint.directions.kept(gradient) for gradient in plain])  # (n, d)
    norms = np.array([gradient.norm for gradient in plain])
    products = joint.directions.inner(units, units) * np.outer(norms, norms)  # ⟨G_i, G_j⟩
    squares = products**2
    is_pair = ~np.eye(len(squares), dtype=bool)  # two different texts
    trace_of_square = squares[is_pair].mean()
    trace = (norms**2).mean()
    d = units.shape[1]
    return float(d * trace_of_square / trace**2)


def law(n: int, psi: float, d: int, kappa: float = 1.0) -> float:
    """Return cos(Ḡ, ξ) for n watermarked texts whose ψ has this root mean square."""
    x = n * psi**2 / d
    return np.sqrt(x / (1 + kappa * x))


def texts_needed(wanted: float, psi: float, d: int, kappa: float = 1.0) -> float:
    """Return the number of watermarked texts that give the cosine ``wanted``, or infinity."""
    distance = 1 - kappa * wanted**2  # from the largest cosine, 1/√κ
    if distance <= 0:
        return float("inf")
    return d / psi**2 * wanted**2 / distance


def of_length(estimate: Matrix, wm: Watermark) -> Matrix:
    """Scale an estimate to the length of a key's noise, σ√d.

    Raise InvalidWatermarkError if the watermark is on several weights.
    """
    require_single(wm, "learning a key")
    length_of_noise = wm.sigma * estimate.numel() ** 0.5
    return estimate * (length_of_noise / estimate.norm())


def averaged(model: PreTrainedModel, wm: Watermark, keys: Sequence[Key]) -> Matrix:
    """Return the noise of the average of K copies.

    Raises:
        KeyMismatchError: if there is no key, or two keys have the same id.
        InvalidWatermarkError: if the watermark is on several weights.
    """
    require_single(wm, "the average of copies")
    n_different = len({key.key_id for key in keys})
    if n_different < max(1, len(keys)):
        raise KeyMismatchError("copies: expected one or more, each with a different key")
    noises = perturb.noises(model, wm, keys)  # (keys, d_out, d_in)
    return noises.mean(0)


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
    """Sample from the model at θ + a given noise; return the texts and log q(y) − log p_θ(y).

    q is the model at θ + noise, and the mean of the difference is the price of the noise. The noise
    s·ξ̂ forges a watermark, ξ − a·ξ̂ scrubs one.
    """
    with perturb.moved(wm.on(model), [noise]):
        texts = generate.sample(model, prompts, n_tokens, seed=seed, **sampling)
        of_q = likelihood.cross_entropy(model, texts, prompts=prompts)
    of_p = likelihood.cross_entropy(model, texts, prompts=prompts)
    n_tokens_of = np.array([len(text) for text in texts])
    return texts, (of_p - of_q) * n_tokens_of
