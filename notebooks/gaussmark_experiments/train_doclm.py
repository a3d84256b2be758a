"""How good a trained model is, page by page, and what its training looked like."""

import lzma
from collections.abc import Sequence

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gaussmark_lib.workbench.doclm import train
from gaussmark_lib.workbench.plots import style


def by_page(
    models: dict[str, tuple[PreTrainedModel, PreTrainedTokenizerBase]],
    pages: Sequence[str],
) -> pd.DataFrame:
    """Return ``train.bits_per_character`` of each page under each model: one row per model and
    page.
    """
    rows = []
    for name, (model, tokenizer) in models.items():
        for number, page in enumerate(pages):
            bits = train.bits_per_character(model, tokenizer, [page])
            rows.append({"model": name, "page": number, **bits})
    return pd.DataFrame(rows)


def xz(pages: Sequence[str]) -> float:
    """Return the bits per character of the pages, compressed together by ``xz``."""
    text = "\n\n".join(pages)
    compressed = lzma.compress(text.encode(), preset=9)  # the strongest setting
    return 8 * len(compressed) / len(text)


def spread(pages: Sequence[str], n: int) -> list[str]:
    """Return n of the pages, evenly spread, or all."""
    step = max(len(pages) // n, 1)
    return list(pages[::step][:n])  # rounding can leave a few more than n


def curves(runs: dict[str, pd.DataFrame], unigram: float, caption: str) -> Figure:
    """Draw training and held-out loss against tokens seen (frames with ``tokens, loss, held_out``),
    and the loss of a model that knows only how frequent tokens are.
    """
    figure, axes = plt.subplots()
    for colour, (name, curve) in zip(style.COLOURS, runs.items(), strict=False):
        axes.plot(
            curve["tokens"],
            curve["loss"],
            color=colour,
            label=f"{name}, training",
        )
        axes.plot(
            curve["tokens"],
            curve["held_out"],
            color=colour,  # the same model, the same colour
            linestyle="--",
            marker=".",
            label=f"{name}, held out",
        )
    axes.axhline(unigram, **style.DOTTED, label="token frequencies alone")
    axes.set(xscale="log", xlabel="tokens seen", ylabel="loss (nats per token)")
    return style.caption(figure, caption, "Training loss and held-out loss")
