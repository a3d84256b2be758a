"""Whose weights are these? A test of a checkpoint's weights, without any text.

    ψ_w = ⟨ξ, Δ⟩ / (σ‖Δ‖),   Δ = θ′ − θ

where θ is the matrix of the base, and θ′ that of the suspect. Δ is a direction like
that of a text: ψ_w is N(0, 1) over keys for *every* checkpoint that does not depend on the key,
whatever its history is. A release that was changed further has Δ = ξ + Δ₂. If Δ₂ is orthogonal to
ξ,

    ψ_w ≈ √d · σ / √(σ² + ‖Δ₂‖²/d),

which is some hundred standard deviations. Scaling Δ, as merging with the base does, has no effect.

A replaced part of the matrix could dominate ‖Δ‖. Rows of ξ are independent, so ψ_r =
⟨ξ_r, Δ_r⟩/(σ‖Δ_r‖) of the rows r are independent N(0, 1), and

    ψ_rows = Σ_r w_r ψ_r / √Σ_r w_r²,   w_r = √d_in / max(1, ‖Δ_r‖/(σ√d_in)),

is N(0, 1), too. The w_r do not depend on the key: w_r is the ψ_r of a watermark in a row with a
change of this length. With rank reduction, PΔ replaces Δ. With several matrices, the direction is
v = (PΔ/σ of each matrix).

A large ψ_w proves that the checkpoint descends from *this* watermarked release, or from somebody
who knows ξ. Everybody who has the base and the watermarked weights knows ξ, and can add it to any
model.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import models, perturb
from gaussmark_lib.beyond.release.suspects import Suspect, matrix
from gaussmark_lib.engine import blocks
from gaussmark_lib.engine.stream import streams
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.keys import Key
from gaussmark_lib.weights import PlacedWatermark, Watermark


def weights(
    base: PreTrainedModel | models.LM | str, suspect: Suspect, wm: Watermark, keys: Sequence[Key]
) -> pd.DataFrame:
    """Test a checkpoint against each key.

    Args:
        base: the unwatermarked model; a model, or a name for ``models.load``.
        suspect: a model, a folder of safetensors in any dtype, sharded or quantised, or a GGUF
            file. From a file, only the matrices of ``wm`` are read.
        wm: where the noise was added.

    Returns:
        One row per key: ``psi`` (ψ_w) and ``psi_rows``, each with its p-value and its log₁₀;
        ``distance``, ‖Δ‖/(σ√d), which is 1 for a watermark without any other change; and
        ``relative``, ‖Δ‖/‖θ‖, which is about 1.4 for a model that was trained independently.

    Raises:
        DegenerateScoreError: if the suspect's matrix equals that of the base.
        InvalidModelError: if the suspect has no matrix of this name and shape
            (``suspects.matrix``).
        PerturbedModelError, InvalidWatermarkError, KeyMismatchError: as in ``score.score``.
    """
    base = models.load(base) if isinstance(base, str) else base
    model = base.model if isinstance(base, models.LM) else base
    wm, keys = perturb.ready(model, wm, keys)
    vs = directions(wm, suspect)
    sizes = [v.numel() for v in vs]
    lengths = torch.cat([v.norm(dim=1).double() for v in vs])  # ‖v_r‖ of each row
    length = lengths.norm().item()
    if not length:
        names = ", ".join(wm.weights)
        raise DegenerateScoreError(
            f"the suspect's {names} equals that of the base in every number: it has no watermark"
        )
    inner = []
    at_once = blocks.at_once(len(keys), wm.d)
    for group in blocks.in_lists(keys, at_once.keys):
        z = streams(group, wm.d, 1.0)  # (k, d)
        of_matrices = [
            torch.einsum("kij,ij->ki", part.unflatten(1, v.shape), v).double()
            for part, v in zip(z.split(sizes, dim=1), vs, strict=True)
        ]
        inner.append(torch.cat(of_matrices, dim=1))  # ⟨z_r, v_r⟩, (k, rows)
    inner = torch.cat(inner)
    whole = (inner.sum(1) / length).numpy()
    n = torch.cat([lengths.new_full((len(v),), v.shape[1]) for v in vs])  # d_in of each row
    by_rows = combined(inner, lengths, n)
    squares = [linear.value().double().square().sum().item() for linear in wm.linears]
    size = sum(squares) ** 0.5  # ‖θ‖
    changes = [v.norm().item() * sigma for v, sigma in zip(vs, wm.sigmas, strict=True)]
    moved = sum(change**2 for change in changes) ** 0.5  # ‖Δ‖
    return pd.DataFrame(
        {
            "key_id": [key.key_id for key in keys],
            "psi": whole,
            "p_value": norm.sf(whole),
            "log10_p": norm.logsf(whole) / np.log(10),
            "psi_rows": by_rows,
            "p_rows": norm.sf(by_rows),
            "log10_p_rows": norm.logsf(by_rows) / np.log(10),
            "distance": length / wm.d**0.5,
            "relative": moved / size,
        }
    )


def directions(wm: PlacedWatermark, suspect: Suspect) -> list[Float[Tensor, "d_out d_in"]]:
    """Return v = PΔ/σ of each matrix of ``wm``, on the CPU."""
    vs = []
    for i, (linear, sigma) in enumerate(zip(wm.linears, wm.sigmas, strict=True)):
        delta = matrix(suspect, linear) - linear.value().cpu()
        if wm.rank_dropped:
            delta = wm.projectors[i](delta)
        vs.append(delta / sigma)
    return vs


def combined(
    inner: Float[Tensor, "keys rows"], lengths: Float[Tensor, " rows"], n: Float[Tensor, " rows"]
) -> Float[np.ndarray, " keys"]:
    """Return ψ_rows, given ⟨z_r, v_r⟩, ‖v_r‖ and the d_in of each row.

    Rows without a change carry no evidence and are left out.
    """
    is_moved = lengths > 0
    inner = inner[:, is_moved]
    lengths = lengths[is_moved]
    n = n[is_moved]
    w = n.sqrt() / (lengths / n.sqrt()).clamp_min(1)
    return ((inner / lengths) @ w / w.norm()).numpy()


def verdict(row: Mapping[str, Any], level: float, n_keys: int = 1) -> dict[str, Any]:
    """Return the verdict of a row of :func:`weights`, corrected for two tests and ``n_keys`` keys.

    ``log10_p_all`` is the log₁₀ of the smaller of the two p-values, times two and times the number
    of keys; ``verdict`` is *carries the key* if it is at most that of the level.
    """
    log10_smaller = min(row["log10_p"], row["log10_p_rows"])
    log10_p = log10_smaller + math.log10(2 * n_keys)  # Bonferroni
    carries = "carries" if log10_p <= math.log10(level) else "does not carry"
    return {"verdict": f"{carries} the key", "log10_p_all": min(log10_p, 0.0)}
