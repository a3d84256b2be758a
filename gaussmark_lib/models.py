"""Language models with their tokenizers: how they are loaded, how they are prompted, and which
weight is marked by default.

Files are checked before they are read, and code in them is never run (``engine.checkpoints``,
``engine.gguf_files``).
"""

import os
import re
import warnings
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

from gaussmark_lib import files, likelihood, tokens
from gaussmark_lib.engine import checkpoints, gguf_files, packages
from gaussmark_lib.engine.arithmetic import native_bfloat16 as native_bfloat16
from gaussmark_lib.errors import (
    GaussMarkWarning,
    InvalidModelError,
    InvalidTextError,
    InvalidWatermarkError,
    require_int,
    require_one_of,
    shown,
)
from gaussmark_lib.weights import Weight
from gaussmark_lib.weights import names as watermarkable

EMBEDDED = "doclm"
PACKAGED = tuple(packages.MODELS)  # models that `make models` installs
DTYPES = ("auto", "float16", "bfloat16", "float32", "float64")
CONTINUE = "Complete the following prompt: "  # the paper's device for chat models
_IN_BLOCK = re.compile(r"(?P<stack>.+?)\.(?P<number>\d+)\.")  # the start of a weight's name
_TYPED = "what the user typed"  # a stand-in, to see what a chat template puts around it
MOST_NATS = 1.0  # per character of plain English; language models need about half of it


@dataclass(frozen=True)
class LM:
    """A causal language model with its tokenizer, as :func:`load` returns it.

    Attributes:
        name: what tables and figures call it.
        weights: what the weights are, if the name alone could mislead, such as "4 bits".
        file_sha256: hash of the model's file, if it was read from a single file.

    >>> lm = load("doclm")
    >>> lm.decode(lm.encode("Return the mean."))
    'Return the mean.'
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    weights: str = ""
    file_sha256: str | None = None

    @property
    def title(self) -> str:
        """Return the name with a note of what the weights are, as people should read it."""
        return f"{self.name} ({self.weights})" if self.weights else self.name

    @property
    def is_chat(self) -> bool:
        """Return whether the model has a chat template."""
        return bool(self.tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens, even if the text spells them."""
        tokens.check_text(text)
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text that the ids spell, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def prompt(self, text: str) -> list[int]:
        """Return the token ids of a prompt as a user typed it.

        A chat model gets it as the user's turn, to which it answers, unless the model's chat
        template is around it already. Any other model gets the text after its start token, and
        continues it.

        Raises:
            InvalidTextError: the text has half a character, or the user's turn is empty.
            InvalidModelError: the template refuses a user's turn.
        """
        tokens.check_text(text, "prompt")
        if not self.is_chat:
            return self.tokenizer.encode(text, split_special_tokens=True)
        if not text.strip():
            raise InvalidTextError(
                f"prompt: expected the user's turn of a chat with {self.name}, got an empty one"
            )
        rendered = self._chat(_TYPED)
        head, _, _ = rendered.partition(_TYPED)
        is_templated = any(text.startswith(opening) for opening in self._openings(head))
        chat = text if is_templated else self._chat(text)
        ids = self.tokenizer.encode(chat, add_special_tokens=False)
        start = self.tokenizer.bos_token
        if start and rendered.startswith(start) and not chat.startswith(start):
            return [self.tokenizer.bos_token_id, *ids]
        return ids

    def continuation(self, text: str) -> list[int]:
        """Return the token ids of a text that is to be continued.

        A chat model is asked to complete the text, as the paper asks Phi.
        """
        request = CONTINUE + text if self.is_chat else text
        return self.prompt(request)

    def unknown_prompt(self) -> list[int]:
        """Return the token ids that stand before a text whose prompt is not known.

        For a chat model this is the header of its answer. For any other model it is empty, which
        stands for the start token.

        The mean ψ of 100 answers by SmolLM2 (200 tokens at temperature 0.7, copied characters) was
        3.02 after this header, 3.00 after a new line, 2.96 after the start token, and 3.81 after
        the prompt itself. The standard error was 0.12, so the first three do not differ measurably.
        """
        if not self.is_chat:
            return []
        try:
            answered = self._chat(_TYPED)
            unanswered = self._chat(_TYPED, add_generation_prompt=False)
        except InvalidModelError:  # the template refuses, but texts can still be tested
            return []
        if answered == unanswered:
            return []
        header = answered.removeprefix(unanswered)
        return self.tokenizer.encode(header, add_special_tokens=False)

    def _chat(self, text: str, *, add_generation_prompt: bool = True) -> str:
        """Return the text as a user's turn, in the model's chat template."""
        turn = [{"role": "user", "content": text}]
        try:
            return self.tokenizer.apply_chat_template(
                turn, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # a template is a program of the model's author
            expected = f"{self.name}: expected a chat template that takes a user's turn"
            raise InvalidModelError(f"{expected}, got {checkpoints.first_line(error)}") from error

    def _openings(self, head: str) -> list[str]:
        """Return the strings with which an already templated prompt can begin.

        ``head`` is what the template puts before a user's turn.
        """
        start = self.tokenizer.bos_token or ""
        special = [token for token in self.tokenizer.all_special_tokens if token in head]
        # Some templates use plain text, such as "[INST]", where others use special tokens.
        lines = head.removeprefix(start).lstrip().splitlines()
        openings = [*special, *lines[:1], *lines[-1:]]
        return [opening for opening in openings if opening.strip()]


def load(
    name: str | Path = EMBEDDED,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | None = None,
    revision: str | None = None,
) -> LM:
    """Load a language model with its tokenizer.

    Args:
        name: ``"doclm"``, the model in this repository; ``"smollm2"`` or ``"gemma-3-270m"``, which
            ``make models`` installs; a local folder; a ``.gguf`` file; or a hub id.
        dtype: of the weights; ``"auto"`` is that of the checkpoint, and float32 for a GGUF file.
        device: by default the GPU if there is one.
        revision: a hub branch, tag or commit.

    Raises:
        InvalidModelError: there is no such model, its package is not installed, there is no
            network, or the checkpoint is broken, incomplete, needs Python code from its files, or
            does not fit into the free memory.

    Warns:
        GaussMarkWarning: the conversion of a GGUF file looks wrong.

    Example:
        >>> load("doclm").name
        'doclm'
    """
    require_one_of(str(dtype).removeprefix("torch."), "dtype", DTYPES, InvalidModelError)
    device = checkpoints.device_of(device)
    source = _source(name)
    if gguf_files.is_gguf(source):
        return _of_gguf(str(name), Path(source), dtype, device)
    is_local = isinstance(source, Path)
    terms = {"revision": revision, **checkpoints.hub_terms(local=is_local)}
    with checkpoints.loading(str(name), is_local=is_local):
        checkpoints.check_size(source, terms, dtype, device)
        tokenizer = AutoTokenizer.from_pretrained(source, **terms)
        model = _checked_model(source, dtype, terms)
    return LM(model.to(device).eval(), tokenizer, str(name))


def _of_gguf(name: str, file: Path, dtype: str | torch.dtype, device: torch.device) -> LM:
    """Load a model from a GGUF file, and warn if its conversion looks wrong."""
    dtype = gguf_files.dtype_of(dtype)
    terms = checkpoints.hub_terms(local=True)
    loading = checkpoints.loading(name, is_local=True, advice=gguf_files.ADVICE)
    with loading, gguf_files.parsed_once():
        reader = gguf_files.read(file)
        checkpoints.require_memory(gguf_files.n_numbers(reader), dtype, device)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, **terms)
        model = _checked_model(file.parent, dtype, terms | gguf_files.terms(file))
    mark = gguf_files.mark(reader)
    if mark is not None:
        model.config.gaussmark = mark  # so that it is refused as a base model
    entry = packages.MODELS.get(name)
    lm = LM(
        model=gguf_files.as_plain(model).to(device).eval(),
        tokenizer=tokenizer,
        name=name,
        weights=entry.weights if entry else "GGUF file, dequantised",
        file_sha256=packages.sha256(file),
    )
    for fault in conversion_faults(lm):
        warnings.warn(f"{name}: {fault}", GaussMarkWarning, stacklevel=3)
    return lm


def _checked_model(source: Path | str, dtype: str | torch.dtype, terms: dict) -> PreTrainedModel:
    """Return the model; raise InvalidModelError unless it has all weights, and all are finite."""
    model, info = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=dtype,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **terms,
    )
    faulty = {*info["missing_keys"], *info["mismatched_keys"]}
    if faulty:
        names = sorted(map(str, faulty))
        raise InvalidModelError(f"{checkpoints.UNFIT}, missing or of another shape: {names[:5]}")
    for name, parameter in model.named_parameters():
        checkpoints.check_finite(parameter, name)
    return model


def conversion_faults(lm: LM) -> list[str]:
    """Return what looks wrong about a model that was converted from another format.

    A wrong conversion of the tokenizer loses characters, and a wrong conversion of the weights
    makes the model write fluent rubbish. So a dozen awkward strings must come back unchanged, and a
    plain English paragraph may cost at most ``MOST_NATS`` per character.
    """
    faults = []
    changed = [text for text in gguf_files.AWKWARD if lm.decode(lm.encode(text)) != text]
    if changed:
        faults.append(
            f"the tokenizer changes {len(changed)} of {len(gguf_files.AWKWARD)} test strings, such"
            f" as {shown(changed[0])}: was its conversion complete? Texts that are read back from"
            " their characters may lose evidence"
        )
    nats = _nats_per_character(lm)
    if not nats <= MOST_NATS:  # also for NaN
        faults.append(
            f"a plain English paragraph costs {nats:.2f} nats per character, where language models"
            f" need less than {MOST_NATS}: the conversion of the weights is probably wrong, or the"
            " model is not a model of English"
        )
    return faults


def _nats_per_character(lm: LM) -> float:
    """Return −log p of a plain English paragraph, as much of it as the context can hold."""
    ids = lm.encode(gguf_files.PARAGRAPH)
    reader = tokens.Reader(lm.model)
    prompt = [*reader.start, ids[0]]  # not empty, even if the model has no start token
    longest = reader.context or len(ids)
    response = ids[1 : longest - len(prompt)]
    [log_p] = likelihood.log_probabilities(lm.model, [prompt], [response])
    return -log_p.sum() / len(lm.decode(response))


def gguf_file(name: str | Path) -> Path:
    """Return the GGUF file of a model; raise InvalidModelError if the model has none."""
    source = _source(name)
    if not gguf_files.is_gguf(source):
        raise InvalidModelError(
            f"expected a model in a .gguf file, such as {', '.join(PACKAGED)}, got {name}; a GGUF"
            " file is made from a GGUF file, and a folder from any model"
        )
    return Path(source)


def _source(name: str | Path) -> Path | str:
    """Return the folder or the GGUF file of a model, or else a hub id."""
    if not isinstance(name, str | Path) or not str(name):
        names = ", ".join(map(repr, (EMBEDDED, *PACKAGED)))
        expected = f"name: expected {names}, a folder, a .gguf file or a hub id"
        raise InvalidModelError(f"{expected}, got {shown(name)}")
    if str(name) in packages.MODELS:
        return packages.model_file(packages.MODELS[str(name)])
    path = files.DATA / EMBEDDED if str(name) == EMBEDDED else Path(name).expanduser()
    if gguf_files.is_gguf(path) and os.path.isfile(path):
        return path
    if os.path.isdir(path):
        return path
    # A hub id is "owner/name"; everything else was meant as a path.
    is_path = isinstance(name, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1
    if is_path or gguf_files.is_gguf(name) or os.path.isfile(path):
        raise InvalidModelError(
            f"no model at {path}: expected a folder with config.json and *.safetensors, or a .gguf"
            f" file. models.load('{EMBEDDED}') needs no download"
        )
    return name


def default_weight(model: PreTrainedModel, *, block: int | None = None, small: bool = False) -> str:
    """Return the name of the matrix that is marked by default: the last matrix of a block's MLP.

    It is found by its shape. It writes to the residual stream, so d_out is the hidden size; among
    all such matrices of the block it has the largest d_in.

    Args:
        block: its number, negative from the end; by default the block two thirds of the way up,
            which is number 4 of 0 to 5.
        small: return the block's smallest matrix instead (the last, if several are smallest).

    Raises:
        InvalidWatermarkError: there is no such block with a matrix that can be marked.

    Example:
        >>> default_weight(load("doclm").model)
        'model.layers.4.mlp.down_proj.weight'
    """
    inside = _matrices_of_block(model, block)
    if small:
        return min(reversed(inside), key=lambda weight: weight.parameter.numel()).name
    hidden_size = model.config.get_text_config().hidden_size

    def rank(weight: Weight) -> tuple[bool, int]:
        d_out, d_in = weight.shape
        return d_out == hidden_size, d_in

    return max(inside, key=rank).name


def _matrices_of_block(model: PreTrainedModel, block: int | None) -> list[Weight]:
    """Return the matrices of a block that can be marked, in the model's order."""
    matches = [_IN_BLOCK.match(name) for name in watermarkable(model)]
    matches = [match for match in matches if match]
    # A model may have several stacks of blocks, such as an encoder for images: take the largest.
    largest = Counter(match["stack"] for match in matches).most_common(1)
    matches = [match for match in matches if match["stack"] == largest[0][0]]
    numbers = sorted({int(match["number"]) for match in matches})
    n = len(numbers)
    place = require_int(
        n * 2 // 3 if block is None else block,
        f"block, one of {n} that can carry a watermark, or name a weight",
        InvalidWatermarkError,
        least=-n,
        most=n - 1,
    )
    return [
        Weight(model, match.string) for match in matches if int(match["number"]) == numbers[place]
    ]
