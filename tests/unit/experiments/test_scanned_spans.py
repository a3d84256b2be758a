"""The scan experiments of 13 on a tiny model: what they hand to the notebook is what the library
says, one by one.
"""

import pandas as pd
import pytest
import tiny_lm

from gaussmark_lib import tracing
from gaussmark_lib.experiments import scanned_spans
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.3)
HUMAN = ([[5], [6], [7]], [list(range(10 + i, 34 + i)) for i in range(3)])


@pytest.fixture(scope="module")
def lm():
    return tiny_lm.build()


@pytest.mark.parametrize(
    ("n_tokens", "share", "block"),
    [(180, 0.33, 20), (300, 0.33, 20), (120, 0.33, 20), (30, 0.1, 2), (900, 0.9, 50)],
)
def test_a_marked_span_begins_off_the_grid(n_tokens, share, block):
    start, end = scanned_spans.marked_span(n_tokens, share, block)
    assert start % block == block // 2
    assert end - start == max(block, round(share * n_tokens))
    assert 0 <= start < end <= n_tokens
    assert abs((start + end) / 2 - n_tokens / 2) <= block


def test_a_marked_span_is_no_longer_than_its_text():
    assert scanned_spans.marked_span(30, 0.9, 200) == (0, 30)


def test_a_span_is_replaced_by_marked_tokens(lm):
    keys = [Key.from_seed(i) for i in range(3)]
    mixed = scanned_spans.spliced(lm, HUMAN, WM, keys, 8, 6, seed=1)
    for before, after in zip(HUMAN[1], mixed, strict=True):
        assert (after[:8], after[14:]) == (before[:8], before[14:])
        assert after != before


def test_all_tests_of_a_scan_are_the_librarys(lm):
    keys = [[Key.from_seed(2 * i), Key.from_seed(2 * i + 1)] for i in range(3)]
    table = scanned_spans.scanned(lm, HUMAN, WM, keys, block=4, window=8)
    expected = pd.concat(
        tracing.scan(lm.model, [x], [y], WM, of_text, block=4)
        for x, y, of_text in zip(*HUMAN, keys, strict=True)
    ).reset_index(drop=True)
    assert table[["start", "end"]].equals(expected[["start", "end"]])
    assert table["psi"].tolist() == pytest.approx(expected["psi"].tolist(), rel=1e-4)
    assert table[scanned_spans.BOUND].tolist() == pytest.approx(
        expected["bonferroni"].tolist(), rel=1e-4
    )
    assert table[scanned_spans.WHOLE].tolist() == pytest.approx(
        expected["whole_p"].tolist(), rel=1e-4
    )
    assert table[scanned_spans.SCAN].tolist() == pytest.approx(
        expected["p_value"].tolist(), rel=0.15
    )
    rates = scanned_spans.rates({"marked": table, "human": table})
    assert rates["n"].tolist() == [6] * 8
    assert rates["value"].iloc[0] == (table[scanned_spans.SCAN] <= scanned_spans.LEVEL).mean()


def test_overlap():
    found = pd.DataFrame({"start": [0, 10, 4, 20], "end": [10, 20, 6, 30]})
    assert scanned_spans.overlap(found, 5, 15).tolist() == pytest.approx(
        [5 / 15, 5 / 15, 1 / 11, 0]
    )
