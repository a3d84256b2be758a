"""A noise for each token: Algorithms 3 and 4 of the paper (App. "Robustness to Corruptions"), which
it left unmeasured.

    generate:  v_k ~ p_{θ + ξ_k}(· | x, v_<k),   ξ_1, ξ_2, … independent N(0, σ² I)
    detect:    Γ_k = ⟨ξ_k, G_k⟩ / (σ‖G_k‖),      G_k = ∇_θ log p_θ(v_k | x, v_<k)

Under the null the Γ_k are independent N(0, 1). Hits (Γ_k ≥ τ) can be counted: ``quantile_test``. Or
the Γ_k are added up by their weights: ψ = Σ_k ⟨ξ_k, G_k⟩ / (σ √Σ_k ‖G_k‖²) is N(0, 1), with the
one-key ψ's power, since Σ_k ‖G_k‖² is the mean of ‖Σ_k G_k‖².

Key k belongs to *position* k: an insertion or deletion shifts all later tokens off their keys.

The weight must be local (``gradients``: o_proj, q_proj and MLP of the last block, and the head):
then no cache depends on ξ_k, so cached generation is exact, and one backward pass gives every Γ_k =
g_kᵀ ξ_k a_k / (σ‖g_k‖‖a_k‖). ξ_k is ``noise(wm, key, k)``, drawn when needed; one ``Key`` gives the
keys of all positions.
"""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import binding, generate, kgw, models, perturb, rank_reduce, stats, tokens
from gaussmark_lib.errors import DegenerateScoreError, InvalidWatermarkError
from gaussmark_lib.keys import Key, listed
from gaussmark_lib.token_level import gradients
from gaussmark_lib.token_level.gradients import Factors
from gaussmark_lib.tokens import Pair, Texts
from gaussmark_lib.watermark import PlacedWatermark, Watermark


def key_of(key: Key, k: int) -> Key:
    """The key of position k ≥ 0; neither the other positions' keys nor ``key`` itself can be
    computed from it.
    """
    message = b"gaussmark token key" + key.secret + k.to_bytes(8, "big")
    return Key(hashlib.sha256(message).digest()[:16])


def noise(wm: PlacedWatermark, key: Key, k: int) -> Float[Tensor, "d_out d_in"]:
    """ξ_k before any projection, float32 on the CPU."""
    return perturb.isotropic(key_of(key, k), wm.sigma, wm.linear.shape)


def ready(model: PreTrainedModel, wm: Watermark, keys: Iterable[Key]) -> PlacedWatermark:
    """The door: the watermark on its base model, where it is local and the keys are for it.

    Raises:
        PerturbedModelError, UnknownWeightError, KeyMismatchError: as ``score.score``.
        InvalidWatermarkError: a weight that is not local.
    """
    perturb.refuse_perturbed(model)
    wm = perturb.placed(model, wm)
    use = binding.Use(wm)
    for key in {*listed(keys)}:
        key.check(use)
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
    """
    wm = ready(model, wm, [key])
    prompts = generate.checked(model, prompts, n_tokens, top_p, temperature, batch_size=1)
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
                    use_cache=True,
                )
            cache = out.past_key_values
            token = generate.pick(out.logits[:, -1], uniforms[:, k], top_p, temperature)
            ids = torch.cat([ids, token[:, None]], dim=1)
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
    chosen = ids[:, -n_tokens:].tolist()
    return generate.cut(model, chosen) if until_end else chosen


def per_token(
    model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, key: Key
) -> pd.DataFrame:
    """Γ_k of each token of each response: ``text``, ``position`` (k, from 0), ``token_id``,
    ``gamma`` and ``grad_norm`` = ‖G_k‖ (or ‖PG_k‖).

    A token that is certain has no gradient: its ``gamma`` is −∞, never a hit, which keeps the
    level.
    """
    return per_token_of_keys(model, prompts, responses, wm, [key])[0]


def per_token_of_keys(
    model: PreTrainedModel, prompts: Texts, responses: Texts, wm: Watermark, keys: Sequence[Key]
) -> list[pd.DataFrame]:
    """:func:`per_token` for each of several keys, which share the gradients."""
    return per_token_by_owner(model, [(prompts, responses, listed(keys))], wm)


def per_token_by_owner(
    model: PreTrainedModel, groups: Sequence[tuple[Texts, Texts, Sequence[Key]]], wm: Watermark
) -> list[pd.DataFrame]:
    """:func:`per_token` of several groups (prompts, responses, keys), a table for each group and
    key in order. No noise is drawn twice.
    """
    keys = {key.fingerprint: key for *_, of_group in groups for key in of_group}
    wm = ready(model, wm, [key for *_, of_group in groups for key in of_group])
    pairs = [list(tokens.checked_pairs(model, x, y).values()) for x, y, _ in groups]
    factors = [[_projected(wm, pair) for pair in of_group] for of_group in pairs]
    slopes: dict[tuple[int, str], list[Tensor]] = {}  # (group, key) → ⟨ξ_k, PG_k⟩ of each text
    for name, key in keys.items():
        tested = [g for g, (*_, of) in enumerate(groups) if name in {k.fingerprint for k in of}]
        along = iter(_along(wm, key, [of_text for g in tested for of_text in factors[g]]))
        slopes |= {(g, name): list(islice(along, len(factors[g]))) for g in tested}
    return [
        _table(pairs[g], factors[g], slopes[g, key.fingerprint], wm.sigma)
        for g, (*_, of_group) in enumerate(groups)
        for key in of_group
    ]


def _projected(wm: PlacedWatermark, pair: Pair) -> Factors:
    """Qa_k and Pg_k of each token."""
    a, g = gradients.factors(wm.model, wm.linear, *pair)
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
        of_token = ((g @ noise(wm, key, k).to(g)) * a).sum(-1).cpu()  # one number per text
        for i, slope in zip(there, of_token, strict=True):
            slopes[i][k] = slope
    return slopes


def _table(
    pairs: Sequence[Pair], factors: Sequence[Factors], slopes: Sequence[Tensor], sigma: float
) -> pd.DataFrame:
    tables = []
    for text, ((_, response), (a, g), slope) in enumerate(zip(pairs, factors, slopes, strict=True)):
        slope = slope.double().numpy()
        length = (a.norm(dim=-1) * g.norm(dim=-1)).double().cpu().numpy()
        if not np.isfinite(slope).all() or not np.isfinite(length).all() or not length.any():
            raise DegenerateScoreError(
                f"text {text}: expected finite gradients that are not all zero; a weight without"
                " influence, or an overflow"
            )
        with np.errstate(divide="ignore", invalid="ignore"):
            gamma = np.where(length > 0, slope / (sigma * length), -np.inf)
        columns = {"text": text, "position": range(len(response)), "token_id": response}
        tables.append(pd.DataFrame(columns | {"gamma": gamma, "grad_norm": length}))
    return pd.concat(tables, ignore_index=True)


def from_gammas(gammas: pd.DataFrame, alpha_0: float = 0.5) -> pd.DataFrame:
    """Algorithm 4 for every λ' at once, from :func:`per_token`'s table or part of its rows: the
    p-value is the smallest exact level of a quantile test that detects the text.

    One row per text: ``text, n_tokens``; ``hits, p_hits, log10_p_hits``, ``alpha_0`` being the
    level of one token's test (½: the sign test); and for the sum ``psi, p_psi, log10_p_psi``.
    """
    threshold = stats.threshold(alpha_0)
    rows = []
    for text, of_text in gammas.groupby("text"):
        gamma, length = of_text["gamma"].to_numpy(), of_text["grad_norm"].to_numpy()
        norm_g = np.linalg.norm(length)  # 0 where all tokens are certain
        psi = gamma[length > 0] @ length[length > 0] / norm_g if norm_g else -np.inf
        rows.append((text, len(of_text), int((gamma >= threshold).sum()), psi))
    table = pd.DataFrame(rows, columns=["text", "n_tokens", "hits", "psi"])
    tail = kgw.exact_tail(table["hits"], table["n_tokens"], alpha_0)
    return table.assign(
        p_hits=tail["p_value"],
        log10_p_hits=tail["log10_p"],
        p_psi=norm.sf(table["psi"]),
        log10_p_psi=norm.logsf(table["psi"]) / np.log(10),
    )
