"""The linear regime: a watermark's strength and price where the step ξ is short, and where three
models leave it.

The price of a watermark is KL(p_{θ+ξ} ‖ p_θ), averaged over keys. To second order in ξ it is
½E_ξ[ξᵀFξ] = ½σ²E‖∇‖², F = E_θ[∇∇ᵀ] being the Fisher information, and to first order E ψ = σE‖∇‖.
So, where ‖∇‖ varies little,

    E ψ ≈ σ E‖∇ log p_θ(y)‖,        price ≈ (E ψ)²/2 nats a text = (E ψ)²/(2T) nats a token,

whatever the model. No watermark is free: a level-α test of power 1−β needs a distance of at least
the binary divergence kl(1−β ‖ α) between the alternative and the nearest null (data processing),
and that distance is at most the price.
"""

import numpy as np
import pandas as pd
from scipy import special

from gaussmark_lib.toys import coins, gaussian, softmax
from gaussmark_lib.toys.softmax import Keys


def least_price(power: float, level: float) -> float:
    """kl(power ‖ level) = power log(power/level) + (1−power) log((1−power)/(1−level)) nats:
    detection this good costs at least that.

    >>> round(least_price(0.9, 0.05), 3), least_price(0.05, 0.05)
    (2.376, 0.0)
    """
    return float(special.rel_entr(power, level) + special.rel_entr(1 - power, 1 - level))


def table(
    model: softmax.LinearSoftmax, unit_noise: Keys, size: int, predicted: list[float]
) -> pd.DataFrame:
    """Exact mean ψ and price of a linear softmax model, a Gaussian of dimension ``size`` and
    ``size`` coins, at the σ that predicts each given ψ.

    One row a model × prediction: ``model, predicted`` (= σE‖∇‖), ``sigma, mean_psi, price`` (nats a
    text).
    """
    rows = []
    for psi in predicted:
        sigma = psi / model.expected_norm
        measured = (f(model, sigma, unit_noise) for f in (softmax.expected_psi, softmax.price))
        rows.append(("linear softmax", psi, sigma, *measured))
        for name, toy, norm in (
            (f"Gaussian, d = {size}", gaussian, gaussian.expected_norm(size)),
            (f"{size} coins", coins, np.sqrt(size)),
        ):
            measured = (f(size, psi / norm) for f in (toy.expected_psi, toy.price))
            rows.append((name, psi, psi / norm, *measured))
    return pd.DataFrame(rows, columns=["model", "predicted", "sigma", "mean_psi", "price"])
