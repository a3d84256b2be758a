import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from gaussmark_lib.stats import Estimate
from gaussmark_lib.workbench.plots import intervals


def ends(container):
    """Both ends of each error bar, shape (bars, 2 ends, 2 coordinates)."""
    return np.array(container.lines[2][0].get_segments())


@pytest.mark.parametrize("horizontal", [False, True])
def test_bars_reach_from_low_to_high_of_a_tables_columns(horizontal):
    estimates = [Estimate(0.5, 0.2, 0.6, 9), Estimate(2.0, 1.0, 4.0, 9)]
    table = pd.DataFrame([estimate.row() for estimate in estimates])
    named = pd.DataFrame(
        [estimate.row("psi") | {"low": -9.0, "high": 9.0} for estimate in estimates]
    )
    for rows, column in ((table, "value"), (named, "psi")):
        drawn = ends(
            intervals.bars(Figure().subplots(), [10, 20], rows, column, horizontal=horizontal)
        )
        along, across = (0, 1) if horizontal else (1, 0)
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
