"""Saves a trained model as a checkpoint folder with a card that says what it is, all numbers
measured.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import torch
import transformers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from gaussmark_lib import docs, files
from gaussmark_lib.doclm.train import Recipe

CARD = Path(__file__).parent / "model_card.md"


def save(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    *,
    recipe: Recipe,
    curve: pd.DataFrame,
    **facts: Any,
) -> Path:
    """Writes weights (bfloat16), tokenizer, ``recipe.json``, ``curve.csv`` and the card
    (``facts``); replaces a folder only once all is written.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with files.hidden_folder(folder) as hidden:
        complete = Path(hidden) / folder.name
        model.config.use_cache = True
        model.to(torch.bfloat16).save_pretrained(complete)
        tokenizer.save_pretrained(complete)
        (complete / "recipe.json").write_text(json.dumps(asdict(recipe), indent=1) + "\n")
        curve.to_csv(complete / "curve.csv", index=False, float_format="%.5g")
        (complete / "README.md").write_text(card(model, recipe, curve, **facts))
        shutil.rmtree(folder, ignore_errors=True)
        return complete.rename(folder)


def card(
    model: LlamaForCausalLM,
    recipe: Recipe,
    curve: pd.DataFrame,
    *,
    corpus: pd.DataFrame,
    quality: dict[str, float],
    stream_tokens: int,
    hardware: str,
    own: bool = False,
) -> str:
    """The model card as Markdown, from the corpus, ``train.bits_per_character`` on held-out text,
    and the training text's length; ``own``: of a model of the reader's own text.
    """
    lengths = corpus["text"].str.len()
    packages = corpus["source"].str.split("/").str[0].str.removesuffix(".py")
    sources = (lengths.groupby(packages).sum() / 1e3).sort_values(ascending=False).head(12)
    shown = curve[curve["step"] % max(recipe.steps // 10 // 100 * 100, 1) == 0]
    tokens, versions = recipe.steps * recipe.batch_tokens, docs.versions()
    return (
        jinja2.Template(CARD.read_text())
        .render(own=own)
        .format(
            **asdict(recipe),
            parameters=sum(p.numel() for p in model.parameters()) / 1e6,
            quality=quality,
            tokens=tokens,
            epochs=tokens / stream_tokens,
            minutes=curve["seconds"].iloc[-1] / 60,
            hardware=hardware,
            n_packages=len(versions),
            paragraphs=corpus["split"].value_counts(),
            characters=lengths.groupby(corpus["split"]).sum(),
            heldout_share=docs.HELDOUT_SHARE,
            fingerprint=docs.fingerprint(),
            rules=docs.VERSION,
            sources=", ".join(f"{name} {size:,.0f}" for name, size in sources.items()),
            curve=_table(shown[["step", "tokens", "loss", "held_out"]]),
            versions=", ".join(f"{name} {version}" for name, version in versions.items()),
            torch=torch.__version__,
            transformers=transformers.__version__,
        )
    )


def _table(frame: pd.DataFrame) -> str:
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "---:|" * len(frame.columns)]
    for row in frame.to_numpy():
        cells = (f"{x:,.0f}" if float(x).is_integer() else f"{x:.3f}" for x in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
