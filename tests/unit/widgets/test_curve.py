"""The curve of p against tokens as a picture: where its points stand, what it says without eyes,
and that its axes stand still.
"""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from gaussmark_lib.widgets.curve import BOTTOM, FONT, LEAST, LEFT, RIGHT, TOP, WIDTH, curve


def points(*psi: float, n: tuple[int, ...] = (25, 50)) -> pd.DataFrame:
    log10_p = norm.logsf(psi) / np.log(10)
    return pd.DataFrame(
        {"kind": "watermarked", "key": "this key", "n_tokens": n[: len(psi)], "log10_p": log10_p}
    )


def drawn(picture: str, tag: str) -> list[dict]:
    return [element.attrib for element in ET.fromstring(picture).iter(tag)]


def test_points_stand_at_their_p():
    first, second = drawn(curve(points(1.0, 3.0), 50, 4.0, 0.05), "circle")
    assert float(first["cx"]) == pytest.approx((LEFT + RIGHT) / 2, abs=0.1)
    assert float(second["cx"]) == RIGHT
    lowest = np.floor(norm.logsf(5.5) / np.log(10))
    for spot, psi in ((first, 1.0), (second, 3.0)):
        assert float(spot["cy"]) == pytest.approx(
            TOP + (BOTTOM - TOP) * norm.logsf(psi) / np.log(10) / lowest, abs=0.1
        )


def test_axes_stand_still_while_lines_grow_and_make_room_for_stronger_evidence():
    def axes(psi):
        return re.findall(r"<text.*?</text>", curve(points(*psi), 50, 4.0, 0.05))

    assert axes([]) == axes([1.0]) == axes([1.0, 5.0]) != axes([1.0, 9.0])
    for spot in drawn(curve(points(1.0, 40.0), 50, 0.5, 0.05), "circle"):
        assert TOP <= float(spot["cy"]) <= BOTTOM


def test_it_says_its_last_points_and_its_words_are_large_enough():
    [picture] = drawn(f"<div>{curve(points(1.0, 3.0), 50, 4.0, 0.05)}</div>", "svg")
    assert picture["role"] == "img"
    assert (
        picture["aria-label"]
        == "p against tokens. watermarked, this key: log10 p = -2.9 at 50 tokens"
    )
    assert FONT * LEAST / WIDTH >= 11
    assert "Nothing is scored yet" in curve(points(), 50, 4.0, 0.05)


@pytest.mark.parametrize("n_tokens", [1, 7, 80, 400, 4000])
def test_few_ticks_at_any_length(n_tokens: int):
    picture = curve(points(), n_tokens, 4.0, 0.05)
    numbers = re.findall(r'text-anchor="middle" fill="currentColor">(\d+)<', picture)
    assert numbers[-1] == str(n_tokens)
    assert 2 <= len(numbers) <= 12
