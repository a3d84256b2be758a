"""Figures of tables: bars and bands of intervals, and panels of them."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench.plots import intervals, style
from gaussmark_lib.workbench.plots.panels import panels

LENGTHS = pd.DataFrame(
    {"n_tokens": n, "kind": kind, "level": level, "value": n / 100, "low": 0, "high": 1}
    for level in ("5%", "1%")
    for kind in ("own key", "plain")
    for n in (20, 80, 40)
)


def words(labels) -> list[str]:
    return [label.get_text() for label in labels]


def ends(container) -> np.ndarray:
    """Both ends of each error bar, shape (bars, 2 ends, 2 coordinates)."""
    return np.array(container.lines[2][0].get_segments())


def test_numbers_make_lines_with_bands_in_a_panel_per_value():
    at = {"a level": 0.05}
    figure = panels(LENGTHS, "n_tokens", by="kind", panel="level", at=at, xscale="log")
    titles = [axes.get_title("left") or axes.get_title() for axes in figure.axes]
    assert titles == ["5%", "1%"]
    for axes in figure.axes:
        own, plain, level = axes.lines
        assert own.get_xydata().tolist() == [[20, 0.2], [40, 0.4], [80, 0.8]], "sorted"
        assert own.get_color() == style.WATERMARKED != plain.get_color()
        assert set(level.get_ydata()) == {0.05}
        assert len(axes.collections) == 2, "two bands"
        assert words(axes.get_xticklabels()) == ["20", "40", "80"]
    assert words(figure.axes[1].get_legend().get_texts()) == ["own key", "plain", "a level"]


def test_one_legend_explains_the_labels_of_all_panels():
    table = LENGTHS[(LENGTHS["level"] == "5%") | (LENGTHS["kind"] == "own key")]
    first, last = panels(table, "n_tokens", by="kind", panel="level").axes
    assert first.get_legend() is None, "it would hide data"
    assert words(last.get_legend().get_texts()) == ["own key", "plain"]


def test_categories_make_rows_of_points_with_their_own_columns_of_bounds():
    table = pd.DataFrame(
        {"scheme": ["GaussMark", "KGW-1"], "psi": [3.0, 2.0], "psi_low": 1.0, "psi_high": 4.0}
    )
    looks = {"predicted": style.look("predicted")}  # dashed
    table["by"] = "predicted"
    axes = panels(table, "scheme", "psi", by="by", looks=looks, ylabel="mean ψ").axes[0]
    assert words(axes.get_yticklabels()) == ["GaussMark", "KGW-1"]
    assert axes.get_xlabel() == "mean ψ"
    [bars] = axes.containers
    assert bars.lines[0].get_linestyle() == "None", "categories have no line between them"
    assert bars.lines[0].get_xdata().tolist() == [3.0, 2.0]
    assert ends(bars)[:, :, 0] == pytest.approx(np.array([[1.0, 4.0], [1.0, 4.0]]))


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_many_lines_have_bars_that_stand_apart_and_panels_fill_two_columns(scale):
    table = pd.DataFrame(
        {"n": n, "by": by, "level": level, "value": 1.0, "low": 0.5, "high": 2.0}
        for level in "abc"
        for by in "1234"
        for n in (10, 20, 40)
    )
    figure = panels(table, "n", by="by", panel="level", xscale=scale, sharey=False)
    assert len(figure.axes) == 3
    assert figure.get_size_inches()[0] < 12.8
    for axes in figure.axes:
        assert not len(axes.collections) - 4, "bars, no bands"
        places = np.array([bars.lines[0].get_xdata() for bars in axes.containers])
        assert (np.diff(places, axis=0) > 0).all()
        assert (abs(places / [10, 20, 40] - 1) < 0.16).all()


def test_panels_that_share_an_axis_have_the_same_rows():
    """A record may lack a category of this run, or have others."""
    table = pd.DataFrame(
        {
            "edit": ["unedited", "delete", "unedited", "insert"],
            "run": ["doclm", "doclm", "this run", "this run"],
            "value": [0.9, 0.2, 0.8, 0.3],
            "low": 0.1,
            "high": 1.0,
        }
    )
    for_doclm, for_this_run = panels(table, "edit", panel="run").axes
    assert words(for_doclm.get_yticklabels()) == ["unedited", "delete", "insert"]
    [points] = for_this_run.containers
    assert points.lines[0].get_ydata().tolist() == [0, 2], "unedited and insert"


# --- intervals ---


@pytest.mark.parametrize("horizontal", [False, True])
def test_bars_reach_from_low_to_high_of_a_tables_columns(horizontal):
    estimates = [Estimate(0.5, 0.2, 0.6, 9), Estimate(2.0, 1.0, 4.0, 9)]
    table = pd.DataFrame([estimate.row() for estimate in estimates])
    named = pd.DataFrame(estimate.row("psi") for estimate in estimates).assign(low=-9.0, high=9.0)
    along, across = (0, 1) if horizontal else (1, 0)
    for rows, column in ((table, "value"), (named, "psi")):
        axes = Figure().subplots()
        drawn = ends(intervals.bars(axes, [10, 20], rows, column, horizontal=horizontal))
        assert drawn[:, :, along] == pytest.approx(np.array([[0.2, 0.6], [1.0, 4.0]]))
        assert (drawn[:, :, across] == [[10, 10], [20, 20]]).all()


def test_an_unknown_bound_leaves_a_point_without_a_bar():
    rows = pd.DataFrame({"value": [1.0, 2.0], "low": [np.nan, 1.5], "high": [np.nan, 2.5]})
    figure = Figure()
    container = intervals.bars(figure.subplots(), [0, 1], rows)
    figure.canvas.draw()
    assert container.lines[0].get_ydata().tolist() == [1.0, 2.0]
    unknown, known = container.lines[2][0].get_segments()
    assert not np.isfinite(unknown).any()
    assert known[:, 1].tolist() == [1.5, 2.5]


def test_a_band_has_its_line_and_its_bounds_in_one_colour():
    axes = Figure().subplots()
    rows = pd.DataFrame({"value": [1.0, 2.0], "low": [0.5, 1.5], "high": [1.5, 2.5]}, index=[7, 8])
    intervals.band(axes, rows.index, rows, label="a line")
    (line,), (area,) = axes.lines, axes.collections
    assert line.get_ydata().tolist() == [1.0, 2.0]
    assert line.get_label() == "a line"
    outline = area.get_paths()[0].vertices
    assert (outline[:, 1].min(), outline[:, 1].max()) == (0.5, 2.5)
    assert tuple(area.get_facecolor()[0, :3]) == pytest.approx(to_rgb(line.get_color()))
