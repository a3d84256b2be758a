"""The playground without its widgets: solve σ for a wanted ψ, write plain and watermarked text with
the same random numbers, test any text.

A panel shows only what these functions return. All sessions on one model take turns, in any thread:
noise in the weights and hooks on a layer affect every user of the model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from threading import RLock
from weakref import WeakKeyDictionary

import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import (
    corrupt,
    evidence,
    generate,
    models,
    perturb,
    score,
    stats,
    texts,
    tokens,
    tracing,
)
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.experiments.asked import Asked
from gaussmark_lib.experiments.drafts import Watch, Writer
from gaussmark_lib.experiments.played import (
    EDIT_SEED,
    PLAIN,
    THIS_KEY,
    WATERMARKED,
    WRONG_KEY,
    Comparison,
    Edited,
    Question,
    Verdict,
)
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.tracing.windows import windows

_locks: WeakKeyDictionary[PreTrainedModel, AbstractContextManager] = WeakKeyDictionary()

Report = Callable[
    [str, float], None
]  # what is being done, and which share of the whole work is done; what it raises ends the work


class StoppedError(Exception):
    """The reader pressed Stop; a report raises it."""


def silent(what: str, share: float) -> None:
    """The default report, which does nothing."""


def portion(report: Report, start: float, end: float) -> Report:
    """Reports one step's share as a share of the whole work, of which the step is the part from
    start to end.
    """
    return lambda what, share: report(what, start + (end - start) * share)


def mlp_weights(model: PreTrainedModel) -> list[str]:
    """The weights a playground offers: the matrices of the MLP of every block; all that can carry a
    watermark if none is called so.
    """
    names = models.watermarkable(model)
    return [name for name in names if ".mlp." in name] or names


def heldout_prompts(n: int, n_chars: int = 160) -> list[str]:
    """Beginnings of n held-out documentation texts, at most n_chars long, cut after a word."""
    return [
        " ".join(text[:n_chars].split(" ")[:-1])
        for text in texts.load("docs", split="heldout", n=n, min_chars=2 * n_chars)["text"]
    ]


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
    _grad_norms: dict[tuple[str, int], list[float]] = field(
        default_factory=dict, init=False, repr=False
    )
    _asked: Asked = field(default_factory=Asked, init=False, repr=False)

    def __post_init__(self):
        if not self.prompts or not all(prompt.strip() for prompt in self.prompts):
            raise InvalidTextError(
                f"expected at least one prompt and none of them empty, got {list(self.prompts)!r}"
            )

    @property
    def alone(self) -> AbstractContextManager:
        """``with session.alone:`` other sessions and panels on this model wait; for what a notebook
        does with the model itself.
        """
        return _locks.setdefault(self.lm.model, RLock())

    def knows(self, weight: str, n_tokens: int) -> bool:
        """Whether :meth:`sigma` needs no work."""
        return (weight, n_tokens) in self._grad_norms

    def sigma(self, weight: str, n_tokens: int, psi: float, report: Report = silent) -> float:
        """The σ that promises a mean ψ on this weight: ψ / median‖G‖ over unwatermarked samples of
        n_tokens, measured once a weight and length.
        """
        if not self.knows(
            weight, n_tokens
        ):  # what is known is answered at once, also while another thread works
            with self.alone:
                if not self.knows(weight, n_tokens):
                    self._grad_norms[weight, n_tokens] = self._measure(weight, n_tokens, report)
        return stats.sigma_for_psi(self._grad_norms[weight, n_tokens], psi)

    def compare(
        self,
        question: Question,
        key: perturb.Key,
        report: Report = silent,
        watch: Watch | None = None,
    ) -> Comparison:
        """Plain and watermarked text side by side, each tested against this key and against the
        wrong one.

        ``watch`` sees the texts while they are written, with ψ of their beginnings; the texts are
        the same without it.

        Raises:
            InvalidTextError: an empty prompt, or prompt and text together beyond the context.
            GaussMarkError: as sampling and scoring do. After any error, the model is the base model
                again.
        """
        with self.alone:
            model = self.lm.model
            prompt = self._prompt(question.prompt)
            tokens.check_fits(
                model, len(prompt), question.n_tokens, "the prompt and the text to write"
            )
            begin = 0.0 if self.knows(question.weight, question.n_tokens) else 0.3
            middle, end = (begin + share * (1 - begin) for share in (0.35, 0.7))
            sigma = self.sigma(
                question.weight, question.n_tokens, question.psi, portion(report, 0.0, begin)
            )
            wm, keys = perturb.Watermark(question.weight, sigma), self._keys(key)
            writer = Writer(self.lm, question, prompt, wm, keys, watch)
            parts = {
                PLAIN: portion(report, begin, middle),
                WATERMARKED: portion(report, middle, end),
            }
            responses = [
                text
                for kind, part in parts.items()
                for text in writer.write(kind, _steps(f"writing {kind} text", part))
            ]
            labels = [
                {"sample": i, "kind": kind} for kind in parts for i in range(question.n_samples)
            ]
            scores, pieces = self._test(
                [prompt] * len(responses), responses, labels, wm, keys, portion(report, end, 1.0)
            )
            if watch:
                writer.add(scores[scores["sample"] == 0])
            return Comparison(question, wm, key.key_id, scores, pieces, writer.curve)

    def test(
        self, text: str, weight: str, key: perturb.Key, prompt: str = "", report: Report = silent
    ) -> Verdict:
        """Any text against this key and the wrong one. Without the prompt the test is as exact, and
        has less power.

        A text beyond the context is tested in windows, as one (``tracing.windows``).

        Raises InvalidTextError for an empty text, or a prompt that fills the context.
        """
        with self.alone:
            return self._tested(text, self._ids(text), weight, key, prompt, report)[0]

    def ask(
        self,
        text: str,
        question: Question,
        key: perturb.Key,
        prompt: str = "",
        report: Report = silent,
    ) -> Verdict:
        """As :meth:`test` at the question's weight, with what to expect of such a text at the
        question's σ, and what it says beyond the texts that were asked about before with this key
        and weight. A text whose test fails or is stopped is not one of them.
        """
        with self.alone:
            end = 1.0 if self.knows(question.weight, question.n_tokens) else 0.5
            ids = self._ids(text)
            verdict, whole = self._tested(
                text, ids, question.weight, key, prompt, portion(report, 0.0, end)
            )
            sigma = self.sigma(
                question.weight, question.n_tokens, question.psi, portion(report, end, 1.0)
            )
            wm = perturb.Watermark(question.weight, sigma=1.0).on(self.lm.model)
            given = self._asked.given(wm, key, whole, verdict.row(THIS_KEY)["psi"], ids)
            return replace(verdict, question=question, sigma=sigma, given=given)

    def edited(
        self, verdict: Verdict, how: str, share: float, key: perturb.Key, report: Report = silent
    ) -> Edited:
        """A tested text after an edit, tested as it was, with the same random numbers each time. It
        is not one of the texts that were asked about.

        Raises CorruptionError for an unknown edit or a share outside [0, 1].
        """
        with self.alone:
            report("editing", 0.0)
            _, [ids] = corrupt.named(self.lm, [how])[how](
                [[]], [self._ids(verdict.text)], share, EDIT_SEED
            )
            after, _ = self._tested(
                self.lm.decode(ids), ids, verdict.weight, key, verdict.prompt, report
            )
            return Edited(verdict, how, share, after)

    def bound(self, question: Question, key: perturb.Key, report: Report = silent) -> perturb.Key:
        """The key for a key file, bound to this question's weight and σ: what ``gaussmark
        generate`` and ``gaussmark detect`` take.
        """
        with self.alone:
            sigma = self.sigma(question.weight, question.n_tokens, question.psi, report)
            return perturb.bind(self.lm.model, perturb.Watermark(question.weight, sigma), key)

    def _prompt(self, text: str) -> list[int]:
        if not text.strip():
            raise InvalidTextError(
                "expected a prompt, got an empty one; type a few words for the model to go on from"
            )
        return self.lm.prompt(text)

    def _measure(self, weight: str, n_tokens: int, report: Report) -> list[float]:
        if n_tokens not in self._references:
            prompts = [self._prompt(prompt) for prompt in self.prompts[: self.n_reference]]
            self._references[n_tokens] = (
                prompts,
                self._sample(
                    prompts, n_tokens, 0, "writing reference texts", portion(report, 0.0, 0.8)
                ),
            )
            report = portion(report, 0.8, 1.0)
        prompts, responses = self._references[n_tokens]
        norms = []
        for found in score.gradients(
            self.lm.model, prompts, responses, perturb.Watermark(weight, sigma=1.0)
        ):
            norms.append(found.norm)
            report("measuring gradients", len(norms) / len(prompts))
        return norms

    def _sample(
        self, prompts: list[list[int]], n_tokens: int, seed: int, what: str, report: Report
    ) -> list[list[int]]:
        return generate.sample(
            self.lm.model, prompts, n_tokens, seed=seed, on_step=_steps(what, report)
        )

    def _test(
        self,
        prompts: list[list[int]],
        responses: list[list[int]],
        labels: list[dict],
        wm: perturb.Watermark,
        keys: dict[str, perturb.Key],
        report: Report,
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Scores and pieces of each text, its labels in the first columns."""
        report("testing", 0.0)
        scores = score.score(self.lm.model, prompts, responses, wm, list(keys.values()))
        scores.insert(0, "key", list(keys) * len(responses))
        for column in reversed(labels[0]):
            scores.insert(0, column, [labels[text][column] for text in scores["text"]])
        tables = self._per_token(prompts, responses, wm, keys[THIS_KEY], report)
        parts = [
            evidence.pieces(table, self.lm.decode).assign(**label)
            for table, label in zip(tables, labels, strict=True)
        ]
        return scores, pd.concat(parts, ignore_index=True)

    def _ids(self, text: str) -> list[int]:
        if not text.strip():
            raise InvalidTextError("expected a text to test, got an empty one; type or paste some")
        return self.lm.encode(text)

    def _tested(
        self, text: str, ids: list[int], weight: str, key: perturb.Key, prompt: str, report: Report
    ) -> tuple[Verdict, TextGradient]:
        before = self._prompt(prompt) if prompt.strip() else []
        prompts, responses = windows(self.lm.model, before, ids)
        wm = perturb.Watermark(weight, sigma=1.0)  # σ cancels in ψ
        scores, pieces, whole = self._test_as_one(prompts, responses, wm, key, report)
        return Verdict(text, prompt, weight, key.key_id, len(prompts), scores, pieces), whole

    def _test_as_one(
        self,
        prompts: list[list[int]],
        responses: list[list[int]],
        wm: perturb.Watermark,
        key: perturb.Key,
        report: Report,
    ) -> tuple[pd.DataFrame, pd.DataFrame, TextGradient]:
        """Scores, pieces and the summed gradient of one text in windows."""
        report("testing", 0.0)
        model, keys, norms = self.lm.model, self._keys(key), {}

        def noted(found: Iterable[TextGradient]) -> Iterator[TextGradient]:
            for one in found:
                norms[one.text] = one.norm
                yield one
                report("testing", 0.5 * len(norms) / len(prompts))

        whole = tracing.summed(noted(score.gradients(model, prompts, responses, wm, batch_size=1)))
        psi = score.statistic(
            whole, perturb.noises(model, wm, list(keys.values())).to(whole.G.device), wm.sigma
        )
        scores = score.table(whole, psi, [each.key_id for each in keys.values()])
        scores.insert(0, "key", list(keys))
        tables = list(self._per_token(prompts, responses, wm, key, portion(report, 0.5, 1.0)))
        scaled = [
            table.assign(evidence=table["evidence"] * norms[i] / whole.norm)
            for i, table in enumerate(tables)
        ]
        return scores, evidence.pieces(pd.concat(scaled, ignore_index=True), self.lm.decode), whole

    def _per_token(
        self,
        prompts: list[list[int]],
        responses: list[list[int]],
        wm: perturb.Watermark,
        key: perturb.Key,
        report: Report,
    ) -> Iterator[pd.DataFrame]:
        for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            report("looking at each token", i / len(responses))
            yield evidence.per_token(self.lm.model, prompt, response, wm, key)

    def _keys(self, key: perturb.Key) -> dict[str, perturb.Key]:
        """This key and the negative control, which is never the key itself."""
        return {
            THIS_KEY: key,
            WRONG_KEY: self.wrong_key if self.wrong_key.key_id != key.key_id else perturb.Key.new(),
        }


def _steps(what: str, report: Report) -> Callable[[int, int], None]:
    """A sampler's steps as a report."""
    return lambda done, total: report(what, done / total)
