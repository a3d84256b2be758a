"""A noise for each token: Algorithms 3 and 4 of the paper (App. "Robustness to Corruptions"), which it left unmeasured.

    generate:  v_k ~ p_{θ + ξ_k}(· | x, v_<k),   ξ_1, ξ_2, … independent N(0, σ² I)
    detect:    Γ_k = ⟨ξ_k, G_k⟩ / (σ‖G_k‖),      G_k = ∇_θ log p_θ(v_k | x, v_<k)

Under the null the Γ_k are independent N(0, 1), so that hits (Γ_k ≥ τ) can be counted: ``quantile_test``. They can be added up too, by their
weight: ψ = Σ_k ⟨ξ_k, G_k⟩ / (σ √Σ_k ‖G_k‖²) is N(0, 1), and leans like the one-key ψ, whose ‖Σ_k G_k‖² has the mean Σ_k ‖G_k‖².

Key k belongs to *position* k: what is inserted or deleted shifts all tokens behind it away from their keys.

In the last block. Where a token's prediction depends on the weight through the token's own position only (o_proj, q_proj and MLP of the
last block, and the head), nothing that a cache holds depends on ξ_k, so cached generation is exact; and G_k = g_k a_kᵀ has rank one, so that
one backward pass gives every Γ_k = g_kᵀ ξ_k a_k / (σ‖g_k‖‖a_k‖). ``token_gradients.is_local`` asks the model whether it is so. Elsewhere
each token is generated from the whole text anew, and has a backward pass of its own: right, but slow.

=========  ==================================================================
paper      here
=========  ==================================================================
ξ_k        ``noise(key, k, wm, linear)``: drawn when needed, one in memory at a time
K keys     one ``Key``, from whose secret those of all positions follow
Γ_k        ``gamma``; with ``grad_norm`` = ‖G_k‖
=========  ==================================================================
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from gaussmark_lib import generate, gradients, models, perturb, quantile_test, rank_reduce, stats, token_gradients, tokens
from gaussmark_lib.errors import DegenerateScoreError, InvalidWatermarkError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.schemes import Texts


def key_of(key: Key, k: int) -> Key:
    """The key of position k ≥ 0; from it neither the others' nor the whole's can be computed."""
    return Key(hashlib.sha256(b"gaussmark token key" + key.secret + k.to_bytes(8, "big")).digest()[:16])


def noise(key: Key, k: int, wm: Watermark, linear: models.Linear) -> Float[Tensor, "d_out d_in"]:
    """ξ_k before any projection, float32 on the CPU."""
    return perturb._isotropic(key_of(key, k), wm.sigma, linear.shape)


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompts: Texts, n_tokens: int, wm: Watermark, key: Key, *, seed: int = 0, progress: bool = False
) -> list[list[int]]:
    """Algorithm 3: continues each prompt, token k under θ + ξ_k, with the luck that :func:`generate.sample` has for this seed.

    All prompts in one batch, so that a noise is drawn once. The model is bit for bit the same afterwards, also after an exception.

    Raises:
        PerturbedModelError, InvalidTextError, InvalidModelError, UnknownWeightError: as ``generate.sample`` and ``perturb.watermarked``.
    """
    perturb.refuse_perturbed(model)
    prompts = generate.checked(model, prompts, n_tokens, top_p=1.0, temperature=1.0, batch_size=1)
    linear = wm.find(model)
    project = wm.projector(linear)
    keep_cache = token_gradients.is_local(model, linear)
    luck = torch.from_numpy(generate.uniform(seed, len(prompts), n_tokens)).to(model.device)
    ids, mask = tokens.pad(prompts, "left", model.device)
    cache = None
    with models.evaluating(model), perturb.marked(model, key.key_id), _put_back(linear) as theta:
        for k in tqdm(range(n_tokens), desc="generating", unit="step", disable=not progress):
            xi = linear.oriented(project(noise(key, k, wm, linear))).to(theta.device)
            linear.parameter.data = perturb.added(theta, xi)
            new = ids if cache is None else ids[:, -1:]
            position = (mask.cumsum(-1) - 1).clamp_min(0)[:, -new.shape[1] :]
            out = model(input_ids=new, attention_mask=mask, position_ids=position, past_key_values=cache, use_cache=keep_cache)
            cache = out.past_key_values if keep_cache else None
            token = generate.pick(out.logits[:, -1], luck[:, k], top_p=1.0, temperature=1.0)
            ids, mask = torch.cat([ids, token[:, None]], dim=1), torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
    return ids[:, -n_tokens:].tolist()


@contextmanager
def _put_back(linear: models.Linear) -> Iterator[Tensor]:
    theta = linear.parameter.data
    try:
        yield theta
    finally:
        linear.parameter.data = theta


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
    linear = wm.find(model)
    project = wm.projector(linear)
    pairs = [list(gradients.checked_pairs(model, prompts, responses, None).values()) for prompts, responses, _ in groups]
    per_text = _rank_one if token_gradients.is_local(model, linear) else _whole_gradients
    wanted = [(texts, keys) for texts, (_, _, keys) in zip(pairs, groups, strict=True)]
    return [_table(texts, *found, wm.sigma) for texts, found in per_text(model, linear, wanted, wm, project)]


def _table(pairs: list, slopes: list[Tensor], norms: list[Tensor], sigma: float) -> pd.DataFrame:
    rows = []
    for text, (_, response) in enumerate(pairs):
        slope, length = (values[text].double().cpu().numpy() for values in (slopes, norms))
        if not np.isfinite(slope).all() or not np.isfinite(length).all() or not length.any():
            raise DegenerateScoreError(f"text {text}: expected finite gradients that are not all zero; a weight without influence, or an overflow")
        with np.errstate(divide="ignore", invalid="ignore"):
            gamma = np.where(length > 0, slope / (sigma * length), -np.inf)
        rows.append(pd.DataFrame({"text": text, "position": range(len(response)), "token_id": response, "gamma": gamma, "grad_norm": length}))
    return pd.concat(rows, ignore_index=True)


Wanted = Sequence[tuple[list, Sequence[Key]]]  # (texts as pairs, keys)
Found = Iterator[tuple[list, tuple[list[Tensor], list[Tensor]]]]  # for each of them and key: its texts, ⟨ξ_k, PG_k⟩ and ‖PG_k‖ of each


def _rank_one(model, linear, wanted: Wanted, wm: Watermark, project: rank_reduce.Projector) -> Found:
    factors = [[_factors(model, linear, project, *pair) for pair in pairs] for pairs, _ in wanted]
    slopes: dict[tuple[int, bytes], list[Tensor]] = {}
    for key in {key.secret: key for _, keys in wanted for key in keys}.values():
        mine = [(group, i) for group, (pairs, keys) in enumerate(wanted) if key in keys for i in range(len(pairs))]
        along = _along(key, wm, linear, [factors[group][i] for group, i in mine])
        for (group, _), slope in zip(mine, along, strict=True):
            slopes.setdefault((group, key.secret), []).append(slope)
    for group, (pairs, keys) in enumerate(wanted):
        lengths = [a.norm(dim=-1) * g.norm(dim=-1) for a, g in factors[group]]
        for key in keys:
            yield pairs, (slopes[group, key.secret], lengths)


def _factors(model, linear, project: rank_reduce.Projector, prompt, response) -> tuple[Tensor, Tensor]:
    a, g = token_gradients.factors(model, linear, prompt, response)
    return rank_reduce.project_out(a.T, project.right).T, rank_reduce.project_out(g.T, project.left).T


def _along(key: Key, wm: Watermark, linear, factors: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """g_kᵀ ξ_k a_k of all texts; each noise is drawn once."""
    slopes = [torch.zeros(len(a)) for a, _ in factors]
    for k in range(max(len(a) for a, _ in factors)):
        there = [i for i, (a, _) in enumerate(factors) if k < len(a)]
        a, g = (torch.stack([factors[i][part][k] for i in there]) for part in (0, 1))
        found = ((g @ noise(key, k, wm, linear).to(g)) * a).sum(-1).cpu()
        for i, slope in zip(there, found, strict=True):
            slopes[i][k] = slope
    return slopes


def _whole_gradients(model, linear, wanted: Wanted, wm: Watermark, project: rank_reduce.Projector) -> Found:
    """The same by a backward pass a token."""
    for pairs, keys in wanted:
        slopes, norms = [[] for _ in keys], []
        for prompt, response in pairs:
            found = []
            for k, gradient in enumerate(token_gradients.each(model, linear, prompt, response)):
                gradient = project(gradient)
                found.append(torch.stack([gradient.norm(), *((noise(key, k, wm, linear).to(gradient) * gradient).sum() for key in keys)]))
            length, *by_key = torch.stack(found).unbind(-1)
            norms.append(length)
            for of_key, slope in zip(slopes, by_key, strict=True):
                of_key.append(slope)
        for of_key in slopes:
            yield pairs, (of_key, norms)


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


@dataclass(frozen=True)
class TokenKeys:
    """Token-level keys as a ``schemes.Scheme``, tested by the number of hits (``test="hits"``, Algorithm 4) or by their weighted sum (``"sum"``)."""

    wm: Watermark
    key: Key
    alpha_0: float = 0.5
    test: str = "hits"

    def __post_init__(self):
        if self.test not in ("hits", "sum"):
            raise InvalidWatermarkError(f"test: expected 'hits' or 'sum', got {self.test!r}")

    @property
    def name(self) -> str:
        return f"token keys, {self.test}"

    def generate(self, model: PreTrainedModel, prompts: Texts, n_tokens: int, *, seed: int = 0) -> list[list[int]]:
        return sample(model, prompts, n_tokens, self.wm, self.key, seed=seed)

    def score(self, model: PreTrainedModel, prompts: Texts, responses: Texts) -> pd.DataFrame:
        table = score(model, prompts, responses, self.wm, self.key, alpha_0=self.alpha_0)
        statistic = {"hits": "hits", "sum": "psi"}[self.test]
        return table.rename(columns={f"p_{statistic}": "p_value", f"log10_p_{statistic}": "log10_p"}).assign(statistic=table[statistic])

    def rekeyed(self, seed: int) -> Self:
        return replace(self, key=Key.from_seed(seed))
