"""Corruptions by a model: spans written anew by the unwatermarked language model, and translation there and back (paper, Sec. "robust").

Both change what a paraphraser changes, the words, and leave text that reads like text. ``resample`` runs on any language model: at chosen
positions the next token is drawn from p_θ(· | x, all before it), at the others the text is kept. ``round_trip`` needs two translation models
(the paper: English to French and back, opus-mt-tc-big).

Translators are made for sentences and cut what is longer than they can read. So a text is cut at sentence ends, each sentence translated,
and the pieces joined again by the white space that stood between them; the ids of the result carry no start token.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from gaussmark_lib import generate, hub, models, tokens
from gaussmark_lib.corrupt import edits
from gaussmark_lib.errors import CorruptionError, InvalidModelError

PAIRS = {("en", "fr"): "Helsinki-NLP/opus-mt-tc-big-en-fr", ("fr", "en"): "Helsinki-NLP/opus-mt-tc-big-fr-en"}
_FRESH = 1 << 40  # added to the seed: the random numbers that wrote the text would often draw the same token again
_SENTENCE = re.compile(r".+?(?:[.!?…]+[\"'”’)\]]*(?=\s)|\n|\Z)", re.DOTALL)


def resample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    fraction: float,
    *,
    span: int = 8,
    seed: int = 0,
    progress: bool = False,
) -> list[list[int]]:
    """Each response with ⌊f·T⌉ of its tokens drawn anew by the model, in spans of consecutive tokens (the last one drawn may be shorter).

    What is drawn may be what was there, as in any paraphrase. The tokens after a span are kept.

    Args:
        model: the unwatermarked model; also another one with the same tokenizer.
        seed: of both the places and the tokens. A text's result does not depend on those beside it.

    Raises:
        CorruptionError: fraction outside [0, 1], or a span below 1.
    """
    if not isinstance(span, int) or span < 1:
        raise CorruptionError(f"span: expected a whole number of tokens ≥ 1, got {span!r}")
    originals = [tokens.checked(model, response, f"response {i}") for i, response in enumerate(responses)]
    redrawn = [spans(len(ids), fraction, span, edits.generator(seed, i)) for i, ids in enumerate(originals)]
    if not any(places for places in redrawn):
        return originals
    width = max(map(len, originals))
    drawn = generate.sample(
        model, prompts, width, seed=seed + _FRESH, progress=progress, processor=lambda rows: _Keep(originals[rows], redrawn[rows], model.device)
    )
    return [ids[: len(original)] for ids, original in zip(drawn, originals, strict=True)]


def spans(n_tokens: int, fraction: float, span: int, rng: torch.Generator) -> set[int]:
    """⌊f·T⌉ of T positions, as whole spans of a grid in random order; of the last span only its beginning."""
    n = edits.count(n_tokens, fraction)
    starts = torch.randperm(-(-n_tokens // span), generator=rng) * span
    places = [place for start in starts.tolist() for place in range(start, min(start + span, n_tokens))]
    return set(places[:n])


class _Keep:
    """A logits processor that leaves no choice at the positions that are kept."""

    def __init__(self, originals: list[list[int]], redrawn: list[set[int]], device: torch.device):
        self.ids, mask = tokens.pad(originals, "right", device)
        free = [[place in places or place >= len(ids) for place in range(mask.shape[1])] for ids, places in zip(originals, redrawn, strict=True)]
        self.kept = ~torch.tensor(free, device=device)
        self.step = 0

    def __call__(self, before: Tensor, logits: Tensor) -> Tensor:
        if self.step >= self.ids.shape[1]:  # a batch of shorter texts than the longest of all
            return logits
        only = torch.full_like(logits, -torch.inf).scatter(-1, self.ids[:, self.step, None], 0.0)
        kept = self.kept[:, self.step, None]
        self.step += 1
        return torch.where(kept, only, logits)


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
            for i, translated in zip(batch, self._translated([pieces[i].strip() for i in batch]), strict=True):
                before, after = re.match(r"\s*", pieces[i])[0], re.search(r"\s*$", pieces[i])[0]
                pieces[i] = before + translated.strip() + after
        return "".join(pieces)

    @property
    def n_tokens(self) -> int:
        """What the model can read at once, its end token included."""
        return min(self.model.config.max_position_embeddings, self.tokenizer.model_max_length)

    def pieces(self, text: str) -> list[str]:
        """The text cut at sentence ends and newlines, and where a sentence is too long for the model, at spaces; joined they are the text."""
        return [part for sentence in sentences(text) for part in self._fitting(sentence)]

    def _fitting(self, sentence: str) -> list[str]:
        if len(self.tokenizer(sentence.strip(), verbose=False).input_ids) <= self.n_tokens:
            return [sentence]
        words = re.findall(r"\s*\S+\s*$|\s*\S+", sentence)
        if len(words) == 1:
            words = [sentence[: len(sentence) // 2], sentence[len(sentence) // 2 :]]
            if not words[0]:
                raise CorruptionError(
                    f"expected text that {self.name} can read at all, got {sentence!r}, which is more than its {self.n_tokens} tokens"
                )
        half = len(words) // 2
        return self._fitting("".join(words[:half])) + self._fitting("".join(words[half:]))

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
    """The Marian model for a pair of languages, e.g. ``translator("en", "fr")``. ``PAIRS`` says which, by hub id or folder.

    Raises:
        InvalidModelError: a pair without a model, no network, or a tokenizer whose packages are not installed.
    """
    if (source, target) not in PAIRS:
        known = ", ".join(f"{a}→{b}" for a, b in PAIRS)
        raise InvalidModelError(f"no translation model for {source}→{target}: expected one of {known}; add another to corrupt.by_model.PAIRS")
    name = PAIRS[source, target]
    try:
        local = {"local_files_only": not hub.reachable()}
        tokenizer = AutoTokenizer.from_pretrained(name, **local)
        model = AutoModelForSeq2SeqLM.from_pretrained(name, **local)
    except (OSError, ValueError, ImportError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidModelError(
            f"cannot get {name}: {first_line}. Check the network; its tokenizer needs sentencepiece and sacremoses"
            " (pip install 'gaussmark[translation]'). Without them, corrupt.resample paraphrases with the language model itself"
        ) from error
    return Translator(model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval(), tokenizer, name)


def round_trip(lm: models.LM, ids: Sequence[int], there: Translator, back: Translator) -> list[int]:
    """The ids of the text after translation there and back, without a start token. No randomness: both translate by beam search.

    Raises:
        CorruptionError: if nothing is left.
    """
    text = back(there(lm.decode(list(ids))))
    if not text.strip() or not (again := lm.encode(text)):
        raise CorruptionError(f"expected a text after translation by {there.name} and {back.name}, got an empty one; nothing is left to score")
    return again
