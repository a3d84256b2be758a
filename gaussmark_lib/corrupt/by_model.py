"""Corruptions by a model: spans written anew by the unwatermarked language model, and translation
there and back (paper, Sec. "robust").

Both change the words, as a paraphraser does, and leave readable text. ``resample`` works with any
language model: at chosen positions it draws the next token from p_θ(· | x, all before it),
elsewhere it keeps the text. ``round_trip`` needs two translation models (the paper: English to
French and back, opus-mt-tc-big). Translators read single sentences, so a text is cut at sentence
ends and joined again by the same white space.
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

from gaussmark_lib import checks, generate, models, tokens
from gaussmark_lib.corrupt import edits
from gaussmark_lib.errors import CorruptionError, InvalidModelError
from gaussmark_lib.tokens import Texts

# Languages, from and to → hub id or folder
PAIRS = {
    ("en", "fr"): "Helsinki-NLP/opus-mt-tc-big-en-fr",
    ("fr", "en"): "Helsinki-NLP/opus-mt-tc-big-fr-en",
}
_FRESH = (
    1 << 96
    # added to the seed: the random numbers that wrote a text would often draw the same token again.
    # 96
    # bits, since NumPy pads
)
# (seed, row) with zeros to four words of 32, so that a smaller number is the row of some other text
BATCH = 64  # texts at a time
_SENTENCE = re.compile(r".+?(?:[.!?…]+[\"'”’)\]]*(?=\s)|\n|\Z)", re.DOTALL)


def resample(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    fraction: float,
    *,
    span: int = 8,
    seed: int = 0,
) -> list[list[int]]:
    """Each response with ⌊f·T⌉ of its tokens drawn anew by the model, in spans of consecutive
    tokens (the last one drawn may be shorter).

    The model may draw the token that was there. Its tokenizer must be that of the model that wrote.
    The seed decides both places and tokens; a text's result does not depend on those beside it.

    Raises CorruptionError for a fraction outside [0, 1] or a span below 1.
    """
    prompts, responses = tokens.as_many(prompts, responses)
    prompts = tokens.checked_prompts(model, prompts)
    originals = [
        tokens.checked(model, response, f"response {i}") for i, response in enumerate(responses)
    ]
    redrawn = [
        spans(len(ids), fraction, span, edits.generator(seed, i)) for i, ids in enumerate(originals)
    ]
    if not any(redrawn):
        return originals
    ids, mask = tokens.pad(originals, "right", model.device)
    kept = mask.bool()
    for row, places in zip(kept, redrawn, strict=True):
        row[list(places)] = False
    found: dict[int, list[int]] = {}
    for rows, n_tokens in _together(model, prompts, originals):
        of_rows = (
            [prompts[i] for i in rows],
            generate.uniform(seed + _FRESH, len(prompts), n_tokens)[rows],
        )
        only = partial(_of_batch, ids[rows], kept[rows])
        drawn = generate.continued(model, *of_rows, 1.0, 1.0, BATCH, processor=only)
        found |= {i: text[: len(originals[i])] for i, text in zip(rows, drawn, strict=True)}
    return [found.get(i, []) for i in range(len(originals))]


def _together(
    model: PreTrainedModel, prompts: Texts, responses: Texts
) -> list[tuple[list[int], int]]:
    """Texts that are continued together, and by how many tokens: all of them where the context has
    room for it, else those of one length.
    """
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        tokens.check_fits(model, len(prompt), len(response), f"text {i}")
    longest, context = max(map(len, responses)), tokens.context(model)
    if context is None or max(map(len, prompts)) + longest <= context:
        return [(list(range(len(responses))), longest)]
    return [
        ([i for i, ids in enumerate(responses) if len(ids) == n], n)
        for n in sorted({*map(len, responses)} - {0})
    ]


def spans(n_tokens: int, fraction: float, span: int, rng: torch.Generator) -> set[int]:
    """⌊f·T⌉ of T positions, as whole spans of a grid in random order; of the last span only its
    beginning.
    """
    checks.whole(span, "span", CorruptionError)
    n = edits.count(n_tokens, fraction)
    starts = torch.randperm(-(-n_tokens // span), generator=rng) * span
    places = [
        place for start in starts.tolist() for place in range(start, min(start + span, n_tokens))
    ]
    return set(places[:n])


def _of_batch(
    ids: Int[Tensor, "texts positions"], kept: Bool[Tensor, "texts positions"], batch: slice
) -> generate.Processor:
    return _keeping(ids[batch], kept[batch])


def _keeping(
    ids: Int[Tensor, "texts positions"], kept: Bool[Tensor, "texts positions"]
) -> generate.Processor:
    """A processor of logits that leaves no choice at the positions that are kept."""
    positions = zip(ids.T[..., None], kept.T[..., None], strict=True)

    def process(_: Tensor, logits: Tensor) -> Tensor:
        token, is_kept = next(positions)
        only = torch.full_like(logits, -torch.inf).scatter(-1, token, 0.0)
        return torch.where(is_kept, only, logits)

    return process


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
            raise CorruptionError(
                f"expected text that {self.name} can read, got {sentence!r}, more than its"
                f" {self.n_tokens} tokens"
            )
        half = len(parts) // 2
        return self._fitting("".join(parts[:half])) + self._fitting("".join(parts[half:]))

    @torch.no_grad()
    def _translated(self, sentences: list[str]) -> list[str]:
        batch = self.tokenizer(sentences, return_tensors="pt", padding=True).to(self.model.device)
        with models.evaluating(self.model):
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
            f"translator: expected one of {known}, got {checks.shown(source)} →"
            f" {checks.shown(target)}; add a model to PAIRS"
        )
    name, device = PAIRS[source, target], models.device_of(device)
    try:
        terms = models.hub_terms()
        tokenizer = AutoTokenizer.from_pretrained(name, **terms)
        model = AutoModelForSeq2SeqLM.from_pretrained(name, **terms)
    except (OSError, ValueError, ImportError) as error:
        raise InvalidModelError(
            f"cannot get {name}: {models.reason(error)}. Check the network; its tokenizer needs"
            " sentencepiece and sacremoses (pip install 'gaussmark[translation]'). Without them,"
            " corrupt.resample paraphrases with the language model itself"
        ) from error
    return Translator(model.to(device).eval(), tokenizer, name)


def round_trip(lm: models.LM, ids: Sequence[int], there: Translator, back: Translator) -> list[int]:
    """The ids of the text after translation there and back by beam search, without a start token.

    Raises CorruptionError if nothing is left.
    """
    tokens.check_lm(lm)
    text = back(there(lm.decode(list(ids))))
    if not text.strip() or not (again := lm.encode(text)):
        raise CorruptionError(
            f"expected a text after translation by {there.name} and {back.name}, got an empty one;"
            " nothing is left to score"
        )
    return again
