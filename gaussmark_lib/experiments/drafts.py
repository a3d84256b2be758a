"""Writing that can be watched: the texts so far, and ψ of the first text of each kind at every few
tokens, as it grows.

G is taken at θ, and watermarked text is written at θ + ξ. So the noise leaves the weight for the
moment of a score, inside one step of the sampler, which then goes on with the keys and values that
it holds: to the bit, the text is the one that is written unwatched. Writing in pieces would read
the text so far again, whose rounding can change a token; a second model beside this one would take
twice the memory.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count

import pandas as pd
import torch
from torch import Tensor

from gaussmark_lib import generate, models, perturb, score
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.experiments.played import WATERMARKED, Draft, Question

SHOWN_EVERY = 4  # tokens
SCORED_EVERY, MOST_SCORES = (
    25,
    8,
)  # tokens, and scores a text: on the embedded model, writing takes 1.3 times as long
CURVE = ["kind", "key", *score.COLUMNS[1:]]  # which text it is, its kind says

Watch = Callable[[Draft], None]


def beginnings(n_tokens: int) -> list[int]:
    """How long the beginnings are that are scored while a text of n_tokens is written; the whole is
    not among them.

    >>> beginnings(25), beginnings(80), beginnings(400)[:3]
    ([], [25, 50, 75], [50, 100, 150])
    """
    step = max(SCORED_EVERY, -(-n_tokens // MOST_SCORES))
    return list(range(step, n_tokens, step))


@dataclass
class Writer:
    """Writes a question's texts, and tells ``watch`` of them.

    Args:
        keys: this key, whose noise watermarked text gets, and the wrong one.
        watch: called in the middle of the work, with the base model in place or not; without it,
            nothing is scored and no time is lost.
    """

    lm: models.LM
    question: Question
    prompt: list[int]
    wm: perturb.Watermark
    keys: Mapping[str, perturb.Key]
    watch: Watch | None = None

    def __post_init__(self):
        self._this = next(iter(self.keys.values()))
        self.curve = pd.DataFrame(columns=CURVE)  # a row for each beginning scored so far and key
        self._scored: list[pd.DataFrame] = []
        self._texts: dict[str, list[str]] = {}
        self._xis = perturb.noises(self.lm.model, self.wm, list(self.keys.values()))

    def add(self, scores: pd.DataFrame) -> None:
        """More rows of the curve."""
        self._scored.append(scores)
        self.curve = pd.concat(self._scored, ignore_index=True)[CURVE]

    def write(self, kind: str, on_step: Callable[[int, int], None]) -> list[list[int]]:
        """All texts of this kind. After it, or any error, the model is the base model."""
        asked, prompts = self.question, [self.prompt] * self.question.n_samples
        with ExitStack() as noise:
            self._put(noise, kind)
            settings = {"seed": asked.seed, "on_step": on_step}
            # what a sampler's processor is shown are all tokens so far, and it may leave the logits
            # as they are
            if self.watch:
                settings["processor"] = lambda rows: (
                    self._looking(kind, noise) if rows.start == 0 else _passed
                )
            return generate.sample(self.lm.model, prompts, asked.n_tokens, **settings)

    def _put(self, noise: ExitStack, kind: str) -> None:
        if kind == WATERMARKED:
            noise.enter_context(
                perturb.moved(self.lm.model, self.wm, self._xis[0], by=self._this.key_id)
            )

    def _looking(self, kind: str, noise: ExitStack) -> generate.Processor:
        steps, scored = count(), beginnings(self.question.n_tokens)

        def look(ids: Tensor, logits: Tensor) -> Tensor:
            n = next(steps)
            if n in scored:
                noise.close()
                self._score(kind, ids[0, -n:].tolist())
                self._put(noise, kind)
            if n in scored or (n and n % SHOWN_EVERY == 0):
                self._texts[kind] = [self.lm.decode(row) for row in ids[:, -n:].tolist()]
                self.watch(
                    Draft(self.question, self.wm, self._this.key_id, dict(self._texts), self.curve)
                )
            return logits

        return look

    def _score(self, kind: str, beginning: list[int]) -> None:
        with (
            suppress(DegenerateScoreError),
            torch.enable_grad(),
        ):  # where a beginning has no ψ, the whole may have one
            [found] = score.gradients(self.lm.model, [self.prompt], [beginning], self.wm)
            psi = score.statistic(found, self._xis.to(found.G.device), self.wm.sigma)
            rows = score.table(found, psi, [key.key_id for key in self.keys.values()])
            self.add(
                pd.concat([pd.DataFrame({"kind": kind, "key": list(self.keys)}), rows], axis=1)
            )


def _passed(ids: Tensor, logits: Tensor) -> Tensor:
    return logits
