"""Signal and norm: their product is the statistic, and a table made by hand gives the shares that
it was made with.
"""

import numpy as np
import pandas as pd
import pytest

from gaussmark_lib.experiments import fading, written_and_scored


def _table() -> pd.DataFrame:
    """Two prompts × two keys; at f = 0.5 every ψ is a quarter and every norm twice what it was."""
    rows = []
    for fraction, psi, norm in ((0.0, 4.0, 10.0), (0.5, 1.0, 20.0)):
        for prompt in range(2):
            for key in range(2):
                own = {
                    "scheme": "GaussMark",
                    "kind": written_and_scored.OWN,
                    "statistic": psi + prompt * psi,
                    "grad_norm": norm + key * norm,
                }
                rows += [
                    {"corruption": "delete", "fraction": fraction, "prompt": prompt, "key_id": key}
                    | own
                ]
                rows += [rows[-1] | {"kind": written_and_scored.PLAIN, "statistic": 77.0}]
                rows += [rows[-2] | {"scheme": "KGW-2", "grad_norm": np.nan}]
    return pd.DataFrame(rows)


def test_shares_of_signal_norm_and_psi():
    found = fading.parts(_table(), n_resamples=50).set_index(["fraction", "figure"])
    assert len(found) == 2 * 3
    for figure, share in {"psi": 0.25, "norm": 2.0, "signal": 0.5}.items():
        assert found.loc[(0.0, figure), "value"] == 1
        assert found.loc[(0.5, figure), "value"] == pytest.approx(share)
        assert found.loc[(0.5, figure), ["low", "high"]].isna().all(), (
            "texts that all agree bound nothing"
        )
    assert set(found["scheme"]) == {"GaussMark"}


def test_the_interval_covers_what_differs_between_texts():
    table = _table()
    table.loc[(table["fraction"] > 0) & (table["prompt"] == 1), "statistic"] = 0.0
    row = fading.parts(table, n_resamples=200).set_index(["fraction", "figure"]).loc[(0.5, "psi")]
    assert row["value"] == pytest.approx(1 / 12)
    assert row["low"] < row["value"] < row["high"]


def test_ratios_and_differences_between_two_edits():
    table = _table()
    one = fading.between(
        table.assign(corruption=table["fraction"].map({0.0: "unedited", 0.5: "delete"})),
        "norm",
        "delete",
        "unedited",
        n_resamples=50,
    )
    assert (one.value, one.n) == (pytest.approx(2), 4)
    named = table.assign(corruption=table["fraction"].map({0.0: "unedited", 0.5: "delete"}))
    less = fading.difference(named, "psi", "delete", "unedited", "unedited", n_resamples=50)
    assert less.value == pytest.approx(1 / 4 - 1)


@pytest.mark.parametrize(
    ("lost", "added", "surprise"),
    [(0.5, 0.0, 1.0), (0.0, 0.5, 1.0), (0.0, 1.0, 5.0), (0.3, 0.3, 2.0)],
)
def test_the_toy_follows_the_law_without_contexts(lost, added, surprise):
    """Signal 1 − lost, squared norm 1 − lost + added · surprise; the vectors are nearly orthogonal,
    to √(n/dimension).
    """
    expected = (1 - lost) / np.sqrt(1 - lost + added * surprise)
    assert fading.toy(lost, added, surprise) == pytest.approx(expected, abs=0.04)
