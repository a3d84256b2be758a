"""The figures of notebook 01, one claim each. Lines are exact (or printed) values, dots with bars are simulations with 95% intervals."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from gaussmark_lib.plots import style

PRINTED = sns.color_palette("colorblind")[3]


def _dots(axes: Axes, x: pd.Series, hits: pd.Series, n: pd.Series, colour, label: str | None = None) -> None:
    """Shares with their exact binomial intervals."""
    interval = [stats.binomtest(int(k), int(m)).proportion_ci(method="exact") for k, m in zip(hits, n, strict=True)]
    share = hits / n
    bars = np.array([[s - i.low, i.high - s] for s, i in zip(share, interval, strict=True)]).clip(min=0).T
    axes.errorbar(x, share, yerr=bars, fmt="o", ms=4, capsize=2, color=colour, label=label)


def gaussian_rate(table: pd.DataFrame, caption: str) -> Figure:
    """Mean ψ/√d against σ: simulation, the exact rate, the printed rate, the ceiling no statistic of unit noise can pass."""
    figure, axes = plt.subplots(figsize=(6.4, 3.7))
    sigma = np.geomspace(table["sigma"].min() / 1.2, table["sigma"].max() * 1.2, 200)
    axes.plot(sigma, sigma / np.sqrt(1 + sigma**2), color=style.THEORY, label="σ/√(1+σ²), what the proof gives")
    axes.plot(sigma, sigma**2 / np.sqrt(1 + sigma**2), "--", color=PRINTED, label="σ²/√(1+σ²), as printed")
    axes.axhline(1, color="0.6", lw=1, ls=":", label="ceiling: ψ ≤ ‖ξ‖/σ ≈ √d")
    for (dim, rows), marker in zip(table.groupby("dim"), "osD^v", strict=False):
        axes.errorbar(
            rows["sigma"],
            rows["mean_psi"] / np.sqrt(dim),
            yerr=1.96 * rows["sem_psi"] / np.sqrt(dim),
            fmt=marker,
            ms=5,
            capsize=2,
            label=f"simulated, d = {dim}",
        )
    axes.set(xscale="log", yscale="log", ylim=(2e-3, 8), xlabel="σ (standard deviation of the noise, unit of the data)", ylabel="mean ψ / √d")
    axes.set_title("The Gaussian example grows as σ, not as σ²")
    axes.legend(fontsize="small")
    return style.caption(figure, caption)


def gaussian_power(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """Power against d, one line a σ: exact (noncentral t) and simulated."""
    figure, axes = plt.subplots(figsize=(6.4, 3.7))
    for (sigma, rows), colour in zip(table.groupby("sigma"), sns.color_palette("viridis", table["sigma"].nunique()), strict=True):
        axes.plot(rows["dim"], rows["power"], color=colour, label=f"σ = {sigma:g}")
        _dots(axes, rows["dim"], rows["hits"], rows["n"], colour)
    axes.axhline(level, color="0.6", ls=":", lw=1)
    axes.set(xscale="log", xlabel="dimension d", ylabel=f"power at level {level:g}")
    axes.set_title("Many weak coordinates make a strong test")
    axes.legend(fontsize="small", title="lines: exact")
    return style.caption(figure, caption)


def nearest_null(table: pd.DataFrame, floor: float, caption: str) -> Figure:
    """Distance of the watermark to a null against that null's distance from the mixture."""
    figure, axes = plt.subplots(figsize=(6.4, 3.7))
    x = np.geomspace(table["to_mixture"].min() / 2, table["to_mixture"].max() * 1.5, 200)
    axes.plot(x, floor + x, color=style.THEORY, label="mutual information + KL(mixture ‖ μ)")
    axes.axhline(floor, color="0.6", ls=":", label=f"the mixture itself: {floor:.4f} nats")
    axes.plot(table["to_mixture"], table["distance"], "o", ms=4, alpha=0.5, color=style.PLAIN, label="μ drawn at random")
    axes.set(xscale="log", yscale="log", xlabel="KL(mixture ‖ μ), nats", ylabel="KL(watermark ‖ null with μ), nats")
    axes.set_title("No null is nearer to the watermark than the mixture")
    axes.legend(fontsize="small")
    return style.caption(figure, caption)


def chain_errors(table: pd.DataFrame, caption: str) -> Figure:
    """Size of each approximation against σ, on log axes, with slopes."""
    figure, axes = plt.subplots(figsize=(6.4, 3.7))
    looks = ["-", "--", ":", "-."]
    for (step, rows), look in zip(table.groupby("step", sort=False), looks, strict=True):
        slope = np.diff(np.log(rows["rms"].iloc[:2]))[0] / np.diff(np.log(rows["sigma"].iloc[:2]))[0]
        axes.plot(rows["sigma"], rows["rms"], look, marker="o", ms=4, label=f"{step} (slope {slope:.2f})")
    axes.set(xscale="log", yscale="log", xlabel="σ", ylabel="root mean square, nats")
    axes.set_title("The inner product is right to first order in σ: every error is of second order")
    axes.legend(fontsize="small")
    return style.caption(figure, caption)


def chain_powers(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """Power against σ of the tests valid for any text, and of those valid only for the model's own text."""
    figure, panels = plt.subplots(1, 2, sharey=True, figsize=(8.6, 3.7))
    titles = {"any text": "level holds for any text", "model text": "level holds for the model's own text only"}
    best = table[table["test"].str.contains("per text")]
    for axes, (null, title) in zip(panels, titles.items(), strict=True):
        tests = table[table["null"] == null].groupby("test", sort=False)
        for (test, rows), look, colour in zip(tests, ["-", "--", ":"], sns.color_palette("colorblind", 3), strict=True):
            axes.plot(rows["sigma"], rows["power"], look, marker="o", ms=4, color=colour, label=test)
        if null == "model text":
            axes.plot(best["sigma"], best["power"], color="0.7", lw=4, zorder=0, label="(the best for any text)")
        axes.axhline(level, color="0.6", ls=":", lw=1)
        axes.set(xscale="log", xlabel="σ", ylabel=f"power at level {level:g}" if axes is panels[0] else "")
        axes.set_title(title)
        axes.legend(fontsize="small")
    figure.suptitle(
        "To first order ψ gives nothing away: it follows the best test there is until σ leaves the linear regime",
        x=0.07,
        ha="left",
        fontsize="medium",
    )
    figure.tight_layout()
    return style.caption(figure, caption)


def softmax_power(exact: pd.DataFrame, simulated: pd.DataFrame, limits: dict[str, float], level: float, caption: str) -> Figure:
    """Summed power against simulated power, by model, with the power that σ → ∞ reaches."""
    figure, axes = plt.subplots(figsize=(6.4, 3.7))
    for model, colour in zip(limits, sns.color_palette("colorblind"), strict=False):
        line, dots = (table[table["model"] == model] for table in (exact, simulated))
        axes.plot(line["sigma"], line["power"], color=colour, label=f"{model}: summed")
        _dots(axes, dots["sigma"], dots["hits"], dots["n"], colour, f"{model}: simulated")
        axes.axhline(limits[model], color=colour, ls=":", lw=1, label=f"{model}: σ → ∞")
    axes.axhline(level, color="0.6", ls=":", lw=1)
    axes.set(xscale="log", xlabel="σ", ylabel=f"power at level {level:g}")
    axes.set_title("The proposition's sum is the power, and few dimensions cap it")
    axes.legend(fontsize="small")
    return style.caption(figure, caption)


def corollary(bounds: pd.DataFrame, miss: pd.DataFrame, simulated: pd.DataFrame, beta: float, caption: str) -> Figure:
    """Left: K(σ)/σ, which must be negative for the bound to say anything. Right: the bound beside the exact and simulated miss rate."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.7))
    left.plot(bounds["sigma"], bounds["slope"], marker="o", ms=4, color=style.WATERMARKED)
    left.axhline(0, color="0.4", lw=1)
    left.set(xscale="log", xlabel="σ", ylabel="K(σ)/σ = −Λ at this σ")
    left.set_title("Λ ≥ 0 holds in a window of σ, never for all σ")
    right.plot(miss["sigma"], miss["beta"], color=style.THEORY, label="exact")
    _dots(right, simulated["sigma"], simulated["n"] - simulated["hits"], simulated["n"], style.THEORY, "simulated")
    right.plot(bounds["sigma"], bounds["bound"], marker="o", ms=4, color=style.WATERMARKED, label="corollary, with τ restored")
    right.axhline(beta, color="0.6", ls=":", lw=1, label=f"β = {beta:g}")
    right.set(xscale="log", yscale="log", ylim=(miss["beta"].min() / 2, 1.5), xlabel="σ", ylabel="miss rate β")
    right.set_title("The corollary asks for a larger σ than needed")
    right.legend(fontsize="small", loc="lower right")
    figure.tight_layout()
    return style.caption(figure, caption)


def log_concave(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """The theorem's bound beside the exact miss rate of the Gaussian example, one colour a dimension."""
    figure, axes = plt.subplots(figsize=(6.4, 3.7))
    for (dim, rows), colour in zip(table.groupby("dim"), sns.color_palette("colorblind"), strict=False):
        axes.plot(rows["sigma"], rows["beta"], color=colour, label=f"d = {dim}: exact")
        axes.plot(rows["sigma"], rows["bound"], "--", color=colour, label=f"d = {dim}: theorem")
        dots = rows[rows["hits"] < rows["n"]].iloc[::2]  # every second: they would touch
        _dots(axes, dots["sigma"], dots["n"] - dots["hits"], dots["n"], colour)
    axes.set(xscale="log", yscale="log", ylim=(1e-4, 1.5), xlabel="σ", ylabel=f"miss rate β at level {level:g}")
    axes.set_title("The log-concave theorem has the right shape, at a somewhat larger σ")
    axes.legend(fontsize="small")
    return style.caption(figure, caption)


def entropy(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """Against the model's entropy: gradient norms, predicted and exact mean ψ, power."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 3.3))
    left.fill_between(table["entropy"], table["norm_10"], table["norm_90"], alpha=0.25, color=style.PLAIN, label="10% to 90% of texts")
    left.plot(table["entropy"], table["norm_50"], marker="o", ms=4, color=style.PLAIN, label="median")
    left.set(ylabel="‖∇ log p_θ(y)‖", title="Gradients")
    middle.plot(table["entropy"], table["predicted_psi"], "--", color=style.THEORY, label="σE‖∇‖")
    middle.plot(table["entropy"], table["mean_psi"], marker="o", ms=4, color=style.WATERMARKED, label="exact")
    middle.set(ylabel="mean ψ", title="Strength", ylim=(0, None))
    right.plot(table["entropy"], table["power"], marker="o", ms=4, color=style.WATERMARKED, label="exact")
    right.axhline(level, color="0.6", ls=":", lw=1, label="the level")
    right.set(ylabel=f"power at level {level:g}", title="Power", ylim=(0, None))
    for axes in (left, middle, right):
        axes.set(xlabel="entropy of p_θ, nats")
        axes.legend(fontsize="small", loc="lower right")
    figure.suptitle("A model that is sure of itself leaves no room for a watermark", x=0.07, ha="left", fontsize="medium")
    figure.tight_layout()
    return style.caption(figure, caption)


def regime(table: pd.DataFrame, caption: str) -> Figure:
    """Mean ψ and price of three models over their first-order predictions."""
    figure, (left, right) = plt.subplots(1, 2, sharex=True, figsize=(8.6, 3.7))
    for (model, rows), marker in zip(table.groupby("model", sort=False), "osD", strict=True):
        left.plot(rows["predicted"], rows["mean_psi"], marker=marker, ms=4, label=model)
        right.plot(rows["predicted"], rows["price"], marker=marker, ms=4, label=model)
    x = np.geomspace(table["predicted"].min(), table["predicted"].max(), 100)
    left.plot(x, x, color=style.THEORY, lw=1, label="σE‖∇‖")
    right.plot(x, x**2 / 2, color=style.THEORY, lw=1, label="(σE‖∇‖)²/2")
    left.set(xscale="log", yscale="log", xlabel="predicted ψ = σE‖∇‖", ylabel="mean ψ")
    right.set(yscale="log", xlabel="predicted ψ = σE‖∇‖", ylabel="price, nats a text")
    left.set_title("Strength")
    right.set_title("Price")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    figure.suptitle("Three models, one law while the step is short", x=0.07, ha="left", fontsize="medium")
    figure.tight_layout()
    return style.caption(figure, caption)


def language_model(table: pd.DataFrame, n_tokens: int, caption: str) -> Figure:
    """Measured ψ and price of a language model against the prediction made from unwatermarked text."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.7))
    x = np.linspace(0, table["predicted"].max() * 1.1, 100)
    columns = {"psi": ("watermarked, right key", style.WATERMARKED), "wrong_psi": ("watermarked, wrong key", style.WRONG_KEY)}
    for column, (label, colour) in columns.items():
        bars = [table[column] - table[f"{column}_low"], table[f"{column}_high"] - table[column]]
        left.errorbar(table["predicted"], table[column], yerr=bars, fmt="o", capsize=3, color=colour, label=label)
    left.plot(x, x, color=style.THEORY, lw=1, label="measured = predicted")
    left.set(xlabel="predicted ψ = σ · median ‖∇ log p_θ‖", ylabel="mean ψ")
    left.set_title("Strength")
    left.legend(fontsize="small")
    bars = [table["price"] - table["price_low"], table["price_high"] - table["price"]]
    right.errorbar(table["predicted"], table["price"], yerr=bars, fmt="o", capsize=3, color=style.WATERMARKED, label="measured KL, per token")
    right.plot(x, x**2 / (2 * n_tokens), color=style.THEORY, lw=1, label="ψ²/(2T)")
    right.set(xlabel="predicted ψ", ylabel="price, nats a token")
    right.set_title("Price")
    right.legend(fontsize="small")
    figure.suptitle("A real language model obeys the toy's law", x=0.07, ha="left", fontsize="medium")
    figure.tight_layout()
    return style.caption(figure, caption)
