"""Bets on the texts of a stream, and a mixture of them: evidence that you may look at any time.

A bet (π, κ) says: a share π of the texts carries the key, at κ times the predicted strength. With
r_i the innovation of text i (``law``), and λ_i the mean of r_i that is predicted if text i carries
the key (``stream``), the bet multiplies its wealth by

    f_i = 1 − π + π exp(κλ_i r_i − κ²λ_i²/2)

The evidence after n texts is the wealth of K bets together, each of which begins with 1/K:

    E_n = 1/K · Σ_k Π_{i ≤ n} f_i(π_k, κ_k)

**Proposition 3 (a stream may be watched).** If no text carries the key, then for one key and for
any texts, even texts chosen by looking at the earlier answers,

1. E_n is never negative, E_0 = 1, and the mean of E_n given everything before text n is E_{n−1};
2. at any stopping time τ, also one that a user chooses by looking, the mean of E_τ is at most 1;
3. P(sup_n E_n ≥ 1/α) ≤ α.

*Proof.* Given everything before text i, λ_i is fixed and r_i is N(0, 1) (``law``, proposition 2).
So exp(κλ_i r_i − κ²λ_i²/2) has the mean exp(κ²λ_i²/2 − κ²λ_i²/2) = 1, and f_i has the mean 1 for
each bet. f_i is at least 1 − π ≥ 0. The wealth of each bet is therefore a martingale that is never
negative, and so is the sum of wealths: this is 1. Optional stopping gives 2, and Ville's inequality
3. ∎ In the proof, π, κ and the division of the wealth may be any functions of the past. So a stream
may also go on with other bets, which divide E_n among themselves.

**What a mixture costs.** Each of the K wealths is at most E_n. So log E_n is never more than log K
below log of the wealth that any of the bets would have alone. With the 8 bets of ``MIXTURE`` this
is 2.1, less than half of what one text with λ = r = 4 gains under the bet (0.1, 1).

**Why a mixture.** A text that does not carry the key costs the bet up to −log(1 − π). At π = 0.1,
100 of these texts cost 10.5, and a text with λ = r = 4 gains 5.7. So this bet alone never finds a
key that writes one text in 100. The bet π = 0.01 loses 1.0 and gains 3.4. Bets with κ = 1/2 find
texts that were edited: at r = λ/2, a bet with κ = 1 gains nothing from the exponential.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import logsumexp


class Bet(NamedTuple):
    """A share π of the texts carries the key, at κ times the predicted strength."""

    share: float
    strength: float


SHARES = (0.3, 0.1, 0.03, 0.01)
STRENGTHS = (0.5, 1.0)
MIXTURE = [Bet(share, strength) for share in SHARES for strength in STRENGTHS]


def of(share: float | None) -> list[Bet]:
    """Return the one bet on a share, at the predicted strength; the mixture if ``share`` is None.

    >>> of(0.1)
    [Bet(share=0.1, strength=1.0)]
    """
    return MIXTURE if share is None else [Bet(share, 1.0)]


def log_bets(
    innovation: NDArray[np.float64], promised: NDArray[np.float64] | float, share: float
) -> NDArray[np.float64]:
    """Return log(1 − π + π exp(λr − λ²/2)) for each innovation r, with λ = ``promised``.

    It is what the text adds to log of the wealth of the bet.
    """
    log_not_marked = np.log1p(-share)
    log_marked = np.log(share) + promised * innovation - np.square(promised) / 2
    return np.logaddexp(log_not_marked, log_marked)


def gains(
    innovation: NDArray[np.float64], promised: NDArray[np.float64] | float, bets: Sequence[Bet]
) -> NDArray[np.float64]:
    """Return log f of each bet for each innovation; the first dimension is that of the bets."""
    of_bets = [log_bets(innovation, bet.strength * promised, bet.share) for bet in bets]
    return np.stack(of_bets)


def log_evidence(
    innovation: Float[np.ndarray, "keys n"],
    promised: Float[np.ndarray, "*keys n"],
    bets: Sequence[Bet] = MIXTURE,
) -> Float[np.ndarray, "keys n"]:
    """Return log E after each text of a stream."""
    of_bets = gains(innovation, promised, bets).cumsum(-1)  # (bets, keys, texts)
    return logsumexp(of_bets, axis=0) - np.log(len(bets))
