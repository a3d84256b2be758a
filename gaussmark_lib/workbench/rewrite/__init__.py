"""Edits that need a model: they change the words, as a paraphraser does.

* Resampling: the language model itself draws spans of the text anew. Where this module is
  imported, ``corrupt.named`` knows it, as ``resample spans``.
* Translation there and back (paper, Sec. "robust": English to French and back, opus-mt-tc-big),
  which leaves readable text. Translators read single sentences, so a text is cut at sentence ends
  and joined again by the same white space.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from gaussmark_lib import corrupt, errors, generate, models
from gaussmark_lib.corrupt import Change, Pairs
from gaussmark_lib.engine import blocks, checkpoints
from gaussmark_lib.engine.arithmetic import evaluating
from gaussmark_lib.errors import GaussMarkError, InvalidModelError
from gaussmark_lib.tokens import Texts

# Languages, from and to → hub id or folder
PAIRS = {
    ("en", "fr"): "Helsinki-NLP/opus-mt-tc-big-en-fr",
    ("fr", "en"): "Helsinki-NLP/opus-mt-tc-big-fr-en",
}
# Added to a resampling's seed: the random numbers that wrote a text would draw the same tokens
# again. NumPy pads (seed, row) with zeros, so that a smaller number is the row of another text.
_FRESH = 1 << 96
_ON_CPU, _ON_GPU = 64, 512  # texts that are resampled at a time
_SENTENCE = re.compile(r".+?(?:[.!?…]+[\"'”’)\]]*(?=\s)|\n|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Translator:
    """A sequence-to-sequence model with its tokenizer, from one language to another."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str

    def __call__(self, text: str, *, batch_size: int = 16) -> str:
        """The translation, sentence by sentence; white space between sentences stays as it is."""
        pieces = self.pieces(text)
        wanted = [i for i, piece in enumerate(pieces) if piece.strip()]
        for start in range(0, len(wanted), batch_size):
            batch = wanted[start : start + batch_size]
            originals = [pieces[i].strip() for i in batch]
            for i, original, translated in zip(
                batch, originals, self._translated(originals), strict=True
            ):
                pieces[i] = pieces[i].replace(original, translated.strip())
        return "".join(pieces)

    @property
    def n_tokens(self) -> int:
        """How many tokens the model can read at once, its end token included."""
        return min(self.model.config.max_position_embeddings, self.tokenizer.model_max_length)

    def pieces(self, text: str) -> list[str]:
        """The text cut at sentence ends and newlines; a sentence too long for the model also at
        spaces. Joined, the pieces are the text.
        """
        return [part for sentence in sentences(text) for part in self._fitting(sentence)]

    def _fitting(self, sentence: str) -> list[str]:
        if len(self.tokenizer(sentence.strip(), verbose=False).input_ids) <= self.n_tokens:
            return [sentence]
        words = re.findall(r"\s*\S+\s*$|\s*\S+", sentence)
        parts = words if len(words) > 1 else sentence
        if len(parts) == 1:
            raise GaussMarkError(
                f"expected text that {self.name} can read, got {sentence!r}, more than its"
                f" {self.n_tokens} tokens"
            )
        half = len(parts) // 2
        return self._fitting("".join(parts[:half])) + self._fitting("".join(parts[half:]))

    @torch.no_grad()
    def _translated(self, sentences: list[str]) -> list[str]:
        batch = self.tokenizer(sentences, return_tensors="pt", padding=True).to(self.model.device)
        with evaluating(self.model):
            ids = self.model.generate(**batch, do_sample=False, max_length=self.n_tokens)
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True)


def sentences(text: str) -> list[str]:
    """The text cut after sentence ends and newlines; joined, the pieces are the text again.

    >>> sentences('He left. "Why?" Nobody knew,\\nin 3.5 years.')
    ['He left.', ' "Why?"', ' Nobody knew,\\n', 'in 3.5 years.']
    """
    return _SENTENCE.findall(text)


def translator(source: str, target: str, *, device: str | None = None) -> Translator:
    """The Marian model of ``PAIRS`` for two languages, e.g. ``translator("en", "fr")``.

    Raises InvalidModelError for a pair without a model, without a network, or if the tokenizer's
    packages are not installed.
    """
    if (source, target) not in list(PAIRS):  # compared, not hashed: they may be anything
        known = ", ".join(f"{a}→{b}" for a, b in PAIRS)
        raise InvalidModelError(
            f"translator: expected one of {known}, got {errors.shown(source)} →"
            f" {errors.shown(target)}; add a model to PAIRS"
        )
    name, device = PAIRS[source, target], checkpoints.device_of(device)
    try:
        terms = checkpoints.hub_terms()
        tokenizer = AutoTokenizer.from_pretrained(name, **terms)
        model = AutoModelForSeq2SeqLM.from_pretrained(name, **terms)
    except (OSError, ValueError, ImportError) as error:
        raise InvalidModelError(
            f"cannot get {name}: {checkpoints.reason(error)}. Check the network; its"
            " tokenizer needs sentencepiece and sacremoses (pip install 'gaussmark[translation]')."
            " Without them, rewrite.resample paraphrases with the language model itself"
        ) from error
    return Translator(model.to(device).eval(), tokenizer, name)


def round_trip(lm: models.LM, ids: Sequence[int], there: Translator, back: Translator) -> list[int]:
    """The ids of the text after translation there and back by beam search, without a start token.

    Raises GaussMarkError if nothing is left.
    """
    text = back(there(lm.decode(list(ids))))
    if not text.strip() or not (again := lm.encode(text)):
        raise GaussMarkError(
            f"expected a text after translation by {there.name} and {back.name}, got an empty one;"
            " nothing is left to score"
        )
    return again


def translation(lm: models.LM, there: Translator, back: Translator) -> Change:
    """The round trip as a corruption, done in full at every fraction above 0. It is not registered,
    since it needs two more models.
    """

    def change(prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
        again = (round_trip(lm, ids, there, back) if fraction else list(ids) for ids in responses)
        return [list(ids) for ids in prompts], list(again)

    return change


# ---- resampling


@corrupt.register("resample spans")
def _resample_spans(lm, prompts, responses, fraction, seed):
    return prompts, resample(lm.model, prompts, responses, fraction, seed=seed)


def resample(
    model: PreTrainedModel,
    prompts: Texts,
    responses: list[list[int]],
    fraction: float,
    *,
    span: int = 8,
    seed: int = 0,
) -> list[list[int]]:
    """Each response with ⌊f·T⌉ of its tokens drawn anew from p_θ(· | x, all before it), in spans of
    consecutive tokens (the last one drawn may be shorter), as a paraphraser would.

    The model may draw the token that was there. Its tokenizer must be that of the model that wrote.
    """
    ids, mask = blocks.padded(responses, "right", model.device)
    kept = mask.bool()  # (texts, positions)
    for i, row in enumerate(kept):
        row[spans(len(responses[i]), fraction, span, corrupt.generator(seed, i))] = False
    out = list(responses)
    for n in sorted({len(ids) for ids in responses}):  # those of one length fit their context
        rows = [i for i, response in enumerate(responses) if len(response) == n]
        before, process = [prompts[i] for i in rows], partial(_keeping, ids[rows], kept[rows])
        settings = {"seed": seed + _FRESH, "rows": rows, "processor": process}
        settings["batch_size"] = _ON_GPU if model.device.type == "cuda" else _ON_CPU
        drawn = generate.sample(model, before, n, **settings)
        for i, text in zip(rows, drawn, strict=True):
            out[i] = text
    return out


def spans(n_tokens: int, fraction: float, span: int, rng: torch.Generator) -> list[int]:
    """⌊f·T⌉ of T positions, as spans of a grid in random order; of the last span its beginning."""
    starts = torch.randperm(-(-n_tokens // span), generator=rng).tolist()
    places = [i for start in starts for i in range(n_tokens)[start * span :][:span]]
    return places[: corrupt.count(n_tokens, fraction)]


def _keeping(
    ids: Int[Tensor, "texts positions"], kept: Bool[Tensor, "texts positions"], batch: slice
) -> generate.Processor:
    """A processor of a batch's logits that leaves no choice at the positions that are kept."""
    positions = zip(ids[batch].T[..., None], kept[batch].T[..., None], strict=True)

    def process(_: Tensor, logits: Tensor) -> Tensor:
        token, is_kept = next(positions)  # both (texts, 1)
        only = torch.full_like(logits, -torch.inf).scatter(-1, token, 0.0)
        return torch.where(is_kept, only, logits)

    return process
