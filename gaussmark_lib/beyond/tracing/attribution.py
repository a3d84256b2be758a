"""Which user of a codebook a text leans to.

With w_j = ⟨z_j, G⟩/‖G‖, one inner product per base noise, the ψ of user u is c_u·w. The text is
named after the largest.

Over the draw of the key, of its base noises and its codes, a text that does not depend on it has w
~ N(0, I_m) and codes that are independent points of the sphere. Given r = ‖w‖, the cosines c_u·w/r
of the N users are therefore independent, each with the tail

    F̄_m(x) = P(cosine ≥ x) = ½ I_{1−x²}((m − 1)/2, ½),   x ≥ 0   (I: the regularised incomplete
    beta function)

and r has the χ distribution with m degrees of freedom. So the p-value over all users, the chance
that *somebody's* ψ is at least t, is an integral:

    p_family(t) = ∫ [1 − (1 − F̄_m(t/r))^N] χ_m(r) dr   ≤   N·(1 − Φ(t))

It is exact, in every tail, with nothing simulated; the bound on the right is Bonferroni's. (Given
the codes as well, the ψ are N(0, CCᵀ) and the chance depends on them a little; the codes are part
of the key, and the guarantee is over the draw of the key.)
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
HELD = 256 << 20  # bytes of gradients that are held while the base noises pass by
AT_ONCE = 8  # base noises
FAR = 1e3  # a ψ from which on no float64 tells its tail from 0
# of the integral over r; 60 nodes agree with them to 1e-7
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
    """The user that each text leans to most, with the chance of such a lean among all users.

    Beyond the model it takes ``HELD`` bytes of gradients (or one text's), and a few base noises:
    those are made again for each such batch of texts.

    Args:
        together: all texts are one author's, and are tested as one by their summed gradient
            (``tracing.author``).
        token_weights: as in ``score.score``, one function.
        settings: ``lengths, dtype, batch_size`` of ``score.score``.

    Returns:
        One row per text (and length): ``text``, ``user``, their ``psi``, ``p_family`` (exact over
        all users), ``runner_up`` (the largest ψ among all other users; NaN where there are none),
        ``n_tokens``, ``grad_norm``: from σ·grad_norm, :func:`share_right` says how sure the name
        is.
    """
    wm = PlacedWatermark(model, wm)
    if book.master.binding:
        book.key(0).check(wm)
    if together and settings.get("lengths") is not None:
        raise InvalidTextError("lengths: expected none with together=True, got some")
    weigh = require_one(token_weights)
    gradients = score.gradients(model, prompts, responses, wm, token_weights=weigh, **settings)
    if together:
        gradients = [summed(gradients)]
    n_held = max(1, HELD // (8 * wm.linear.parameter.numel()))  # units, and once more their stack
    rows = []
    for several in in_lists(gradients, n_held):
        leaning = best(base_inner(torch.stack([one.unit() for one in several]), book), book)
        for one, user, psi, runner_up in zip(several, *leaning, strict=True):
            p = family_p(psi, book.n_users, book.n_base)
            runner_up = runner_up if book.n_users > 1 else np.nan
            rows.append((one.text, int(user), psi, p, runner_up, one.n_tokens, one.norm))
    return pd.DataFrame(rows, columns=COLUMNS).sort_values(
        ["text", "n_tokens"], kind="stable", ignore_index=True
    )


def base_inner(units: Float[Tensor, "texts d"], book: Codebook) -> Float[np.ndarray, "texts m"]:
    """w: the inner products of unit gradients with each base noise, float64."""
    products = []
    for numbers in in_lists(range(book.n_base), AT_ONCE):
        noises = np.stack([book.base(j, units.shape[1]).astype("float32") for j in numbers], axis=1)
        products.append((units @ torch.from_numpy(noises).to(units)).double().cpu().numpy())
    return np.concatenate(products, axis=1)


def best(
    inner: Float[np.ndarray, "texts m"], book: Codebook
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each text: the user with the largest ψ, that ψ, and the largest of all other users."""
    rows = np.arange(len(inner))
    user, first = np.zeros(len(inner), int), np.full(len(inner), -np.inf)
    second = first.copy()
    for number, codes in book.codes():
        psi = inner @ codes.T
        here = psi.argmax(1)
        top = psi[rows, here]
        psi[rows, here] = -np.inf
        second = np.maximum.reduce([np.minimum(first, top), second, psi.max(1)])
        user = np.where(top > first, number + here, user)
        first = np.maximum(first, top)
    return user, first, second


def family_p(psi: float, n_users: int, n_base: int) -> float:
    """P(some user's ψ is at least this) for a text that does not depend on the key; see above.

    >>> round(family_p(4.3, 100_000, 256), 3), family_p(6.8, 100_000, 256) < 1e5 * 5.3e-12
    (0.477, True)
    """
    if abs(psi) > FAR:
        return float(psi < 0)
    r, weights = _radii(abs(psi), n_base)
    tail = cosine_tail(abs(psi) / r, n_base)
    if psi < 0:  # all users are below it with probability F̄ᴺ, by symmetry
        return float(1 - weights @ tail**n_users)
    return float(min(1.0, weights @ -np.expm1(n_users * np.log1p(-tail))))


def share_right(psi: float, n_users: int, n_base: int) -> float:
    """The share of texts that are attributed to their own user, where that user's ψ is N(psi, 1):
    what theory predicts, with nothing fitted.

    Given the own ψ and r, every other user's cosine is independent of them, so the own one is the
    largest with probability (1 − F̄_m(ψ_own/r))^(N − 1); averaged over ψ_own ~ N(psi, 1) and r² =
    ψ_own² + χ²_{m−1}.
    """
    nodes, weights = special.roots_hermitenorm(60)
    own = psi + nodes[:, None]
    rest = stats.chi2(n_base - 1).ppf((np.arange(400) + 0.5) / 400)
    wins = (1 - cosine_tail(own / np.sqrt(own**2 + rest), n_base)) ** (n_users - 1)
    return float(weights @ wins.mean(1) / weights.sum())


def capacity(psi: float, n_base: int) -> float:
    """(m/2)·ln(1 + ψ²/m) nats: how much of a name a text can carry that leans to its user by ψ,
    with m base noises. A name among N costs ln N.

    For large m and N the share named rightly goes from 0 to 1 where the two are equal. At finite N
    part of the names are right below it too.

    >>> round(capacity(6.8, 256), 1), round(capacity(6.8, 10**6), 1)
    (21.3, 23.1)
    """
    return float(n_base * np.log(np.hypot(1, psi / np.sqrt(n_base))))


def cosine_tail(x: np.ndarray, m: int) -> np.ndarray:
    """F̄_m: the chance that the first coordinate of a random point of the sphere in R^m is at least
    x.
    """
    half = special.betainc((m - 1) / 2, 0.5, np.clip(1 - x**2, 0, 1)) / 2
    return np.where(x >= 0, half, 1 - half)


def _radii(psi: float, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes r ≥ ψ ≥ 0 with weights χ_m(r)dr. In s = √(r² − ψ²), about χ_{m−1} given a user's ψ, the
    integrand is smooth to its ends.
    """
    low, high = max(0.0, np.sqrt(m) - 12), np.sqrt(m) + 12
    s, ds = (high + low) / 2 + (high - low) / 2 * _NODES, (high - low) / 2 * _WEIGHTS
    r = np.sqrt(s**2 + psi**2)
    log_density = (
        special.xlogy(m - 1, r) - r**2 / 2 - special.gammaln(m / 2) - (m / 2 - 1) * np.log(2)
    )
    return r, np.exp(log_density) * s / r * ds
