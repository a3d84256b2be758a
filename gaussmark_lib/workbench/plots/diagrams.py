"""Two diagrams that explain the scheme without any data: where the noise is, and who holds what."""

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from gaussmark_lib.workbench.plots import style

QUIET = "0.94"  # the fill of a box that the watermark does not touch
EDGE = "0.45"
WRITES = style.WATERMARKED
TESTS = style.PLAIN


def block() -> Figure:
    """Draw a transformer block with θ, ξ and G: what the writer changes, and what the test reads.

    >>> from matplotlib import pyplot as plt
    >>> figure = block()
    >>> plt.close(figure)
    """
    figure, axes = _canvas(9.4, 3.9)
    _box(axes, 0.2, 1.5, 1.5, 1.0, "tokens\nso far")
    frame = FancyBboxPatch(
        (2.25, 0.45),
        4.7,
        3.0,
        boxstyle="round,pad=0.02",
        fill=False,
        edgecolor=EDGE,
        linestyle="--",
    )
    axes.add_patch(frame)
    axes.text(2.35, 3.15, "one of the blocks", color="0.3", fontsize="small")
    _box(axes, 2.5, 1.5, 1.2, 1.0, "attention")
    _box(axes, 4.1, 1.5, 1.0, 1.0, "MLP:\nup, gate")
    _box(axes, 5.5, 1.5, 1.25, 1.0, "down_proj\nθ", colour=WRITES)
    _box(axes, 7.4, 1.5, 1.7, 1.0, "log p of\nthe next token")
    for left, right in ((1.7, 2.5), (3.7, 4.1), (5.1, 5.5), (6.75, 7.4)):
        _arrow(axes, (left, 2.0), (right, 2.0))
    _arrow(axes, (6.1, 3.75), (6.1, 2.55), WRITES)
    axes.text(6.25, 3.68, "to write: θ + ξ,  ξ ~ N(0, σ²I) from the key", color=WRITES, va="center")
    _arrow(axes, (8.25, 1.45), (6.15, 1.45), TESTS, bend=-0.35)
    axes.text(
        7.15,
        0.62,
        "to test: G = ∇ log p(text) at θ,\nψ = ⟨ξ, G⟩ / (σ‖G‖)",
        color=TESTS,
        va="center",
    )
    axes.set(xlim=(0, 9.6), ylim=(0.2, 4.0))
    return style.caption(
        figure,
        "All other weights stay as they are. The test never uses θ + ξ.",
        "Where is the watermark?",
    )


def roles() -> Figure:
    """Draw who holds the base weights, the key and the watermarked weights when a text is written,
    served and tested.

    >>> from matplotlib import pyplot as plt
    >>> figure = roles()
    >>> plt.close(figure)
    """
    figure, axes = _canvas(9.4, 3.6)
    _box(axes, 0.2, 1.2, 2.3, 1.7, "owner\n\nbase θ\nkey (secret)", colour=WRITES)
    _box(axes, 3.5, 2.2, 2.3, 1.2, "server\n\nweights θ + ξ")
    _box(axes, 6.9, 2.2, 2.3, 1.2, "reader\n\ntext")
    _box(axes, 6.9, 0.3, 2.3, 1.2, "detector\n\nbase θ, key, text", colour=TESTS)
    _arrow(axes, (2.5, 2.4), (3.5, 2.8))
    axes.text(2.95, 2.95, "θ + ξ", ha="center")
    _arrow(axes, (5.8, 2.8), (6.9, 2.8))
    axes.text(6.35, 2.95, "text", ha="center")
    _arrow(axes, (8.05, 2.2), (8.05, 1.5))
    axes.text(8.2, 1.85, "text alone", va="center")
    _arrow(axes, (2.5, 1.5), (6.9, 0.8))
    axes.text(4.4, 0.72, "θ and key", ha="center")
    axes.text(3.5, 1.8, "The server needs no new code\nand no key.", fontsize="small", va="center")
    axes.set(xlim=(0, 9.6), ylim=(0.1, 3.6))
    return style.caption(
        figure,
        "The detector needs no help from the server, and can run years later. θ + ξ and θ together"
        " reveal ξ, so keep one of them private.",
        "Who holds what?",
    )


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure without axes' lines, ticks and grid."""
    figure, axes = plt.subplots(figsize=(width, height))
    axes.set_axis_off()
    return figure, axes


def _box(
    axes: Axes, x: float, y: float, width: float, height: float, words: str, colour: object = None
) -> None:
    """A box with centred words; a coloured one matters."""
    box = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0.02",
        facecolor=QUIET,
        edgecolor=EDGE if colour is None else colour,
        linewidth=1 if colour is None else 2.2,
    )
    axes.add_patch(box)
    axes.text(x + width / 2, y + height / 2, words, ha="center", va="center")


def _arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: object = EDGE,
    bend: float = 0.0,
) -> None:
    arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6}
    axes.annotate("", end, start, arrowprops=arrow | {"connectionstyle": f"arc3,rad={bend}"})
