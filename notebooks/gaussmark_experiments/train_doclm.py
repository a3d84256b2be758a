"""How good a trained model is, page by page, what its training looked like, and what it changes if
doclm goes on to read source code.
"""

import copy
import lzma
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gaussmark_experiments.doclm import train
from gaussmark_lib import models, score, stats, texts
from gaussmark_lib.beyond import joint
from gaussmark_lib.engine import corpus
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench import answers, pairs, runs
from gaussmark_lib.workbench.plots import style

TESTED = ("dask/", "distributed/")  # the packages of the texts "source"
LEARNT = "mean cosine of source code after steps on other source code, divided by doclm's"
CONTROL = "mean cosine of source code after as many steps on documentation, divided by doclm's"
PILOT_FILES = 40  # the first files in the order of seed 0, on which the range of LEARNT was chosen
PROMPT_TOKENS = 16  # of a file of source code
FILE_TOKENS = 128  # after the prompt


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


def code(n_files: int, seed: int = 0) -> list[str]:
    """Return Python files of the corpus's packages, drawn at random. The two packages whose files
    are the kind of text ``"source"`` are left out, so no file that is tested later is among them.
    """
    files = [path for name, path in corpus.source_files() if not name.startswith(TESTED)]
    chosen = np.random.default_rng(seed).permutation(len(files))[:n_files]
    return [files[number].read_text(encoding="utf-8", errors="ignore") for number in chosen]


def files_outside_pilot(lm: models.LM, n: int, seed: int) -> tuple[Texts, Texts]:
    """Return (prompts, responses) of n files of source code, in the order of the seed. The files
    that the pilot of notebook 20 read are left out.
    """
    n_drawn = n + PILOT_FILES
    prompts, responses = pairs.passages(
        lm, "source", n_drawn, PROMPT_TOKENS, FILE_TOKENS, seed=seed
    )
    length = PROMPT_TOKENS + FILE_TOKENS
    names = texts.sources(lm, "source", n_drawn, length, seed=seed)
    in_pilot = set(texts.sources(lm, "source", PILOT_FILES, length, seed=0))
    kept = [number for number, name in enumerate(names) if name not in in_pilot][:n]
    return [prompts[i] for i in kept], [responses[i] for i in kept]


def trained_further(
    lm: models.LM,
    pages: Sequence[str],
    steps: int,
    *,
    batch_tokens: int = 2048,
    context: int = 256,
    rate: float = 1e-3,
    seed: int = 0,
) -> models.LM:
    """Return a copy of the model after ``steps`` more steps (AdamW) on these pages. The learning
    rate falls linearly from ``rate`` to zero.
    """
    recipe = train.Recipe(
        context=context, short_context=context, batch_tokens=batch_tokens, seed=seed
    )
    enough = train.enough(list(pages), steps * batch_tokens)
    stream = train.token_stream(lm.tokenizer, enough)
    model = copy.deepcopy(lm.model).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    falling = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=max(steps, 1))
    for step in range(steps):
        ids = train.batch_at(stream, recipe, step).to(model.device)
        loss = model(input_ids=ids, labels=ids).loss  # nats per token
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        falling.step()
    return replace(lm, model=model.eval().requires_grad_(False))


def cosines(
    lm: models.LM, prompts: Texts, responses: Texts, weight: str
) -> Float[np.ndarray, "n n"]:
    """Return the cosines between the gradients of all pairs of texts."""
    gradients = score.gradients(lm.model, prompts, responses, Watermark(weight, 1.0))
    directions = torch.stack([joint.directions.kept(gradient) for gradient in gradients])
    return joint.directions.inner(directions, directions)


def mean_cosine(K: Float[np.ndarray, "n n"], texts: Int[np.ndarray, " m"] | None = None) -> float:
    """Return the mean cosine of two different texts, of those with these numbers (which may repeat
    in a resample).
    """
    numbers = np.arange(len(K)) if texts is None else texts
    is_pair = numbers[:, None] != numbers  # a text and itself are no pair
    return K[np.ix_(numbers, numbers)][is_pair].mean()


def change_of_cosine(
    after: Float[np.ndarray, "n n"], before: Float[np.ndarray, "n n"]
) -> stats.Estimate:
    """Divide the mean cosine under one model by that of the same texts under another. Texts are
    resampled.
    """

    def quotient(texts: Int[np.ndarray, " m"]) -> float:
        return mean_cosine(after, texts) / mean_cosine(before, texts)

    return stats.bootstrap(np.arange(len(before)), quotient)


def recorded_cosines() -> dict[str, float]:
    """Return the mean cosine of two files of source code in the records of notebook 12 on real
    models: model → cosine.
    """
    cosines_by_model = {}
    for run in runs.references("12_one_key_in_production"):
        source = run.results["audit"].get("source")
        if source and run.params["model"] != "doclm":
            name = f"{answers.title(run)}, from the record of notebook 12"
            cosines_by_model[name] = source["mean cosine"]
    return cosines_by_model


def curves(curve_by_run: dict[str, pd.DataFrame], unigram: float, caption: str) -> Figure:
    """Draw training and held-out loss against tokens seen (frames with ``tokens, loss, held_out``),
    and the loss of a model that knows only how frequent tokens are.
    """
    figure, axes = plt.subplots()
    for colour, (name, curve) in zip(style.COLOURS, curve_by_run.items(), strict=False):
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
