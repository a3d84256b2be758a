"""02_level_check: how p-values are distributed if text and key are independent (paper, Prop. on
level), and what happens if the gradient is taken at the wrong weights.

For any text, ψ of a fresh key is N(0, 1). This holds over the draw of the *key*. What one fixed key
does to many texts is the subject of ``one_key_in_production``.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import Markdown
from jaxtyping import Float
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy.stats import kstest, kstwobign

from gaussmark_experiments import intervals
from gaussmark_lib import generate, models, perturb, score, stats, texts
from gaussmark_lib.engine import packages
from gaussmark_lib.gradients import of_pairs
from gaussmark_lib.workbench import answers, runs, words
from gaussmark_lib.workbench.pairs import passages
from gaussmark_lib.workbench.plots import style
from gaussmark_lib.workbench.plots.panels import panels
from gaussmark_lib.workbench.runs.folder import Run

# Names of kinds of text, and of the weights at which a gradient is taken.
OWN = "model samples"
RANDOM = "random tokens"
AT_THETA = "θ"
AT_MOVED = "θ + ξ"
NOTEBOOK = "02_level_check"
# What the ways of testing are compared by; names in records.
ALARMS = "human text: alarms at 5%"
DETECTED = "marked text: detected at .1%"
Cut = tuple[list[list[int]], list[list[int]]]  # prompts and responses


def kinds(
    human: Sequence[str] = ("docs", "licences", "source"),
    writer: models.LM | None = None,
) -> dict[str, str]:
    """Return the kinds of text by the names that a table shows: human text of several kinds, text
    by another model, the model's own, and random ids.

    >>> list(kinds(["folder/plays.jsonl", "source"]))
    ['plays.jsonl', 'source', 'model samples', 'random tokens']
    """
    written = [writer.name] if writer else []  # without a writer there is one kind less
    return {Path(kind).name: kind for kind in (*human, *written, OWN, RANDOM)}


def load_writer(name: str | None, **loading) -> models.LM | None:
    """Return the model that writes a further kind of text. Return None if no model is named, or if
    its package is not installed. ``loading`` is ``device`` of ``models.load``.
    """
    if name is None:
        return None
    entry = packages.MODELS.get(name)
    is_missing = entry is not None and not packages.is_installed(entry)
    return None if is_missing else models.load(name, **loading)


def null_texts(
    lm: models.LM,
    kind: str,
    n: int,
    *,
    text: str = "docs",
    writer: models.LM | None = None,
    prompt_tokens: int = 32,
    n_tokens: int = 200,
    seed: int = 0,
    **sampling,
) -> Cut:
    """Return n prompts and responses without a watermark: human text of a kind (of ``texts``) cut
    in two, or what the ``writer``, the model itself or a random generator writes after ``text``.
    """
    if writer and kind == writer.name:
        return written_by(
            writer,
            lm,
            text,
            n,
            prompt_tokens=prompt_tokens,
            n_tokens=n_tokens,
            seed=seed,
            **sampling,
        )
    if kind not in (OWN, RANDOM):
        return passages(lm, kind, n, prompt_tokens, n_tokens, seed=seed)
    prompts = texts.human(lm, text, n, prompt_tokens, seed=seed)
    if kind == OWN:
        return prompts, generate.sample(lm.model, prompts, n_tokens, seed=seed, **sampling)
    vocabulary = lm.model.get_input_embeddings().num_embeddings
    random_ids = np.random.default_rng(seed).integers(vocabulary, size=(n, n_tokens))
    return prompts, random_ids.tolist()


def written_by(
    writer: models.LM,
    lm: models.LM,
    text: str,
    n: int,
    *,
    prompt_tokens: int,
    n_tokens: int,
    seed: int = 0,
    **sampling,
) -> Cut:
    """Write n texts by another model after prompts of a kind, and return them as ``lm`` reads their
    characters. They are cut to ``n_tokens`` of its tokens; a text may have fewer.
    """
    beginnings = texts.human(writer, text, n, prompt_tokens, seed=seed)
    # what the writer continues
    opened = [writer.continuation(writer.decode(ids)) for ids in beginnings]
    responses = generate.sample(writer.model, opened, n_tokens, seed=seed, **sampling)
    # the two models may have different tokenizers: characters pass between them
    prompts = [lm.encode(writer.decode(ids)) for ids in beginnings]
    return prompts, [lm.encode(writer.decode(ids))[:n_tokens] for ids in responses]


def levels(
    table: pd.DataFrame,
    nominal: Sequence[float],
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Return the share of false alarms at each nominal level, by kind and for ``all``, with the
    exact binomial interval: ``kind, level`` (in words), ``value, low, high, n``, and whether the
    interval contains the level (``holds``).
    """
    by_kind = [*table.groupby("kind", sort=False), ("all", table)]
    rows = []
    for kind, of_kind in by_kind:
        for level in nominal:
            share = stats.share(of_kind["p_value"] <= level, confidence=confidence)
            rows.append(
                {
                    "kind": kind,
                    "level": f"at level {100 * level:g}%",
                    **share.row(),
                    "holds": share.low <= level <= share.high,
                }
            )
    return pd.DataFrame(rows)


def misses(levels: pd.DataFrame) -> str:
    """Say how many intervals of the table of :func:`levels` miss their level, kinds alone."""
    of_kinds = levels[levels["kind"] != "all"]
    n_missed = (~of_kinds["holds"]).sum()
    return f"intervals that miss their level: {n_missed} of {len(of_kinds)}"


def rates_of_lengths(table: pd.DataFrame, level: float = 0.05) -> str:
    """Say which kind of text has the longest gradients and which the shortest, and how often the
    fresh keys of each raise a false alarm (columns ``kind, grad_norm, p_value``).
    """
    norms = table.groupby("kind")["grad_norm"].median()
    longest = norms.idxmax()
    shortest = norms.idxmin()
    alarms = (table["p_value"] <= level).groupby(table["kind"])
    rates = {kind: stats.share(alarms.get_group(kind)) for kind in (longest, shortest)}
    in_words = [
        f"{kind} " + " ".join(words.estimate(rate.row(), as_percent=True))
        for kind, rate in rates.items()
    ]
    return (
        f"the median ‖G‖ of {longest} is {norms[longest] / norms[shortest]:.1f} times that of"
        f" {shortest}; false alarms: {in_words[0]}, {in_words[1]}"
    )


def uniformity(table: pd.DataFrame) -> pd.Series:
    """Return the Kolmogorov–Smirnov p-value of each kind's p-values, and of ``all`` together."""
    tests = {"all": kstest(table["p_value"], "uniform").pvalue}
    for kind, rows in table.groupby("kind", sort=False):
        tests[kind] = kstest(rows["p_value"], "uniform").pvalue
    return pd.Series(tests)


def trap(
    lm: models.LM,
    cut: Cut,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    dtype: str | None = None,
) -> pd.DataFrame:
    """Make the mistake on purpose: return ψ of text i under key i with the gradient at θ + ξ, and
    for comparison with the right gradient, at θ. Columns ``text, at, psi, grad_norm``.

    Near θ the gradient at θ + ξ is G − Hξ, with H the Hessian of −log p(y | x), whose mean is that
    of GGᵀ. So for text of p_θ E ψ ≈ −σ E‖G‖²/‖G‖ ≈ −σ‖G‖: it falls as far below 0 as watermarked
    text rises above it.
    """
    right = score.score(lm.model, *cut, wm, keys, paired=True, dtype=dtype).assign(at=AT_THETA)
    placed = wm.on(lm.model)
    pairs = placed.reader.pairs(*cut)
    rows = []
    for text, key in enumerate(keys):
        # ``score`` always takes the gradient at θ: here the model carries the key's noise
        with perturb.watermarked(lm.model, wm, key):
            [gradient] = of_pairs(placed, {0: pairs[text]}, dtype=dtype, perturbed=True)
        [[psi]] = score.psi([gradient], placed, [key])
        rows.append((text, AT_MOVED, psi, gradient.norm))
    columns = ["text", "at", "psi", "grad_norm"]
    wrong = pd.DataFrame(rows, columns=columns)
    return pd.concat([right, wrong], ignore_index=True)[columns]


def published(
    lm: models.LM,
    human: Cut,
    marked: Cut,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    **settings,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Test the same texts in four ways: human text i and marked text i under key i.

    Returns:
        For ``panels``: ``way, measure, value, low, high``; and the ψ: ``way, kind, psi``.
    """
    half = len(keys) // 2  # chooses the empirical threshold
    attained = max(0.001, 1 / (half + 1))  # no threshold from n texts keeps less than 1 in n + 1
    empirical = f"θ + ξ, threshold from {half} human texts (its .1% is {attained:.1%})"
    psi_of_human = _by_way(lm, human, wm, keys, empirical, **settings)
    psi_of_marked = _by_way(lm, marked, wm, keys, empirical, **settings)
    rows = []
    tables = []
    for way, null in psi_of_human.items():
        marked_psi = psi_of_marked[way]
        taus = [stats.threshold(level) for level in (0.05, 0.001)]  # of N(0, 1)
        if way == empirical:
            # one half of the human texts gives the thresholds, the other half tests them
            taus = np.quantile(null[:half], [0.95, 0.999], method="higher")
            null = null[half:]
        hits_of_measures = {
            ALARMS: null >= taus[0],
            DETECTED: marked_psi >= taus[1],
        }
        for measure, hits in hits_of_measures.items():
            rows.append(
                {
                    "way": way,
                    "measure": measure,
                    **stats.interval(hits).row(),
                }
            )
        tables.append(pd.DataFrame({"way": way, "kind": "human", "psi": null}))
        tables.append(pd.DataFrame({"way": way, "kind": "marked", "psi": marked_psi}))
    return pd.DataFrame(rows), pd.concat(tables, ignore_index=True)


def _by_way(
    lm: models.LM,
    cut: Cut,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    empirical: str,
    **settings,
) -> dict[str, Float[np.ndarray, " texts"]]:
    """ψ of text i under key i by each way of testing."""
    at = trap(lm, cut, wm, keys, **settings).pivot(index="text", columns="at", values="psi")
    _, responses = cut
    no_prompts = [[] for _ in keys]
    without = score.score(
        lm.model,
        no_prompts,
        responses,
        wm,
        keys,
        paired=True,
        **settings,
    )
    at_moved = at[AT_MOVED].to_numpy()
    return {
        "θ, N(0, 1)": at[AT_THETA].to_numpy(),
        "θ, no prompt, N(0, 1)": without["psi"].to_numpy(),
        "θ + ξ, N(0, 1)": at_moved,
        empirical: at_moved,
    }


def smallest_of_kinds(table: pd.DataFrame) -> str:
    """Say the smallest p-value of :func:`uniformity` of the kinds, and that of all pairs."""
    tests = uniformity(table)
    of_kinds = tests.drop("all")
    return (
        f"the smallest p-value of the {len(of_kinds)} tests (one per kind) is {of_kinds.min():.2g}"
        f" ({of_kinds.idxmin()}); the test of all pairs together has p = {tests['all']:.2g}"
    )


def recorded_ways() -> pd.DataFrame:
    """Return the shares of :func:`published` in the records of notebook 02, with their ``run``."""
    tables = [
        pd.DataFrame(run.results["ways"]).assign(run=answers.title(run))
        for run in runs.references(NOTEBOOK)
    ]
    return pd.concat([pd.DataFrame(), *tables], ignore_index=True)


def detected_at_moved(ways: pd.DataFrame) -> stats.Estimate:
    """Return the share of marked texts that the wrong gradient detects with the threshold of
    N(0, 1).
    """
    is_wanted = (ways["way"] == "θ + ξ, N(0, 1)") & (ways["measure"] == DETECTED)
    [row] = ways.loc[is_wanted, ["value", "low", "high", "n"]].to_dict("records")
    return intervals.of_row(row)


def recorded_at_moved(run: Run) -> stats.Estimate:
    """Return :func:`detected_at_moved` of a record of this notebook."""
    return detected_at_moved(pd.DataFrame(run.results["ways"]))


def areas(values: pd.DataFrame) -> str:
    """Say how well ψ of the gradient at θ, and at θ + ξ, ranks marked above human texts: the areas
    under the ROC curves (columns ``way, kind, psi`` of :func:`published`).
    """
    in_words = []
    for way, name in {"θ, N(0, 1)": AT_THETA, "θ + ξ, N(0, 1)": AT_MOVED}.items():
        of_way = values[values["way"] == way].groupby("kind")["psi"]
        human = of_way.get_group("human").to_numpy()
        marked = of_way.get_group("marked").to_numpy()
        area = (marked[:, None] > human).mean()  # of all pairs of a marked and a human text
        in_words.append(f"{area:.3f} with the gradient at {name}")
    return "area under the ROC curve " + " and ".join(in_words)


def means_and_threshold(values: pd.DataFrame) -> str:
    """Say the mean ψ of marked and of human texts with the gradient at θ and at θ + ξ, and from how
    many human texts the empirical threshold comes (columns of :func:`areas`).
    """
    means = values.groupby(["kind", "way"])["psi"].mean()
    in_words = [
        f"{means[kind, 'θ, N(0, 1)']:.2f} with the gradient at θ and"
        f" {means[kind, 'θ + ξ, N(0, 1)']:.2f} with the gradient at θ + ξ"
        for kind in ("marked", "human")
    ]
    [empirical] = [way for way in values["way"].unique() if "threshold from" in way]
    threshold = empirical.partition("threshold from ")[2].replace("its .1% is", "level .1% becomes")
    of_marked, of_human = (said.replace("-", "−") for said in in_words)
    return (
        f"mean ψ of watermarked text {of_marked}; mean ψ of human text {of_human}. The threshold of"
        f" the last row is from {threshold}."
    )


def in_each_run(tables: pd.DataFrame, say: Callable[[pd.DataFrame], str]) -> Markdown:
    """Say something about each run of the table of ``answers.beside``, one line per run."""
    lines = [f"- **{run}**: {say(table)}" for run, table in tables.groupby("run", sort=False)]
    return Markdown("\n".join(lines))


def draw_levels(levels: pd.DataFrame, caption: str) -> Figure:
    """Draw the false-alarm rate of each kind and run: a panel per level, whose line is the level
    (columns of :func:`levels`, and ``run``).
    """
    ordered = levels.sort_values("kind", key=lambda kinds: kinds == "all", kind="stable")
    figure = panels(
        ordered,
        "kind",
        by="run",
        panel="level",
        title="Is the false-alarm rate equal to the level, for every kind of text?",
        caption=caption,
        ylabel="share of pairs with a false alarm",
    )
    for axes, name in zip(figure.axes, levels["level"].unique(), strict=True):
        nominal = float(name.removeprefix("at level ").removesuffix("%")) / 100
        axes.axvline(nominal, color=style.THEORY, linewidth=2, zorder=0)
        highest = levels.loc[levels["level"] == name, "high"].max()
        axes.set_xlim(0, max(2 * nominal, 1.05 * highest))
        axes.locator_params(axis="x", nbins=5)
    return figure


def draw_uniform(table: pd.DataFrame, caption: str) -> Figure:
    """Draw the share of p-values that are at most α, minus α: a panel per run, a line per kind
    (columns ``run, kind, p_value``).
    """
    names = table["run"].unique()
    kinds = list(table["kind"].unique())
    size = (3.4 + 3.6 * len(names), 3.8)
    figure, grid = plt.subplots(1, len(names), figsize=size, squeeze=False)
    for axes, name in zip(grid[0], names, strict=True):
        of_run = table[table["run"] == name]
        for kind, rows in of_run.groupby("kind", sort=False):
            colour = style.COLOURS[kinds.index(kind) % len(style.COLOURS)]
            p_values = np.sort(rows["p_value"])
            shares = np.arange(1, len(rows) + 1) / len(rows)
            axes.plot(p_values, shares - p_values, label=kind, linewidth=1, color=colour)
        n_pairs = len(of_run) // of_run["kind"].nunique()
        largest = kstwobign.isf(0.05) / np.sqrt(n_pairs)  # a uniform p stays within it in 95%
        axes.axhline(0, **style.DASHED, label="uniform")
        axes.axhline(largest, **style.DOTTED, label="95% of curves stay within")
        axes.axhline(-largest, **style.DOTTED)
        low, high = axes.get_ylim()  # of all curves, also of a curve far outside
        axes.set(xlabel="α", ylim=(min(low, -1.5 * largest), max(high, 1.5 * largest)))
        axes.set_title(f"{name}: {n_pairs:,} pairs per kind")
    grid[0, 0].set_ylabel("share of pairs with p ≤ α, minus α")
    style.legend_beside(grid[0, -1], grid[0])
    return style.caption(figure, caption, "Does the share of p-values up to α differ from α?")


def draw_published(ways: pd.DataFrame, caption: str) -> Figure:
    """Draw the shares of :func:`published` in each ``run``: a panel per measure, a row per way to
    test.
    """
    exact = {  # the record's names are short
        "θ, N(0, 1)": "gradient at θ",
        "θ, no prompt, N(0, 1)": "gradient at θ, no prompt",
        "θ + ξ, N(0, 1)": "gradient at θ + ξ",
    }
    names = {
        way: exact.get(way, "gradient at θ + ξ,\nthreshold from human texts") for way in ways["way"]
    }
    measures = {
        ALARMS: "human text: false alarms at level 5%",
        DETECTED: "watermarked text: detected at level .1%",
    }
    figure = panels(
        ways.replace({"way": names, "measure": measures}),
        "way",
        by="run",
        panel="measure",
        title="What does each way to test detect, and how often is it wrong?",
        caption=caption,
        ylabel="share of texts",
        ylim=(-0.03, 1.03),
    )
    figure.axes[0].axvline(0.05, **style.DASHED)  # the level of the first panel
    return figure


def draw_trap(table: pd.DataFrame, caption: str) -> Figure:
    """Draw where ψ of plain text lies with the gradient at θ and at θ + ξ: a row per run (columns
    ``psi, at, run``).
    """
    names = list(table["run"].unique())
    figure, axes = plt.subplots(figsize=(8.4, 1.6 + 0.8 * len(names)))
    looks = {AT_THETA: (-0.16, style.PLAIN), AT_MOVED: (0.16, style.WRONG_KEY)}
    for at, (shift, colour) in looks.items():
        for row, name in enumerate(names):
            psi = table.loc[(table["run"] == name) & (table["at"] == at), "psi"]
            low, first, middle, third, high = psi.quantile([0.025, 0.25, 0.5, 0.75, 0.975])
            place = row + shift
            axes.hlines(place, low, high, color=colour, linewidth=1.5)
            axes.hlines(place, first, third, color=colour, linewidth=11)
            axes.plot(middle, place, "|", color="white", markersize=11, markeredgewidth=2)
        axes.plot([], [], color=colour, linewidth=8, label=f"gradient at {at}")
    style.categories(axes, names)
    axes.axvline(0, **style.DASHED)
    axes.set(xlabel="ψ of plain text (thick: the middle half of the texts; thin: 95%)", ylabel="")
    style.legend_beside(axes)
    title = "Where is ψ of plain text, with the gradient at θ and at θ + ξ?"
    return style.caption(figure, caption, title)
