"""Figures of 16_theory_in_full. Lines are exact (or printed) values, points with bars are
simulations with 95% intervals.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gaussmark_lib import stats
from gaussmark_lib.plots import intervals, style

PRINTED = style.COLOURS[3]
LEVEL = {"color": "0.6", "linestyle": ":", "linewidth": 1}
SMALL, WIDE = (6.4, 3.7), (8.6, 3.7)  # one panel, two panels
DOT = {"marker": "o", "markersize": 4}


def _shares(
    axes: Axes, sigma: pd.Series, hits: pd.Series, n: pd.Series, colour, label: str | None = None
) -> None:
    """Shares with their exact binomial intervals."""
    estimates = [stats.rate(np.arange(trials) < k) for k, trials in zip(hits, n, strict=True)]
    intervals.bars(axes, sigma, estimates, markersize=4, capsize=2, color=colour, label=label)


def gaussian_rate(table: pd.DataFrame, caption: str) -> Figure:
    """Mean ψ/√d against σ: simulation, the exact rate, the printed rate, the ceiling no statistic
    of unit noise can pass.
    """
    figure, axes = plt.subplots(figsize=SMALL)
    sigma = np.geomspace(table["sigma"].min() / 1.2, table["sigma"].max() * 1.2, 200)
    axes.plot(
        sigma,
        sigma / np.sqrt(1 + sigma**2),
        color=style.THEORY,
        label="σ/√(1+σ²), what the proof gives",
    )
    axes.plot(
        sigma, sigma**2 / np.sqrt(1 + sigma**2), "--", color=PRINTED, label="σ²/√(1+σ²), as printed"
    )
    axes.axhline(1, **LEVEL, label="ceiling: ψ ≤ ‖ξ‖/σ ≈ √d")
    value, half = (table[column] / np.sqrt(table["dim"]) for column in ("mean_psi", "sem_psi"))
    scaled = table.assign(value=value, low=value - 1.96 * half, high=value + 1.96 * half)
    for (dim, rows), marker in zip(scaled.groupby("dim"), "osD^v", strict=False):
        intervals.bars(
            axes,
            rows["sigma"],
            rows,
            marker=marker,
            markersize=5,
            capsize=2,
            label=f"simulated, d = {dim}",
        )
    axes.set(
        xscale="log",
        yscale="log",
        ylim=(2e-3, 8),
        xlabel="σ (standard deviation of the noise, unit of the data)",
        ylabel="mean ψ / √d",
    )
    return style.caption(figure, caption, "Does mean ψ of the Gaussian example grow as σ or as σ²?")


def gaussian_power(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """Power against d, one line a σ: exact (noncentral t) and simulated."""
    figure, axes = plt.subplots(figsize=SMALL)
    for (sigma, rows), colour in zip(
        table.groupby("sigma"), sns.color_palette("viridis", table["sigma"].nunique()), strict=True
    ):
        axes.plot(rows["dim"], rows["power"], color=colour, label=f"σ = {sigma:g}")
        _shares(axes, rows["dim"], rows["hits"], rows["n"], colour)
    axes.axhline(level, **LEVEL)
    axes.set(xscale="log", xlabel="dimension d", ylabel=f"power at level {level:g}")
    axes.legend(title="lines: exact")
    return style.caption(figure, caption, "How many dimensions does the Gaussian example need?")


def nearest_null(table: pd.DataFrame, floor: float, caption: str) -> Figure:
    """Distance of the watermark to a null against that null's distance from the mixture."""
    figure, axes = plt.subplots(figsize=SMALL)
    x = np.geomspace(table["to_mixture"].min() / 2, table["to_mixture"].max() * 1.5, 200)
    axes.plot(x, floor + x, color=style.THEORY, label="mutual information + KL(mixture ‖ μ)")
    axes.axhline(floor, **LEVEL, label=f"the mixture itself: {floor:.4f} nats")
    axes.plot(
        table["to_mixture"],
        table["distance"],
        "o",
        markersize=4,
        alpha=0.5,
        color=style.PLAIN,
        label="μ drawn at random",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="KL(mixture ‖ μ), nats",
        ylabel="KL(watermark ‖ null with μ), nats",
    )
    return style.caption(figure, caption, "Which null is nearest to the watermark?")


def chain_errors(table: pd.DataFrame, caption: str) -> Figure:
    """Size of each approximation against σ, on log axes, with slopes."""
    figure, axes = plt.subplots(figsize=SMALL)
    for (step, rows), look in zip(
        table.groupby("step", sort=False), ["-", "--", ":", "-."], strict=True
    ):
        slope = (
            np.diff(np.log(rows["rms"].iloc[:2]))[0] / np.diff(np.log(rows["sigma"].iloc[:2]))[0]
        )
        axes.plot(rows["sigma"], rows["rms"], look, **DOT, label=f"{step} (slope {slope:.2f})")
    axes.set(xscale="log", yscale="log", xlabel="σ", ylabel="root mean square, nats")
    return style.caption(figure, caption, "Of what order is the error of each step?")


def chain_powers(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """Power against σ of the tests valid for any text, and of those valid only for the model's own
    text.
    """
    figure, panels = plt.subplots(1, 2, sharey=True, figsize=WIDE)
    titles = {
        "any text": "level holds for any text",
        "model text": "level holds for the model's own text only",
    }
    best = table[table["test"].str.contains("per text")]
    for axes, (null, title) in zip(panels, titles.items(), strict=True):
        tests = table[table["null"] == null].groupby("test", sort=False)
        for (test, rows), look, colour in zip(tests, ["-", "--", ":"], style.COLOURS, strict=False):
            axes.plot(rows["sigma"], rows["power"], look, **DOT, color=colour, label=test)
        if null == "model text":
            axes.plot(
                best["sigma"],
                best["power"],
                color="0.7",
                linewidth=4,
                zorder=0,
                label="(the best for any text)",
            )
        axes.axhline(level, **LEVEL)
        axes.set(
            xscale="log",
            xlabel="σ",
            ylim=(0, 1.05),
            ylabel=f"power at level {level:g}" if axes is panels[0] else "",
            title=title,
        )
        axes.legend(loc="upper left")
    return style.caption(figure, caption, "How far is ψ behind the best possible test?")


def softmax_power(
    exact: pd.DataFrame,
    simulated: pd.DataFrame,
    limits: dict[str, float],
    level: float,
    caption: str,
) -> Figure:
    """Summed power against simulated power, by model, with the power that σ → ∞ reaches."""
    figure, axes = plt.subplots(figsize=SMALL)
    for (model, limit), colour in zip(limits.items(), style.COLOURS, strict=False):
        line, dots = (table[table["model"] == model] for table in (exact, simulated))
        axes.plot(line["sigma"], line["power"], color=colour, label=f"{model}: summed")
        _shares(axes, dots["sigma"], dots["hits"], dots["n"], colour, f"{model}: simulated")
        axes.axhline(limit, **LEVEL | {"color": colour}, label=f"{model}: σ → ∞")
    axes.axhline(level, **LEVEL)
    axes.set(xscale="log", xlabel="σ", ylabel=f"power at level {level:g}")
    return style.caption(
        figure, caption, "Is the proposition's sum the power, and where does it end?"
    )


def corollary(
    bounds: pd.DataFrame, miss: pd.DataFrame, simulated: pd.DataFrame, beta: float, caption: str
) -> Figure:
    """Left: K(σ)/σ, which must be negative for the bound to say anything. Right: the bound beside
    the exact and simulated miss rate.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=WIDE)
    left.plot(bounds["sigma"], bounds["slope"], **DOT, color=style.WATERMARKED)
    left.axhline(0, color="0.4", linewidth=1)
    left.set(
        xscale="log", xlabel="σ", ylabel="K(σ)/σ = −Λ at this σ", title="Where is K(σ) below 0?"
    )
    right.plot(miss["sigma"], miss["beta"], color=style.THEORY, label="exact")
    _shares(
        right,
        simulated["sigma"],
        simulated["n"] - simulated["hits"],
        simulated["n"],
        style.THEORY,
        "simulated",
    )
    right.plot(
        bounds["sigma"],
        bounds["bound"],
        **DOT,
        color=style.WATERMARKED,
        label="corollary, with τ restored",
    )
    right.axhline(beta, **LEVEL, label=f"β = {beta:g}")
    right.set(
        xscale="log",
        yscale="log",
        ylim=(miss["beta"].min() / 2, 1.5),
        xlabel="σ",
        ylabel="miss rate β",
    )
    right.set_title("Which σ does the corollary ask for?")
    style.legend_beside(right)
    return style.caption(figure, caption)


def log_concave(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """The theorem's bound beside the exact miss rate of the Gaussian example, one colour a
    dimension.
    """
    figure, axes = plt.subplots(figsize=SMALL)
    for (dim, rows), colour in zip(table.groupby("dim"), style.COLOURS, strict=False):
        axes.plot(rows["sigma"], rows["beta"], color=colour, label=f"d = {dim}: exact")
        axes.plot(rows["sigma"], rows["bound"], "--", color=colour, label=f"d = {dim}: theorem")
        dots = rows[rows["hits"] < rows["n"]].iloc[::2]  # every second: they would touch
        _shares(axes, dots["sigma"], dots["n"] - dots["hits"], dots["n"], colour)
    axes.set(
        xscale="log",
        yscale="log",
        ylim=(1e-4, 1.5),
        xlabel="σ",
        ylabel=f"miss rate β at level {level:g}",
    )
    style.legend_beside(axes)
    return style.caption(
        figure, caption, "How far is the log-concave theorem from the exact miss rate?"
    )


def entropy(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """Against the model's entropy: gradient norms, predicted and exact mean ψ, power."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 3.3))
    x = table["entropy"]
    norms = table.rename(columns={"norm_50": "value", "norm_10": "low", "norm_90": "high"})
    intervals.band(
        left,
        x,
        norms,
        alpha=0.25,
        markersize=4,
        color=style.PLAIN,
        label="median; 10% to 90% of texts",
    )
    left.set(ylabel="‖∇ log p_θ(y)‖", title="Gradients", ylim=(0, 1.4 * norms["high"].max()))
    middle.plot(x, table["predicted_psi"], "--", color=style.THEORY, label="σE‖∇‖")
    middle.plot(x, table["mean_psi"], **DOT, color=style.WATERMARKED, label="exact")
    middle.set(ylabel="mean ψ", title="Strength", ylim=(0, None))
    right.plot(x, table["power"], **DOT, color=style.WATERMARKED, label="exact")
    right.axhline(level, **LEVEL, label="the level")
    right.set(ylabel=f"power at level {level:g}", title="Power", ylim=(0, None))
    for axes in figure.axes:
        axes.set(xlabel="entropy of p_θ, nats")
        axes.legend(loc="upper left" if axes is left else "lower right")
    return style.caption(figure, caption, "What does entropy have to do with it?")


def regime(table: pd.DataFrame, caption: str) -> Figure:
    """Mean ψ and price of three models over their first-order predictions."""
    figure, (left, right) = plt.subplots(1, 2, sharex=True, figsize=WIDE)
    for (model, rows), marker in zip(table.groupby("model", sort=False), "osD", strict=True):
        left.plot(rows["predicted"], rows["mean_psi"], marker=marker, markersize=4, label=model)
        right.plot(rows["predicted"], rows["price"], marker=marker, markersize=4, label=model)
    x = np.geomspace(table["predicted"].min(), table["predicted"].max(), 100)
    left.plot(x, x, **style.THIN, label="σE‖∇‖")
    right.plot(x, x**2 / 2, **style.THIN, label="(σE‖∇‖)²/2")
    left.set(ylabel="mean ψ", title="Strength")
    right.set(ylabel="price, nats a text", title="Price")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="predicted ψ = σE‖∇‖")
    return style.caption(figure, caption, "Where does each model leave the law?")
