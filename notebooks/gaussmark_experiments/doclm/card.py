"""Save a trained model as a checkpoint folder with a card in which every number is measured."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import torch
import transformers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from gaussmark_experiments.doclm.train import Recipe
from gaussmark_lib import files
from gaussmark_lib.engine import corpus as installed

CARD = Path(__file__).parent / "model_card.md"
DOCUMENTATION = "Documentation prose of the installed packages (`gaussmark_lib/engine/corpus.py`)"


def save(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    *,
    recipe: Recipe,
    curve: pd.DataFrame,
    corpus: pd.DataFrame,
    quality: dict[str, float],
    stream_tokens: int,
    hardware: str,
    own: bool = False,
) -> Path:
    """Write weights (bfloat16), tokenizer, ``recipe.json``, ``curve.csv`` and the card. An existing
    folder is replaced only once everything is written.

    Args:
        corpus: columns ``source, text, split``.
        quality: ``train.bits_per_character`` on held-out text.
        stream_tokens: length of the training text.
        own: the corpus is the reader's own text.
    """
    tokens = recipe.steps * recipe.batch_tokens
    lengths = corpus["text"].str.len()  # characters
    # about ten rows of the curve, if the recipe has thousands of steps
    steps_per_row = max(recipe.steps // 1000 * 100, 1)
    shown = curve[curve["step"] % steps_per_row == 0]
    card = CARD.read_text().format(
        **asdict(recipe),
        name=folder.name,
        parameters=model.num_parameters() / 1e6,
        quality=quality,
        tokens=tokens,
        epochs=tokens / stream_tokens,
        minutes=curve["seconds"].iloc[-1] / 60,
        hardware=hardware,
        about="Text of its maker's own" if own else f"{DOCUMENTATION}, {installed.fingerprint()}",
        paragraphs=corpus["split"].value_counts(),
        characters=lengths.groupby(corpus["split"]).sum(),
        heldout_share=installed.HELDOUT_SHARE,
        curve=shown.to_string(index=False, float_format="{:.3f}".format),
        versions=f"torch {torch.__version__}, transformers {transformers.__version__}",
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with files.hidden_folder(folder) as hidden:
        complete = Path(hidden) / folder.name
        model.config.use_cache = True
        model.to(torch.bfloat16).save_pretrained(complete)
        tokenizer.save_pretrained(complete)
        (complete / "recipe.json").write_text(json.dumps(asdict(recipe), indent=1) + "\n")
        curve.to_csv(complete / "curve.csv", index=False, float_format="%.5g")
        (complete / "README.md").write_text(card)
        shutil.rmtree(folder, ignore_errors=True)
        return complete.rename(folder)
