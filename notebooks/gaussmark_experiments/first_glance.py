"""The README's picture: a plain and a watermarked text of a record of notebook 00, side by side.

    python -m gaussmark_experiments.first_glance papermill_runs/reference/first_watermark_smollm2

The pair is the one whose watermarked text has the median ψ of the record. The command writes
``notebooks/pages/first_glance.png`` and prints its caption for the README.
"""

import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import norm

from gaussmark_lib import files, models
from gaussmark_lib.workbench import verdict
from gaussmark_lib.workbench.plots import style
from gaussmark_lib.workbench.runs import folder

PICTURE = files.NOTEBOOKS / "pages" / "first_glance.png"
N_CHARACTERS = 480  # of each text; ψ and p are those of the whole text
WIDTH = 62  # characters of a line


def typical(pairs: pd.DataFrame) -> pd.Series:
    """Return the pair whose watermarked text has the median ψ; of two, the smaller."""
    ranked = pairs.sort_values("psi_watermarked", kind="stable")
    return ranked.iloc[(len(ranked) - 1) // 2]


def shortened(text: str) -> str:
    """Return the beginning of a text, in lines; white space is made single spaces."""
    words = " ".join(text.split())
    beginning = textwrap.shorten(words, N_CHARACTERS, placeholder=" …")
    return textwrap.fill(beginning, WIDTH)


def draw(lm: models.LM, pair: pd.Series) -> Figure:
    """Draw both texts of a pair below their ψ and p, and the end of their prompt above them."""
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    prompt = " ".join(lm.decode(list(pair["prompt"])).split())
    figure.suptitle(f"The prompt ends: … {prompt[-90:]}", fontsize="medium", parse_math=False)
    kinds = {"plain": style.PLAIN, "watermarked": style.WATERMARKED}
    for axes, (kind, colour) in zip(figure.subplots(1, 2), kinds.items(), strict=True):
        psi = pair[f"psi_{kind}"]
        p_value = verdict.p_value(norm.logsf(psi) / np.log(10))
        axes.set_title(f"{kind}: ψ = {psi:.2f}, p = {p_value}", loc="left", color=colour)
        words = shortened(lm.decode(list(pair[kind])))
        axes.text(0, 1, words, va="top", linespacing=1.5, fontsize="small", parse_math=False)
        axes.axis("off")
    return figure


def caption(run: folder.Run, pair: pd.Series) -> str:
    """Return what the README says below the picture."""
    return (
        f"*{run.params['model']}, {len(pair['plain'])} tokens each, of which the picture shows the"
        " beginning. ψ of the watermarked text is the median of all pairs. Texts of"
        f" {len(pair['plain'])} tokens detected at level {run.params['level']}:"
        f" {run.headline.value} {run.headline.basis}.*"
    )


def main(record: str) -> None:
    """Write the picture of a record, and print its caption."""
    run = folder.load(Path(record))
    pair = typical(pd.read_parquet(run.dir / "texts.parquet"))
    lm = models.load(run.params["model"])
    draw(lm, pair).savefig(PICTURE, dpi=100, facecolor="white")
    print(caption(run, pair))


if __name__ == "__main__":
    main(*sys.argv[1:])
