"""One look for every figure: colours that colour-blind readers can tell apart, quiet grid, sizes
that fit a notebook's width.
"""

import textwrap
from collections.abc import Collection, Iterable, Sequence

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import ArrayLike
from scipy.stats import norm

COLOURS = sns.color_palette("colorblind")
WATERMARKED, PLAIN, WRONG_KEY, THEORY = COLOURS[1], COLOURS[0], COLOURS[4], "0.25"
SCHEMES = {  # colour and marker of a scheme, the same in every figure
    "GaussMark, no prompt": ("#8c6d31", "X"),
    "GaussMark, sharper": ("#252525", "h"),
    "GaussMark": (COLOURS[1], "o"),
    "rank-reduced": ("#8c510a", "s"),
    "KGW-1": (COLOURS[9], "v"),
    "KGW-2": (COLOURS[2], "^"),
    "SynthID": (COLOURS[4], "D"),
    "Gumbel-max": ("#b2182b", "P"),
    "token keys": ("#5e3c99", "X"),
    "token keys, sum": ("#9e9ac8", "X"),
}
KINDS = {  # of texts, and of numbers
    "own key": {"color": WATERMARKED, "marker": "o"},
    "watermarked": {"color": WATERMARKED, "marker": "o"},
    "measured": {"color": WATERMARKED, "marker": "o"},
    "plain": {"color": PLAIN, "marker": "s"},
    "wrong key": {"color": WRONG_KEY, "marker": "D"},
    "predicted": {"color": THEORY, "marker": "x", "linestyle": "--"},
}
OTHERS = (
    "#1b4f72",
    "#12a3a3",
    "#857a00",
    "#9a9a9a",
    "#000000",
    "#6fb7e0",
)  # of what is no scheme, so that a scheme keeps its colour everywhere
THIN = {"color": THEORY, "linewidth": 1}  # lines to compare with
DOTTED = THIN | {"linestyle": ":"}
DASHED = THIN | {"linestyle": "--"}
TOKENS = "tokens of response"


def use() -> None:
    """Sets the style for the whole kernel; every notebook calls it once."""
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind", font_scale=0.9)
    mpl.rcParams.update({"figure.figsize": (7.0, 4.0), "figure.dpi": 100, "savefig.bbox": "tight"})
    mpl.rcParams.update(
        {"axes.titlesize": "medium", "axes.titlelocation": "left", "legend.fontsize": "small"}
    )


def look(name: str, place: int = 0) -> dict[str, str | tuple]:
    """Colour, marker and line of a group in a figure: of a kind of text or a scheme the same
    everywhere, of anything else the one of its place. A scheme's are those of the longest name in
    ``SCHEMES`` that its own begins with.

    >>> look("predicted")["linestyle"], look("KGW-2 z-test") == look("KGW-2") != look("KGW-1")
    ('--', True)
    """
    if name in KINDS:
        return KINDS[name]
    if schemes := [known for known in SCHEMES if str(name).startswith(known)]:
        colour, marker = SCHEMES[max(schemes, key=len)]
        return {"color": colour, "marker": marker}
    return {"color": OTHERS[place % len(OTHERS)], "marker": "osD^vP"[place % 6]}


def name_points(axes: Axes, names: Sequence[str], x: ArrayLike, y: ArrayLike) -> None:
    """Each point's name in a column on the right, with a line to it; no two at one height."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    axes.set_xlim(left, right + 0.4 * (right - left))
    points = sorted(zip(y, x, names, strict=True))
    if not points:
        return
    step = 0.06 * (high - low) * np.arange(len(points))
    places = np.maximum.accumulate([y for y, *_ in points] - step) + step
    places += max(np.mean(y) - places.mean(), low - places[0])
    look = {"fontsize": "x-small", "va": "center", "bbox": {"color": "white", "pad": 0.5}}
    for place, (height, at, name) in zip(places, points, strict=True):
        thin = {"arrowstyle": "-", "color": "0.75"}
        axes.annotate(name, (at, height), (right, place), arrowprops=thin, **look)


def caption(figure: Figure, text: str, title: str = "") -> Figure:
    """Finishes a figure: its title, the legends that are missing, panels side by side, and n, seeds
    and settings below.
    """
    if (
        title
        and len(figure.axes) == 1
        and not (figure.axes[0].get_title() or figure.axes[0].get_title("left"))
    ):
        figure.axes[0].set_title(title)
    elif title:
        figure.suptitle(title, x=0.07, ha="left", fontsize="medium")
    _legends(figure.axes)
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    figure.text(0.01, -0.035, textwrap.fill(text, 100), fontsize="small", color="0.35", va="top")
    return figure


def _legends(panels: Collection[Axes]) -> None:
    """A legend in each panel that has none, unless those of the other panels explain all its
    labels.
    """
    explained = {
        text.get_text()
        for axes in panels
        if axes.get_legend()
        for text in axes.get_legend().get_texts()
    }
    for axes in panels:
        _, labels = axes.get_legend_handles_labels()
        if not axes.get_legend() and not explained.issuperset(labels):
            axes.legend()
            explained.update(labels)


def categories(axes: Axes, names: Collection[str]) -> None:
    """A row for each name, the first on top."""
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))


def log_ticks(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic x-axis with a tick at each of these values and nowhere else."""
    values = sorted(set(values))
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:,}" if value >= 1 else f"{value:g}" for value in values])
    axes.minorticks_off()


def few_log_ticks(axis: Axis) -> None:
    """Ticks at the powers of ten, and at 2 and 5 times them on a logarithmic axis of two decades or
    less, whose own labels collide.
    """
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high <= 200 * low else (1.0,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def legend_beside(axes: Axes) -> None:
    """A legend to the right of the axes, where it hides nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def normal_density(axes: Axes, low: float = -4.0, high: float = 4.0) -> None:
    """The N(0, 1) that statistics of unwatermarked text follow."""
    grid = np.linspace(low, high, 400)
    axes.plot(grid, norm.pdf(grid), **THIN, label="N(0, 1)")
