"""A noise for each token: Algorithms 3 and 4 of the paper (App. "Robustness to Corruptions"), which
the paper does not measure.

    generate:  v_k ~ p_{θ + ξ_k}(· | x, v_<k),   ξ_1, ξ_2, … independent N(0, σ² I)
    detect:    Γ_k = ⟨ξ_k, G_k⟩ / (σ‖G_k‖),      G_k = ∇_θ log p_θ(v_k | x, v_<k)

Under the null the Γ_k are independent N(0, 1). One test counts hits, Γ_k ≥ τ (``quantiles``).
Another adds the Γ_k with weights: ψ = Σ_k ⟨ξ_k, G_k⟩ / (σ √Σ_k ‖G_k‖²) is N(0, 1). It has the power
of the ψ of a single key, because Σ_k ‖G_k‖² is the mean of ‖Σ_k G_k‖².

Key k belongs to *position* k: an insertion or deletion moves all later tokens away from their keys.

The weight must be local (``gradients``): o_proj, q_proj and MLP of the last block, or the head.
Then no cache depends on ξ_k, so that cached generation is exact, and one backward pass gives every
Γ_k = g_kᵀ ξ_k a_k / (σ‖g_k‖‖a_k‖). ξ_k is ``noise(wm, key, k)``, drawn when needed; one ``Key``
gives the keys of all positions. Every function takes one key per text, so that n pairs of a key and
a prompt are one batch.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from gaussmark_lib import generate, kgw, perturb, rank_reduce, stats, tokens
from gaussmark_lib.beyond.token_level import gradients
from gaussmark_lib.engine.terms import Factors
from gaussmark_lib.errors import (
    DegenerateScoreError,
    InvalidTextError,
    InvalidWatermarkError,
    require_list,
)
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark, require_single


def key_of(key: Key, k: int) -> Key:
    """Return the key of position k ≥ 0.

    Neither the keys of other positions nor ``key`` can be computed from it.
    """
    message = b"gaussmark token key" + key.secret + k.to_bytes(8, "big")
    return Key(hashlib.sha256(message).digest()[:16])


def noise(wm: PlacedWatermark, key: Key, k: int) -> Float[Tensor, "d_out d_in"]:
    """Return ξ_k before any projection, in float32 on the CPU."""
    z = key_of(key, k).normals(wm.d, wm.sigma, np.float32)
    return torch.from_numpy(z).view(wm.linear.shape)


def added(
    wm: PlacedWatermark, keys: Sequence[Key], k: int, a: Float[Tensor, "texts d_in"]
) -> Float[Tensor, "texts d_out"]:
    """Return ξ_k·a of each text under its own key, with the projected ξ_k.

    One noise is in memory at a time, and it is drawn once for all texts of its key.
    """
    texts_of_key = defaultdict(list)
    for text, key in enumerate(keys):
        texts_of_key[key].append(text)
    out = a.new_empty(len(a), wm.linear.shape[0])
    for key, texts in texts_of_key.items():
        xi = wm.projectors[0](noise(wm, key, k)).to(a)  # (d_out, d_in)
        out[texts] = a[texts] @ xi.T
    return out


def ready(
    model: PreTrainedModel, wm: Watermark, keys: Sequence[Key], n_texts: int
) -> PlacedWatermark:
    """Validate model, watermark and keys; return the watermark on its base model.

    Raises:
        PerturbedModelError, KeyMismatchError: as in ``score.score``.
        InvalidWatermarkError: if the model has no such weight, or the weight is not local; or if
            there are several weights.
        InvalidTextError: if the number of keys is not that of the texts.
    """
    wm, keys = perturb.ready(model, wm, keys)
    require_single(wm, "token-level keys")
    if len(keys) != n_texts:
        raise InvalidTextError(f"keys: expected one key per text, {n_texts}, got {len(keys)}")
    if not gradients.is_local(model, wm.linear):
        raise InvalidWatermarkError(
            "token-level keys: expected a weight that changes only the prediction at its own"
            f" position (o_proj, q_proj or MLP of the last block, or the head), got {wm.weight}"
        )
    return wm


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: Texts,
    n_tokens: int,
    wm: Watermark,
    keys: Sequence[Key],
    *,
    seed: int = 0,
    top_p: float = 1.0,
    temperature: float = 1.0,
    until_end: bool = False,
) -> list[list[int]]:
    """Continue each prompt by Algorithm 3: token k is written under θ + ξ_k of the prompt's key.

    The random numbers are those of :func:`generate.sample` for this seed. All prompts form one
    batch. The weight is not changed: ξ_k·a is added to the layer's output at the position that
    predicts token k.
    """
    prompts = require_list(prompts, "prompts: expected a list of token ids each")
    wm = ready(model, wm, keys, len(prompts))
    step = 0  # k

    def add(_, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        a = inputs[0].view(len(prompts), -1, inputs[0].shape[-1])  # (texts, positions, d_in)
        moved = output.view(*a.shape[:-1], -1).clone()
        moved[:, -1] += added(wm, keys, step, a[:, -1])
        return moved.view(output.shape)

    def advance(done: int, _: int) -> None:
        nonlocal step
        step = done

    with (
        perturb.flagged_as_perturbed(model, f"{len(set(keys))} keys"),
        wm.linear.module.register_forward_hook(add),
    ):
        return generate.sample(
            model,
            prompts,
            n_tokens,
            seed=seed,
            top_p=top_p,
            temperature=temperature,
            until_end=until_end,
            batch_size=len(prompts),
            on_step=advance,
        )


def per_token(
    model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, keys: Sequence[Key]
) -> pd.DataFrame:
    """Return Γ_k of each token of each response, under the key of its text.

    Returns:
        One row per token: ``text``, ``position`` (k, from 0), ``token_id``, ``gamma`` and
        ``grad_norm`` = ‖G_k‖ (or ‖PG_k‖). The gradient of a certain token is 0; its ``gamma`` is
        −∞, which is never a hit and keeps the level.
    """
    pairs = list(tokens.Reader(model).pairs(prompts, responses).values())
    wm = ready(model, wm, keys, len(pairs))
    factors = [gradients.factors(model, wm.linear, *pair) for pair in pairs]
    a = pad_sequence([of_text.a for of_text in factors], batch_first=True)
    g = pad_sequence([of_text.g for of_text in factors], batch_first=True)
    n_positions = a.shape[1]
    slopes = []  # g_kᵀ ξ_k a_k of all texts, for each k
    for k in range(n_positions):
        moved = added(wm, keys, k, a[:, k])  # (texts, d_out)
        slopes.append((moved * g[:, k]).sum(-1))
    slope = torch.stack(slopes, dim=1)  # (texts, tokens)
    tables = []
    for text, (_, response) in enumerate(pairs):
        of_text = slope[text, : len(response)].double().cpu().numpy()
        size = _projected_norms(wm, factors[text])
        if not np.isfinite(of_text).all() or not np.isfinite(size).all() or not size.any():
            raise DegenerateScoreError(
                f"text {text}: expected finite gradients that are not all zero; the weight has no"
                " influence, or there was an overflow"
            )
        gamma = np.full(len(size), -np.inf)
        np.divide(of_text, wm.sigma * size, out=gamma, where=size > 0)
        columns = {
            "text": text,
            "position": range(len(response)),
            "token_id": response,
            "gamma": gamma,
            "grad_norm": size,
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def _projected_norms(wm: PlacedWatermark, factors: Factors) -> Float[np.ndarray, " k"]:
    """‖PG_kQ‖ = ‖Pg_k‖·‖Qa_k‖ of each token."""
    a = rank_reduce.project_out(factors.a.T, wm.projectors[0].right)
    g = rank_reduce.project_out(factors.g.T, wm.projectors[0].left)
    return (a.norm(dim=0) * g.norm(dim=0)).double().cpu().numpy()


def from_gammas(gammas: pd.DataFrame, test: str = "hits", alpha_0: float = 0.5) -> pd.DataFrame:
    """Test each text, given :func:`per_token`'s table or part of its rows.

    Args:
        test: with ``"hits"``, the statistic is the number of hits, which is Algorithm 4 for every
            λ' at once: the p-value is the smallest exact level of a quantile test that detects the
            text. With ``"sum"``, the statistic is ψ.
        alpha_0: the level of one token's test (½: the sign test).

    Returns:
        One row per text: ``text``, ``n_tokens``, ``statistic``, ``p_value``, ``log10_p``.
    """
    rows = []
    for text, of_text in gammas.groupby("text"):
        gamma = of_text["gamma"].to_numpy()
        size = of_text["grad_norm"].to_numpy()
        moves = size > 0  # if no token does, ψ is −∞
        psi = gamma[moves] @ size[moves] / np.linalg.norm(size) if moves.any() else -np.inf
        hits = int((gamma >= stats.threshold(alpha_0)).sum())
        rows.append((text, len(of_text), hits if test == "hits" else psi))
    table = pd.DataFrame(rows, columns=["text", "n_tokens", "statistic"])
    statistic = table["statistic"]
    if test == "hits":
        return table.assign(**kgw.exact_tail(statistic, table["n_tokens"], alpha_0))
    return table.assign(p_value=norm.sf(statistic), log10_p=norm.logsf(statistic) / np.log(10))
