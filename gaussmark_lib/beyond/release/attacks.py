"""What people do to published weights, and what attackers do who know the scheme.

Each function takes a model and returns a new model; it does not change its argument. Functions that
draw random numbers take a seed.

    θ → Q(θ)                    rounded            θ → θ ∘ mask       pruned
    Σ_i a_i θ_i, slerp, tasks   merged             AdamW, LoRA        fine_tuned
    θ + a fresh ξ               renoised           θ → another's θ    swapped
    θ → U f(S) Vᵀ               shrunk             which matrix?      bulk
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
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

TAIL = 0.9677083  # probability of NF4's outermost quantile, as in bitsandbytes
PRUNING = ("magnitude", "random", "wanda")
MERGING = ("linear", "slerp", "task", "ties", "dare")
OF_TASKS = ("task", "ties", "dare")  # which merge what each model learnt since the base


def rounded(model: PreTrainedModel, bits: int, *, group: int | None = None) -> PreTrainedModel:
    """Round to the nearest of 2^bits − 1 symmetric levels.

    Each row of each linear layer, or each ``group`` of numbers in a row, becomes s·k, with integers
    |k| < 2^(bits − 1) and s the largest absolute value divided by 2^(bits − 1) − 1.

    Raises:
        InvalidModelError: if bits is outside 2…16, or ``group`` does not divide the rows.
    """
    bits = require_int(bits, "bits", InvalidModelError, least=2, most=16)
    largest_level = 2 ** (bits - 1) - 1

    def code(unit: Tensor) -> Tensor:
        return (unit * largest_level).round() / largest_level

    return _by_groups(model, group, code)


def nf4(model: PreTrainedModel, *, group: int | None = 64) -> PreTrainedModel:
    """Round to QLoRA's 4-bit numbers (Dettmers et al. 2023).

    Each number becomes the nearest of 16 quantiles of a normal distribution, times the largest
    absolute value of its group. Errors are those of :func:`rounded`.
    """
    # 7 levels below 0, then 0, then 8 levels above, so that the outermost are −1 and 1
    below = norm.isf(np.linspace(TAIL, 0.5, 8)[:-1])
    above = -norm.isf(np.linspace(TAIL, 0.5, 9)[:-1])[::-1]
    levels = torch.tensor([*below, 0.0, *above], dtype=torch.float32) / -below[0]
    edges = (levels[1:] + levels[:-1]) / 2

    def code(unit: Tensor) -> Tensor:
        nearest = torch.bucketize(unit, edges.to(unit))
        return levels.to(unit)[nearest]

    return _by_groups(model, group, code)


def _by_groups(
    model: PreTrainedModel, group: int | None, code: Callable[[Tensor], Tensor]
) -> PreTrainedModel:
    """Apply ``code`` to each group of numbers, scaled to [−1, 1], in each linear layer."""
    new = deepcopy(model)
    for weight in _linears(new):
        theta = weight.value()
        n_columns = theta.shape[1]
        n = group or n_columns
        if n_columns % n:
            expected = f"group: expected a divisor of {weight.name}'s {n_columns} columns"
            raise InvalidModelError(f"{expected}, got {group}")
        parts = wide(theta).unflatten(1, (-1, n))  # (d_out, groups, n)
        smallest = torch.finfo(parts.dtype).tiny  # a group of zeros stays a group of zeros
        scale = parts.abs().amax(-1, keepdim=True).clamp_min(smallest)
        coded = code(parts / scale) * scale
        theta.copy_(coded.flatten(1))
    return new


def pruned(
    model: PreTrainedModel,
    share: float,
    how: str = "magnitude",
    *,
    texts: tokens.Texts | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """Set a share of each row of each linear layer to 0.

    Args:
        how: which numbers become 0: the smallest (``"magnitude"``), random ones (``"random"``), or
            those with the smallest |θ_ij|·‖a_j‖ (``"wanda"``, Sun et al. 2023), where a_j is the
            j-th input over the tokens of ``texts``.

    Raises:
        InvalidModelError: if there is no such way, or the share is not in [0, 1].
        InvalidTextError: if wanda has no texts.
    """
    require_one_of(how, "how", PRUNING, InvalidModelError)
    if not is_number(share) or not 0 <= share <= 1:
        raise InvalidModelError(f"share: expected a number from 0 to 1, got {shown(share)}")
    if how == "wanda" and not texts:
        raise InvalidTextError("wanda: expected texts to measure the layers' inputs, got no text")
    new = deepcopy(model)
    draws = np.random.default_rng(seed)
    linears = _linears(new)
    scales = _input_norms(new, linears, texts) if how == "wanda" else [1.0] * len(linears)
    for weight, scale in zip(linears, scales, strict=True):
        theta = weight.value()
        size = wide(theta).abs() * scale
        if how == "random":
            uniform = draws.random(theta.shape, np.float32)
            size = torch.from_numpy(uniform).to(theta.device)
        n_pruned = round(share * theta.shape[1])
        smallest = size.argsort(dim=1)[:, :n_pruned]  # (d_out, n_pruned)
        theta.scatter_(1, smallest, 0.0)
    return new


def merged(
    models: Sequence[PreTrainedModel],
    shares: Sequence[float] | None = None,
    how: str = "linear",
    *,
    base: PreTrainedModel | None = None,
    density: float = 0.5,
    seed: int = 0,
) -> PreTrainedModel:
    """Merge several models into one model.

    Args:
        shares: a_i, by default 1/n each.
        how: ``"linear"``: Σ a_i θ_i. ``"slerp"``: interpolation of two models on the sphere, which
            keeps norms. ``"task"``: θ_base + Σ a_i δ_i with δ_i = θ_i − θ_base. ``"dare"``: the
            same with random entries of δ_i, divided by ``density`` (Yu et al. 2023). ``"ties"``:
            the same with the largest entries of δ_i that agree with the sign of their sum, divided
            by the a_i of those that agree (Yadav et al. 2023).
        base: θ_base, for ``"task"``, ``"ties"`` and ``"dare"``.
        density: the share of each δ_i that ``"ties"`` and ``"dare"`` keep.

    Raises:
        InvalidModelError: if there are fewer than two models, if their weights have different names
            or shapes, if the number of shares is wrong, or if tasks have no base.
    """
    require_one_of(how, "how", MERGING, InvalidModelError)
    if shares is None:
        shares = [1 / len(models) for _ in models]
    shares = list(shares)
    is_too_few = len(models) < 2
    is_slerp_of_others = how == "slerp" and len(models) != 2
    if is_too_few or is_slerp_of_others or len(shares) != len(models):
        expected = "two models" if how == "slerp" else "at least two models, with one share each"
        raise InvalidModelError(f"expected {expected}, got {len(models)} and {len(shares)} shares")
    if how in OF_TASKS and base is None:
        raise InvalidModelError(f"{how}: expected base=, the common ancestor of the models")
    density = require_between(density, "density", InvalidModelError, low=0, high=1)
    parents = [*models]
    if how in OF_TASKS:
        parents.append(base)
    draws = np.random.default_rng(seed)
    _refuse_unlike(parents)
    new = deepcopy(models[0])
    weights_of_parents = [dict(model.named_parameters()) for model in parents]
    for name, parameter in new.named_parameters():
        thetas = [wide(weights[name].detach()) for weights in weights_of_parents]
        if how in OF_TASKS:
            *thetas, theta_base = thetas
            changes = [_kept(theta - theta_base, how, density, draws) for theta in thetas]
            merger = theta_base + _summed(changes, shares, how)
        else:
            merger = _between(thetas, shares, how)
        parameter.data.copy_(merger)
    return new


def _refuse_unlike(models: Sequence[PreTrainedModel]) -> None:
    """Raise InvalidModelError if weights of the models differ in name or shape."""
    first, *further = ({(n, tuple(p.shape)) for n, p in m.named_parameters()} for m in models)
    for shapes in further:
        if shapes != first:
            different = sorted(first ^ shapes)
            raise InvalidModelError(
                "expected models whose weights have the same names and shapes; these differ:"
                f" {different[:4]}"
            )


def _between(thetas: list[Tensor], shares: Sequence[float], how: str) -> Tensor:
    """The merged matrix; of ``thetas``, slerp takes two."""
    if how == "slerp":
        first, second = thetas
        cosine = (first * second).sum() / (first.norm() * second.norm())
        angle = torch.arccos(cosine.clamp(-1, 1))
        if angle > 1e-4:  # smaller angles are rounding, and sin(angle) is a divisor
            shares = [(torch.sin(a * angle) / torch.sin(angle)).item() for a in shares]
    return sum(a * theta for a, theta in zip(shares, thetas, strict=True))


def _kept(change: Tensor, how: str, density: float, draws: np.random.Generator) -> Tensor:
    """The part of a model's change that a merge takes."""
    if how == "dare":
        is_kept = torch.from_numpy(draws.random(change.shape, np.float32) < density)
        return change * is_kept.to(change.device) / density
    if how == "ties":
        n_dropped = change.numel() - max(1, round(density * change.numel()))
        order = change.abs().flatten().argsort()
        return change.flatten().scatter(0, order[:n_dropped], 0.0).view_as(change)
    return change


def _summed(changes: list[Tensor], shares: Sequence[float], how: str) -> Tensor:
    """Σ a_i δ_i; for ties, the weighted mean of the changes that have the sign of this sum."""
    total = sum(a * change for a, change in zip(shares, changes, strict=True))
    if how != "ties":
        return total
    agreeing = [change * (change.sign() == total.sign()) for change in changes]
    of_those = sum(a * change for a, change in zip(shares, agreeing, strict=True))
    weight = sum(a * (change != 0) for a, change in zip(shares, agreeing, strict=True))
    return of_those / weight.clamp_min(torch.finfo(of_those.dtype).tiny)  # 0 where none agrees


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
    """Train all weights on texts by AdamW, or a low-rank adapter that is merged at the end.

    On unwatermarked samples of the base, this is an attack that removes the watermark. Training an
    unwatermarked model on the texts of a watermarked model is a *distillation*. The adapter is that
    of ``peft``.

    Args:
        texts: token ids, at least two per text; each step takes ``batch_size`` texts.

    Raises:
        InvalidTextError: if a text is too short, or there is no text.
    """
    require_int(steps, "steps", InvalidModelError, least=0)
    [(_, tuned)] = fine_tuning(
        model,
        texts,
        [steps],
        lr=lr,
        batch_size=batch_size,
        lora_rank=lora_rank,
        seed=seed,
    )
    return tuned


def fine_tuning(
    model: PreTrainedModel,
    texts: tokens.Texts,
    steps: Sequence[int],
    *,
    lr: float = 1e-4,
    batch_size: int = 8,
    lora_rank: int | None = None,
    seed: int = 0,
) -> Iterator[tuple[int, PreTrainedModel]]:
    """Yield the model of :func:`fine_tuned` after each number of steps of a single training, with
    this number. Later steps change a yielded model, unless it has an adapter.
    """
    texts = tokens.Reader(model).texts(texts, "text")
    shortest = min(map(len, texts), default=0)
    if shortest < 2:
        raise InvalidTextError(f"texts: expected at least two tokens in each text, got {shortest}")
    new = deepcopy(model)
    adapted = _with_adapter(new, lora_rank, seed) if lora_rank else None
    trained = [parameter for parameter in new.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=lr)
    draws = np.random.default_rng(seed)
    n_per_step = min(batch_size, len(texts))
    n_done = 0
    for n_steps in sorted(steps):
        while n_done < n_steps:
            chosen = draws.choice(len(texts), n_per_step, replace=False)
            _step(new, optimiser, [texts[i] for i in chosen])
            n_done += 1
        yield n_steps, deepcopy(adapted).merge_and_unload() if adapted else new


def _step(
    model: PreTrainedModel, optimiser: torch.optim.Optimizer, texts: Sequence[list[int]]
) -> None:
    """One step along the mean loss of the texts' tokens."""
    pairs = [(ids[:1], ids[1:]) for ids in texts]  # the first token of a text is its prompt
    with torch.enable_grad(), evaluating(model):  # no dropout: the same seed, the same model
        log_p, number = likelihood.token_log_p(model, pairs)
        is_token = number > 0  # the rest is padding
        loss = -log_p.sum() / is_token.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def _with_adapter(model: PreTrainedModel, rank: int, seed: int) -> "PeftModel":
    """Put an adapter on every matrix of the model itself, and freeze all other weights."""
    from peft import LoraConfig, get_peft_model

    targets = [name.removesuffix(".weight") for name in names(model)]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, for a call by peft
        return get_peft_model(model, config)


def released(model: PreTrainedModel, wm: Watermark, key: Key) -> PreTrainedModel:
    """Return a copy of the model at θ + ξ: what the owner of a key releases."""
    new = deepcopy(model)
    wm, [key] = perturb.ready(new, wm, [key])
    for linear, [xi] in zip(wm.linears, perturb.drawn(wm, [key]), strict=True):
        linear.value().add_(xi.to(linear.parameter))
    return new


def renoised(release: PreTrainedModel, wm: Watermark, key: Key) -> PreTrainedModel:
    """Add another noise to the same matrices, with a key of the attacker."""
    return released(release, wm, key)


def swapped(model: PreTrainedModel, donor: PreTrainedModel, name: str) -> PreTrainedModel:
    """Replace a matrix by that of another model, such as a retrained or an earlier release."""
    new = deepcopy(model)
    here = Weight(new, name)
    there = Weight(donor, name)
    if here.shape != there.shape:
        raise InvalidModelError(f"{name}: expected the shape {here.shape}, got {there.shape}")
    here.value().copy_(there.value())
    return new


def shrunk(model: PreTrainedModel, name: str, sigma: float) -> PreTrainedModel:
    """Shrink the singular values of θ + ξ to estimates of those of θ, for noise of this σ.

    The law is that of large noisy matrices (Gavish and Donoho 2017). A singular value s above the
    edge of the noise, σ(√n + √m), becomes √((s² − (n + m)σ²)² − 4nmσ⁴)/s. Below, it becomes 0.
    """
    sigma = require_between(sigma, "sigma", InvalidWatermarkError, low=0, high=1e31)
    new = deepcopy(model)
    weight = Weight(new, name)
    U, S, Vh = torch.linalg.svd(wide(weight.value()).double(), full_matrices=False)
    n, m = weight.shape
    square = (S**2 - (n + m) * sigma**2) ** 2 - 4 * n * m * sigma**4
    edge = sigma * (n**0.5 + m**0.5)
    estimates = torch.where(edge < S, square.clamp_min(0).sqrt() / S, 0.0)
    weight.value().copy_((U * estimates) @ Vh)
    return new


def bulk(model: PreTrainedModel) -> pd.DataFrame:
    """Bound the σ of a possible watermark in each matrix, without a key.

    Noise of standard deviation σ lifts the smallest singular value of an n × m matrix to at least
    about σ(√max(n, m) − √min(n, m)). So the smallest singular value bounds σ from above.

    Returns:
        One row per matrix, the most suspicious first: ``weight``; ``floor``, the smallest singular
        value divided by √max − √min, which is the largest possible σ (of a square matrix, the
        median singular value divided by √max, which bounds nothing); and ``ratio``, this floor
        divided by the median floor of the matrices of the same kind in all blocks.
    """
    rows = []
    for weight in _linears(model):
        n, m = weight.shape
        S = _singular_values(wide(weight.value()).double())
        gap = max(n, m) ** 0.5 - min(n, m) ** 0.5
        if gap:
            floor = S[-1].item() / gap
        else:  # noise lifts only the other singular values of a square matrix: take the median
            median = S[len(S) // 2]
            floor = float(median / max(n, m) ** 0.5)
        rows.append({"weight": weight.name, "floor": floor})
    table = pd.DataFrame(rows)
    kind = table["weight"].str.split(".").str[-2]
    median_of_kind = table.groupby(kind)["floor"].transform("median")
    table["ratio"] = table["floor"] / median_of_kind
    return table.sort_values("ratio", ascending=False, ignore_index=True)


def _singular_values(matrix: Float[Tensor, "n m"]) -> Float[Tensor, " k"]:
    """The k = min(n, m) singular values, the largest first, as roots of the eigenvalues of the
    smaller of MMᵀ and MᵀM: several times as fast as a decomposition of M.
    """
    narrow = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    eigenvalues = torch.linalg.eigvalsh(narrow @ narrow.mT)  # the smallest first
    return eigenvalues.clamp_min(0).sqrt().flip(0)


def _linears(model: PreTrainedModel) -> list[Weight]:
    """The matrices of the blocks: all that can carry a watermark, except the output layer."""
    size = model.get_input_embeddings().num_embeddings
    weights = (Weight(model, name) for name in names(model))
    return [weight for weight in weights if weight.shape[0] != size]


@torch.no_grad()
def _input_norms(
    model: PreTrainedModel, linears: Sequence[Weight], texts: tokens.Texts
) -> list[Float[Tensor, " d_in"]]:
    """‖a_j‖ of each layer's inputs, over all tokens."""
    squares: list[Tensor | float] = [0.0 for _ in linears]

    def add(i: int, inputs: tuple) -> None:
        squares[i] = squares[i] + wide(inputs[0]).flatten(0, -2).square().sum(0)

    def adding(i: int) -> Callable[[object, tuple], None]:
        return lambda _, inputs: add(i, inputs)

    hooks = [weight.module.register_forward_pre_hook(adding(i)) for i, weight in enumerate(linears)]
    try:
        with evaluating(model):
            for ids in tokens.Reader(model).texts(texts, "text"):
                model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return [square.sqrt() if isinstance(square, Tensor) else 1.0 for square in squares]
