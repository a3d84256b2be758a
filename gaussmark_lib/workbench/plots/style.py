"""The look of every figure: colours for colour-blind readers, a quiet grid, and sizes that fit the
width of a notebook.
"""

import textwrap
from collections.abc import Collection, Iterable, Sequence

import matplotlib as mpl
import numpy as np
import seaborn as sns
from IPython import InteractiveShell, get_ipython
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import ArrayLike
from scipy.stats import norm

COLOURS = sns.color_palette("colorblind")
WATERMARKED = COLOURS[1]
PLAIN = COLOURS[0]
WRONG_KEY = COLOURS[4]
THEORY = "0.25"
SCHEMES = {  # colour and marker of each scheme, the same in every figure
    "GaussMark, no prompt": ("#8c6d31", "X"),
    "GaussMark, sharper": ("#252525", "h"),
    "GaussMark": (COLOURS[1], "o"),
    "GaussMark at KGW-1's cost": ("#7f3b08", "<"),
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
RUNS = {  # a notebook's larger runs, which are kept in git, and the reader's own
    "SmolLM2": {"color": "#1b4f72", "marker": "s"},
    "Gemma": {"color": "#857a00", "marker": "^"},
    "doclm": {"color": "#12a3a3", "marker": "D"},
    "this run": {"color": WATERMARKED, "marker": "o"},
}
# Of groups that are not schemes, so that the colour of a scheme has no second meaning.
OTHERS = (
    "#1b4f72",
    "#12a3a3",
    "#857a00",
    "#9a9a9a",
    "#000000",
    "#6fb7e0",
)
THIN = {"color": THEORY, "linewidth": 1}  # lines for comparison
DOTTED = THIN | {"linestyle": ":"}
DASHED = THIN | {"linestyle": "--"}
TOKENS = "tokens of response"


def use() -> None:
    """Set the style of the whole kernel, and what it shows of an interruption; every notebook calls
    it once.
    """
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind", font_scale=0.9)
    mpl.rcParams.update(
        {
            "figure.figsize": (7.0, 4.0),
            "figure.dpi": 100,
            "savefig.bbox": "tight",
            "axes.titlesize": "medium",
            "axes.titlelocation": "left",
            "legend.fontsize": "small",
        }
    )
    if shell := get_ipython():
        shell.set_custom_exc((KeyboardInterrupt,), _interrupted)


def _interrupted(
    shell: InteractiveShell, kind: type, error: BaseException, *_: object, **__: object
) -> None:
    """Show a sentence: all frames of torch would take seconds, and several screens."""
    shell._showtraceback(kind, error, ["Interrupted. Run the cell again when you like."])


def look(name: str, place: int = 0) -> dict[str, str | tuple]:
    """Return colour, marker and line of a group in a figure.

    A kind of text, a run or a scheme has the same look in every figure. Other groups get a look by
    their place. The look of a scheme is that of the longest name in ``SCHEMES`` with which its name
    begins.

    >>> look("predicted")["linestyle"], look("KGW-2 z-test") == look("KGW-2") != look("KGW-1")
    ('--', True)
    """
    for looks in (KINDS, RUNS):
        if name in looks:
            return looks[name]
    schemes = [scheme for scheme in SCHEMES if str(name).startswith(scheme)]
    if schemes:
        colour, marker = SCHEMES[max(schemes, key=len)]
        return {"color": colour, "marker": marker}
    return {"color": OTHERS[place % len(OTHERS)], "marker": "osD^vP"[place % 6]}


def name_points(axes: Axes, names: Sequence[str], x: ArrayLike, y: ArrayLike) -> None:
    """Write the names of points in a column on the right, each with a line to its point.

    The names do not overlap.
    """
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    axes.set_xlim(left, right + 0.4 * (right - left))
    points = sorted(zip(y, x, names, strict=True))
    if not points:
        return
    heights = [height for height, _, _ in points]
    step = 0.06 * (high - low) * np.arange(len(points))
    places = np.maximum.accumulate(heights - step) + step  # at least a step apart
    places += max(np.mean(y) - places.mean(), low - places[0])  # around their mean, inside the axes
    for place, (height, at, name) in zip(places, points, strict=True):
        axes.annotate(
            name,
            (at, height),
            (right, place),
            arrowprops={"arrowstyle": "-", "color": "0.75"},
            fontsize="x-small",
            va="center",
            bbox={"color": "white", "pad": 0.5},
        )


def caption(figure: Figure, text: str, title: str = "") -> Figure:
    """Finish a figure: set its title, missing legends and layout, and write the caption below.

    The caption has n, seeds and settings.
    """
    titles = [axes.get_title() or axes.get_title("left") for axes in figure.axes]
    is_of_panel = titles == [""]  # the only panel, which has no title
    if is_of_panel:
        figure.axes[0].set_title(title)
    _legends(figure.axes)
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    # both stand outside the figure; a saved figure grows to hold them
    if title and not is_of_panel:
        figure.suptitle(title, x=0.07, y=1.0, ha="left", va="bottom", fontsize="medium")
    below = -0.14 / figure.get_figheight()  # 0.14 inches
    figure.text(0.01, below, textwrap.fill(text, 100), fontsize="small", color="0.35", va="top")
    return figure


def _legends(panels: Collection[Axes]) -> None:
    """Draw a legend in each panel without one, unless other legends explain all its labels."""
    explained = set()
    for axes in panels:
        if axes.get_legend():
            explained.update(text.get_text() for text in axes.get_legend().get_texts())
    for axes in panels:
        _, labels = axes.get_legend_handles_labels()
        if not axes.get_legend() and not explained.issuperset(labels):
            axes.legend()
            explained.update(labels)


def categories(axes: Axes, names: Collection[str]) -> None:
    """Make a row for each name, the first on top."""
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))


def log_ticks(axes: Axes, values: Iterable[float]) -> None:
    """Make the x-axis logarithmic, with a tick at each of these values and nowhere else."""
    values = sorted(set(values))
    labels = [f"{value:,}" if value >= 1 else f"{value:g}" for value in values]
    axes.set_xscale("log")
    axes.set_xticks(values, labels)
    axes.minorticks_off()


def few_log_ticks(axis: Axis) -> None:
    """Put ticks at the powers of ten, and for up to two decades also at 2 and 5 times these.

    The default labels of such a logarithmic axis overlap.
    """
    low, high = axis.get_view_interval()
    is_short = high <= 200 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if is_short else (1.0,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def legend_beside(axes: Axes, panels: Iterable[Axes] = (), *, has_place: bool = False) -> None:
    """Draw a legend to the right of the axes, where it hides nothing. It also explains the labels
    of the other panels.

    ``has_place`` says that the place to the right is free, so that no panel has to shrink.
    """
    handles = {}
    for panel in (*panels, axes):
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    legend = axes.legend(handles.values(), handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    legend.set_in_layout(not has_place)


def normal_density(axes: Axes, low: float = -4.0, high: float = 4.0) -> None:
    """Draw the density of N(0, 1), the law of statistics of unwatermarked text."""
    grid = np.linspace(low, high, 400)
    axes.plot(grid, norm.pdf(grid), **THIN, label="N(0, 1)")
