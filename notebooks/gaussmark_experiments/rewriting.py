"""Rewriting: a text in other words, by a translator or a language model, and what stays of it.

``gaussmark bench --rewriting`` applies each *way* of rewriting to the texts of each watermark. A
rewriting that changes the meaning is not a paraphrase, so three numbers stand next to the rates:

* length, in words, divided by that of the original;
* copied, the share of the copy's runs of four words that the original has, too;
* meaning, how much a judge learns from the copy c about the original y. With p the judge's model
  and o another text,

      meaning = (log p(y | c) − log p(y | o)) / (log p(y | y) − log p(y | o)),

  so the text itself has 1, and another text has 0. We call a rewriting a paraphrase only if the
  interval of its meaning lies above one half. The judge reads words in their order, so the same
  words in a random order are the control.
"""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from gaussmark_lib import generate, likelihood, models
from gaussmark_lib.engine.blocks import in_lists
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.workbench import rewrite

# way → the languages of its round trips, one after another
LANGUAGES = {
    "by Spanish": ("es",),
    "by Catalan": ("ca",),
    "by Esperanto": ("eo",),
    "by all three": ("es", "ca", "eo"),
}
# way → the model that rewrites
WRITERS = {"by SmolLM2": "smollm2", "by Gemma": "gemma-3-270m"}
SHUFFLED = "words shuffled"  # a control of the meaning
WAYS = (*LANGUAGES, *WRITERS, SHUFFLED)
JUDGE = "gemma-3-270m"
LINK = "\n\nThe same text in other words:\n\n"  # what the judge reads between copy and original

REQUEST = "Rewrite this sentence in other words: "
# A base model has to be shown what rewriting is.
EXAMPLES = (
    (
        "The harbour was closed for three days because of the storm.",
        "Because of the storm, ships could not use the port for three days.",
    ),
    (
        "We have built more schools in the last ten years than in the fifty years before.",
        "More schools went up during the past decade than in the half century before it.",
    ),
    (
        "The merchants asked the council to pay for what they had lost, but the council refused.",
        "Traders wanted the council to cover their losses, and the council said no.",
    ),
)
SHOWN = "Sentence: {}\nIn other words: {}\n\n"
TEMPERATURE = 0.5  # small models lose the thread at 1
MOST_WORDS = 60  # longer sentences are split into parts
SENTENCES = 32  # that are rewritten at a time
RUN = 4  # words
_END = re.compile(r"(?<=[.!?])\s+")


def round_trips(texts: Sequence[str], languages: Sequence[str]) -> list[str]:
    """Translate English texts to each language and back, by Apertium."""
    copies = list(texts)
    for language in languages:
        abroad = rewrite.translator("en", language).batch(copies)
        copies = rewrite.translator(language, "en").batch(abroad)
    return copies


def shuffled(texts: Sequence[str], seed: int = 0) -> list[str]:
    """Return the words of each text in a random order.

    >>> [copy] = shuffled(["one two three"])
    >>> sorted(copy.split())
    ['one', 'three', 'two']
    """
    random = np.random.default_rng(seed)
    return [" ".join(random.permutation(text.split())) for text in texts]


def in_other_words(lm: models.LM, texts: Sequence[str], seed: int = 0) -> list[str]:
    """Let a model rewrite each text, sentence by sentence: small models lose the thread of longer
    passages. A chat model is asked, and any other model is shown ``EXAMPLES``. A sentence to which
    the model answers nothing stays as it is.
    """
    sentences = []
    for number, text in enumerate(texts):
        sentences += [(number, sentence) for sentence in sentences_of(text)]
    prompts = [_request(lm, sentence) for _, sentence in sentences]
    n_tokens = [len(lm.encode(sentence)) for _, sentence in sentences]
    answers = [""] * len(sentences)
    # sentences of similar length together, because a batch ends with its longest answer
    by_length = sorted(range(len(sentences)), key=n_tokens.__getitem__)
    for batch in in_lists(by_length, SENTENCES):
        written = generate.sample(
            lm.model,
            [prompts[i] for i in batch],
            8 + round(1.5 * n_tokens[batch[-1]]),
            temperature=TEMPERATURE,
            seed=seed,
            rows=batch,
            until_end=True,
        )
        for i, ids in zip(batch, written, strict=True):
            answers[i] = lm.decode(ids).strip().partition("\n")[0]
    copies = [[] for _ in texts]
    for (number, sentence), answer in zip(sentences, answers, strict=True):
        copies[number].append(answer or sentence)
    return [" ".join(of_text) for of_text in copies]


def sentences_of(text: str) -> list[str]:
    """Split a text into sentences of at most ``MOST_WORDS`` words.

    >>> sentences_of("It rains. Does it?\\nYes")
    ['It rains.', 'Does it?', 'Yes']
    """
    parts = []
    for sentence in _END.split(" ".join(text.split())):
        words = sentence.split()
        parts += [" ".join(part) for part in in_lists(words, MOST_WORDS)]
    return parts


def _request(lm: models.LM, sentence: str) -> list[int]:
    if lm.is_chat:
        return lm.prompt(REQUEST + sentence)
    shown = "".join(SHOWN.format(*example) for example in EXAMPLES)
    asked = SHOWN.format(sentence, "").rstrip()
    return lm.prompt(shown + asked)


# ---- what stays of a text


def copied(original: str, copy: str) -> float:
    """Return the share of the copy's runs of four words that also occur in the original.

    Capital letters and punctuation do not count. A copy of fewer words has no run, and a share of
    0.

    >>> copied("The sea is calm tonight.", "the sea is calm, today")
    0.5
    """
    known = set(_runs(original))
    runs = _runs(copy)
    return sum(run in known for run in runs) / max(1, len(runs))


def _runs(text: str) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1)]


class Judge:
    """A language model that compares copies with their originals.

    Raises:
        InvalidTextError: there are fewer than two originals; the next one is *another text*.
    """

    def __init__(self, lm: models.LM, originals: Sequence[str]):
        if len(originals) < 2:
            raise InvalidTextError(
                f"expected at least two texts, got {len(originals)}: each text is compared"
                " with another text"
            )
        self.lm = lm
        self.originals = list(originals)
        self.of_itself = self.nats(self.originals)
        self.of_another = self.nats([*self.originals[1:], self.originals[0]])

    def nats(self, copies: Sequence[str]) -> Float[np.ndarray, " texts"]:
        """Return −log p(y | c) per token of each original y after its copy c."""
        originals = [self.lm.encode(text) for text in self.originals]
        contexts = [self.lm.prompt(copy + LINK) for copy in copies]
        return likelihood.cross_entropy(self.lm.model, originals, prompts=contexts)

    def likeness(self, copies: Sequence[str]) -> pd.DataFrame:
        """Return ``text, length, copied, gained, most`` of each copy.

        ``gained`` and ``most`` are the numerator and the denominator of the meaning, in nats per
        token. The meaning of many copies is the ratio of their means.
        """
        of_copies = self.nats(copies)
        rows = []
        for number, (original, copy) in enumerate(zip(self.originals, copies, strict=True)):
            rows.append(
                {
                    "text": number,
                    "length": len(copy.split()) / max(1, len(original.split())),
                    "copied": copied(original, copy),
                }
            )
        gained = self.of_another - of_copies
        most = self.of_another - self.of_itself
        return pd.DataFrame(rows).assign(gained=gained, most=most)
