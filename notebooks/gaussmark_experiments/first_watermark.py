"""00_first_watermark: a blind game, and the picture that three notebooks build on."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from IPython.display import HTML
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

from gaussmark_experiments import intervals
from gaussmark_lib import (
    evidence,
    files,
    generate,
    models,
    perturb,
    score,
    stats,
)
from gaussmark_lib.workbench import answers, runs, words
from gaussmark_lib.workbench.pairs import (
    OWN,
    PLAIN,
    WRONG,
    Pairs,
    Tables,
    demonstration_keys,
    numbering,
    over_pairs,
    under_own_keys,
)
from gaussmark_lib.workbench.plots import show, style
from gaussmark_lib.workbench.runs import folder

NOTEBOOK = "00_first_watermark"
GAP = "share detected, less the share expected from ‖G‖"
LETTERS = "ABCDEF"  # names of the game's texts
# In the picture, a histogram stands below the cloud of keys.
GROUND = -7.5  # where the bars begin
HEIGHT = 6.5  # of a density of 1
MEASURED = "measured"
PREDICTED = "predicted"


class Game(NamedTuple):
    """Six texts under one key, or none. Do not look into ``is_marked``."""

    prompts: list[list[int]]
    texts: list[list[int]]
    is_marked: list[bool]


def play(
    lm: models.LM,
    prompts: list[list[int]],
    wm: perturb.Watermark,
    key: perturb.Key,
    n_tokens: int,
    seed: int = 0,
    **sampling,
) -> Game:
    """Continue six prompts. The model carries the key's noise for three of them, at random."""
    rng = np.random.default_rng(seed)
    is_marked = rng.permutation([True] * 3 + [False] * 3).tolist()
    # None: the model stays as it is
    marks = [(wm, key) if marked else None for marked in is_marked]
    # fewer prompts are used again
    prompts = [prompts[i % len(prompts)] for i in range(len(marks))]
    texts = generate.sample(lm.model, prompts, n_tokens, marks=marks, seed=seed, **sampling)
    return Game(prompts, texts, is_marked)


def revealed(lm: models.LM, game: Game, wm: perturb.Watermark, key: perturb.Key) -> HTML:
    """Show each text's p-value, and its tokens in colour: orange leans towards the key, blue away
    from it.
    """
    cards = {}  # heading → text in colour
    for letter, prompt, text, marked in zip(LETTERS, *game, strict=True):
        tokens = evidence.per_token(lm.model, prompt, text, wm, key)
        psi = tokens["evidence"].sum()  # ψ is the sum over tokens
        written = "with" if marked else "without"
        heading = f"{letter}: p = {norm.sf(psi):.2g} (ψ = {psi:.2f}); written {written} the key"
        cards[heading] = _coloured(show.pieces(tokens, lm.decode))
    return show.cards(cards)


def _coloured(pieces: pd.DataFrame) -> str:
    """HTML of a text's pieces, each on the colour of its evidence."""
    full = 3 / len(pieces) ** 0.5  # evidence with the full colour: three times an equal share's
    spans = ""
    for piece in pieces.itertuples():
        colour = "230,120,0" if piece.evidence > 0 else "0,110,200"  # orange or blue
        strength = min(abs(piece.evidence) / full, 1) * 0.6  # opacity of the colour
        look = f"background:rgba({colour},{strength:.2f})"
        title = f"evidence {piece.evidence:+.2f}"
        spans += f'<span style="{look}" title="{title}">{escape(piece.text)}</span>'
    return spans


def cloud(
    lm: models.LM,
    game: Game,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
) -> pd.DataFrame:
    """Return where each key's noise lies as seen from a marked text of the game, in units of σ:
    ``along`` its gradient G, which is ψ, and ``across``, along another text's gradient without its
    part in G.
    """
    numbers = (game.is_marked.index(True), game.is_marked.index(False))
    prompts = [game.prompts[i] for i in numbers]
    texts = [game.texts[i] for i in numbers]
    unordered = score.gradients(lm.model, prompts, texts, wm)
    gradients = sorted(unordered, key=lambda gradient: gradient.text)
    along, on_plain = score.psi(gradients, wm.on(lm.model), keys)
    marked_unit, plain_unit = (gradient.unit() for gradient in gradients)
    cosine = float(marked_unit @ plain_unit)
    # Gram and Schmidt: without the part along G, and of unit length again
    across = (on_plain - cosine * along) / (1 - cosine**2) ** 0.5
    return pd.DataFrame({"along": along, "across": across})


def growth(
    lm: models.LM,
    game: Game,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
) -> pd.DataFrame:
    """Return ψ of that text's first n tokens under each key, for twenty n: the table of
    ``score``.
    """
    i = game.is_marked.index(True)
    n_tokens = len(game.texts[i])
    # a set: a short text has fewer than twenty
    lengths = {max(1, round(n_tokens * part / 20)) for part in range(1, 21)}
    return score.score(
        lm.model,
        [game.prompts[i]],
        [game.texts[i]],
        wm,
        list(keys),
        lengths=sorted(lengths),
    )


def draw_picture(
    cloud: pd.DataFrame,
    growth: pd.DataFrame,
    level: float,
    caption: str,
) -> Figure:
    """Draw G as an arrow among the noises of many keys, with their projections on G below, and ψ as
    the text grows. The first key is the key that wrote the text.
    """
    figure, (plane, grown) = plt.subplots(
        1, 2, figsize=(12.4, 5.6), gridspec_kw={"width_ratios": (1.25, 1)}
    )
    _draw_plane(plane, cloud)
    _draw_projections(plane, cloud["along"], level)
    _draw_growth(grown, growth, level)
    return style.caption(figure, caption)


def _draw_plane(axes: Axes, cloud: pd.DataFrame) -> None:
    """The noises as dots, in axes of equal scale; the writer's projection as a dashed line."""
    writer = cloud.iloc[0]
    unrelated = cloud.iloc[1:]
    axes.scatter(
        unrelated["along"],
        unrelated["across"],
        s=6,
        alpha=0.5,
        color=style.WRONG_KEY,
        label="noise ξ of an unrelated key",
    )
    axes.scatter(
        writer["along"],
        writer["across"],
        s=180,
        marker="*",
        zorder=3,  # above the cloud
        color=style.WATERMARKED,
        label="noise ξ of the key that wrote the text",
    )
    axes.plot(
        [writer["along"], writer["along"]],
        [writer["across"], GROUND],
        linestyle="--",
        color=style.WATERMARKED,
    )
    axes.text(
        writer["along"],
        GROUND - 0.15,
        f"ψ = {writer['along']:.1f}",
        color=style.WATERMARKED,
        weight="bold",
        ha="center",
        va="top",
    )
    arrow = {"arrowstyle": "-|>", "lw": 3, "color": "black"}
    axes.annotate("", (2.2, 0), (0, 0), arrowprops=arrow, zorder=4)
    axes.text(2.3, 0.2, "G", weight="bold")
    axes.set(
        xlabel="along G, in σ: the projection ψ",
        ylabel="perpendicular to G, in σ",
        title="Each key is a dot. ψ is its projection on G.",
        xlim=(-4.5, max(5.0, writer["along"] + 0.8)),
        ylim=(GROUND - 1, 4.6),
        yticks=[-4, -2, 0, 2, 4],
        aspect="equal",
    )
    axes.legend(loc="upper left", fontsize="x-small", framealpha=1)


def _draw_projections(axes: Axes, along: pd.Series, level: float) -> None:
    """The histogram of the unrelated keys' projections below the cloud, and N(0, 1)."""
    density, edges = np.histogram(along[1:], bins=np.arange(-4.5, 4.6, 0.5), density=True)
    axes.bar(
        edges[:-1],
        HEIGHT * density,
        width=0.5,
        bottom=GROUND,
        align="edge",
        color=style.WRONG_KEY,
        alpha=0.5,
    )
    grid = np.linspace(-4.5, 4.5, 300)
    axes.plot(grid, GROUND + HEIGHT * norm.pdf(grid), **style.THIN)
    axes.text(-4.3, GROUND + 1.6, "their projections,\nand N(0, 1)", fontsize="small")
    tau = stats.threshold(level)
    axes.vlines(tau, GROUND, GROUND + 2.6, **style.DASHED)
    axes.text(tau + 0.1, GROUND + 2.1, f"level {level:g}", fontsize="small")


def _draw_growth(axes: Axes, growth: pd.DataFrame, level: float) -> None:
    labels = {
        0: OWN,
        1: "other keys",
    }  # the legend has an entry for all other keys
    for number, (_, rows) in enumerate(growth.groupby("key_id", sort=False)):
        if number == 0:
            look = {"color": style.WATERMARKED, "lw": 2.5, "zorder": 3}
        else:
            look = {"color": style.WRONG_KEY, "lw": 0.8, "alpha": 0.6}
        axes.plot(
            rows["n_tokens"],
            rows["psi"],
            label=labels.get(number),
            **look,
        )
    axes.axhline(stats.threshold(level), **style.DASHED, label=f"level {level:g}")
    axes.set(
        xlabel="number of tokens that are tested",
        ylabel="ψ",
        title="How does ψ grow with the text?",
    )


def draw_tested(table: pd.DataFrame, level: float, caption: str) -> Figure:
    """Draw ψ of each text as a point below the N(0, 1) that holds without a watermark, one row per
    kind (columns ``psi, kind``).
    """
    figure, axes = plt.subplots()
    grid = np.linspace(-4, max(4.5, table["psi"].max() + 0.5), 400)
    axes.fill_between(
        grid,
        norm.pdf(grid),
        color="0.85",
        label="N(0, 1): texts without the key",
    )
    axes.axvline(
        stats.threshold(level),
        **style.DASHED,
        label=f"threshold at level {level:g}",
    )
    kinds = list(table["kind"].unique())
    for row, kind in enumerate(kinds, 1):
        psi = table.loc[table["kind"] == kind, "psi"]
        axes.scatter(
            psi,
            np.full(len(psi), -0.04 * row),  # below the axis
            label=f"{kind}: mean ψ {psi.mean():.2f}",
            s=22,
            alpha=0.8,
            **style.look(kind),
        )
    bottom = -0.04 * (len(kinds) + 1.2)  # room for a row per kind
    axes.set(
        xlabel="ψ",
        ylabel="density",
        ylim=(bottom, None),
    )
    axes.set_yticks([0.0, 0.1, 0.2, 0.3, 0.4])
    style.legend_beside(axes)
    return style.caption(
        figure,
        caption,
        "Which kind of text has ψ above the threshold?",
    )


def shares(rates: Mapping[str, stats.Estimate], level: float, n_tokens: int) -> pd.DataFrame:
    """Return the share of texts detected, in words: a row per record of this notebook and one for
    this run, a column per kind of text.
    """
    rows = {}
    for run in runs.references(NOTEBOOK):
        recorded = {kind: intervals.of_row(rate) for kind, rate in run.results["rates"].items()}
        name = f"{answers.title(run)} (reference)"
        rows[name] = _shares(recorded, run.params["level"], run.params["n_tokens"])
    rows[answers.THIS_RUN] = _shares(rates, level, n_tokens)
    return pd.DataFrame.from_dict(rows, orient="index")


def _shares(rates: Mapping[str, stats.Estimate], level: float, n_tokens: int) -> dict[str, str]:
    row = {"level": f"{level:g}", "tokens": str(n_tokens)}
    for kind in (OWN, WRONG, PLAIN):
        row[kind] = " ".join(words.estimate(rates[kind].row(), as_percent=True))
    return row


def misses_in_words(rates: Mapping[str, stats.Estimate], level: float) -> str:
    """Say which intervals of the negative controls exclude the level, in the records of this
    notebook and in this run.
    """
    of_runs = [
        (f"{answers.title(run)} (reference)", run.params["level"], run.results["rates"])
        for run in runs.references(NOTEBOOK)
    ]
    of_runs.append((answers.THIS_RUN, level, {kind: rate.row() for kind, rate in rates.items()}))
    misses = []
    for name, level_of_run, rates_of_run in of_runs:
        for kind in (WRONG, PLAIN):
            rate = rates_of_run[kind]
            if not rate["low"] <= level_of_run <= rate["high"]:
                misses.append(f"{name}, {kind}")
    exclude = "excludes" if len(misses) == 1 else "exclude"
    names = f": {'; '.join(misses)}" if misses else ""
    n_intervals = 2 * len(of_runs)
    return f"{len(misses)} of the {n_intervals} intervals of controls {exclude} the level{names}."


def recorded_share(run: folder.Run) -> stats.Estimate:
    """Return the share of texts that a record of this notebook detects with their own key."""
    return intervals.of_row(run.results["rates"][OWN])


def constants(results: Mapping[str, Any]) -> dict[str, float]:
    """Return what each row of a part's ``texts`` has in a pooled record: ``expected``, the share
    that ‖G‖ of the part's plain texts predicts.
    """
    [gap] = [row["value"] for row in results["claims"] if row["claim"] == GAP]
    return {"expected": results["rates"][OWN]["value"] - gap}


def estimates(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, stats.Estimate]:
    """Return the findings and the headline that the rows of ``texts`` decide, by their sentences.
    ‖G‖ and ψ at other σ have no rows.
    """
    table = tables["texts"]
    level = params["level"]
    detected = _detected(table, "psi_watermarked", level)
    expected = table["expected"].mean()  # of all pairs: a row is a pair
    gap = intervals.less(detected, expected)
    share = f"texts of {params['n_tokens']} tokens detected with their key at level {level}"
    return {GAP: gap, share: detected}


def summaries(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, pd.DataFrame]:
    """Return the recorded tables that others decide: none."""
    return {}


def numbers(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the rates that the rows of ``texts`` decide; wrong keys have no rows."""
    table = tables["texts"]
    own = _detected(table, "psi_watermarked", params["level"])
    plain = _detected(table, "psi_plain", params["level"])
    return {"rates": {OWN: own.row(), PLAIN: plain.row()}}


def _detected(table: pd.DataFrame, psi: str, level: float) -> stats.Estimate:
    by_pair = table.set_index(numbering(table, "pair"))
    return over_pairs(by_pair[psi] >= stats.threshold(level))


def turned(
    lm: models.LM,
    pairs: Pairs,
    weight: str,
    norms: Sequence[float],
    wanted: Sequence[float],
    n_tokens: int,
    **options,
) -> pd.DataFrame:
    """Measure mean ψ of marked texts at each σ that predicts a wanted ψ from the ‖G‖ of plain
    texts. Options are those of ``pairs.under_own_keys``.

    Returns:
        For ``panels``: ``predicted, sigma, curve, value, low, high, n``, measured and predicted.
    """
    # one for each wanted ψ
    wms = [perturb.Watermark(weight, stats.sigma_for_psi(norms, psi)) for psi in wanted]
    # σ in the order of the watermarks
    _, table = under_own_keys(lm, pairs, wms, n_tokens, **options)
    rows = []
    for psi, (sigma, texts) in zip(wanted, table.groupby("sigma", sort=False), strict=True):
        point = {"predicted": psi, "sigma": sigma}
        measured = stats.interval(texts["psi"])
        rows.append({**point, "curve": MEASURED, **measured.row()})
        rows.append({**point, "curve": PREDICTED, "value": psi})
    return pd.DataFrame(rows)


def at_largest(sweep: pd.DataFrame) -> stats.Estimate:
    """Divide the measured mean ψ of :func:`turned` by the prediction, at the largest σ."""
    measured = sweep[sweep["curve"] == MEASURED]
    row = measured.loc[measured["predicted"].idxmax()]
    return intervals.divided(intervals.of_row(row), row["predicted"])


def recorded_at_largest(run: folder.Run) -> stats.Estimate | None:
    """Return :func:`at_largest` of a record, or None if the record has no table of the sweep."""
    has_sweep = (run.dir / "sweep.parquet").exists()
    return at_largest(run.table("sweep")) if has_sweep else None


def same_everywhere(lm: models.LM) -> pd.DataFrame:
    """Compare ψ of the first sixteen pairs' token ids in the record of this notebook, computed here
    and as recorded: ``kind, here, recorded``. The embedded model scores them, whatever ``lm`` is.
    """
    is_doclm = lm.name == "doclm" and str(lm.model.dtype) == "torch.float32"
    embedded = lm if is_doclm else models.load("doclm")
    run = folder.load(files.RUNS / "reference" / "first_watermark")  # the committed record
    texts = run.table("texts").head(16)
    wm = perturb.Watermark(run.results["weight"], run.results["sigma"])
    keys = demonstration_keys(len(texts), run.params["seed"])
    prompts = texts["prompt"].tolist()
    tables = []
    for kind in ("watermarked", "plain"):
        responses = texts[kind].tolist()
        scores = score.score(embedded.model, prompts, responses, wm, keys, paired=True)
        columns = {
            "kind": kind,
            "here": scores["psi"],
            "recorded": texts[f"psi_{kind}"],
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)
