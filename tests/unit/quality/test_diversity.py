"""Distinct n-grams, repetition and length, by hand."""

import pytest

from gaussmark_lib.quality import diversity


def test_diversity_by_hand():
    table = diversity.table([[1, 2, 1, 2, 1, 2], [3, 4, 0, 5, 6, 7]], ends={0})
    assert table["distinct_1"].tolist() == [2 / 6, 1.0]
    assert table["distinct_2"].tolist() == [2 / 5, 1.0]
    assert table["seq_rep_4"].tolist() == pytest.approx([1 / 3, 0.0])
    assert table["length"].tolist() == [6, 2]
    assert table["ended"].tolist() == [False, True]
