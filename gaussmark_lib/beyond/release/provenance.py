"""Whose weights are these? A checkpoint tested from its weights, without any text.

    ψ_w = ⟨ξ, Δ⟩ / (σ‖Δ‖),   Δ = θ′ − θ

with θ the marked matrix of the base, θ′ the suspect's. Δ is one more direction that does not look
at the key: ψ_w is N(0, 1) over keys for *every* checkpoint that does not depend on the key, however
it came about. A released model that was changed further has Δ = ξ + Δ₂, and where Δ₂ does not lean
towards ξ

    ψ_w ≈ √d · σ / √(σ² + ‖Δ₂‖²/d),

some hundred standard deviations. Scaling θ′ towards θ, as merging with the base does, changes
nothing.

One replaced part of the matrix would drown the rest in ‖Δ‖. Rows are independent pieces of the key,
so ψ_r = ⟨ξ_r, Δ_r⟩/(σ‖Δ_r‖) of each row r are jointly independent N(0, 1), and so is

    ψ_rows = Σ_r w_r ψ_r / √Σ_r w_r²,   w_r = √d_in / max(1, ‖Δ_r‖/(σ√d_in)),

whose weights need no key: w_r is what ψ_r would be of a mark under that much other change. With
rank reduction, PΔ takes the place of Δ; with several matrices, v = (PΔ/σ of each).

It proves that the checkpoint descends from *this* marked release, or from somebody who has the key.
Whoever has base and marked weights has ξ, and can put it anywhere.
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
    """Tests a checkpoint against each key.

    Args:
        base: the model that was marked, before it was; a model, or a name for ``models.load``.
        suspect: a model, a folder of safetensors in any dtype, sharded or quantised, or a GGUF
            file. Of a file, the marked matrices alone are read.
        wm: where the noise went.

    Returns:
        One row per key: ``psi`` (ψ_w), ``psi_rows``, each with its p-value and ``log10_p``; and
        ``distance``, ‖Δ‖/(σ√d), 1 for a mark and nothing else; ``relative``, ‖Δ‖/‖θ‖, which is
        about 1.4 for a model that was trained elsewhere.

    Raises:
        DegenerateScoreError: the suspect has the base's own matrix.
        InvalidModelError: one that has none of this name and shape (``suspects.matrix``).
        PerturbedModelError, InvalidWatermarkError, KeyMismatchError: as ``score.score``.
    """
    base = models.load(base) if isinstance(base, str) else base
    model = base.model if isinstance(base, models.LM) else base
    wm, keys = perturb.ready(model, wm, keys)
    vs = directions(wm, suspect)
    sizes = [v.numel() for v in vs]
    lengths = torch.cat([v.norm(dim=1).double() for v in vs])  # ‖v_r‖ of each row
    if not (length := lengths.norm().item()):
        names = ", ".join(wm.weights)
        raise DegenerateScoreError(
            f"the suspect's {names} is the base's own, number for number: it carries no mark"
        )
    inner = []
    for few in blocks.in_lists(keys, blocks.at_once(len(keys), wm.d)[1]):
        z = streams(few, wm.d, 1.0)  # (k, d)
        each = [
            torch.einsum("kij,ij->ki", part.unflatten(1, v.shape), v).double()
            for part, v in zip(z.split(sizes, dim=1), vs, strict=True)
        ]
        inner.append(torch.cat(each, dim=1))  # ⟨z_r, v_r⟩, (k, rows)
    inner = torch.cat(inner)
    whole = (inner.sum(1) / length).numpy()
    n = torch.cat([lengths.new_full((len(v),), v.shape[1]) for v in vs])
    by_rows = combined(inner, lengths, n)
    size = sum(linear.value().double().square().sum().item() for linear in wm.linears) ** 0.5
    moved = sum((v.norm().item() * s) ** 2 for v, s in zip(vs, wm.sigmas, strict=True)) ** 0.5
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
    """v = PΔ/σ of each marked matrix, on the CPU."""
    vs = []
    for i, (linear, sigma) in enumerate(zip(wm.linears, wm.sigmas, strict=True)):
        delta = matrix(suspect, linear) - linear.value().cpu()
        vs.append((wm.projectors[i](delta) if wm.rank_dropped else delta) / sigma)
    return vs


def combined(
    inner: Float[Tensor, "keys rows"], lengths: Float[Tensor, " rows"], n: Float[Tensor, " rows"]
) -> Float[np.ndarray, " keys"]:
    """ψ_rows from ⟨z_r, v_r⟩, ‖v_r‖ and the d_in of each row; rows without a change say nothing."""
    moved = lengths > 0
    inner, lengths, n = inner[:, moved], lengths[moved], n[moved]
    w = n.sqrt() / (lengths / n.sqrt()).clamp_min(1)
    return ((inner / lengths) @ w / w.norm()).numpy()


def verdict(row: Mapping[str, Any], level: float, n_keys: int = 1) -> dict[str, Any]:
    """``log10_p_all``: of the smaller p-value of both, times two and times the number of keys that
    were tried; ``verdict``: *carries the key* where that is at most the level.
    """
    log10_p = min(row["log10_p"], row["log10_p_rows"]) + math.log10(2 * n_keys)
    carries = "carries" if log10_p <= math.log10(level) else "does not carry"
    return {"verdict": f"{carries} the key", "log10_p_all": min(log10_p, 0.0)}
