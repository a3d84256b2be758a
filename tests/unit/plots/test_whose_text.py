"""Each figure of 13 from a tiny made-up table: its error bars, its axes and its caption."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.container import ErrorbarContainer

from gaussmark_lib.experiments import scanned_spans as experiment
from gaussmark_lib.plots import style, whose_text

N = np.random.default_rng(0)
ESTIMATE = {"value": 0.5, "low": 0.3, "high": 0.6, "n": 40}


def naming():
    curve = pd.DataFrame(
        {
            "n_base": [4, 4, 64, 64],
            "psi": [0.0, 8.0] * 2,
            "share": [0.0, 0.5, 0.0, 1.0],
            "nats": [0.0, 6.0, 0.0, 30.0],
        }
    )
    return whose_text.naming(
        curve, pd.DataFrame({"n_tokens": [50, 200], "psi": [3.0, 6.0], **ESTIMATE}), 1000, "n = 2"
    )


def authors():
    rows = pd.DataFrame(
        [
            {"n_texts": n, "kind": kind}
            for n in (1, 4)
            for kind in whose_text.KINDS
            for _ in range(3)
        ]
    )
    return whose_text.authors(rows.assign(psi=N.normal(size=len(rows)), predicted=2.0), "n = 3")


def scan():
    tests = [experiment.SCAN, experiment.BOUND, experiment.WINDOW, experiment.WHOLE]
    rates = pd.DataFrame(
        [{"kind": kind, "test": test, **ESTIMATE} for kind in ("marked", "human") for test in tests]
    )
    marked = pd.DataFrame({"start": [0, 20], "end": [40, 60], experiment.SCAN: [0.01, 0.3]})
    return whose_text.scan(rates, marked, (20, 40), 80, 0.05, "n = 2")


FIGURES = {
    "naming": (naming, 2),
    "nobodys": (
        lambda: whose_text.nobodys(
            pd.DataFrame({"p_family": N.uniform(size=20), "bonferroni": 1.0}), "n = 20"
        ),
        0,
    ),
    "costs": (
        lambda: whose_text.costs(
            pd.DataFrame({"n_users": [100, 1000], "seconds": [1.0, 2.0]}), 0.1, 16, 5000.0, "n = 2"
        ),
        0,
    ),
    "authors": (authors, 6),
    "scan": (scan, 8),
}


def test_the_dotted_lines_are_named():
    labels = [text.get_text() for text in naming().axes[0].get_legend().get_texts()]
    assert any("capacity = ln N" in label for label in labels)
    plt.close("all")


def test_of_many_texts_the_first_are_drawn_whatever_was_found():
    tests = [experiment.SCAN]
    rates = pd.DataFrame(
        [{"kind": kind, "test": test, **ESTIMATE} for kind in ("marked", "human") for test in tests]
    )
    starts = np.arange(100)[::-1]
    marked = pd.DataFrame({"start": starts, "end": starts + 10, experiment.SCAN: 0.01})
    right = whose_text.scan(rates, marked, (20, 40), 120, 0.05, "n = 2").axes[1]
    drawn = {
        segment[0, 0]
        for lines in right.collections
        if hasattr(lines, "get_segments")
        for segment in lines.get_segments()
    }
    assert drawn == set(range(40, 100))
    assert right.get_ylabel() == "the first 60 texts"
    plt.close("all")


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_draws_every_interval_and_names_its_axes(name):
    style.use()
    draw, n_bars = FIGURES[name]
    figure = draw()
    containers = [
        one for axes in figure.axes for one in axes.containers if isinstance(one, ErrorbarContainer)
    ]
    assert (
        sum(len(bars.get_segments()) for container in containers for bars in container.lines[2])
        == n_bars
    )
    assert all(axes.get_xlabel() for axes in figure.axes)
    assert any(axes.get_title(loc="left") for axes in figure.axes)
    assert [text.get_text() for text in figure.texts if text.get_text().startswith("n = ")]
    plt.close("all")
