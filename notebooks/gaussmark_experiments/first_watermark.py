"""00_first_watermark: a blind game, and the picture that three notebooks build on."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
import pandas as pd
from IPython.display import HTML
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

from gaussmark_lib import (
    evidence,
    files,
    generate,
    models,
    perturb,
    score,
    stats,
)
from gaussmark_lib.workbench.pairs import (
    OWN,
    Pairs,
    demonstration_keys,
    under_own_keys,
)
from gaussmark_lib.workbench.plots import show, style
from gaussmark_lib.workbench.runs import folder

LETTERS = "ABCDEF"  # names of the game's texts
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
    """Draw G as an arrow among the noises of many keys, their projections on G, and ψ as the text
    grows. The first key is the key that wrote the text.
    """
    figure, (plane, projections, grown) = plt.subplots(1, 3, figsize=(12.4, 4.3))
    _draw_plane(plane, cloud)
    _draw_projections(projections, cloud, level)
    _draw_growth(grown, growth, level)
    return style.caption(figure, caption)


def _draw_plane(axes: Axes, cloud: pd.DataFrame) -> None:
    writer = cloud.iloc[0]
    unrelated = cloud.iloc[1:]
    axes.scatter(
        unrelated["along"],
        unrelated["across"],
        s=6,
        alpha=0.5,
        color=style.WRONG_KEY,
    )
    axes.scatter(
        writer["along"],
        writer["across"],
        s=140,
        marker="*",
        zorder=3,  # above the cloud
        color=style.WATERMARKED,
    )
    arrow = {"arrowstyle": "-|>", "lw": 3, "color": "black"}
    axes.annotate("", (3, 0), (0, 0), arrowprops=arrow, zorder=4)
    axes.text(3.1, 0.25, "G", weight="bold")
    axes.set(
        xlabel="along G, in σ",
        ylabel="perpendicular to G, in σ",
        title="The noise ξ of each key (one dot per key)",
    )


def _draw_projections(axes: Axes, cloud: pd.DataFrame, level: float) -> None:
    writers_psi = cloud["along"].iloc[0]
    axes.hist(
        cloud["along"][1:],
        bins=25,
        density=True,
        alpha=0.5,
        color=style.WRONG_KEY,
    )
    style.normal_density(axes, high=max(4.0, writers_psi + 0.5))
    axes.plot(
        writers_psi,
        0,
        "*",
        markersize=14,
        clip_on=False,  # the star lies on the axis
        label=OWN,
        color=style.WATERMARKED,
    )
    axes.axvline(stats.threshold(level), **style.DASHED, label=f"level {level:g}")
    axes.set(
        xlabel="ψ = projection of ξ on G, in σ",
        title="The projection of each noise on G",
        yticks=[],
    )


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
    axes.axhline(stats.threshold(level), **style.DASHED)
    axes.set(xlabel="number of tokens", ylabel="ψ", title="ψ of the beginning of the text")


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
