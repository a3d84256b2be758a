"""What a table says of its cells: shares have the intervals of shares."""

import numpy as np
import pandas as pd

from gaussmark_lib import stats
from gaussmark_lib.experiments import crossed


def test_a_mean_of_truth_values_is_a_share():
    """All detected: the interval is not a point, but the exact one of the prompts."""
    table = pd.DataFrame(
        [{"prompt": i, "key_id": k, "hit": True, "psi": 3.0} for i in range(6) for k in "ab"]
    )
    found = crossed.mean(table, "hit")
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == stats.rate([True] * 6).low
    assert np.isnan(crossed.mean(table, "psi").low), "nothing is known of the spread"


def test_an_area_of_one_has_the_interval_of_pairs_of_prompts():
    own, plain = np.full((6, 2), -9.0), np.full((6, 2), -0.1)
    found = crossed.detection(own, plain, lambda log10_p: float(np.median(log10_p)), n_resamples=20)
    rows = {row["figure"]: row for row in found}
    assert (rows["AUC"]["value"], rows["AUC"]["n"]) == (1.0, 12)
    assert rows["AUC"]["low"] == stats.rate([True] * 3).low
    assert rows["TPR at 0.05"]["low"] == stats.rate([True] * 6).low
    assert list(rows)[:2] == ["median p", "AUC"]


def test_an_area_below_one_is_resampled():
    rng = np.random.default_rng(0)
    own, plain = rng.normal(-2, 1, (8, 3)), rng.normal(-0.5, 1, (8, 3))
    found = crossed.detection(
        own, plain, lambda log10_p: float(np.median(log10_p)), n_resamples=50, seed=1
    )
    [area] = [row for row in found if row["figure"] == "AUC"]
    expected = stats.crossed_interval(
        lambda a, b: stats.auc(-a, -b), plain, own, n_resamples=50, seed=1
    )
    assert {name: area[name] for name in ("value", "low", "high", "n")} == expected.row()
