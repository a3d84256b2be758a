"""The mean ψ of a watermarked text, predicted from a text of the same kind without a key.

At temperature τ, token t is drawn from q_t = softmax(z_t/τ), where z_t are the logits given the
preceding tokens. To first order, noise ξ in the weights moves z_t by J_t ξ with J_t = ∂z_t/∂θ. This
moves the mean of the score by C_t J_t ξ/τ, where C_t = diag(q_t) − q_t q_tᵀ is the covariance of a
drawn token's indicator. The mean over keys of ξξᵀ is σ²I, hence

    E⟨ξ, G⟩ = σ² F/τ,      F = Σ_t w_t tr(J_tᵀ C_t J_t),      E ψ ≈ σ F / (τ‖G‖)

with w_t = 1, or the token weights of ``channel``. This is Stein's identity E ξf(ξ) = σ² E f′(ξ) for
the drift of ⟨ξ, G⟩. At τ = 1 the mean of ‖G‖² over texts is F, so that E ψ ≈ σ‖G‖ (the
Gaussian-shift reading of the paper's Prop. on linear softmax power). At a lower temperature ‖G‖
grows and F shrinks: G has the drift Σ_t J_tᵀ(q_t − p_t), which does not depend on the key. The
gradient of a watermarked text is longer, because its tokens lean along Fξ. F is not inflated by
this: it depends on the drawn tokens only as the context of later tokens.

An unknown prompt costs evidence. Without the prompt the first tokens have other activations. The
test then uses J′_t instead of J_t, and F becomes Σ_t tr(J′_tᵀ C_t J_t). For a text of T tokens this
is about T/(T + ``LOST``) times Σ_t tr(J′_tᵀ C_t J′_t), which can be computed without the prompt.
``LOST`` is a rough value. The loss of mean ψ, in tokens:

=================================================================  ========  ===================
texts                                                              loss      keys
=================================================================  ========  ===================
doclm, continuations of 100 and 200 tokens                         5 to 15   100 each
SmolLM2, answers of 100 and 200 tokens, τ .3, .5, .7, 1, top-p .9  25 to 35  50 and 100–150 each
SmolLM2, answers of 120 tokens by llama.cpp, the paper's ψ         about 20  480 answers
=================================================================  ========  ===================

All but the last were tested with the weights of ``channel.weights(model, 0.1)``. An answer loses
more than a continuation, because the question of a chat shapes the whole answer. For the paper's ψ,
the promise is too low.

The rule was then confirmed on 400 fresh keys per cell, declared before
(``gaussmark_experiments.promised_power``): texts of 200 tokens, read from their characters, prompts
unknown. Promised − realised power, with 95% intervals; a text whose every token is nearly certain
gets no promise:

=======================  ===============  ===============  ==========
cell                     level .05        level .01        no promise
=======================  ===============  ===============  ==========
SmolLM2, temperature .3  −.009 ± .024     +.000 ± .036     46
SmolLM2, temperature .5  +.031 ± .024     +.039 ± .033     17
SmolLM2, temperature .7  +.013 ± .019     +.019 ± .029     4
SmolLM2, top-p .9        +.011 ± .015     +.009 ± .023     0
SmolLM2, temperature 1   −.000 ± .010     +.030 ± .026     1
doclm, temperature 1     +.004 ± .023     +.011 ± .038     0
=======================  ===============  ===============  ==========

Three numbers are estimated from a text:

* The temperature is the maximum-likelihood estimate, at which Σ_t z_t[y_t] = Σ_t E_{q_t} z_t. If
  the prompt is unknown, the first tokens look hotter than they were, and only the second half of
  the text is used.
* F is the mean of ‖Σ_t √w_t J_tᵀ e_t‖², with independent e_t ~ N(0, C_t) instead of the drawn
  tokens. One draw is used, which takes one backward pass; its random numbers depend only on the
  text.
* The excess, the mean of −log p(y_t) − H(p_t), shows whether the text is typical of the model.
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
FEW = 16  # tokens: with fewer, the temperature is not estimated but taken as 1
COLDEST = 0.05  # lowest temperature of an estimate
HOTTEST = 8.0  # highest
STEPS = 30  # of Newton's method, which needs about five
LOST = 15  # tokens whose evidence is lost if the prompt is unknown
LOST_OF_ANSWER = 30  # the same for an answer to an unknown question


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
    """Predict the evidence in watermarked texts like the given texts.

    Arguments and errors are those of ``score.score``, with one function as ``token_weights``.

    Args:
        sampled: how the texts were sampled, if it is known.
        unknown_prompt: the stand-in for an unknown prompt in ``prompts``, such as
            ``LM.unknown_prompt()``; None if all prompts are known.

    Returns:
        One row per text, in the given order: ``text``; ``n_tokens``; ``temperature``, the known or
        estimated τ (``COLDEST`` if every token is the most probable token); ``excess``, nats per
        token above the entropy at temperature 1; and ``information``, F/τ in squared nats per unit
        of weight. The mean of ψ is ``mean_psi(information, grad_norm, sigma)``.
    """
    wm = PlacedWatermark(model, wm)
    perturb.refuse_perturbed(model)
    weigh = require_one(token_weights)
    pairs = wm.reader.pairs(prompts, responses)
    sizes = {i: len(x) + len(y) for i, (x, y) in pairs.items()}
    stand_in = None
    lost = LOST_OF_ANSWER if unknown_prompt else LOST  # the stand-in for a question is not empty
    if unknown_prompt is not None:
        stand_in = list(unknown_prompt) or wm.reader.start
    rows = {}
    for batch in blocks.batches(wm.reader.vocabulary, sizes, batch_size):
        pairs_of_batch = [pairs[i] for i in batch]
        rows_of_batch = _rows(wm, pairs_of_batch, weigh, sampled, stand_in, lost)
        for i, row in zip(batch, rows_of_batch, strict=True):
            rows[i] = (i, *row)
    return pd.DataFrame([rows[i] for i in pairs], columns=COLUMNS)


def together(parts: pd.DataFrame) -> dict[str, float]:
    """Combine the rows of texts that are tested together, such as the windows of a long text."""
    lengths = parts["n_tokens"]
    return {
        "temperature": float(np.average(parts["temperature"], weights=lengths)),
        "excess": float(np.average(parts["excess"], weights=lengths)),
        "information": float(parts["information"].sum()),
    }


def mean_psi(information: ArrayLike, grad_norm: ArrayLike, sigma: float) -> np.ndarray:
    """Return E ψ = σ F/(τ‖G‖).

    >>> float(mean_psi(400.0, 20.0, 0.1))
    2.0
    """
    return sigma * np.asarray(information, float) / np.asarray(grad_norm, float)


def temperature(
    logits: Float[Tensor, "n vocabulary"], targets: Int[Tensor, " n"], least: float = COLDEST
) -> float:
    """Return the τ in [least, ``HOTTEST``] that maximises Σ_t log softmax(z_t/τ)[y_t].

    The log-likelihood is concave in β = 1/τ. Under softmax(βz_t), it has the slope
    Σ_t (z_t[y_t] − E z_t) and the curvature −Σ_t Var z_t. Newton's method changes β by at most a
    factor of 2 per step.
    """
    # Relative to the drawn token, so that z_t[y_t] = 0.
    z = logits - logits.gather(-1, targets[:, None])
    z = z.clamp(min=-1e4)  # a logit may be −∞
    beta = 1.0
    for _ in range(STEPS):
        weights = (beta * z).softmax(-1)
        mean = torch.linalg.vecdot(weights, z)
        variance = torch.linalg.vecdot(weights.mul_(z), z) - mean.square()
        slope = -mean.double().sum().item()
        curvature = variance.double().sum().item()
        step = slope / curvature if curvature > 0 else np.copysign(np.inf, slope)
        previous = beta
        beta = float(np.clip(beta + step, beta / 2, 2 * beta))
        beta = float(np.clip(beta, 1 / HOTTEST, 1 / least))
        if abs(beta - previous) <= 1e-4 * beta:
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
    """The columns of a batch without ``text``, from one forward and one backward pass."""
    with arithmetic.frozen(wm.model):
        with hooks.traced(wm.model, wm.linears) as calls:
            logits, targets, number = likelihood.predictions(wm.model, pairs)
        logits.requires_grad_()
        slope = torch.zeros_like(logits)  # √w_t e_t of each token, 0 elsewhere
        facts = []
        for row, (x, y) in enumerate(pairs):
            is_token = number[row] > 0
            z = arithmetic.wide(logits.detach()[row, is_token])  # (n, vocabulary)
            targets_of_row = targets[row, is_token]
            log_p = z.log_softmax(-1)
            entropy = torch.special.entr(log_p.exp()).sum(-1)
            log_p_of_text = log_p.gather(-1, targets_of_row[:, None])[:, 0].double().cpu().numpy()
            tau = sampled.temperature
            if tau is None:
                first = len(y) // 2 if x == stand_in else 0
                tau = _estimated(z[first:], targets_of_row[first:])
            error = _errors(z, tau, sampled.top_p, np.random.default_rng([*x, *y]))
            if weigh is not None:
                w = np.array(weigh(y, log_p_of_text), float)
                error *= torch.from_numpy(np.sqrt(w)).to(error)[:, None]
            slope[row, is_token] = error.to(slope)
            excess = -(log_p_of_text.mean() + entropy.double().mean().item())
            facts.append((len(y), tau, float(excess)))
        outputs = [call.y for call in calls]
        gs = torch.autograd.grad(logits, outputs, slope, materialize_grads=True)
    inputs = [(call.layer, call.a) for call in calls]
    gs = [arithmetic.wide(g) for g in gs]
    rows = []
    for row, ((x, y), (n, tau, excess)) in enumerate(zip(pairs, facts, strict=True)):
        parts = of_text(inputs, gs, row, len(x) + len(y), len(wm.linears))
        share_left = n / (n + lost) if x == stand_in else 1.0
        information = share_left * _squared(wm, parts) / tau
        rows.append((n, tau, excess, information))
    return rows


def _errors(
    logits: Float[Tensor, "n vocabulary"], tau: float, top_p: float, rng: np.random.Generator
) -> Float[Tensor, "n vocabulary"]:
    """Draw e_t ~ N(0, C_t), as √q·ν − q⟨√q, ν⟩ with ν ~ N(0, I)."""
    if top_p < 1:
        probabilities = generate.probabilities(logits, top_p, tau).to(logits)
        probabilities /= probabilities.sum(-1, keepdim=True)
    else:
        probabilities = (logits / tau).softmax(-1)
    normals = torch.from_numpy(rng.standard_normal(logits.shape, np.float32)).to(logits)
    errors = normals.mul_(probabilities.sqrt())  # in place: (n, vocabulary) is large
    return errors.sub_(probabilities * errors.sum(-1, keepdim=True))


def _squared(wm: PlacedWatermark, parts: Sequence[Factors]) -> float:
    """Σ (σ_s/σ_1)²‖·‖² over the weights, after rank reduction."""
    if wm.rank_dropped:
        parts = [part.projected(P) for part, P in zip(parts, wm.projectors, strict=True)]
    scales = [sigma / wm.sigmas[0] for sigma in wm.sigmas]  # G is in units of the first σ
    return sum((scale * norm(part)) ** 2 for scale, part in zip(scales, parts, strict=True))
