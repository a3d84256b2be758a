"""The playground without its widgets: solve σ for a wanted ψ, write plain and watermarked text with the same random numbers, test any text.

A panel shows only what these functions return. All sessions on one model take turns, in any thread: noise in the weights and hooks on a layer
affect every user of the model.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import evidence, generate, models, perturb, score, stats, texts, tokens
from gaussmark_lib.errors import InvalidTextError, InvalidWatermarkError

THIS_KEY, WRONG_KEY = "this key", "wrong key"
PLAIN, WATERMARKED = "plain", "watermarked"

_locks: WeakKeyDictionary[PreTrainedModel, AbstractContextManager] = WeakKeyDictionary()

Report = Callable[[str, float], None]  # what is being done, and which share of it is done; what it raises ends the work


class StoppedError(Exception):
    """The reader pressed Stop; a report raises it."""


def silent(what: str, share: float) -> None:
    """The default report, which does nothing."""


@dataclass(frozen=True)
class Question:
    """What to write.

    Args:
        prompt: text to be continued.
        weight: full name of the matrix that carries the noise.
        psi: wanted mean of ψ, > 0; σ is solved for it.
        n_tokens, n_samples: length and number of the plain and of the watermarked texts.
        seed: of the sampler; the n-th plain and the n-th watermarked text have the same random numbers.
    """

    prompt: str
    weight: str
    psi: float = 3.0
    n_tokens: int = 100
    n_samples: int = 1
    seed: int = 0

    def __post_init__(self):
        if not np.isfinite(self.psi) or self.psi <= 0:
            raise InvalidWatermarkError(f"expected a wanted ψ that is finite and > 0, got {self.psi!r}")
        for name in ("n_tokens", "n_samples"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InvalidTextError(f"{name}: expected a whole number ≥ 1, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class Comparison:
    """Plain and watermarked text from the same random numbers, ``wm`` with the σ that was solved for.

    Args:
        scores: one row a text × key: ``sample``, ``kind`` (plain, watermarked), ``key`` (this key, wrong key) and the columns of ``score.score``.
        pieces: the texts piece by piece with their evidence for this key: ``sample``, ``kind`` and the columns of ``evidence.pieces``.
    """

    question: Question
    wm: perturb.Watermark
    key_id: str
    scores: pd.DataFrame
    pieces: pd.DataFrame

    @property
    def predicted(self) -> float:
        """σ · median‖G‖ of these plain texts: the ψ that they promise for watermarked ones."""
        plain = self.scores.query("kind == @PLAIN and key == @THIS_KEY")
        return float(np.median(stats.predicted_psi(plain["grad_norm"], self.wm.sigma)))

    def score(self, kind: str, key: str, sample: int = 0) -> pd.Series:
        """The row of one text and key."""
        return self.scores.query("kind == @kind and key == @key and sample == @sample").iloc[0]

    def text(self, kind: str, sample: int = 0) -> str:
        return "".join(self.pieces.query("kind == @kind and sample == @sample")["text"])


@dataclass(frozen=True)
class Verdict:
    """A text tested: ``scores`` has a row a key (this key, wrong key), ``pieces`` the text with its evidence for this key."""

    weight: str
    key_id: str
    scores: pd.DataFrame
    pieces: pd.DataFrame


def mlp_weights(model: PreTrainedModel) -> list[str]:
    """The weights a playground offers: the matrices of the MLP of every block; all that can carry a watermark if none is called so."""
    names = models.watermarkable(model)
    return [name for name in names if ".mlp." in name] or names


def heldout_prompts(n: int, n_chars: int = 160) -> list[str]:
    """Beginnings of n held-out documentation texts, at most n_chars long, cut after a word."""
    return [" ".join(text[:n_chars].split(" ")[:-1]) for text in texts.load("docs", split="heldout", n=n, min_chars=2 * n_chars)["text"]]


@dataclass
class Session:
    """A model with which to write and test.

    Args:
        lm: the model, base weights.
        prompts: beginnings of text; the first ones serve to measure gradients on.
        wrong_key: the negative control, a fresh one by default.
        n_reference: unwatermarked texts on which ‖G‖ is measured.
    """

    lm: models.LM
    prompts: Sequence[str]
    wrong_key: perturb.Key = field(default_factory=perturb.Key.new)
    n_reference: int = 8
    _references: dict[int, tuple[list, list]] = field(default_factory=dict, init=False, repr=False)
    _grad_norms: dict[tuple[str, int], list[float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self):
        if not self.prompts or not all(prompt.strip() for prompt in self.prompts):
            raise InvalidTextError(f"expected at least one prompt and none of them empty, got {list(self.prompts)!r}")

    @property
    def alone(self) -> AbstractContextManager:
        """``with session.alone:`` other sessions and panels on this model wait; for what a notebook does with the model itself."""
        return _locks.setdefault(self.lm.model, RLock())

    def knows(self, weight: str, n_tokens: int) -> bool:
        """Whether :meth:`sigma` needs no work."""
        return (weight, n_tokens) in self._grad_norms

    def sigma(self, weight: str, n_tokens: int, psi: float, report: Report = silent) -> float:
        """The σ that promises a mean ψ on this weight: ψ / median‖G‖ over unwatermarked samples of n_tokens, measured once a weight and length."""
        if not self.knows(weight, n_tokens):  # what is known is answered at once, also while another thread works
            with self.alone:
                if not self.knows(weight, n_tokens):
                    self._grad_norms[weight, n_tokens] = self._measure(weight, n_tokens, report)
        return stats.sigma_for_psi(self._grad_norms[weight, n_tokens], psi)

    def compare(self, question: Question, key: perturb.Key, report: Report = silent) -> Comparison:
        """Plain and watermarked text side by side, each tested against this key and against the wrong one.

        Raises:
            InvalidTextError: an empty prompt, or prompt and text together beyond the context.
            GaussMarkError: as sampling and scoring do. After any error, the model is the base model again.
        """
        with self.alone:
            model = self.lm.model
            prompt = self._prompt(question.prompt)
            tokens.check_fits(model, len(prompt), question.n_tokens, "the prompt and the text to write")
            wm = perturb.Watermark(question.weight, self.sigma(question.weight, question.n_tokens, question.psi, report))
            prompts = [prompt] * question.n_samples
            responses = self._sample(prompts, question.n_tokens, question.seed, "writing plain text", report)
            with perturb.watermarked(model, wm, key):
                responses += self._sample(prompts, question.n_tokens, question.seed, "writing watermarked text", report)
            labels = [{"sample": i, "kind": kind} for kind in (PLAIN, WATERMARKED) for i in range(question.n_samples)]
            scores, pieces = self._test(2 * prompts, responses, labels, wm, key, report)
            return Comparison(question, wm, key.key_id, scores, pieces)

    def test(self, text: str, weight: str, key: perturb.Key, prompt: str = "", report: Report = silent) -> Verdict:
        """Any text against this key and the wrong one. Without the prompt the test is as exact, and has less power.

        Raises InvalidTextError for an empty text, or one beyond the context.
        """
        with self.alone:
            if not text.strip():
                raise InvalidTextError("expected a text to test, got an empty one; type or paste some")
            response, before = self.lm.encode(text), self._prompt(prompt) if prompt.strip() else []
            tokens.check_fits(self.lm.model, max(len(before), 1), len(response), "the text to test")
            wm = perturb.Watermark(weight, sigma=1.0)  # σ cancels in ψ
            return Verdict(weight, key.key_id, *self._test([before], [response], [{}], wm, key, report))

    def _prompt(self, text: str) -> list[int]:
        if not text.strip():
            raise InvalidTextError("expected a prompt, got an empty one; type a few words for the model to go on from")
        return self.lm.prompt(text)

    def _measure(self, weight: str, n_tokens: int, report: Report) -> list[float]:
        if n_tokens not in self._references:
            prompts = [self._prompt(prompt) for prompt in self.prompts[: self.n_reference]]
            self._references[n_tokens] = prompts, self._sample(prompts, n_tokens, 0, "writing reference texts", report)
        prompts, responses = self._references[n_tokens]
        norms = []
        for found in score.gradients(self.lm.model, prompts, responses, perturb.Watermark(weight, sigma=1.0)):
            norms.append(found.norm)
            report("measuring gradients", len(norms) / len(prompts))
        return norms

    def _sample(self, prompts: list[list[int]], n_tokens: int, seed: int, what: str, report: Report) -> list[list[int]]:
        return generate.sample(self.lm.model, prompts, n_tokens, seed=seed, on_step=lambda done, total: report(what, done / total))

    def _test(
        self, prompts: list[list[int]], responses: list[list[int]], labels: list[dict], wm: perturb.Watermark, key: perturb.Key, report: Report
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Scores and pieces of each text, its labels in the first columns."""
        report("testing", 0.0)
        wrong = self.wrong_key if self.wrong_key.key_id != key.key_id else perturb.Key.new()
        scores = score.score(self.lm.model, prompts, responses, wm, [key, wrong])
        scores.insert(0, "key", [THIS_KEY, WRONG_KEY] * len(responses))
        for column in reversed(labels[0]):
            scores.insert(0, column, [labels[text][column] for text in scores["text"]])
        parts, decode = [], partial(self.lm.tokenizer.decode, skip_special_tokens=False)
        for i, (prompt, response, label) in enumerate(zip(prompts, responses, labels, strict=True)):
            report("looking at each token", i / len(responses))
            table = evidence.per_token(self.lm.model, prompt, response, wm, key)
            parts.append(evidence.pieces(table, decode).assign(**label))
        return scores, pd.concat(parts, ignore_index=True)
