"""The calibration card: of the key itself, and beside it of other keys."""

import json

import numpy as np
import pandas as pd
import tiny_lm
from scipy.stats import norm

from gaussmark_lib.experiments import calibration_card
from gaussmark_lib.experiments import one_key_in_production as production
from gaussmark_lib.perturb import Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.3)


def test_the_card_is_data_and_a_page():
    K = np.full((20, 20), 0.7) + 0.3 * np.eye(20)
    psi = np.random.default_rng(0).multivariate_normal(np.zeros(20), K, size=50)
    row = calibration_card.of_key(psi[:1], K) | production.audited(psi[1:], K)
    card = calibration_card.card(
        WM, "0ddf4f8e", pd.DataFrame({"docs": row}).T, {20: np.array([10.0, 12.0])}
    )
    assert json.loads(json.dumps(card)) == card
    assert card["columns"].keys() == row.keys(), "it says of every column what it is"
    page = calibration_card.page(card)
    assert all(
        word in page
        for word in (
            "0ddf4f8e",
            "docs",
            f"{row['max ψ']:.3f}",
            WM.weight,
            *card["columns"].values(),
        )
    )


def test_this_key_is_the_key_itself():
    K = np.array([[1.0, 0.6], [0.6, 1.0]])
    tau = norm.isf(0.05)
    marks_both = np.array(
        [[tau + 0.1, tau + 0.1]]
    )  # the second says nothing that the first had not
    assert calibration_card.of_key(marks_both, K) == {"this key, ψ": 1.0, "this key, r": 0.5}
