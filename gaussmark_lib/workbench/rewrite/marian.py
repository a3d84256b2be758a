"""Translation by Marian models, which a hub has: English to French and back, as in the paper.

The models read single sentences, so a text is cut at sentence ends and joined again by the same
white space.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from gaussmark_lib.engine import checkpoints
from gaussmark_lib.engine.arithmetic import evaluating
from gaussmark_lib.errors import GaussMarkError, InvalidModelError

# Languages, from and to → hub id or folder
PAIRS = {
    ("en", "fr"): "Helsinki-NLP/opus-mt-tc-big-en-fr",
    ("fr", "en"): "Helsinki-NLP/opus-mt-tc-big-fr-en",
}
_SENTENCE = re.compile(r".+?(?:[.!?…]+[\"'”’)\]]*(?=\s)|\n|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Marian:
    """A sequence-to-sequence model with its tokenizer, from one language to another."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str

    def __call__(self, text: str, *, batch_size: int = 16) -> str:
        """Translate sentence by sentence; white space between sentences stays as it is."""
        pieces = self.pieces(text)
        not_empty = [number for number, piece in enumerate(pieces) if piece.strip()]
        for start in range(0, len(not_empty), batch_size):
            batch = not_empty[start : start + batch_size]
            originals = [pieces[number].strip() for number in batch]
            translations = self._translated(originals)
            for number, original, translated in zip(batch, originals, translations, strict=True):
                # only the words change: the white space around them stays
                pieces[number] = pieces[number].replace(original, translated.strip())
        return "".join(pieces)

    def batch(self, texts: Sequence[str]) -> list[str]:
        """Translate each text."""
        return [self(text) for text in texts]

    @property
    def n_tokens(self) -> int:
        """How many tokens the model can read at once, its end token included."""
        return min(self.model.config.max_position_embeddings, self.tokenizer.model_max_length)

    def pieces(self, text: str) -> list[str]:
        """Cut the text at sentence ends and newlines, and a sentence that is too long for the model
        also at spaces. Joined, the pieces are the text.
        """
        return [part for sentence in sentences(text) for part in self._fitting(sentence)]

    def _fitting(self, sentence: str) -> list[str]:
        """A sentence in pieces that the model can read."""
        ids = self.tokenizer(sentence.strip(), verbose=False).input_ids
        if len(ids) <= self.n_tokens:
            return [sentence]
        words = re.findall(r"\s*\S+\s*$|\s*\S+", sentence)
        parts = words if len(words) > 1 else sentence  # a long word is cut between characters
        if len(parts) == 1:
            raise GaussMarkError(
                f"expected text that {self.name} can read, got {sentence!r}, more than its"
                f" {self.n_tokens} tokens"
            )
        half = len(parts) // 2
        first_half = "".join(parts[:half])
        second_half = "".join(parts[half:])
        return self._fitting(first_half) + self._fitting(second_half)

    @torch.no_grad()
    def _translated(self, sentences: list[str]) -> list[str]:
        batch = self.tokenizer(sentences, return_tensors="pt", padding=True).to(self.model.device)
        with evaluating(self.model):
            ids = self.model.generate(**batch, do_sample=False, max_length=self.n_tokens)
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True)


def sentences(text: str) -> list[str]:
    """Cut a text after sentence ends and newlines. Joined, the pieces are the text again.

    >>> sentences('He left. "Why?" Nobody knew,\\nin 3.5 years.')
    ['He left.', ' "Why?"', ' Nobody knew,\\n', 'in 3.5 years.']
    """
    return _SENTENCE.findall(text)


def load(source: str, target: str, *, device: str | None = None) -> Marian:
    """Load the model of ``PAIRS`` for two languages. InvalidModelError without a network, or if the
    tokenizer's packages are not installed.
    """
    name = PAIRS[source, target]
    device = checkpoints.device_of(device)
    try:
        terms = checkpoints.hub_terms()
        tokenizer = AutoTokenizer.from_pretrained(name, **terms)
        model = AutoModelForSeq2SeqLM.from_pretrained(name, **terms)
    except (OSError, ValueError, ImportError) as error:
        raise InvalidModelError(
            f"cannot get {name}: {checkpoints.reason(error)}. Check the network; its"
            " tokenizer needs sentencepiece and sacremoses (pip install 'gaussmark[translation]')."
            " Without them, Apertium translates to Spanish, and rewrite.resample paraphrases with"
            " the language model itself"
        ) from error
    return Marian(model.to(device).eval(), tokenizer, name)
