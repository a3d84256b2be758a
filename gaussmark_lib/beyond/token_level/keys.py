"""A noise for each token: Algorithms 3 and 4 of the paper (App. "Robustness to Corruptions"), which
it left unmeasured.

    generate:  v_k ~ p_{θ + ξ_k}(· | x, v_<k),   ξ_1, ξ_2, … independent N(0, σ² I)
    detect:    Γ_k = ⟨ξ_k, G_k⟩ / (σ‖G_k‖),      G_k = ∇_θ log p_θ(v_k | x, v_<k)

Under the null the Γ_k are independent N(0, 1). Hits (Γ_k ≥ τ) can be counted: ``quantiles``. Or
the Γ_k are added up by their weights: ψ = Σ_k ⟨ξ_k, G_k⟩ / (σ √Σ_k ‖G_k‖²) is N(0, 1), with the
one-key ψ's power, since Σ_k ‖G_k‖² is the mean of ‖Σ_k G_k‖².

Key k belongs to *position* k: an insertion or deletion shifts all later tokens off their keys.

The weight must be local (``gradients``: o_proj, q_proj and MLP of the last block, and the head):
then no cache depends on ξ_k, so cached generation is exact, and one backward pass gives every Γ_k =
g_kᵀ ξ_k a_k / (σ‖g_k‖‖a_k‖). ξ_k is ``noise(wm, key, k)``, drawn when needed; one ``Key`` gives the
keys of all positions. Every function takes a key per text, so that n pairs of a key and a prompt
are one batch.
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
from gaussmark_lib.errors import (
    DegenerateScoreError,
    InvalidTextError,
    InvalidWatermarkError,
    require_list,
)
from gaussmark_lib.keys import Key
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import PlacedWatermark, Watermark


def key_of(key: Key, k: int) -> Key:
    """The key of position k ≥ 0; neither the other positions' keys nor ``key`` itself can be
    computed from it.
    """
    message = b"gaussmark token key" + key.secret + k.to_bytes(8, "big")
    return Key(hashlib.sha256(message).digest()[:16])


def noise(wm: PlacedWatermark, key: Key, k: int) -> Float[Tensor, "d_out d_in"]:
    """ξ_k before any projection, float32 on the CPU."""
    z = key_of(key, k).normals(wm.d, wm.sigma, np.float32)
    return torch.from_numpy(z).view(wm.linear.shape)


def added(
    wm: PlacedWatermark, keys: Sequence[Key], k: int, a: Float[Tensor, "texts d_in"]
) -> Float[Tensor, "texts d_out"]:
    """ξ_k·a of each text under its own key, projected. One noise is held at a time, and drawn once
    for all texts of its key.
    """
    texts = defaultdict(list)
    for text, key in enumerate(keys):
        texts[key].append(text)
    out = a.new_empty(len(a), wm.linear.shape[0])
    for key, of_key in texts.items():
        out[of_key] = a[of_key] @ wm.projectors[0](noise(wm, key, k)).to(a).T
    return out


def ready(
    model: PreTrainedModel, wm: Watermark, keys: Sequence[Key], n_texts: int
) -> PlacedWatermark:
    """The door: the watermark on its base model, where it is local and the keys are for it.

    Raises:
        PerturbedModelError, KeyMismatchError: as ``score.score``. InvalidWatermarkError: no such
            weight, or one that is not local. InvalidTextError: not a key per text.
    """
    wm, keys = perturb.ready(model, wm, keys)
    if len(keys) != n_texts:
        raise InvalidTextError(f"keys: expected one per text, {n_texts}, got {len(keys)}")
    if not gradients.is_local(model, wm.linear):
        raise InvalidWatermarkError(
            "token-level keys: expected a weight that changes no prediction but that of its own"
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
    """Algorithm 3: continues each prompt, token k under θ + ξ_k of the prompt's key, with the
    random numbers of :func:`generate.sample` for this seed.

    All prompts form one batch. The weight is not touched: ξ_k·a is added to the layer's output at
    the position that predicts token k.
    """
    prompts = require_list(prompts, "prompts: expected a list of token ids each")
    wm, step = ready(model, wm, keys, len(prompts)), 0

    def add(_, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        a = inputs[0].view(len(prompts), -1, inputs[0].shape[-1])  # (texts, positions, d_in)
        moved = output.view(*a.shape[:-1], -1).clone()
        moved[:, -1] += added(wm, keys, step, a[:, -1])
        return moved.view(output.shape)

    def advance(done: int, _: int) -> None:
        nonlocal step
        step = done

    settings = {"seed": seed, "top_p": top_p, "temperature": temperature, "until_end": until_end}
    with (
        perturb.marked(model, f"{len(set(keys))} keys"),
        wm.linear.module.register_forward_hook(add),
    ):
        return generate.sample(
            model, prompts, n_tokens, **settings, batch_size=len(prompts), on_step=advance
        )


def per_token(
    model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, keys: Sequence[Key]
) -> pd.DataFrame:
    """Γ_k of each token of each response under its own key: ``text``, ``position`` (k, from 0),
    ``token_id``, ``gamma`` and ``grad_norm`` = ‖G_k‖ (or ‖PG_k‖).

    A token that is certain has no gradient: its ``gamma`` is −∞, never a hit, which keeps the
    level.
    """
    pairs = list(tokens.Reader(model).pairs(prompts, responses).values())
    wm = ready(model, wm, keys, len(pairs))
    factors = [gradients.factors(model, wm.linear, *pair) for pair in pairs]
    a, g = (pad_sequence(parts, batch_first=True) for parts in zip(*factors, strict=True))
    slope = torch.stack(  # g_kᵀ ξ_k a_k, (texts, tokens)
        [(added(wm, keys, k, a[:, k]) * g[:, k]).sum(-1) for k in range(a.shape[1])], dim=1
    )
    tables = []
    for text, (_, response) in enumerate(pairs):
        of_text = slope[text, : len(response)].double().cpu().numpy()
        size = _projected_norms(wm, *factors[text])
        if not np.isfinite(of_text).all() or not np.isfinite(size).all() or not size.any():
            raise DegenerateScoreError(
                f"text {text}: expected finite gradients that are not all zero; a weight without"
                " influence, or an overflow"
            )
        gamma = np.full(len(size), -np.inf)
        np.divide(of_text, wm.sigma * size, out=gamma, where=size > 0)
        columns = {"text": text, "position": range(len(response)), "token_id": response}
        tables.append(pd.DataFrame(columns | {"gamma": gamma, "grad_norm": size}))
    return pd.concat(tables, ignore_index=True)


def _projected_norms(
    wm: PlacedWatermark, a: Float[Tensor, "k d_in"], g: Float[Tensor, "k d_out"]
) -> Float[np.ndarray, " k"]:
    """‖PG_kQ‖ = ‖Pg_k‖·‖Qa_k‖ of each token."""
    a = rank_reduce.project_out(a.T, wm.projectors[0].right)
    g = rank_reduce.project_out(g.T, wm.projectors[0].left)
    return (a.norm(dim=0) * g.norm(dim=0)).double().cpu().numpy()


def from_gammas(gammas: pd.DataFrame, test: str = "hits", alpha_0: float = 0.5) -> pd.DataFrame:
    """The test of each text, from :func:`per_token`'s table or part of its rows: ``text, n_tokens,
    statistic, p_value, log10_p``.

    ``hits``: Algorithm 4 for every λ' at once, the statistic is their number; the p-value is the
    smallest exact level of a quantile test that detects the text. ``alpha_0`` is the level of one
    token's test (½: the sign test). ``sum``: the statistic is ψ.
    """
    rows = []
    for text, of_text in gammas.groupby("text"):
        gamma, size = of_text["gamma"].to_numpy(), of_text["grad_norm"].to_numpy()
        moves = size > 0  # where no token does, ψ is −∞
        psi = gamma[moves] @ size[moves] / np.linalg.norm(size) if moves.any() else -np.inf
        hits = int((gamma >= stats.threshold(alpha_0)).sum())
        rows.append((text, len(of_text), hits if test == "hits" else psi))
    table = pd.DataFrame(rows, columns=["text", "n_tokens", "statistic"])
    statistic = table["statistic"]
    if test == "hits":
        return table.assign(**kgw.exact_tail(statistic, table["n_tokens"], alpha_0))
    return table.assign(p_value=norm.sf(statistic), log10_p=norm.logsf(statistic) / np.log(10))
