"""How much a model is like doclm: the same seven measurements on any model, in one small run.

    python -m gaussmark_experiments.likeness MODEL

replaces the model's row in ``papermill_runs/reference/likeness.json``, from which the page "Where
doclm is like a language model, and where it is not" is printed. Run it from ``notebooks``.
"""

import json
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gaussmark_experiments import detectability, train_doclm
from gaussmark_lib import (
    corrupt,
    files,
    generate,
    gradients,
    likelihood,
    models,
    score,
    stats,
    texts,
)
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import Watermark
from gaussmark_lib.workbench import begin, pairs

RECORD = files.RUNS / "reference" / "likeness.json"
LEVEL = 0.05
COOL = 0.3  # the temperature of a careful answer
REPLACED = 0.3  # share of the tokens of an edited text
EDIT = "substitute at random"
BATCH = 4  # texts scored at a time, which suits a vocabulary of 262,144
STRONG = 4.0  # predicted ψ of a text


@dataclass(frozen=True)
class Design:
    """Sizes of a measurement."""

    n_pairs: int = 24  # of a fresh prompt and a fresh key
    prompt_tokens: int = 32
    n_tokens: int = 100  # of a text
    n_spread_prompts: int = 5  # with many plain answers each, for the spread of ‖G‖
    n_spread: int = 8  # answers to each of them
    n_kind: int = 16  # human texts of each kind, for the cosine of their gradients
    kinds: tuple[str, ...] = ("docs", "licences", "source", "speeches", "news")
    seed: int = 0


def measured(model: str, design: Design) -> dict[str, Any]:
    """Return the row of a model. Prompts are of its default kind of text, the weight is its default
    weight, and σ is solved for a predicted ψ of 4 on the pilot.
    """
    text = texts.default_kind(models.load(model))
    lm, wm, drawn, n_tokens = begin.begin(
        model,
        text,
        n_pairs=design.n_pairs,
        n_tokens=design.n_tokens,
        prompt_tokens=design.prompt_tokens,
        psi=STRONG,
        seed=design.seed,
    )
    theta = lm.model.get_parameter(wm.weight)
    marked, plain = pairs.marked_and_plain(lm, drawn, wm, n_tokens, seed=design.seed)
    psi = _psi_of_ways(lm, wm, drawn, marked, design.seed)
    entropies = likelihood.entropies(lm.model, drawn.prompts, plain, batch_size=BATCH)
    spread = detectability.spread_of_norms(_norms_of_answers(lm, wm, drawn, n_tokens, design))
    cosines = {kind: _mean_cosine(lm, wm, kind, n_tokens, design) for kind in design.kinds}
    return {
        "design": asdict(design),
        "text": text,
        "weight": wm.weight,
        "finished": datetime.now(UTC).strftime("%Y-%m-%d"),
        "sigma": wm.sigma,
        "sd of the weight": float(theta.detach().std()),
        "entropy": stats.mean([of_text.mean() for of_text in entropies]).row(),
        "largest over smallest norm": spread.row(),
        "cosine": {kind: cosine.row() for kind, cosine in cosines.items()},
        "psi": stats.mean(psi["sampled"]).row(),
        "kept at a low temperature": stats.ratio(psi["cool"], psi["sampled"]).row(),
        "kept after substitution": stats.ratio(psi["edited"], psi["sampled"]).row(),
        "detected": {way: stats.tpr(psi[way], LEVEL).row() for way in psi},
    }


def _psi_of_ways(
    lm: models.LM,
    wm: Watermark,
    drawn: pairs.Pairs,
    marked: Texts,
    seed: int,
) -> pd.DataFrame:
    """Return ψ under its own key of each pair's text as sampled, as sampled at a low temperature,
    and after substitution: a row per pair.
    """
    marks = [(wm, key) for key in drawn.keys]
    sample = partial(generate.sample, lm.model, drawn.prompts, len(marked[0]), marks=marks)
    cool = sample(temperature=COOL, seed=seed + 2)
    change = corrupt.named(lm, [EDIT])[EDIT]
    _, edited = change(drawn.prompts, marked, REPLACED, seed)
    psi = {}
    for way, responses in {"sampled": marked, "cool": cool, "edited": edited}.items():
        table = score.score(
            lm.model,
            drawn.prompts,
            responses,
            wm,
            drawn.keys,
            paired=True,
            batch_size=BATCH,
        )
        psi[way] = table.set_index("text")["psi"]
    return pd.DataFrame(psi)


def _norms_of_answers(
    lm: models.LM,
    wm: Watermark,
    drawn: pairs.Pairs,
    n_tokens: int,
    design: Design,
) -> pd.DataFrame:
    """Return ‖G‖ of plain answers to the first prompts: the columns ``prompt, grad_norm``."""
    first = drawn.prompts[: design.n_spread_prompts]
    prompts = [prompt for prompt in first for _ in range(design.n_spread)]
    answers = generate.sample(lm.model, prompts, n_tokens, seed=design.seed + 1)
    norms = gradients.norms(lm.model, prompts, answers, [wm.weight], batch_size=BATCH)
    return norms.assign(prompt=norms["text"] // design.n_spread)


def _mean_cosine(
    lm: models.LM,
    wm: Watermark,
    kind: str,
    n_tokens: int,
    design: Design,
) -> stats.Estimate:
    """Return the mean cosine between the gradients of two human texts of a kind. Texts are
    resampled.
    """
    prompts, responses = pairs.passages(
        lm,
        kind,
        design.n_kind,
        design.prompt_tokens,
        n_tokens,
        design.seed,
    )
    K = train_doclm.cosines(lm, prompts, responses, wm.weight)
    numbers = np.arange(len(K))
    return stats.bootstrap(numbers, lambda chosen: train_doclm.mean_cosine(K, chosen))


def write(model: str, design: Design, path: Path = RECORD) -> None:
    """Measure a model, and replace its row in the record."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    files.write_json(path, rows | {model: measured(model, design)})


if __name__ == "__main__":
    write(sys.argv[1], Design())
