"""One look for every figure: colour-blind-safe, quiet grid, sizes that fit a notebook's width."""

import textwrap

import matplotlib as mpl
import seaborn as sns
from matplotlib.figure import Figure

WATERMARKED, PLAIN, THEORY, WRONG_KEY = (
    sns.color_palette("colorblind")[1],
    sns.color_palette("colorblind")[0],
    "0.25",
    sns.color_palette("colorblind")[4],
)


def use() -> None:
    """Sets the style for the whole kernel; every notebook calls it once."""
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind", font_scale=0.9)
    mpl.rcParams.update(
        {"figure.figsize": (7.0, 4.0), "figure.dpi": 100, "savefig.bbox": "tight", "axes.titlesize": "medium", "axes.titlelocation": "left"}
    )


def caption(figure: Figure, text: str) -> Figure:
    """Writes n, seeds and settings under the figure, where a reader looks for them."""
    figure.text(0.01, -0.035, textwrap.fill(text, 100), fontsize="small", color="0.35", va="top")
    return figure
