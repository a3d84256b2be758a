"""Other cures, against sums of single tokens' gradients."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import torch
from scipy.stats import norm

from gaussmark_lib import score, stats
from gaussmark_lib.experiments import reweighted
from gaussmark_lib.perturb import Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.3)
LM = tiny_lm.build()
PAIRS = [[5], [5], [9]], [[6, 7, 6, 7, 6], [6, 7, 11, 12, 13], [6, 7, 6, 14, 15]]


def of_tokens(prompt, response):
    """Each token's gradient as a difference of two prefixes'."""
    wholes = [
        next(iter(score.gradients(LM.model, [prompt], [response[:n]], WM))).G.flatten()
        for n in range(1, len(response) + 1)
    ]
    return [wholes[0], *(late - early for early, late in pairwise(wholes))]


def test_weights_are_those_of_the_tokens():
    found = list(reweighted._weighted(LM, PAIRS, WM.on(LM.model), None))
    seen = set()
    for one, prompt, response in zip(found, *PAIRS, strict=True):
        G, total = of_tokens(prompt, response), 0
        for gradient, pair in zip(
            G, zip([prompt[-1], *response], response, strict=False), strict=True
        ):
            total = total + gradient * (pair not in seen)
            seen.add(pair)
        torch.testing.assert_close(
            one["each pair once"], total / total.norm(), rtol=1e-3, atol=1e-4
        )
        torch.testing.assert_close(one["ψ"], sum(G) / sum(G).norm(), rtol=1e-3, atol=1e-4)
        norms = torch.stack([gradient.norm() for gradient in G])
        clipped = sum(gradient * min(1, norms.median() / gradient.norm()) for gradient in G)
        torch.testing.assert_close(
            one["tokens clipped"], clipped / clipped.norm(), rtol=1e-3, atol=1e-4
        )


def test_a_row_a_cure():
    table = reweighted.compared(LM, PAIRS, WM, 4.0).set_index("cure")
    assert table.index.tolist() == [
        "ψ",
        "each pair once",
        "tokens clipped",
        "8 keys",
        "innovations",
    ]
    assert table.loc["ψ", "power"] == pytest.approx(norm.sf(stats.threshold(0.05) - 4))
    assert (table["power"] <= table.loc["ψ", "power"] + 1e-6).all()
    assert table.loc["8 keys", "power"] == pytest.approx(norm.sf(stats.threshold(0.05 / 8) - 4))
    assert table.loc["innovations", "spread"] == pytest.approx(np.sqrt(0.05 * 0.95 / 3))
    assert table.loc["ψ", "spread"] > table.loc["innovations", "spread"]


def test_power_is_the_mean_over_texts_of_each_texts_power():
    gradients = list(reweighted._weighted(LM, PAIRS, WM.on(LM.model), None))
    table = reweighted.compared(LM, PAIRS, WM, 4.0).set_index("cure")
    cosines = np.array([float(one["each pair once"] @ one["ψ"]) for one in gradients])
    powers = norm.sf(stats.threshold(0.05) - 4 * cosines)
    assert table.loc["each pair once", "power"] == pytest.approx(powers.mean(), rel=1e-5)
    assert powers.mean() != pytest.approx(
        norm.sf(stats.threshold(0.05) - 4 * cosines.mean()), rel=1e-3
    ), "the texts differ"


def test_what_is_said_of_the_cures_is_what_the_table_says():
    rows = pd.DataFrame(
        {"cure": ["ψ", "each pair once", "tokens clipped"], "spread": [0.2, 0.1, 0.202]}
    )
    said = (
        "spread over that of plain ψ: each pair once 0.50, tokens clipped 1.01. At least a tenth"
        " less partial: each pair once."
    )
    assert reweighted.said(rows) == said
    assert reweighted.said(rows.assign(spread=0.2)).endswith("less partial: none.")
