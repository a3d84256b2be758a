"""Other cures for a key that leans to a kind of text, on the same footing as innovations: the
spread that is left over keys, and what they cost.

Counting a repeated pair of tokens once, and clipping each token's gradient, give tokens weights
that do not depend on the key: G_w = Σ_t w_t G_t. Then ⟨ξ, G_w⟩/(σ‖G_w‖) is N(0, 1) as well, the
cosines of the G_w give the spread over keys, and the cosine of G_w and G is the share of ψ that is
kept (in the linear regime, with human text in place of marked text). Several keys share the level.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor

from gaussmark_lib import models, perturb, stats, tokens
from gaussmark_lib.corrupt import Pairs
from gaussmark_lib.experiments import one_key_in_production as production
from gaussmark_lib.joint import law
from gaussmark_lib.tracing import blocks

N_KEYS = 8


def compared(
    lm: models.LM,
    pairs: Pairs,
    wm: perturb.Watermark,
    psi: float,
    *,
    level: float = 0.05,
    dtype: str | None = None,
) -> pd.DataFrame:
    """A row a cure: ``cure, spread`` (standard deviation over keys of one key's rate of false
    alarms, from the texts' cosines alone), ``binomial`` (of as many independent texts), ``power``
    of a text with this ψ, its mean over texts; all from theory.
    """
    gradients = list(_weighted(lm, pairs, wm.on(lm.model), dtype))
    whole = torch.stack([one["ψ"] for one in gradients])
    tau, binomial, rows = stats.threshold(level), np.sqrt(level * (1 - level) / len(gradients)), []
    for cure in gradients[0]:
        units = torch.stack([one[cure] for one in gradients])
        kept = (units * whole).sum(1).double().cpu().numpy()
        spread, power = (
            production.predicted_spread(law.inner(units, units), level),
            norm.sf(tau - kept * psi).mean(),
        )
        rows.append({"cure": cure, "spread": spread, "power": power})
    K = law.inner(whole, whole)
    spread = np.sqrt(N_KEYS) * production.predicted_spread(
        K, level / N_KEYS
    )  # alarms of N_KEYS independent keys add up, to first order
    rows.append(
        {
            "cure": f"{N_KEYS} keys",
            "spread": spread,
            "power": norm.sf(stats.threshold(level / N_KEYS) - psi),
        }
    )
    _, residual = production.innovations(np.zeros((1, len(K))), K)
    rows.append(
        {"cure": "innovations", "spread": binomial, "power": norm.sf(tau - residual * psi).mean()}
    )
    return pd.DataFrame(rows).assign(binomial=binomial)


def said(rows: pd.DataFrame) -> str:
    """What :func:`compared`'s table of one kind says of each cure: its spread over that of
    plain ψ.
    """
    spread = rows.set_index("cure")["spread"]
    times = spread.drop("ψ") / spread["ψ"]
    listed = ", ".join(f"{cure} {factor:.2f}" for cure, factor in times.items())
    helps = [cure for cure, factor in times.items() if factor <= 0.9]
    return (
        f"spread over that of plain ψ: {listed}. At least a tenth less partial:"
        f" {', '.join(helps) if helps else 'none'}."
    )


def _weighted(
    lm: models.LM, pairs: Pairs, wm: perturb.PlacedWatermark, dtype: str | None
) -> Iterator[dict[str, Float[Tensor, " d"]]]:
    """The unit gradients of each text by cure. A pair of tokens counts where it is first seen in
    any of the texts.
    """
    seen: set[tuple[int, int]] = set()
    for prompt, response in tokens.checked_pairs(lm.model, *pairs).values():
        G = blocks.gradients(
            (prompt, response), wm, range(1, len(response) + 1), dtype=dtype
        ).float()
        before, first = [prompt[-1], *response][: len(response)], torch.zeros(len(G))
        for t, pair in enumerate(zip(before, response, strict=True)):
            first[t] = pair not in seen
            seen.add(pair)
        norms = G.norm(dim=1)
        weights = {
            "ψ": torch.ones(len(G)),
            "each pair once": first,
            "tokens clipped": (norms.median() / norms.clamp(min=1e-30)).clamp(max=1),
        }
        summed = {cure: weight.to(G) @ G for cure, weight in weights.items()}
        yield {cure: vector / vector.norm().clamp(min=1e-30) for cure, vector in summed.items()}
