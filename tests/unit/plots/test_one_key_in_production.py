"""Each figure of 12 from a tiny made-up table: its error bars, its lines, its axes and its
caption.
"""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.container import ErrorbarContainer

from gaussmark_lib.plots import one_key_in_production as figures

N = np.random.default_rng(0)
ESTIMATE = {"value": 0.5, "low": 0.3, "high": 0.6, "n": 40}
CAPTION = "n = 40; seed 0"


def per_key():
    rows = pd.MultiIndex.from_product(
        [["docs", "source"], ["ψ", "innovation"], range(5)], names=["kind", "statistic", "key"]
    ).to_frame(index=False)
    return figures.per_key(rows.assign(rate=0.05), 0.05, CAPTION)


def spreads(kinds):
    return pd.DataFrame(
        {"value": 0.1, "low": 0.08, "high": 0.13, "n": 50, "predicted": 0.12}, index=kinds
    )


def kept():
    rows = pd.DataFrame(
        {
            "first": [1, 51],
            "last": [50, 150],
            **ESTIMATE,
            "theory": [0.98, 0.9],
            "one_factor": [0.97, 0.91],
        }
    )
    return figures.kept(rows, CAPTION)


def evidence():
    rows = pd.DataFrame(
        {
            "stream": np.repeat(["a", "b"], 3),
            "kind": np.repeat(["human", "1 in 2 marked"], 3),
            "place": [0, 1, 2] * 2,
            "log_e": 1.0,
        }
    )
    return figures.evidence(rows, 0.05, CAPTION)


def attack(n):
    forged = pd.DataFrame({"psi": N.normal(5, 1, n), "innovation": N.normal(size=n)})
    return figures.attack(forged, np.sort(N.normal(size=(n, 4))), 8, CAPTION)


def family():
    rows = pd.MultiIndex.from_product(
        [["docs", "source"], ["Bonferroni", "Fisher"]], names=["kind", "method"]
    ).to_frame(index=False)
    return figures.family(rows.assign(**ESTIMATE), 0.05, CAPTION)


FIGURES = {
    "per_key": (per_key, 0),
    "law": (lambda: figures.law(spreads(["docs"]), CAPTION), 1),
    "kept": (kept, 2),
    "evidence": (evidence, 0),
    "attack, a few": (lambda: attack(3), 0),
    "attack, many": (lambda: attack(40), 0),
    "family": (family, 4),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_what_it_shows(name):
    draw, n_bars = FIGURES[name]
    figure = draw()
    containers = [
        container
        for axes in figure.axes
        for container in axes.containers
        if isinstance(container, ErrorbarContainer)
    ]
    assert sum(len(container[0].get_xdata()) for container in containers) == n_bars
    assert all(axes.get_xlabel() for axes in figure.axes)
    assert any(CAPTION in text.get_text() for text in figure.texts)
    assert all(axes.get_title() or axes.get_title("left") for axes in figure.axes)
    plt.close(figure)


def test_the_legends_dots_can_be_seen():
    legend = per_key().axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["level 0.05", "ψ", "innovation"]
    for dot in legend.legend_handles[1:]:
        assert dot.get_alpha() in (None, 1)
        assert dot.get_markersize() >= 6
    plt.close("all")


def test_kinds_that_coincide_can_be_told_apart():
    axes = figures.law(spreads(list("abcdefg")), CAPTION).axes[0]
    points = [container[0] for container in axes.containers]
    assert len({point.get_marker() for point in points}) == 7
    assert {point.get_markerfacecolor() for point in points} == {"none"}
    plt.close("all")


def test_a_legend_covers_no_point_and_says_whose_training_text_it_is():
    axes = figures.law(spreads(["docs", "training"]), CAPTION).axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["measured = predicted", "docs", "docs (doclm's training)"]
    axes.figure.canvas.draw()
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1
    plt.close("all")


def test_theory_is_seen_where_the_stream_is_one_bin():
    rows = pd.DataFrame(
        {"first": [1], "last": [20], **ESTIMATE, "theory": [0.98], "one_factor": [0.97]}
    )
    axes = figures.kept(rows, CAPTION).axes[0]
    assert all(line.get_marker() not in ("", "None", None) for line in axes.lines[:2])
    plt.close("all")
