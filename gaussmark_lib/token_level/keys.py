"""A noise for each token: Algorithms 3 and 4 of the paper (App. "Robustness to Corruptions"), which it left unmeasured.

    generate:  v_k ~ p_{θ + ξ_k}(· | x, v_<k),   ξ_1, ξ_2, … independent N(0, σ² I)
    detect:    Γ_k = ⟨ξ_k, G_k⟩ / (σ‖G_k‖),      G_k = ∇_θ log p_θ(v_k | x, v_<k)

Under the null the Γ_k are independent N(0, 1), so that hits (Γ_k ≥ τ) can be counted: ``quantile_test``. They can be added up too, by their
weight: ψ = Σ_k ⟨ξ_k, G_k⟩ / (σ √Σ_k ‖G_k‖²) is N(0, 1), and leans like the one-key ψ, whose ‖Σ_k G_k‖² has the mean Σ_k ‖G_k‖².

Key k belongs to *position* k: what is inserted or deleted shifts all tokens behind it away from their keys.

In the last block. Where a token's prediction depends on the weight through the token's own position only (o_proj, q_proj and MLP of the
last block, and the head), nothing that a cache holds depends on ξ_k, so cached generation is exact; and G_k = g_k a_kᵀ has rank one, so that
one backward pass gives every Γ_k = g_kᵀ ξ_k a_k / (σ‖g_k‖‖a_k‖). ``gradients.is_local`` asks the model whether it is so. Elsewhere
each token is generated from the whole text anew, and has a backward pass of its own: right, but slow.

=========  ==================================================================
paper      here
=========  ==================================================================
ξ_k        ``noise(wm, key, k)``: drawn when needed, one in memory at a time
K keys     one ``Key``, from whose secret those of all positions follow
Γ_k        ``gamma``; with ``grad_norm`` = ‖G_k‖
=========  ==================================================================
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from gaussmark_lib import generate, models, perturb, rank_reduce, stats, tokens
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.keys import Key
from gaussmark_lib.token_level import gradients, quantile_test
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.watermark import PlacedWatermark, Watermark


def key_of(key: Key, k: int) -> Key:
    """The key of position k ≥ 0; neither the other positions' keys nor ``key`` itself can be computed from it."""
    return Key(hashlib.sha256(b"gaussmark token key" + key.secret + k.to_bytes(8, "big")).digest()[:16])


def noise(wm: PlacedWatermark, key: Key, k: int) -> Float[Tensor, "d_out d_in"]:
    """ξ_k before any projection, float32 on the CPU."""
    return perturb.isotropic(key_of(key, k), wm.sigma, wm.linear.shape)


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompts: Texts, n_tokens: int, wm: Watermark, key: Key, *, seed: int = 0, progress: bool = False
) -> list[list[int]]:
    """Algorithm 3: continues each prompt, token k under θ + ξ_k, with the random numbers that :func:`generate.sample` has for this seed.

    All prompts in one batch, so that a noise is drawn once. The model is bit for bit the same afterwards, also after an exception.

    Raises:
        PerturbedModelError, InvalidTextError, InvalidModelError, UnknownWeightError: as ``generate.sample`` and ``perturb.watermarked``.
    """
    perturb.refuse_perturbed(model)
    prompts = generate.checked(model, prompts, n_tokens, top_p=1.0, temperature=1.0, batch_size=1)
    wm = wm.on(model)
    keep_cache = gradients.is_local(model, wm.linear)
    uniforms = torch.from_numpy(generate.uniform(seed, len(prompts), n_tokens)).to(model.device)
    ids, mask = tokens.pad(prompts, "left", model.device)
    cache = None
    with models.evaluating(model):
        for k in tqdm(range(n_tokens), desc="generating", unit="step", disable=not progress):
            new = ids if cache is None else ids[:, -1:]
            position = (mask.cumsum(-1) - 1).clamp_min(0)[:, -new.shape[1] :]
            with perturb.moved(model, wm, wm.project(noise(wm, key, k)), by=key.key_id):
                out = model(input_ids=new, attention_mask=mask, position_ids=position, past_key_values=cache, use_cache=keep_cache)
            cache = out.past_key_values if keep_cache else None
            token = generate.pick(out.logits[:, -1], uniforms[:, k], top_p=1.0, temperature=1.0)
            ids, mask = torch.cat([ids, token[:, None]], dim=1), torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
    return ids[:, -n_tokens:].tolist()


def per_token(model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, key: Key) -> pd.DataFrame:
    """Γ_k of each token of each response.

    Returns:
        One row a token: ``text``, ``position`` (k, from 0), ``token_id``, ``gamma`` and ``grad_norm`` = ‖G_k‖ (‖PG_k‖ with a rank). A token
        that is certain has no gradient: its ``gamma`` is −∞, never a hit, which keeps the level.

    Raises:
        PerturbedModelError, InvalidTextError, UnknownWeightError, DegenerateScoreError: as ``score.score``.
    """
    return per_token_of_keys(model, prompts, responses, wm, [key])[0]


def per_token_of_keys(model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, keys: Sequence[Key]) -> list[pd.DataFrame]:
    """:func:`per_token` for each of several keys. The gradients, which are most of the work, are the same for all of them."""
    return per_token_by_owner(model, [(prompts, responses, keys)], wm)


def per_token_by_owner(model: PreTrainedModel, groups: Sequence[tuple[Texts, Texts, Sequence[Key]]], wm: Watermark) -> list[pd.DataFrame]:
    """:func:`per_token` of several groups of texts, each under keys of its own: (prompts, responses, keys). No noise is drawn twice.

    Returns:
        A table a group and key of it, in order.
    """
    perturb.refuse_perturbed(model)
    wm = wm.on(model)
    measure = _by_factors if gradients.is_local(model, wm.linear) else _by_gradients
    checked = [_Group(list(tokens.checked_pairs(model, x, y).values()), keys) for x, y, keys in groups]
    return [leaning.table(wm.sigma) for leaning in measure(model, wm, checked)]


@dataclass(frozen=True)
class _Group:
    """Texts, and the keys that each of them is tested for."""

    pairs: list[Pair]
    keys: Sequence[Key]


@dataclass(frozen=True)
class _Leaning:
    """Texts under one key: of each its ``slopes`` ⟨ξ_k, PG_k⟩ and its ``norms`` ‖PG_k‖, a number a token."""

    pairs: list[Pair]
    slopes: list[Float[Tensor, " _"]]
    norms: list[Float[Tensor, " _"]]

    def table(self, sigma: float) -> pd.DataFrame:
        rows = []
        for text, (_, response) in enumerate(self.pairs):
            slope, length = (values[text].double().cpu().numpy() for values in (self.slopes, self.norms))
            if not np.isfinite(slope).all() or not np.isfinite(length).all() or not length.any():
                raise DegenerateScoreError(
                    f"text {text}: expected finite gradients that are not all zero; a weight without influence, or an overflow"
                )
            with np.errstate(divide="ignore", invalid="ignore"):
                gamma = np.where(length > 0, slope / (sigma * length), -np.inf)
            rows.append(pd.DataFrame({"text": text, "position": range(len(response)), "token_id": response, "gamma": gamma, "grad_norm": length}))
        return pd.concat(rows, ignore_index=True)


Factors = tuple[Float[Tensor, "_ d_in"], Float[Tensor, "_ d_out"]]  # Qa_k and Pg_k of each token


def _by_factors(model: PreTrainedModel, wm: PlacedWatermark, groups: Sequence[_Group]) -> list[_Leaning]:
    """Of a local weight: one backward pass a text, and each key's noises drawn once for all texts that it is tested on."""
    factors = [[_factors(model, wm, *pair) for pair in group.pairs] for group in groups]
    slopes: dict[tuple[int, bytes], list[Tensor]] = {}
    for key in {key.secret: key for group in groups for key in group.keys}.values():
        mine = [(g, i) for g, group in enumerate(groups) if key in group.keys for i in range(len(group.pairs))]
        for (g, _), slope in zip(mine, _along(wm, key, [factors[g][i] for g, i in mine]), strict=True):
            slopes.setdefault((g, key.secret), []).append(slope)
    norms = [[a.norm(dim=-1) * g.norm(dim=-1) for a, g in of_group] for of_group in factors]
    return [_Leaning(group.pairs, slopes[g, key.secret], norms[g]) for g, group in enumerate(groups) for key in group.keys]


def _factors(model: PreTrainedModel, wm: PlacedWatermark, prompt: Sequence[int], response: Sequence[int]) -> Factors:
    a, g = gradients.factors(model, wm.linear, prompt, response)
    return rank_reduce.project_out(a.T, wm.project.right).T, rank_reduce.project_out(g.T, wm.project.left).T


def _along(wm: PlacedWatermark, key: Key, factors: Sequence[Factors]) -> list[Float[Tensor, " _"]]:
    """g_kᵀ ξ_k a_k of all texts; each noise is drawn once."""
    slopes = [torch.zeros(len(a)) for a, _ in factors]
    for k in range(max(len(a) for a, _ in factors)):
        there = [i for i, (a, _) in enumerate(factors) if k < len(a)]
        a, g = (torch.stack([factors[i][part][k] for i in there]) for part in (0, 1))
        found = ((g @ noise(wm, key, k).to(g)) * a).sum(-1).cpu()
        for i, slope in zip(there, found, strict=True):
            slopes[i][k] = slope
    return slopes


def _by_gradients(model: PreTrainedModel, wm: PlacedWatermark, groups: Sequence[_Group]) -> list[_Leaning]:
    """Of any weight: a backward pass a token."""
    found = []
    for group in groups:
        slopes, norms = [[] for _ in group.keys], []
        for prompt, response in group.pairs:
            numbers = []
            for k, gradient in enumerate(gradients.each(model, wm.linear, prompt, response)):
                gradient = wm.project(gradient)
                along = [(noise(wm, key, k).to(gradient) * gradient).sum() for key in group.keys]
                numbers.append(torch.stack([gradient.norm(), *along]))
            length, *by_key = torch.stack(numbers).unbind(-1)
            norms.append(length)
            for of_key, slope in zip(slopes, by_key, strict=True):
                of_key.append(slope)
        found += [_Leaning(group.pairs, of_key, norms) for of_key in slopes]
    return found


def score(model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, key: Key, *, alpha_0: float = 0.5) -> pd.DataFrame:
    """Algorithm 4 for every λ' at once: the p-value is the smallest exact level of a quantile test that detects the text.

    Args:
        alpha_0: level of one token's test; ½ is the sign test.

    Returns:
        One row a text: ``text, n_tokens``, ``hits``, ``p_hits`` with its ``log10_p_hits``, and for the sum: ``psi``, ``p_psi``, ``log10_p_psi``.
    """
    return from_gammas(per_token(model, prompts, responses, wm, key), alpha_0)


def from_gammas(gammas: pd.DataFrame, alpha_0: float = 0.5) -> pd.DataFrame:
    """:func:`score`'s table from that of :func:`per_token`, or from part of its rows, such as the first tokens of each text."""
    threshold = stats.threshold(alpha_0)
    rows = []
    for text, table in gammas.groupby("text"):
        gamma, length = table["gamma"].to_numpy(), table["grad_norm"].to_numpy()
        psi = gamma[length > 0] @ length[length > 0] / np.linalg.norm(length)
        rows.append((text, len(table), int((gamma >= threshold).sum()), psi))
    found = pd.DataFrame(rows, columns=["text", "n_tokens", "hits", "psi"])
    count = quantile_test.p_value(found["hits"], found["n_tokens"], alpha_0), quantile_test.log10_p(found["hits"], found["n_tokens"], alpha_0)
    return found.assign(p_hits=count[0], log10_p_hits=count[1], p_psi=norm.sf(found["psi"]), log10_p_psi=norm.logsf(found["psi"]) / np.log(10))
