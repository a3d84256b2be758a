"""What people do to weights that are out, and what attackers do who know the scheme. Each function
takes a model and returns a new one; the given one stays as it is. What draws takes a seed.

    θ → Q(θ)                    rounded            θ → θ ∘ mask       pruned
    Σ_i a_i θ_i, slerp, tasks   merged             AdamW, LoRA        fine_tuned
    θ + a fresh ξ               renoised           θ → another's θ    swapped
    θ → U f(S) Vᵀ               shrunk             which matrix?      bulk
"""

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import likelihood, perturb, tokens
from gaussmark_lib.engine.arithmetic import evaluating, wide
from gaussmark_lib.errors import (
    InvalidModelError,
    InvalidTextError,
    InvalidWatermarkError,
    is_number,
    require_between,
    require_int,
    require_one_of,
    shown,
)
from gaussmark_lib.keys import Key
from gaussmark_lib.weights import Watermark, Weight, names

if TYPE_CHECKING:
    from peft import PeftModel

TAIL = 0.9677083  # of NF4's outermost quantile, as bitsandbytes has it
PRUNING = ("magnitude", "random", "wanda")
MERGING = ("linear", "slerp", "task")


def rounded(model: PreTrainedModel, bits: int, *, group: int | None = None) -> PreTrainedModel:
    """Round-to-nearest, symmetric: each row of each linear layer, or each ``group`` of numbers in
    it, is s·k with whole |k| < 2^(bits − 1) and s the largest number over 2^(bits − 1) − 1.

    Raises:
        InvalidModelError: bits outside 2…16, or rows that ``group`` does not divide.
    """
    most = 2 ** (require_int(bits, "bits", InvalidModelError, least=2, most=16) - 1) - 1
    return _by_groups(model, group, lambda unit: (unit * most).round() / most)


def nf4(model: PreTrainedModel, *, group: int | None = 64) -> PreTrainedModel:
    """QLoRA's 4-bit numbers (Dettmers et al. 2023): in each group the nearest of 16 quantiles of a
    normal distribution, times the group's largest number. Errors are those of :func:`rounded`.
    """
    below, above = (norm.isf(np.linspace(TAIL, 0.5, n)[:-1]) for n in (8, 9))
    levels = torch.tensor([*below, 0.0, *-above[::-1]], dtype=torch.float32) / -below[0]
    edges = (levels[1:] + levels[:-1]) / 2
    return _by_groups(
        model,
        group,
        lambda unit: levels.to(unit)[torch.bucketize(unit, edges.to(unit))],
    )


def _by_groups(
    model: PreTrainedModel, group: int | None, code: Callable[[Tensor], Tensor]
) -> PreTrainedModel:
    """``code`` of each group of numbers, divided by its largest, in each linear layer."""
    new = deepcopy(model)
    for weight in _linears(new):
        theta = weight.value()
        n = group or theta.shape[1]
        if theta.shape[1] % n:
            expected = f"group: expected a divisor of {weight.name}'s {theta.shape[1]} columns"
            raise InvalidModelError(f"{expected}, got {group}")
        parts = wide(theta).unflatten(1, (-1, n))  # (d_out, groups, n)
        most = parts.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(parts.dtype).tiny)
        theta.copy_((code(parts / most) * most).flatten(1))
    return new


def pruned(
    model: PreTrainedModel,
    share: float,
    how: str = "magnitude",
    *,
    texts: tokens.Texts | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """A share of each row of each linear layer becomes 0: its smallest numbers, random ones, or
    (``"wanda"``, Sun et al. 2023) those with the least |θ_ij|·‖a_j‖, a_j being the j-th input over
    the tokens of ``texts``.
    """
    require_one_of(how, "how", PRUNING, InvalidModelError)
    if not is_number(share) or not 0 <= share <= 1:
        raise InvalidModelError(f"share: expected a number from 0 to 1, got {shown(share)}")
    if how == "wanda" and not texts:
        raise InvalidTextError("wanda: expected texts to measure the layers' inputs on, got none")
    new, draws = deepcopy(model), np.random.default_rng(seed)
    linears = _linears(new)
    scales = _input_norms(new, linears, texts) if how == "wanda" else [1.0] * len(linears)
    for weight, scale in zip(linears, scales, strict=True):
        theta = weight.value()
        size = wide(theta).abs() * scale
        if how == "random":
            size = torch.from_numpy(draws.random(theta.shape, np.float32)).to(theta.device)
        least = size.argsort(dim=1)[:, : round(share * theta.shape[1])]
        theta.scatter_(1, least, 0.0)
    return new


def merged(
    models: Sequence[PreTrainedModel],
    shares: Sequence[float] | None = None,
    how: str = "linear",
    *,
    base: PreTrainedModel | None = None,
) -> PreTrainedModel:
    """One model of several: Σ a_i θ_i (``shares``, 1/n each by default); two on the sphere between
    them (``"slerp"``, which keeps norms); or θ_base + Σ a_i (θ_i − θ_base) (``"task"``).

    Raises:
        InvalidModelError: fewer than two models, models that are no siblings (other names or
            shapes of weights), shares that are not theirs, or no base for tasks.
    """
    require_one_of(how, "how", MERGING, InvalidModelError)
    shares = [1 / len(models)] * len(models) if shares is None else list(shares)
    if len(models) < 2 or len(shares) != len(models) or (how == "slerp" and len(models) != 2):
        expected = "two models" if how == "slerp" else "at least two models, a share for each"
        raise InvalidModelError(f"expected {expected}, got {len(models)} and {len(shares)} shares")
    if how == "task" and base is None:
        raise InvalidModelError("task: expected base=, the model that the others were made from")
    everyone = [*models]
    if how == "task":  # θ_base + Σ a_i (θ_i − θ_base) = Σ a_i θ_i + (1 − Σ a_i) θ_base
        everyone, shares = [*models, base], [*shares, 1 - sum(shares)]
    shapes = [{name: tuple(p.shape) for name, p in m.named_parameters()} for m in everyone]
    if any(other != shapes[0] for other in shapes[1:]):
        unlike = sorted({*shapes[0].items()} ^ {*next(o for o in shapes if o != shapes[0]).items()})
        raise InvalidModelError(
            f"expected siblings, which differ in numbers alone; got {unlike[:4]}"
        )
    new = deepcopy(models[0])
    others = [dict(model.named_parameters()) for model in everyone]
    for name, parameter in new.named_parameters():
        each = [wide(other[name].detach()) for other in others]
        parameter.data.copy_(_between(each, shares, how))
    return new


def _between(each: list[Tensor], shares: Sequence[float], how: str) -> Tensor:
    if how == "slerp":
        one, other = each
        cosine = (one * other).sum() / (one.norm() * other.norm())
        angle = torch.arccos(cosine.clamp(-1, 1))
        if angle > 1e-4:  # else they are the same but for rounding
            shares = [(torch.sin(a * angle) / torch.sin(angle)).item() for a in shares]
    return sum(a * one for a, one in zip(shares, each, strict=True))


def fine_tuned(
    model: PreTrainedModel,
    texts: tokens.Texts,
    steps: int,
    *,
    lr: float = 1e-4,
    batch_size: int = 8,
    lora_rank: int | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """Trained on texts by AdamW, all weights or a low-rank adapter, which is merged at the end
    (``peft``). On plain samples of the base it is an attack on the mark; of a model that never had
    a mark, on another's marked texts, a *distillation*.

    Args:
        texts: token ids, of at least two tokens each; a step takes ``batch_size`` of them.

    Raises:
        InvalidTextError: a text too short, or none.
    """
    texts = tokens.Reader(model).texts(texts, "text")
    if not texts or min(map(len, texts)) < 2:
        shortest = min(map(len, texts), default=0)
        raise InvalidTextError(f"texts: expected at least two tokens in each, got {shortest}")
    require_int(steps, "steps", InvalidModelError, least=0)
    new = deepcopy(model)
    adapted = _with_adapter(new, lora_rank, seed) if lora_rank else None
    optimiser = torch.optim.AdamW([p for p in new.parameters() if p.requires_grad], lr=lr)
    draws = np.random.default_rng(seed)
    with torch.enable_grad(), evaluating(new):  # no dropout: the same seed, the same model
        for _ in range(steps):
            chosen = draws.choice(len(texts), min(batch_size, len(texts)), replace=False)
            log_p, number = likelihood.token_log_p(
                new, [(texts[i][:1], texts[i][1:]) for i in chosen]
            )
            loss = -log_p.sum() / (number > 0).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return adapted.merge_and_unload() if adapted else new


def _with_adapter(model: PreTrainedModel, rank: int, seed: int) -> "PeftModel":
    """Puts an adapter on every matrix of the model itself, of which it alone is then trained."""
    from peft import LoraConfig, get_peft_model

    targets = [name.removesuffix(".weight") for name in names(model)]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # what it asks transformers is deprecated
        return get_peft_model(model, config)


def renoised(model: PreTrainedModel, wm: Watermark, key: Key) -> PreTrainedModel:
    """The same matrices with one more noise, of the attacker's own key."""
    new = deepcopy(model)
    wm, [key] = perturb.ready(new, wm, [key])
    for linear, [xi] in zip(wm.linears, perturb.drawn(wm, [key]), strict=True):
        linear.value().add_(xi.to(linear.parameter))
    return new


def swapped(model: PreTrainedModel, donor: PreTrainedModel, name: str) -> PreTrainedModel:
    """One matrix is another model's: a retrained one, or an earlier release's."""
    new = deepcopy(model)
    here, there = Weight(new, name), Weight(donor, name)
    if here.shape != there.shape:
        raise InvalidModelError(f"{name}: expected the shape {here.shape}, got {there.shape}")
    here.value().copy_(there.value())
    return new


def shrunk(model: PreTrainedModel, name: str, sigma: float) -> PreTrainedModel:
    """Singular values of θ + ξ become what they would be without a noise of this σ: by the law of
    a large noisy matrix (Gavish and Donoho 2017), s → √((s² − (n + m)σ²)² − 4nmσ⁴)/s above the
    noise's edge σ(√n + √m), and 0 below it.
    """
    sigma = require_between(sigma, "sigma", InvalidWatermarkError, low=0, high=1e31)
    new = deepcopy(model)
    weight = Weight(new, name)
    U, S, Vh = torch.linalg.svd(wide(weight.value()).double(), full_matrices=False)
    n, m = weight.shape
    square = (S**2 - (n + m) * sigma**2) ** 2 - 4 * n * m * sigma**4
    kept = torch.where(sigma * (n**0.5 + m**0.5) < S, square.clamp_min(0).sqrt() / S, 0.0)
    weight.value().copy_((U * kept) @ Vh)
    return new


def bulk(model: PreTrainedModel) -> pd.DataFrame:
    """Where could a mark be? A noise of standard deviation σ lifts the smallest singular value of
    an n × m matrix to at least about σ(√max − √min): so it bounds σ from above, whoever looks.

    Returns:
        One row per matrix, the most suspicious first: ``weight``; ``floor``, the smallest singular
        value over √max − √min, the σ that it leaves room for; and ``ratio``, that floor over the
        median floor of the matrices of the same kind in other blocks.
    """
    rows = []
    for weight in _linears(model):
        n, m = weight.shape
        S = torch.linalg.svdvals(wide(weight.value()).double())
        room = max(n, m) ** 0.5 - min(n, m) ** 0.5
        floor = S[-1].item() / room if room else float(S[len(S) // 2] / max(n, m) ** 0.5)
        rows.append({"weight": weight.name, "floor": floor})
    table = pd.DataFrame(rows)
    kind = table["weight"].str.split(".").str[-2]
    table["ratio"] = table["floor"] / table.groupby(kind)["floor"].transform("median")
    return table.sort_values("ratio", ascending=False, ignore_index=True)


def _linears(model: PreTrainedModel) -> list[Weight]:
    """The matrices of the blocks: all that can carry a mark, but the one to the vocabulary."""
    size = model.get_input_embeddings().num_embeddings
    weights = (Weight(model, name) for name in names(model))
    return [weight for weight in weights if weight.shape[0] != size]


@torch.no_grad()
def _input_norms(
    model: PreTrainedModel, linears: Sequence[Weight], texts: tokens.Texts
) -> list[Float[Tensor, " d_in"]]:
    """‖a_j‖ of each layer's inputs over all tokens."""
    squares: list[Tensor | float] = [0.0] * len(linears)

    def add(i: int, inputs: tuple) -> None:
        squares[i] = squares[i] + wide(inputs[0]).flatten(0, -2).square().sum(0)

    hooks = [
        weight.module.register_forward_pre_hook(lambda _, inputs, i=i: add(i, inputs))
        for i, weight in enumerate(linears)
    ]
    try:
        with evaluating(model):
            for ids in tokens.Reader(model).texts(texts, "text"):
                model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return [square.sqrt() if isinstance(square, Tensor) else 1.0 for square in squares]
