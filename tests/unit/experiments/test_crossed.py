"""What a table says of its cells: shares have the intervals of shares."""

import numpy as np
import pandas as pd

from gaussmark_lib import stats
from gaussmark_lib.experiments import crossed


def test_a_mean_of_truth_values_is_a_share():
    """All detected: the interval is not a point, but the exact one of the prompts."""
    table = pd.DataFrame([{"prompt": i, "key_id": k, "hit": True, "psi": 3.0} for i in range(6) for k in "ab"])
    found = crossed.mean(table, "hit")
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == stats.rate([True] * 6).low
    assert np.isnan(crossed.mean(table, "psi").low), "nothing is known of the spread"
