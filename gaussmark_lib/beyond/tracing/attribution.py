"""Attribution of a text to a user of a codebook.

With w_j = ⟨z_j, G⟩/‖G‖, one inner product per base noise, the ψ of user u is c_u·w. The text is
attributed to the user with the largest ψ.

Consider a text that does not depend on the key. Over the draw of the key, which gives base noises
and codes, w ~ N(0, I_m), and the codes are independent points of the sphere. Given r = ‖w‖, the
cosines c_u·w/r of the N users are therefore independent, each with the tail

    F̄_m(x) = P(cosine ≥ x) = ½ I_{1−x²}((m − 1)/2, ½),   x ≥ 0   (I: the regularised incomplete
    beta function)

and r has the χ distribution with m degrees of freedom. So the p-value over all users, the
probability that the ψ of *any* user is at least t, is an integral:

    p_family(t) = ∫ [1 − (1 − F̄_m(t/r))^N] χ_m(r) dr   ≤   N·(1 − Φ(t))

It is exact, even far in the tail, without simulation; the bound on the right is Bonferroni's. (For
given codes, the ψ are N(0, CCᵀ), and the probability depends slightly on the codes. The codes are
part of the key, and the guarantee is over the draw of the key.)
"""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy import special, stats
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import score
from gaussmark_lib.beyond.tracing.authors import summed
from gaussmark_lib.beyond.tracing.codebook import Codebook
from gaussmark_lib.engine.blocks import in_lists
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.gradients import Weigh, require_one
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark

COLUMNS = ["text", "user", "psi", "p_family", "runner_up", "n_tokens", "grad_norm"]
HELD = 256 << 20  # bytes of gradients in memory during a pass over the base noises
AT_ONCE = 8  # base noises
FAR = 1e3  # the tail beyond such a ψ is 0 in float64
# Of the integral over r; with 60 nodes the results agree to 1e-7.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(120)


def attribute(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    book: Codebook,
    *,
    together: bool = False,
    token_weights: Weigh | None = None,
    **settings,
) -> pd.DataFrame:
    """Attribute each text to the user with the largest ψ, with a p-value over all users.

    Apart from the model, memory holds ``HELD`` bytes of gradients (at least one gradient) and a few
    base noises, which are drawn again for each such batch of texts.

    Args:
        together: all texts have the same author and are tested together, by their summed gradient
            (``tracing.author``).
        token_weights: as in ``score.score``, one function.
        settings: ``lengths``, ``dtype`` and ``batch_size`` of ``score.score``.

    Returns:
        One row per text (and length): ``text``; ``user`` and the user's ``psi``; ``p_family``,
        exact over all users; ``runner_up``, the largest ψ among all other users (NaN if there is no
        other user); ``n_tokens``; and ``grad_norm``. Given σ·grad_norm, :func:`share_right` says
        how reliable the attribution is.
    """
    wm = PlacedWatermark(model, wm)
    if book.master.binding:
        book.key(0).check(wm)
    if together and settings.get("lengths") is not None:
        raise InvalidTextError("lengths: expected None with together=True, got lengths")
    weigh = require_one(token_weights)
    gradients = score.gradients(model, prompts, responses, wm, token_weights=weigh, **settings)
    if together:
        gradients = [summed(gradients)]
    bytes_of_text = 8 * wm.d  # a unit gradient, and its copy in the stack
    n_in_memory = max(1, HELD // bytes_of_text)
    rows = []
    for batch in in_lists(gradients, n_in_memory):
        units = torch.stack([gradient.unit() for gradient in batch])  # (texts, d)
        users, psis, runners_up = best(base_inner(units, book), book)
        for i, gradient in enumerate(batch):
            rows.append(
                {
                    "text": gradient.text,
                    "user": int(users[i]),
                    "psi": psis[i],
                    "p_family": family_p(psis[i], book.n_users, book.n_base),
                    "runner_up": runners_up[i] if book.n_users > 1 else np.nan,
                    "n_tokens": gradient.n_tokens,
                    "grad_norm": gradient.norm,
                }
            )
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.sort_values(["text", "n_tokens"], kind="stable", ignore_index=True)


def base_inner(units: Float[Tensor, "texts d"], book: Codebook) -> Float[np.ndarray, "texts m"]:
    """Return w: the inner products of unit gradients with each base noise, in float64."""
    d = units.shape[1]
    products = []
    for numbers in in_lists(range(book.n_base), AT_ONCE):
        columns = [book.base(j, d).astype("float32") for j in numbers]
        noises = torch.from_numpy(np.stack(columns, axis=1)).to(units)  # (d, at once)
        products.append((units @ noises).double().cpu().numpy())
    return np.concatenate(products, axis=1)


def best(
    inner: Float[np.ndarray, "texts m"], book: Codebook
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the user with the largest ψ of each text, this ψ, and the largest ψ of other users."""
    rows = np.arange(len(inner))
    user = np.zeros(len(inner), int)
    first = np.full(len(inner), -np.inf)
    second = first.copy()
    for number, codes in book.codes():
        psi = inner @ codes.T  # (texts, users of the group)
        here = psi.argmax(1)
        top = psi[rows, here]
        psi[rows, here] = -np.inf  # what remains are the other users of the group
        second = np.maximum.reduce([np.minimum(first, top), second, psi.max(1)])
        user = np.where(top > first, number + here, user)
        first = np.maximum(first, top)
    return user, first, second


def family_p(psi: float, n_users: int, n_base: int) -> float:
    """Return the probability that any user's ψ is at least ``psi``, for a text that does not depend
    on the key (see above).

    >>> round(family_p(4.3, 100_000, 256), 3), family_p(6.8, 100_000, 256) < 1e5 * 5.3e-12
    (0.477, True)
    """
    if abs(psi) > FAR:
        return float(psi < 0)
    r, weights = _radii(abs(psi), n_base)
    tail = cosine_tail(abs(psi) / r, n_base)
    if psi < 0:  # by symmetry, all users are below it with probability F̄ᴺ
        return float(1 - weights @ tail**n_users)
    any_user = -np.expm1(n_users * np.log1p(-tail))  # 1 − (1 − F̄)ᴺ, exact for a small F̄
    return float(min(1.0, weights @ any_user))


def share_right(psi: float, n_users: int, n_base: int) -> float:
    """Return the predicted share of texts that are attributed to their author.

    The ψ of the author is N(psi, 1). Given this ψ_a and r, the cosine of every other user is
    independent of both, so the author's ψ is the largest with probability
    (1 − F̄_m(ψ_a/r))^(N − 1). This is averaged over ψ_a ~ N(psi, 1) and r² = ψ_a² + χ²_{m−1}.
    Nothing is fitted.
    """
    nodes, weights = special.roots_hermitenorm(60)
    of_author = psi + nodes[:, None]  # (nodes, 1)
    squares = stats.chi2(n_base - 1).ppf((np.arange(400) + 0.5) / 400)
    cosine = of_author / np.sqrt(of_author**2 + squares)  # (nodes, squares)
    is_largest = (1 - cosine_tail(cosine, n_base)) ** (n_users - 1)
    return float(weights @ is_largest.mean(1) / weights.sum())


def capacity(psi: float, n_base: int) -> float:
    """Return (m/2)·ln(1 + ψ²/m) nats, the information about its user in a text with this ψ.

    There are m base noises. To name one of N users takes ln N nats. For large m and N, the share of
    correct names goes from 0 to 1 at the ψ at which the two are equal. At finite N, some names are
    correct below this ψ, too.

    >>> round(capacity(6.8, 256), 1), round(capacity(6.8, 10**6), 1)
    (21.3, 23.1)
    """
    # ln √(1 + ψ²/m); hypot does not overflow for a large ψ
    return float(n_base * np.log(np.hypot(1, psi / np.sqrt(n_base))))


def cosine_tail(x: np.ndarray, m: int) -> np.ndarray:
    """Return F̄_m(x), the probability that the first coordinate of a random point of the sphere in
    R^m is at least x.
    """
    half = special.betainc((m - 1) / 2, 0.5, np.clip(1 - x**2, 0, 1)) / 2
    return np.where(x >= 0, half, 1 - half)


def _radii(psi: float, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes r ≥ ψ ≥ 0 with the weights χ_m(r) dr.

    The variable of integration is s = √(r² − ψ²), in which the integrand is smooth up to its ends.
    Given a user's ψ, s is about χ_{m−1}.
    """
    low = max(0.0, np.sqrt(m) - 12)  # χ beyond 12 of its standard deviations is 0 in float64
    high = np.sqrt(m) + 12
    middle = (high + low) / 2
    half_width = (high - low) / 2
    s = middle + half_width * _NODES
    ds = half_width * _WEIGHTS
    r = np.sqrt(s**2 + psi**2)
    log_density = (
        special.xlogy(m - 1, r) - r**2 / 2 - special.gammaln(m / 2) - (m / 2 - 1) * np.log(2)
    )
    return r, np.exp(log_density) * s / r * ds  # dr = s/r ds
