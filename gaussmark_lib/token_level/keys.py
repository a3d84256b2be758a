"""A noise for each token: Algorithms 3 and 4 of the paper (App. "Robustness to Corruptions"), which
it left unmeasured.

    generate:  v_k ~ p_{θ + ξ_k}(· | x, v_<k),   ξ_1, ξ_2, … independent N(0, σ² I)
    detect:    Γ_k = ⟨ξ_k, G_k⟩ / (σ‖G_k‖),      G_k = ∇_θ log p_θ(v_k | x, v_<k)

Under the null the Γ_k are independent N(0, 1). Hits (Γ_k ≥ τ) can be counted: ``quantile_test``. Or
the Γ_k are added up by their weights: ψ = Σ_k ⟨ξ_k, G_k⟩ / (σ √Σ_k ‖G_k‖²) is N(0, 1), with the
one-key ψ's power, since Σ_k ‖G_k‖² is the mean of ‖Σ_k G_k‖².

Key k belongs to *position* k: an insertion or deletion shifts all later tokens off their keys.

For a local weight (``gradients``: o_proj, q_proj and MLP of the last block, and the head) no cache
depends on ξ_k, so cached generation is exact, and one backward pass gives every Γ_k = g_kᵀ ξ_k a_k
/ (σ‖g_k‖‖a_k‖). With any other weight each token is generated from the whole text anew, and has its
own backward pass, which is slow. ξ_k is ``noise(wm, key, k)``, drawn when needed; one ``Key`` gives
the keys of all positions.
"""

import hashlib
from collections.abc import Sequence
from itertools import islice

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import binding, checks, generate, models, perturb, rank_reduce, stats, tokens
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.keys import Key, checked, listed
from gaussmark_lib.token_level import gradients, quantile_test
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.watermark import PlacedWatermark, Watermark


def key_of(key: Key, k: int) -> Key:
    """The key of position k ≥ 0; neither the other positions' keys nor ``key`` itself can be
    computed from it.
    """
    checks.whole(k, "k", least=0)
    return Key(
        hashlib.sha256(
            b"gaussmark token key" + checked(key).secret + k.to_bytes(8, "big")
        ).digest()[:16]
    )


def noise(wm: PlacedWatermark, key: Key, k: int) -> Float[Tensor, "d_out d_in"]:
    """ξ_k before any projection, float32 on the CPU."""
    return perturb.isotropic(key_of(key, k), wm.sigma, wm.linear.shape)


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: Texts,
    n_tokens: int,
    wm: Watermark,
    key: Key,
    *,
    seed: int = 0,
    top_p: float = 1.0,
    temperature: float = 1.0,
    until_end: bool = False,
) -> list[list[int]]:
    """Algorithm 3: continues each prompt, token k under θ + ξ_k, with the random numbers of
    :func:`generate.sample` for this seed.

    All prompts form one batch, so that each noise is drawn once. Afterwards the model is bit for
    bit the same, also after an exception.

    Raises:
        PerturbedModelError, InvalidTextError, InvalidModelError, UnknownWeightError,
            KeyMismatchError: as ``generate.sample`` and ``perturb.watermarked``.
    """
    perturb.refuse_perturbed(model)
    prompts = generate.checked(model, prompts, n_tokens, top_p, temperature, batch_size=1)
    wm = perturb.placed(model, wm)
    checked(key).check(binding.Use(wm))
    keep_cache = gradients.is_local(model, wm.linear)
    uniforms = torch.from_numpy(generate.uniform(seed, len(prompts), n_tokens)).to(model.device)
    ids, mask = tokens.pad(prompts, "left", model.device)
    cache = None
    with models.evaluating(model):
        for k in range(n_tokens):
            new = ids if cache is None else ids[:, -1:]
            position = (mask.cumsum(-1) - 1).clamp_min(0)[:, -new.shape[1] :]
            with perturb.moved(model, wm, wm.project(noise(wm, key, k)), by=key.key_id):
                out = model(
                    input_ids=new,
                    attention_mask=mask,
                    position_ids=position,
                    past_key_values=cache,
                    use_cache=keep_cache,
                )
            cache = out.past_key_values if keep_cache else None
            token = generate.pick(out.logits[:, -1], uniforms[:, k], top_p, temperature)
            ids, mask = (
                torch.cat([ids, token[:, None]], dim=1),
                torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1),
            )
    chosen = ids[:, -n_tokens:].tolist()
    return generate.cut(model, chosen) if until_end else chosen


def per_token(
    model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, key: Key
) -> pd.DataFrame:
    """Γ_k of each token of each response: ``text``, ``position`` (k, from 0), ``token_id``,
    ``gamma`` and ``grad_norm`` = ‖G_k‖ (or ‖PG_k‖).

    A token that is certain has no gradient: its ``gamma`` is −∞, never a hit, which keeps the
    level.

    Raises:
        PerturbedModelError, InvalidTextError, UnknownWeightError, DegenerateScoreError,
            KeyMismatchError: as ``score.score``.
    """
    return per_token_of_keys(model, prompts, responses, wm, [key])[0]


def per_token_of_keys(
    model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, keys: Sequence[Key]
) -> list[pd.DataFrame]:
    """:func:`per_token` for each of several keys. They share the gradients, which are most of the
    work.
    """
    return per_token_by_owner(model, [(prompts, responses, keys)], wm)


def per_token_by_owner(
    model: PreTrainedModel, groups: Sequence[tuple[Texts, Texts, Sequence[Key]]], wm: Watermark
) -> list[pd.DataFrame]:
    """:func:`per_token` of several groups (prompts, responses, keys), a table for each group and
    key in order. No noise is drawn twice.
    """
    perturb.refuse_perturbed(model)
    wm = perturb.placed(model, wm)
    groups, use = [(x, y, listed(keys)) for x, y, keys in groups], binding.Use(wm)
    for key in {key for _, _, keys in groups for key in keys}:
        key.check(use)
    measure = _by_factors if gradients.is_local(model, wm.linear) else _by_gradients
    checked = [(list(tokens.checked_pairs(model, x, y).values()), keys) for x, y, keys in groups]
    return [
        _table(pairs, slopes, norms, wm.sigma)
        for pairs, slopes, norms in measure(model, wm, checked)
    ]


Group = tuple[list[Pair], Sequence[Key]]  # texts, and the keys that each of them is tested for
Numbers = Sequence[Float[Tensor, " _"]]  # one for each token of each text
Leaning = tuple[list[Pair], Numbers, Numbers]  # texts under one key, with ⟨ξ_k, PG_k⟩ and ‖PG_k‖
Factors = tuple[Float[Tensor, "_ d_in"], Float[Tensor, "_ d_out"]]  # Qa_k and Pg_k of each token


def _table(pairs: list[Pair], slopes: Numbers, norms: Numbers, sigma: float) -> pd.DataFrame:
    rows = []
    for text, ((_, response), *numbers) in enumerate(zip(pairs, slopes, norms, strict=True)):
        slope, length = (values.double().cpu().numpy() for values in numbers)
        if not np.isfinite(slope).all() or not np.isfinite(length).all() or not length.any():
            raise DegenerateScoreError(
                f"text {text}: expected finite gradients that are not all zero; a weight without"
                " influence, or an overflow"
            )
        with np.errstate(divide="ignore", invalid="ignore"):
            gamma = np.where(length > 0, slope / (sigma * length), -np.inf)
        rows.append(
            pd.DataFrame(
                {
                    "text": text,
                    "position": range(len(response)),
                    "token_id": response,
                    "gamma": gamma,
                    "grad_norm": length,
                }
            )
        )
    return pd.concat(rows, ignore_index=True)


def _by_factors(
    model: PreTrainedModel, wm: PlacedWatermark, groups: Sequence[Group]
) -> list[Leaning]:
    """Of a local weight: one backward pass a text, and each key's noises drawn once for all texts
    that it is tested on.
    """
    factors = [[_factors(model, wm, *pair) for pair in pairs] for pairs, _ in groups]
    slopes: dict[tuple[int, str], list[Tensor]] = {}
    names = [
        {key.fingerprint for key in keys} for _, keys in groups
    ]  # bound or not, one secret is one stream of noises
    for name, key in {key.fingerprint: key for _, keys in groups for key in keys}.items():
        tested = [g for g in range(len(groups)) if name in names[g]]
        along = iter(_along(wm, key, [of_text for g in tested for of_text in factors[g]]))
        slopes |= {(g, name): list(islice(along, len(factors[g]))) for g in tested}
    norms = [[a.norm(dim=-1) * g.norm(dim=-1) for a, g in of_group] for of_group in factors]
    return [
        (pairs, slopes[g, key.fingerprint], norms[g])
        for g, (pairs, keys) in enumerate(groups)
        for key in keys
    ]


def _factors(
    model: PreTrainedModel, wm: PlacedWatermark, prompt: Sequence[int], response: Sequence[int]
) -> Factors:
    a, g = gradients.factors(model, wm.linear, prompt, response)
    return (
        rank_reduce.project_out(a.T, wm.project.right).T,
        rank_reduce.project_out(g.T, wm.project.left).T,
    )


def _along(wm: PlacedWatermark, key: Key, factors: Sequence[Factors]) -> list[Float[Tensor, " _"]]:
    """g_kᵀ ξ_k a_k of all texts; each noise is drawn once."""
    slopes = [torch.zeros(len(a), dtype=torch.float32) for a, _ in factors]
    for k in range(max(len(a) for a, _ in factors)):
        there = [i for i, (a, _) in enumerate(factors) if k < len(a)]
        a, g = (torch.stack([factors[i][part][k] for i in there]) for part in (0, 1))
        of_token = ((g @ noise(wm, key, k).to(g)) * a).sum(-1).cpu()
        for i, slope in zip(there, of_token, strict=True):
            slopes[i][k] = slope
    return slopes


def _by_gradients(
    model: PreTrainedModel, wm: PlacedWatermark, groups: Sequence[Group]
) -> list[Leaning]:
    """Of any weight: a backward pass a token."""
    leanings = []
    for pairs, keys in groups:
        norms, *slopes = zip(
            *(_norms_and_slopes(model, wm, keys, *pair) for pair in pairs), strict=True
        )
        leanings += [(pairs, of_key, norms) for of_key in slopes]
    return leanings


def _norms_and_slopes(
    model: PreTrainedModel,
    wm: PlacedWatermark,
    keys: Sequence[Key],
    prompt: Sequence[int],
    response: Sequence[int],
) -> Float[Tensor, "numbers tokens"]:
    """‖PG_k‖ of each token, and below it ⟨ξ_k, PG_k⟩ for each key."""
    columns = []
    for k, gradient in enumerate(gradients.each(model, wm.linear, prompt, response)):
        gradient = wm.project(gradient)
        columns.append(
            torch.stack(
                [
                    gradient.new_tensor(rank_reduce.norm(gradient)),
                    *((noise(wm, key, k).to(gradient) * gradient).sum() for key in keys),
                ]
            )
        )
    return torch.stack(columns, dim=-1)


def score(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: Watermark,
    key: Key,
    *,
    alpha_0: float = 0.5,
) -> pd.DataFrame:
    """Algorithm 4 for every λ' at once: the p-value is the smallest exact level of a quantile test
    that detects the text.

    One row a text: ``text, n_tokens``; ``hits, p_hits, log10_p_hits``, ``alpha_0`` being the level
    of one token's test (½: the sign test); and for the sum ``psi, p_psi, log10_p_psi``.
    """
    return from_gammas(per_token(model, prompts, responses, wm, key), alpha_0)


def from_gammas(gammas: pd.DataFrame, alpha_0: float = 0.5) -> pd.DataFrame:
    """:func:`score`'s table from that of :func:`per_token`, or from part of its rows, such as the
    first tokens of each text.
    """
    threshold = stats.threshold(alpha_0)
    rows = []
    for text, of_text in gammas.groupby("text"):
        gamma, length = of_text["gamma"].to_numpy(), of_text["grad_norm"].to_numpy()
        norm_g = np.linalg.norm(
            length
        )  # 0 where all tokens are certain, which says nothing of any key
        psi = gamma[length > 0] @ length[length > 0] / norm_g if norm_g else -np.inf
        rows.append((text, len(of_text), int((gamma >= threshold).sum()), psi))
    table = pd.DataFrame(rows, columns=["text", "n_tokens", "hits", "psi"])
    counted = table["hits"], table["n_tokens"], alpha_0
    table = table.assign(
        p_hits=quantile_test.p_value(*counted), log10_p_hits=quantile_test.log10_p(*counted)
    )
    return table.assign(
        p_psi=norm.sf(table["psi"]), log10_p_psi=norm.logsf(table["psi"]) / np.log(10)
    )
