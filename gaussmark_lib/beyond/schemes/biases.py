"""Gaussian noise on the output biases (Christ, Gunn, Malkin & Raykova, arXiv:2410.18861).

It is GaussMark on the smallest possible weight: one bias per token of the vocabulary.

    logits + ξ,   ξ ~ N(0, σ²I_V),        u = ∇_bias log p(y | x) = Σ_t (onehot(y_t) − p_t)

ψ = ⟨ξ, u⟩/(σ‖u‖) is N(0, 1) over keys for every text. A test needs a forward pass and no backward
pass, and the logits of any model suffice. But d = V is only a few thousand numbers, while a matrix
has hundreds of thousands, and each number shows in the frequency of its token. So the watermark is
cheaper to steal (notebook 17 measures it).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import divergence, generate, perturb, tokens
from gaussmark_lib.engine.arithmetic import wide
from gaussmark_lib.engine.stream import standard_normal
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import COLUMNS, Keys, SamplerScheme, register
from gaussmark_lib.tokens import Texts


@dataclass(frozen=True)
class OutputBiases(SamplerScheme):
    """Noise of standard deviation ``sigma`` (nats) on each token's logit; ``statistic`` is ψ."""

    key: Key
    sigma: float = 0.3
    name: str = "output biases"
    marks_greedy = True

    def noise(self, size: int) -> Float[np.ndarray, " vocabulary"]:
        """Return ξ/σ of each token."""
        seed = int.from_bytes(self.key.derived("output biases")[:16], "big")
        return standard_normal(seed, size)

    def processor(self, model: PreTrainedModel) -> generate.Processor:
        """Return a function that adds ξ to the logits of a batch."""

        @cache
        def noise(size: int) -> Float[Tensor, " vocabulary"]:
            return torch.from_numpy(self.sigma * self.noise(size))

        return lambda ids, logits: logits + noise(logits.shape[-1]).to(logits)

    def processor_of_rows(self, model: PreTrainedModel, keys: Sequence[Key]) -> generate.Processor:
        """Return a function that adds the ξ of its key to the logits of each row."""
        schemes = [replace(self, key=key) for key in keys]

        @cache
        def noises(size: int) -> Float[Tensor, "rows vocabulary"]:
            of_rows = [self.sigma * scheme.noise(size) for scheme in schemes]
            return torch.from_numpy(np.stack(of_rows)).to(model.device)

        return lambda ids, logits: logits + noises(logits.shape[-1]).to(logits)

    def score(
        self, model: PreTrainedModel, prompts: Texts, responses: Texts, keys: Keys = None
    ) -> pd.DataFrame:
        """Score texts with the base model; return a table with ``scheme.COLUMNS``."""
        directions = slopes(model, prompts, responses)
        rows = []
        for i, ids, scheme in self.keyed(model, responses, keys):
            u = directions[i]
            psi = float(scheme.noise(len(u)) @ u / np.linalg.norm(u))
            rows.append((i, len(ids), psi, norm.sf(psi), norm.logsf(psi) / np.log(10)))
        return pd.DataFrame(rows, columns=COLUMNS)


@torch.no_grad()
def slopes(
    model: PreTrainedModel, prompts: Texts, responses: Texts, *, batch_size: int = 16
) -> list[Float[np.ndarray, " vocabulary"]]:
    """Return u = Σ_t (onehot(y_t) − p_t) of each text under the base model, in float64."""
    pairs = list(tokens.Reader(model).pairs(prompts, responses).values())
    perturb.refuse_perturbed(model)
    directions = []
    for rows, _ in generate.in_batches(model, len(pairs), batch_size, None):
        inputs, is_token = divergence.laid_out(model, pairs[rows])
        n_tokens = is_token.shape[1]
        logits = wide(divergence.logits(model, inputs, n_tokens))
        p = logits.softmax(-1).double()  # (texts, tokens, vocabulary)
        for (_, y), of_text, mask in zip(pairs[rows], p, is_token.bool(), strict=True):
            u = -of_text[mask.to(of_text.device)].sum(0).cpu().numpy()
            np.add.at(u, y, 1.0)  # unlike u[y] += 1, this counts a token each time it occurs
            directions.append(u)
    return directions


register("output biases")(lambda wm, key: OutputBiases(key))
