"""What ψ to expect of a marked text, predicted from one text of its kind without looking at a key.

At temperature τ token t is drawn from q_t = softmax(z_t/τ), with z_t the logits after the tokens
before it. Noise ξ in the weights moves z_t by J_t ξ to first order, J_t = ∂z_t/∂θ, and so moves the
mean of the score by C_t J_t ξ/τ, where C_t = diag(q_t) − q_t q_tᵀ is the covariance of a drawn
token's indicator. The mean over keys of ξξᵀ is σ²I, hence

    E⟨ξ, G⟩ = σ² F/τ,      F = Σ_t w_t tr(J_tᵀ C_t J_t),      E ψ ≈ σ F / (τ‖G‖)

with w_t = 1, or the weights of the edit channel (``channel``). This is Stein's identity
E ξf(ξ) = σ² E f′(ξ) for the drift of ⟨ξ, G⟩. At τ = 1 the mean of ‖G‖² over texts is F, so that
E ψ ≈ σ‖G‖ (Gaussian-shift reading of the paper's Prop. on linear softmax power). At a lower
temperature ‖G‖ grows, since G has the drift Σ_t J_tᵀ(q_t − p_t), which knows no key, and F shrinks.
A marked text has the longer gradient by itself: its tokens lean along Fξ. F does not contain the
drawn tokens, only where they led, and is not inflated by this.

An unknown prompt costs evidence. Without the prompt the first tokens have other activations: the
test looks along J′_t in place of J_t, and F becomes Σ_t tr(J′_tᵀ C_t J_t). For a text of T tokens
this is about T/(T + ``LOST``) of Σ_t tr(J′_tᵀ C_t J′_t), which can be computed without the prompt.
``LOST`` is a rough value: of doclm's continuations of 100 and of 200 tokens, mean ψ was that of 5
to 15 tokens less (100 keys each). An answer loses more, because a chat's question shapes all of it:
of SmolLM2's answers of 100 and of 200 tokens, mean ψ was that of 25 to 35 tokens less at
temperatures .3, .5, .7 and 1 and at top-p .9 (50 and 100 to 150 keys each). These texts were all
tested with the weights of ``channel.weights(model, 0.1)``. With the paper's ψ, 480 of its answers
of 120 tokens, written by llama.cpp, lost about 20 tokens: there the promise is too low.

Three numbers of a text stand for these:

* the temperature is the most likely one, at which Σ_t z_t[y_t] = Σ_t E_{q_t} z_t. Where the prompt
  is unknown, the first tokens look hotter than they were, and only the second half is used;
* F is ‖Σ_t √w_t J_tᵀ e_t‖² with independent e_t ~ N(0, C_t) in place of the drawn tokens, whose
  mean it is: one backward pass. The random numbers are a function of the text alone;
* excess, the mean of −log p(y_t) − H(p_t), says whether the model writes such text at all.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import generate, likelihood, perturb
from gaussmark_lib.engine import arithmetic, blocks, hooks
from gaussmark_lib.engine.terms import Factors, norm, of_text
from gaussmark_lib.gradients import Weigh, require_one
from gaussmark_lib.tokens import Ids, Pair, Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark

COLUMNS = ["text", "n_tokens", "temperature", "excess", "information"]
FEW = 16  # tokens: fewer say too little of a temperature, which is then taken to be 1
COLDEST, HOTTEST = 0.05, 8.0  # temperatures that are told apart
STEPS = 30  # of Newton's method, which needs about five
LOST = 15  # tokens: the evidence of so many is lost where the prompt is unknown
LOST_OF_ANSWER = 30  # tokens: the same for an answer, where the question is unknown


class Sampled(NamedTuple):
    """How a text was sampled: τ (None: to be estimated from the text) and top-p."""

    temperature: float | None = None
    top_p: float = 1.0


def table(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    *,
    token_weights: Weigh | None = None,
    sampled: Sampled = Sampled(),  # noqa: B008 (a tuple)
    unknown_prompt: Ids | None = None,
    batch_size: int = 8,
) -> pd.DataFrame:
    """Measure what a text promises; arguments and errors are those of ``score.score``, with one
    function as ``token_weights``.

    Args:
        sampled: how the texts were sampled, where that is known.
        unknown_prompt: what stands in ``prompts`` for those that are not known, as of
            ``LM.unknown_prompt()``; None where all are known.

    Returns:
        One row per text, in the order given: ``text``, ``n_tokens``, ``temperature`` (the known or
        estimated τ; ``COLDEST`` where every token is the most likely one), ``excess`` (nats per
        token above the entropy at temperature 1), ``information`` (F/τ, squared nats per unit of
        weight): the mean of ψ is ``mean_psi(information, grad_norm, sigma)``.
    """
    wm = PlacedWatermark(model, wm)
    perturb.refuse_perturbed(model)
    weigh = require_one(token_weights)
    pairs = wm.reader.pairs(prompts, responses)
    sizes = {i: len(x) + len(y) for i, (x, y) in pairs.items()}
    stand_in = None
    lost = LOST_OF_ANSWER if unknown_prompt else LOST  # what stands for a question is not empty
    if unknown_prompt is not None:
        stand_in = list(unknown_prompt) or wm.reader.start
    rows = {}
    for batch in blocks.batches(wm.reader.vocabulary, sizes, batch_size):
        several = [pairs[i] for i in batch]
        found = _rows(wm, several, weigh, sampled, stand_in, lost)
        for i, row in zip(batch, found, strict=True):
            rows[i] = (i, *row)
    return pd.DataFrame([rows[i] for i in pairs], columns=COLUMNS)


def together(parts: pd.DataFrame) -> dict[str, float]:
    """Return the row of several texts that are tested as one, as windows of a long text are."""
    lengths = parts["n_tokens"]
    return {
        "temperature": float(np.average(parts["temperature"], weights=lengths)),
        "excess": float(np.average(parts["excess"], weights=lengths)),
        "information": float(parts["information"].sum()),
    }


def mean_psi(information: ArrayLike, grad_norm: ArrayLike, sigma: float) -> np.ndarray:
    """E ψ = σ F/(τ‖G‖).

    >>> float(mean_psi(400.0, 20.0, 0.1))
    2.0
    """
    return sigma * np.asarray(information, float) / np.asarray(grad_norm, float)


def temperature(
    logits: Float[Tensor, "n vocabulary"], targets: Int[Tensor, " n"], least: float = COLDEST
) -> float:
    """Return the τ in [least, ``HOTTEST``] that maximises Σ_t log softmax(z_t/τ)[y_t].

    The log-likelihood is concave in β = 1/τ, with slope Σ_t (z_t[y_t] − E z_t) and curvature
    −Σ_t Var z_t under softmax(βz_t): Newton's method, by at most a factor of 2 at a step.
    """
    z = logits - logits.gather(-1, targets[:, None])
    z = z.clamp(min=-1e4)  # a logit may be −∞
    beta = 1.0
    for _ in range(STEPS):
        weights = (beta * z).softmax(-1)
        mean = torch.linalg.vecdot(weights, z)
        variance = torch.linalg.vecdot(weights.mul_(z), z) - mean.square()
        slope, curvature = -mean.double().sum().item(), variance.double().sum().item()
        step = slope / curvature if curvature > 0 else np.copysign(np.inf, slope)
        before, beta = beta, float(np.clip(beta + step, beta / 2, 2 * beta))
        beta = float(np.clip(beta, 1 / HOTTEST, 1 / least))
        if abs(beta - before) <= 1e-4 * beta:
            break
    return 1 / beta


def _estimated(logits: Float[Tensor, "n vocabulary"], targets: Int[Tensor, " n"]) -> float:
    return temperature(logits, targets) if len(targets) >= FEW else 1.0


def _rows(
    wm: PlacedWatermark,
    pairs: Sequence[Pair],
    weigh: Weigh | None,
    sampled: Sampled,
    stand_in: Ids | None,
    lost: int,
) -> list[tuple[int, float, float, float]]:
    """The columns but ``text`` of a batch, by one forward and one backward pass."""
    with arithmetic.frozen(wm.model):
        with hooks.traced(wm.model, wm.linears) as calls:
            logits, targets, number = likelihood.predictions(wm.model, pairs)
        logits.requires_grad_()
        slope, facts = torch.zeros_like(logits), []
        for row, (x, y) in enumerate(pairs):
            is_token = number[row] > 0
            z = arithmetic.wide(logits.detach()[row, is_token])
            log_p = z.log_softmax(-1)
            entropy = torch.special.entr(log_p.exp()).sum(-1)
            own = log_p.gather(-1, targets[row, is_token, None])[:, 0].double().cpu().numpy()
            tau = sampled.temperature
            if tau is None:
                first = len(y) // 2 if x == stand_in else 0
                tau = _estimated(z[first:], targets[row, is_token][first:])
            error = _errors(z, tau, sampled.top_p, np.random.default_rng([*x, *y]))
            if weigh is not None:
                w = np.array(weigh(y, own), float)
                error *= torch.from_numpy(np.sqrt(w)).to(error)[:, None]
            slope[row, is_token] = error.to(slope)
            excess = -(own.mean() + entropy.double().mean().item())
            facts.append((len(y), tau, float(excess)))
        ys = [call.y for call in calls]
        gs = torch.autograd.grad(logits, ys, slope, materialize_grads=True)
    inputs = [(call.layer, call.a) for call in calls]
    gs = [arithmetic.wide(g) for g in gs]
    rows = []
    for row, ((x, y), (n, tau, excess)) in enumerate(zip(pairs, facts, strict=True)):
        parts = of_text(inputs, gs, row, len(x) + len(y), len(wm.linears))
        kept = n / (n + lost) if x == stand_in else 1.0
        rows.append((n, tau, excess, kept * _squared(wm, parts) / tau))
    return rows


def _errors(
    logits: Float[Tensor, "n vocabulary"], tau: float, top_p: float, rng: np.random.Generator
) -> Float[Tensor, "n vocabulary"]:
    """Draw e_t ~ N(0, C_t): √q·ν − q⟨√q, ν⟩ with ν ~ N(0, I)."""
    if top_p < 1:
        probabilities = generate.probabilities(logits, top_p, tau).to(logits)
        probabilities /= probabilities.sum(-1, keepdim=True)
    else:
        probabilities = (logits / tau).softmax(-1)
    normals = torch.from_numpy(rng.standard_normal(logits.shape, np.float32)).to(logits)
    errors = normals.mul_(probabilities.sqrt())
    return errors.sub_(probabilities * errors.sum(-1, keepdim=True))


def _squared(wm: PlacedWatermark, parts: Sequence[Factors]) -> float:
    """Σ (σ_s/σ_1)²‖·‖² over the weights, of what rank reduction leaves."""
    if wm.rank_dropped:
        parts = [part.projected(P) for part, P in zip(parts, wm.projectors, strict=True)]
    scales = [sigma / wm.sigmas[0] for sigma in wm.sigmas]
    return sum((scale * norm(part)) ** 2 for scale, part in zip(scales, parts, strict=True))
