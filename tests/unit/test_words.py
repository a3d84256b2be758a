"""Numbers in words."""

import pytest

from gaussmark_lib.workbench import words


@pytest.mark.parametrize(
    ("value", "low", "high", "n", "percent", "expected"),
    [
        (0.9666666, 0.8666666, 1.0, 30, True, "97% (87% to 100%), n = 30"),
        (0.0510416, 0.0416293, 0.0618532, 1920, True, "5.1% (4.2% to 6.2%), n = 1,920"),
        (2.7738560, 1.9046942, 3.3918825, 18, False, "2.8 (1.9 to 3.4), n = 18"),
        (-0.004, -0.3, 0.2, 8, False, "0.00 (−0.30 to 0.20), n = 8"),
        (1.07, 0.78, 11.2, 8, False, "1.1 (0.8 to 11.2), n = 8"),
        (252.332, 252.332, 252.332, 42, False, "252 (252 to 252), n = 42"),
        (0.958645, None, None, 4, False, "0.959 (n = 4, too few for an interval)"),
        (12345.6, None, None, 6, False, "12,346 (no interval), n = 6"),
        (1.0, 1.0, 1.0, 84, True, "100% (100% to 100%), n = 84"),
        (3.21e-9, None, None, None, False, "3.21 × 10^−9 (no interval)"),
        (6.0, 2.5, None, 21, False, "6.00 (2.50 or more), n = 21"),
        (None, None, None, 12, False, "none (no number), n = 12"),
    ],
)
def test_an_estimate_is_rounded_to_what_its_interval_needs(value, low, high, n, percent, expected):
    estimate = {"value": value, "low": low, "high": high, "n": n}
    assert " ".join(words.estimate(estimate, as_percent=percent)) == expected


def test_results_are_one_line_per_number():
    nested = {
        "a": {"value": 0.5, "low": 0.25, "high": 0.75, "n": 8},
        "b": {"c": None, "d": [1] * 9},
    }
    assert dict(words.lines(nested)) == {
        "a": "0.5 (0.25 to 0.75), n = 8",
        "b · c": "–",
        "b · d": "9 values",
    }
    assert [words.of(value) for value in (True, 12345, 0.123456, [1, "x"])] == [
        *("yes", "12,345", "0.1235", "1, x")
    ]
