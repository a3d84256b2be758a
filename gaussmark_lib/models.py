"""Language models with their tokenizers: how they are loaded, which weight is marked by default.

Files are checked before they are read, and no code of theirs is run (``engine.checkpoints``).
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from gaussmark_lib import files, tokens
from gaussmark_lib.engine import checkpoints
from gaussmark_lib.engine.arithmetic import native_bfloat16 as native_bfloat16
from gaussmark_lib.errors import (
    InvalidModelError,
    InvalidWatermarkError,
    require_int,
    require_one_of,
    shown,
)
from gaussmark_lib.weights import Weight
from gaussmark_lib.weights import names as watermarkable

EMBEDDED = "doclm"
DTYPES = ("auto", "float16", "bfloat16", "float32", "float64")
_IN_BLOCK = re.compile(r"(.+?)\.(\d+)\.")  # a stack of blocks, and a block's number in it


@dataclass(frozen=True)
class LM:
    """A causal language model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens, also where the text spells one."""
        tokens.check_text(text)
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def prompt(self, text: str) -> list[int]:
        """Token ids of a text to be continued: with the start token, in a chat template if any."""
        tokens.check_text(text, "prompt")
        if not self.tokenizer.chat_template:
            return self.tokenizer.encode(text, split_special_tokens=True)
        turn = [{"role": "user", "content": f"Complete the following prompt: {text}"}]
        options = {"add_generation_prompt": True, "return_dict": False}
        try:
            return list(self.tokenizer.apply_chat_template(turn, **options))
        except Exception as error:  # a template is a program of the model's author
            expected = f"{self.name}: expected a chat template that takes a user's turn"
            raise InvalidModelError(f"{expected}, got {checkpoints.first_line(error)}") from error


def load(
    name: str | Path = EMBEDDED,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | None = None,
    revision: str | None = None,
) -> LM:
    """Loads ``"doclm"`` (the model in this repository), a local folder, or a hub id.

    Args:
        dtype: of the weights; ``"auto"`` is the checkpoint's own.
        device: by default the GPU if there is one.
        revision: a hub branch, tag or commit.

    Raises:
        InvalidModelError: no such model, no network, a broken or incomplete checkpoint, one that
            needs code of its own, or one that does not fit into the free memory.
    """
    require_one_of(str(dtype).removeprefix("torch."), "dtype", DTYPES, InvalidModelError)
    device, source = checkpoints.device_of(device), _source(name)
    is_local = isinstance(source, Path)
    terms = {"revision": revision, **checkpoints.hub_terms(local=is_local)}
    strict = {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    with checkpoints.loading(str(name), is_local=is_local):
        checkpoints.check_size(source, terms, dtype, device)
        tokenizer = AutoTokenizer.from_pretrained(source, **terms)
        model, info = AutoModelForCausalLM.from_pretrained(source, **terms, **strict, dtype=dtype)
        if unfit := sorted(map(str, {*info["missing_keys"], *info["mismatched_keys"]})):
            unfit = f"missing or of another shape: {unfit[:5]}"
            raise InvalidModelError(f"{checkpoints.UNFIT}, {unfit}")
        for weight, parameter in model.named_parameters():
            checkpoints.check_finite(parameter, weight)
    return LM(model.to(device).eval(), tokenizer, str(name))


def _source(name: str | Path) -> Path | str:
    """The folder of a model's files, or else a hub id."""
    if not isinstance(name, str | Path) or not str(name):
        expected = f"name: expected {EMBEDDED!r}, a folder or a hub id"
        raise InvalidModelError(f"{expected}, got {shown(name)}")
    folder = files.DATA / EMBEDDED if str(name) == EMBEDDED else Path(name).expanduser()
    if os.path.isdir(folder):
        return folder
    if isinstance(name, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        expected = f"no model at {folder}: expected a folder with config.json and *.safetensors"
        raise InvalidModelError(f"{expected}. models.load('{EMBEDDED}') needs no download")
    return name


def default_weight(model: PreTrainedModel, *, block: int | None = None, small: bool = False) -> str:
    """Of the matrices in one block that write to the residual stream (d_out is the hidden size),
    the one with the largest d_in, which is the MLP's last.

    Args:
        block: its number, negative from the end; by default the one two thirds of the way up, 4 of
            0 to 5. InvalidWatermarkError where no such block has a matrix that can be marked.
        small: instead, the block's smallest matrix (of several, the last).
    """
    places = [match for name in watermarkable(model) if (match := _IN_BLOCK.match(name))]
    stacks = Counter(match[1] for match in places).most_common(1)
    places = [match for match in places if match[1] == stacks[0][0]]
    blocks = sorted({int(match[2]) for match in places})
    number, n = len(blocks) * 2 // 3 if block is None else block, len(blocks)
    what = f"block, one of {n} that can carry a watermark, or name a weight"
    number = require_int(number, what, InvalidWatermarkError, least=-n, most=n - 1)
    inside = [Weight(model, match.string) for match in places if int(match[2]) == blocks[number]]
    if small:
        return min(reversed(inside), key=lambda layer: layer.parameter.numel()).name
    hidden = model.config.get_text_config().hidden_size
    return max(inside, key=lambda layer: (layer.shape[0] == hidden, layer.shape[1])).name
