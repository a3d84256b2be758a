"""Measured beside published: every number of the paper is drawn, a bound as an arrow, and where it
stands is said.
"""

import math

import matplotlib.pyplot as plt
import pytest

from gaussmark_lib import runs
from gaussmark_lib.plots import published
from gaussmark_lib.stats import Estimate


@pytest.fixture
def drawn():
    panels = {
        "rise": (
            Estimate(0.05, 0.04, 0.06, 90),
            runs.comparable("doclm", "cross-entropy", less="base"),
        ),
        "ratio": (
            Estimate(2.1, math.nan, math.nan, 9),
            runs.comparable("doclm", "max/min of ‖G‖", "base"),
        ),
    }
    figure = published.figure(panels, "doclm", "Here: 90 texts.")
    yield figure
    plt.close(figure)


def _points(axes) -> list[float]:
    return [x for container in axes.containers for x in container.lines[0].get_xdata()]


def test_each_number_has_its_point_in_its_row(drawn):
    rise, _ = drawn.axes
    assert _points(rise) == pytest.approx([0.05, 2.2331 - 2.1709, 1.9385 - 1.9199, 2.1617 - 2.1396])
    names = [label.get_text() for label in rise.get_yticklabels()]
    assert names == [
        "doclm, this run",
        "Llama-3.1-8B, paper",
        "Mistral-7B-v0.1, paper",
        "Phi-3.5-mini-instruct, paper",
    ]


def test_a_bound_is_an_arrow_with_its_number(drawn):
    _, ratio = drawn.axes
    assert _points(ratio) == [2.1]
    assert [text.get_text() for text in ratio.texts if text.get_text()] == [
        "at most 25",
        "at most 25",
        "at most 40",
    ]
    assert ratio.get_xlim()[1] >= 40


def test_the_caption_names_the_tables(drawn):
    below = " ".join(text.get_text() for text in drawn.texts)
    assert "Here: 90 texts." in below
    assert "Table 3" in below
    assert "Figure 9" in below


@pytest.mark.parametrize(
    ("quantity", "scheme", "less", "said"),
    [
        ("max/min of ‖G‖", "base", None, "(2025)."),
        ("cross-entropy", "base", None, "; 95% intervals from its standard errors."),
        (
            "cross-entropy",
            "GaussMark",
            "base",
            "; 95% intervals from its standard errors (of a difference: unpaired).",
        ),
    ],
)
def test_the_caption_speaks_of_intervals_that_are_drawn(quantity, scheme, less, said):
    rows = runs.comparable("doclm", quantity, scheme, less=less)
    figure = published.figure(
        {"a number": (Estimate(1.0, 0.9, 1.1, 9), rows)}, "doclm", "Here: 9 texts."
    )
    assert any(" ".join(text.get_text().split()).endswith(said) for text in figure.texts)
    plt.close(figure)
