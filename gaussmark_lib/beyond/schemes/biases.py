"""Gaussian noise on the output biases (Christ, Gunn, Malkin & Raykova, arXiv:2410.18861): GaussMark
on one bias per token of the vocabulary, the smallest weight that it can have.

    logits + ξ,   ξ ~ N(0, σ²I_V),        u = ∇_bias log p(y | x) = Σ_t (onehot(y_t) − p_t)

ψ = ⟨ξ, u⟩/(σ‖u‖) is N(0, 1) over keys for every text. A test takes a forward pass and no backward
one, and any model's logits will do. But d is V, a few thousand numbers where a matrix has hundreds
of thousands, and each shows in how often its token is written: the mark is cheaper to steal
(notebook 17 measures it).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from transformers import PreTrainedModel

from gaussmark_lib import divergence, generate, perturb, tokens
from gaussmark_lib.engine.arithmetic import wide
from gaussmark_lib.engine.stream import standard_normal
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import COLUMNS, Keys, SamplerScheme, register
from gaussmark_lib.tokens import Texts


@dataclass(frozen=True)
class OutputBiases(SamplerScheme):
    """Noise of standard deviation ``sigma`` (nats) on every token's logit; ``statistic`` is ψ."""

    key: Key
    sigma: float = 0.3
    name: str = "output biases"
    marks_greedy = True

    def noise(self, size: int) -> Float[np.ndarray, " vocabulary"]:
        """ξ/σ of each token."""
        seed = int.from_bytes(self.key.derived("output biases")[:16], "big")
        return standard_normal(seed, size)

    def processor(self, model: PreTrainedModel) -> generate.Processor:
        noise = cache(lambda size: torch.from_numpy(self.sigma * self.noise(size)))
        return lambda ids, logits: logits + noise(logits.shape[-1]).to(logits)

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """``scheme.COLUMNS``; ``model`` is the base model."""
        rows, directions = [], slopes(model, prompts, responses)
        for i, ids, scheme in self.keyed(model, responses, keys):
            u = directions[i]
            psi = float(scheme.noise(len(u)) @ u / np.linalg.norm(u))
            rows.append((i, len(ids), psi, norm.sf(psi), norm.logsf(psi) / np.log(10)))
        return pd.DataFrame(rows, columns=COLUMNS)


@torch.no_grad()
def slopes(
    model: PreTrainedModel, prompts: Texts, responses: Texts, *, batch_size: int = 16
) -> list[Float[np.ndarray, " vocabulary"]]:
    """u = Σ_t (onehot(y_t) − p_t) of each text, by the base model, float64."""
    pairs = list(tokens.Reader(model).pairs(prompts, responses).values())
    perturb.refuse_perturbed(model)
    found = []
    for rows, _ in generate.in_batches(model, len(pairs), batch_size, None):
        inputs, is_token = divergence.laid_out(model, pairs[rows])
        p = wide(divergence.logits(model, inputs, is_token.shape[1])).softmax(-1).double()
        for (_, y), of_text, there in zip(pairs[rows], p, is_token.bool(), strict=True):
            u = -of_text[there.to(of_text.device)].sum(0).cpu().numpy()
            np.add.at(u, y, 1.0)
            found.append(u)
    return found


register("output biases")(lambda wm, key: OutputBiases(key))
