"""What a watermark costs a language model, in nats: how far p_{θ+ξ} is from p_θ where the watermarked model writes.

    KL(p_{θ+ξ} ‖ p_θ)  =  E_{y ~ p_{θ+ξ}} Σ_t KL(p_{θ+ξ}(· | x, y_<t) ‖ p_θ(· | x, y_<t))      (chain rule)

The texts y are samples; over the next token the sum is exact. That has the mean of log p_{θ+ξ}(y) − log p_θ(y), with far less noise. To second
order the price is ψ²/2 nats a text, ψ being the mean statistic (``stats.predicted_price`` per token).
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from gaussmark_lib import generate, perturb, score, stats, tokens
from gaussmark_lib.errors import InvalidTextError


@torch.no_grad()
def divergences(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    wm: perturb.Watermark,
    key: perturb.Key,
    batch_size: int = 16,
) -> Float[np.ndarray, " texts"]:
    """Σ_t KL(p_{θ+ξ}(· | x, y_<t) ‖ p_θ(· | x, y_<t)) over the response's positions, nats a text; its mean over y ~ p_{θ+ξ} is the price.

    Args:
        model: the base model.
        prompts, responses: token ids, one prompt a response; an empty prompt stands for the model's start token.
    """
    perturb.refuse_perturbed(model)
    prompts = tokens.checked_prompts(model, prompts)
    found = []
    for start in range(0, len(prompts), batch_size):
        pairs = list(zip(prompts[start : start + batch_size], responses[start : start + batch_size], strict=True))
        ids, mask = tokens.pad([[*x, *y] for x, y in pairs], "right", model.device)
        with perturb.watermarked(model, wm, key):
            marked = _log_p(model, ids, mask)
        per_position = (marked.exp() * (marked - _log_p(model, ids, mask))).sum(-1).double()
        found += [per_position[i, len(x) - 1 : len(x) + len(y) - 1].sum().item() for i, (x, y) in enumerate(pairs)]
    return np.array(found)


@torch.no_grad()
def processed_divergences(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    processor: Callable[[slice], generate.Processor],
    batch_size: int = 16,
) -> Float[np.ndarray, " texts"]:
    """The same for a scheme that changes the logits while it samples: Σ_t KL(q_t ‖ p_t) with q_t from the processed logits, nats a text.

    Args:
        processor: as for ``generate.sample``. It meets the texts as it met them then, step by step: responses of one length.

    Raises:
        PerturbedModelError, InvalidTextError: responses of several lengths, or none.
    """
    perturb.refuse_perturbed(model)
    if len({len(y) for y in responses}) != 1 or not responses[0]:
        raise InvalidTextError(f"expected responses of one length, at least 1 token, got lengths {sorted({len(y) for y in responses})}")
    prompts, n_tokens, found = tokens.checked_prompts(model, prompts), len(responses[0]), []
    for start in range(0, len(prompts), batch_size):
        rows = slice(start, start + batch_size)
        ids, mask = tokens.pad([[*x, *y] for x, y in zip(prompts[rows], responses[rows], strict=True)], "left", model.device)
        position = (mask.cumsum(-1) - 1).clamp_min(0)
        logits = model(input_ids=ids, attention_mask=mask, position_ids=position, use_cache=False).logits[:, -n_tokens - 1 : -1]
        process, total = processor(rows), 0.0
        for t in range(n_tokens):
            base = _normalised(logits[:, t])
            marked = _normalised(process(ids[:, : ids.shape[1] - n_tokens + t], logits[:, t]))
            total = total + (marked.exp() * (marked - base)).sum(-1).double()
        found += total.tolist()
    return np.array(found)


def _log_p(model: PreTrainedModel, ids: Tensor, mask: Tensor) -> Float[Tensor, "texts positions vocabulary"]:
    return _normalised(model(input_ids=ids, attention_mask=mask, use_cache=False).logits)


def _normalised(logits: Tensor) -> Tensor:
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


def measure(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    watermarks: Sequence[perturb.Watermark],
    keys: Sequence[perturb.Key],
    wrong_keys: Sequence[perturb.Key],
    *,
    n_tokens: int,
    seed: int = 0,
    progress: bool = False,
) -> pd.DataFrame:
    """Continues every prompt under every watermark, and returns what each text is worth and costs.

    Args:
        keys, wrong_keys: K of each. Prompt i is continued under key i mod K, and its text tested against that key and against wrong key i mod K.

    Returns:
        One row a watermark × prompt: ``weight, sigma, prompt, key_id, n_tokens, psi, wrong_psi, grad_norm, price`` (nats a text).
    """
    tables = []
    with tqdm(total=len(watermarks) * len(keys), desc="watermarking", unit="run", disable=not progress) as bar:
        for i, wm in enumerate(watermarks):
            for j, (key, wrong_key) in enumerate(zip(keys, wrong_keys, strict=True)):
                mine = range(j, len(prompts), len(keys))
                chosen = [prompts[k] for k in mine]
                with perturb.watermarked(model, wm, key):
                    responses = generate.sample(model, chosen, n_tokens, seed=seed + i * len(keys) + j)
                scored = score.score(model, chosen, responses, wm, [key, wrong_key])
                right, wrong = (scored[scored["key_id"] == k.key_id].set_index("text") for k in (key, wrong_key))
                table = right[["key_id", "n_tokens", "psi", "grad_norm"]].assign(wrong_psi=wrong["psi"])
                table["price"] = divergences(model, chosen, responses, wm, key)
                tables.append(table.assign(prompt=list(mine), weight=wm.weight, sigma=wm.sigma))
                bar.update()
    return pd.concat(tables, ignore_index=True)


def summary(table: pd.DataFrame, typical_norm: float) -> pd.DataFrame:
    """One row a watermark of :func:`measure`'s table, each mean with its 95% interval (``…_low``, ``…_high``) over texts.

    Args:
        typical_norm: ‖∇ log p_θ‖ of unwatermarked text; ``predicted`` is σ times it.

    Returns:
        ``weight, sigma, predicted, n``, then ``psi, wrong_psi`` and ``price`` (nats a *token*).
    """
    per_token = table.assign(price=table["price"] / table["n_tokens"])
    rows = []
    for (weight, sigma), texts in per_token.groupby(["weight", "sigma"], sort=False):
        row = {"weight": weight, "sigma": sigma, "predicted": sigma * typical_norm, "n": len(texts)}
        for column in ("psi", "wrong_psi", "price"):
            found = stats.mean_interval(texts[column])
            row |= {column: found["mean"], f"{column}_low": found["low"], f"{column}_high": found["high"]}
        rows.append(row)
    return pd.DataFrame(rows)
