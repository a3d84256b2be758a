"""11: the playground without its widgets, and its figure.

It solves σ for a wanted ψ, writes plain and watermarked text with the same random numbers, tests
them while they grow, and tests any text, before and after an edit. A panel shows only what these
functions return.

Only one function at a time uses the model (``alone``), because noise in the weights and hooks on a
layer affect every user of the model.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from threading import RLock
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import corrupt, evidence, generate, models, perturb, score, stats, texts
from gaussmark_lib.beyond import channel, promise
from gaussmark_lib.beyond.tracing.authors import together, windows
from gaussmark_lib.engine import packages
from gaussmark_lib.errors import InvalidTextError, InvalidWatermarkError
from gaussmark_lib.keys import Key
from gaussmark_lib.weights import Watermark, Weight
from gaussmark_lib.workbench import rewrite, verdict
from gaussmark_lib.workbench.plots import show, style

THIS_KEY = "this key"
WRONG_KEY = "wrong key"
KEYS = (THIS_KEY, WRONG_KEY)
PLAIN = "plain"
WATERMARKED = "watermarked"
KINDS = (PLAIN, WATERMARKED)
LOOKS = {  # of each kind of text under each key
    (WATERMARKED, THIS_KEY): {"color": style.WATERMARKED, "marker": "D"},
    (PLAIN, THIS_KEY): {"color": style.PLAIN, "marker": "o"},
    (WATERMARKED, WRONG_KEY): {"color": style.WRONG_KEY, "marker": "s"},
    (PLAIN, WRONG_KEY): {"color": "0.45", "marker": "^"},
}
EDITS = (
    "substitute at random",
    "delete at random",
    "insert at random",
    "substitute own tokens",
    "insert own tokens",
    "truncate",
)
ROUND_TRIP = "round trip by Spanish"  # where Apertium is installed; it changes the whole text
EDIT_SEED = 0
N_PIECES = 8  # in which a text is written; it is tested after each piece
ROWS_PER_TEXT = 10_000  # more than the tokens of a text: each piece has random numbers of its own
FOR_SIGMA = "to choose σ, once per model and setting"
INSTRUCTIONS = (  # for a chat model
    "Explain to a child why the sky is blue.",
    "Write a short letter to a neighbour who plays loud music at night.",
    "Describe a walk through a market in the early morning.",
    "How do I choose a good bicycle for the city?",
    "Tell a short story about a lighthouse and its keeper.",
    "What should I think about before I adopt a dog?",
    "Describe how bread is made, from the grain to the oven.",
    "Write a speech of one paragraph to welcome new colleagues.",
)

alone = RLock()


class StoppedError(Exception):
    """Raised by a report after Stop was pressed; it ends the work."""


@dataclass(frozen=True)
class Draft:
    """The first text of each kind as far as it is written, and its ψ after each piece so far."""

    texts: dict[str, str]
    psis: dict[str, list[float]]


Report = Callable[..., None]  # takes what ``silent`` takes


def silent(step: str, share: float, draft: Draft | None = None) -> None:
    """Ignore the name of a step, the share of it that is done, and what is written so far."""


@dataclass(frozen=True)
class Question:
    """What to write: ``n_samples`` plain and as many watermarked texts after ``prompt``.

    Each has ``n_tokens`` tokens; an answer of a chat model may end earlier. The noise is on
    ``weight``, and its σ is solved for a mean ψ of ``psi``.
    """

    prompt: str
    weight: str
    psi: float = 3.0
    n_tokens: int = 100
    n_samples: int = 1
    temperature: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Edit:
    """Edit a ``share`` of the tokens; the test is tuned for the share ``allowed``."""

    how: str = EDITS[0]
    share: float = 0.0
    allowed: float = 0.0


@dataclass(frozen=True)
class Tested:
    """A text after its edit, with the evidence in it.

    Args:
        row: the row of ``score.score`` under this key, the promise, and the verdict; the wrong key
            is its control.
        control: the row of ``score.score`` under the wrong key.
        pieces: the text piece by piece (``show.pieces``), with the evidence for this key.
        before: the text before the edit, tested with the paper's ψ; None without an edit.
    """

    text: str
    edit: Edit
    row: dict[str, Any]
    control: dict[str, Any]
    pieces: pd.DataFrame
    before: "Tested | None" = None


@dataclass(frozen=True)
class Comparison:
    """Plain and watermarked texts from the same random numbers, by kind.

    ``curve`` holds the tests of the first text of each kind while it grew.
    """

    question: Question
    wm: Watermark
    key_id: str
    tested: dict[str, list[Tested]]
    curve: pd.DataFrame

    @property
    def scores(self) -> pd.DataFrame:
        """One row per text and key: ``kind, sample, key``, and the columns of ``score.score``."""
        rows = [
            {"kind": kind, "sample": sample, "key": key, **scores}
            for kind, sample, text in self._texts()
            for key, scores in zip(KEYS, (text.row, text.control), strict=True)
        ]
        return pd.DataFrame(rows)[["kind", "sample", "key", *score.COLUMNS[1:]]]

    @property
    def pieces(self) -> pd.DataFrame:
        """The texts piece by piece, with ``kind`` and ``sample``."""
        tables = []
        for kind, sample, text in self._texts():
            tables.append(text.pieces.assign(kind=kind, sample=sample))
        return pd.concat(tables, ignore_index=True)

    def _texts(self) -> Iterator[tuple[str, int, Tested]]:
        for kind, texts_of_kind in self.tested.items():
            for sample, text in enumerate(texts_of_kind):
                yield kind, sample, text

    @property
    def power(self) -> float:
        """The predicted share of watermarked texts that are detected."""
        texts = self.tested[WATERMARKED]
        return np.mean([verdict.promised(text.row, self.wm.sigma) for text in texts])

    def text(self, kind: str, sample: int = 0) -> str:
        """Return a text of a kind."""
        return self.tested[kind][sample].text


def one_weight(model: PreTrainedModel, weight: str | Sequence[str]) -> str:
    """Return the name of a matrix of the model.

    Raises:
        InvalidWatermarkError: if the model has no such matrix, or there are several: the
            playground solves one σ for one matrix.
    """
    if isinstance(weight, tuple | list):
        raise InvalidWatermarkError(
            f"weight: expected one matrix, got {len(weight)}; the playground shows noise on one"
            " matrix, and `gaussmark detect` tests texts for noise on several"
        )
    return Weight(model, weight).name


def installed_models() -> list[str]:
    """Return the names of the models that load without a network."""
    packaged = [name for name, model in packages.MODELS.items() if packages.is_installed(model)]
    return [models.EMBEDDED, *packaged]


def example_prompts(lm: models.LM, n: int = 16) -> list[str]:
    """Return instructions for a chat model, and beginnings of n held-out texts for any other.

    A beginning has at most 160 characters, and is cut after a word.
    """
    if lm.is_chat:
        return list(INSTRUCTIONS)
    rows = texts.load(packages.default_text(lm.name), split="heldout", n=n, min_chars=320)
    return [text[:160].rpartition(" ")[0] for text in rows["text"]]


@dataclass
class Session:
    """A model that writes and tests; ``wrong_key`` is the negative control."""

    lm: models.LM
    prompts: Sequence[str]
    wrong_key: Key = field(default_factory=Key.new)
    n_reference: int = 8  # plain texts on which ‖G‖ is measured
    _norms: dict[tuple, list[float]] = field(default_factory=dict)

    def knows(self, question: Question) -> bool:
        """Return whether :meth:`sigma` is known already."""
        return _kind_of_text(question) in self._norms

    def sigma(self, question: Question, report: Report = silent) -> float:
        """Return ψ / median‖G‖ over plain texts, measured once per weight, length and
        temperature.
        """
        if not self.knows(question):
            with alone:
                norms = self._measured_norms(question, report)
            self._norms[_kind_of_text(question)] = norms
        return stats.sigma_for_psi(self._norms[_kind_of_text(question)], question.psi)

    def _measured_norms(self, question: Question, report: Report) -> list[float]:
        """‖G‖ of a plain text after each of the first prompts."""
        model = self.lm.model
        prompts = [self._prompt(prompt) for prompt in self.prompts[: self.n_reference]]
        written = generate.sample(
            model,
            prompts,
            question.n_tokens,
            temperature=question.temperature,
            on_step=lambda done, total: report(f"writing plain texts {FOR_SIGMA}", done / total),
        )
        wm = Watermark(question.weight, 1.0)  # ‖G‖ does not depend on σ
        norms = []
        for prompt, text in zip(prompts, self._ended(written), strict=True):
            report(f"measuring their gradients {FOR_SIGMA}", len(norms) / len(prompts))
            [gradient] = score.gradients(model, [prompt], [text], wm)
            norms.append(gradient.norm)
        return norms

    def compare(self, question: Question, key: Key, report: Report = silent) -> Comparison:
        """Write plain and watermarked texts, and test them against this key and the wrong key.

        After any error, the model is the base model again.
        """
        with alone:
            prompt = self._prompt(question.prompt)
            wm = self._watermark(question, report)
            keys = self._keys(key)
            written, curve = self._written(prompt, question, wm, keys, report)
            tested = {
                kind: [self._tested(prompt, ids, wm, keys, report) for ids in texts_of_kind]
                for kind, texts_of_kind in written.items()
            }
            return Comparison(question, wm, key.key_id, tested, curve)

    def _written(
        self, prompt: list[int], question: Question, wm: Watermark, keys: list[Key], report: Report
    ) -> tuple[dict[str, list[list[int]]], pd.DataFrame]:
        """Write all texts in pieces. After each piece, test the first text of each kind.

        A text is tested at θ, so its ψ cannot be computed while the next piece is being written.
        """
        n = question.n_samples
        responses: list[list[int]] = [[] for _ in range(2 * n)]  # plain, then watermarked
        marks = [None] * n + [(wm, keys[0])] * n
        psis: dict[str, list[float]] = {kind: [] for kind in KINDS}

        def show_draft(so_far: list[list[int]]) -> None:
            firsts = self._ended([so_far[0], so_far[n]])
            words = dict(zip(KINDS, map(self.lm.decode, firsts), strict=True))
            share = max(map(len, so_far)) / question.n_tokens
            report("writing", share, Draft(words, psis))

        curve = []
        # where the pieces end; short texts have fewer pieces
        lengths = np.unique(np.linspace(1, question.n_tokens, N_PIECES, dtype=int)).tolist()
        for start, end in pairwise([0, *lengths]):
            growing = [i for i, ids in enumerate(responses) if len(ids) == start]
            if not growing:  # all answers have ended
                break
            self._grow(prompt, responses, growing, end, question, marks, show_draft)
            for kind, first in ((PLAIN, 0), (WATERMARKED, n)):
                if first in growing:
                    rows = score.score(self.lm.model, [prompt], [responses[first]], wm, keys)
                    curve.append(rows.assign(kind=kind, key=KEYS))
                    psis[kind].append(rows["psi"][0])
        written = {PLAIN: responses[:n], WATERMARKED: responses[n:]}
        return written, pd.concat(curve, ignore_index=True)

    def _grow(
        self,
        prompt: list[int],
        responses: list[list[int]],
        growing: list[int],
        end: int,
        question: Question,
        marks: list[generate.Mark],
        show_draft: Callable[[list[list[int]]], None],
    ) -> None:
        """Continue these responses, which have one length, until they have ``end`` tokens."""
        start = len(responses[growing[0]])

        def look(ids: Tensor, logits: Tensor) -> Tensor:
            """Show the texts so far, and leave the logits as they are."""
            so_far = list(responses)
            for i, row in zip(growing, ids.tolist(), strict=True):
                so_far[i] = row[len(prompt) :]
            show_draft(so_far)
            return logits

        pieces = generate.sample(
            self.lm.model,
            [prompt + responses[i] for i in growing],
            end - start,
            temperature=question.temperature,
            seed=question.seed,
            rows=[ROWS_PER_TEXT * (i % question.n_samples) + start for i in growing],
            marks=[marks[i] for i in growing],
            processor=lambda _: look,
        )
        for i, piece in zip(growing, pieces, strict=True):
            [responses[i]] = self._ended([responses[i] + piece])

    def _ended(self, responses: list[list[int]]) -> list[list[int]]:
        """An answer of a chat model ends at its end token; a continuation has no end."""
        return generate.cut(self.lm.model, responses) if self.lm.is_chat else responses

    def test(
        self,
        text: str,
        question: Question,
        key: Key,
        prompt: str = "",
        edit: Edit = Edit(),
        report: Report = silent,
    ) -> Tested:
        """Edit a text and test it against this key, at the weight and σ of the question.

        Without the prompt, the test is exact but has less power. A text that is longer than the
        context is tested in windows, which count as one text (``authors.windows``).
        """
        if not text.strip():
            raise InvalidTextError(
                "expected a text to test, got an empty text; type or paste a text"
            )
        with alone:
            wm = self._watermark(question, report)
            ids = self.lm.encode(text)
            before = None
            if edit.share:
                before = self.test(text, question, key, prompt, report=report)
                report("editing", 0.0)
                operator = _operator(self.lm, edit.how)
                _, [ids] = operator([[]], [ids], edit.share, EDIT_SEED)
                ids = self.lm.encode(self.lm.decode(ids))  # a detector sees characters
            start = self._prompt(prompt) if prompt.strip() else self.lm.unknown_prompt()
            after = self._tested(start, ids, wm, self._keys(key), report, edit)
            return replace(after, before=before)

    def _tested(
        self,
        prompt: list[int],
        response: list[int],
        wm: Watermark,
        keys: list[Key],
        report: Report,
        edit: Edit = Edit(),
    ) -> Tested:
        lm = self.lm
        starts, parts = windows(lm.model, prompt, response)
        n = len(parts)
        weigh = channel.weights(lm.model, edit.allowed)
        gradients = score.gradients(lm.model, starts, parts, wm, token_weights=weigh, batch_size=1)
        norms: dict[int, float] = {}  # of each window

        def reported() -> Iterator[score.TextGradient]:
            """The gradients; Stop acts between two windows."""
            for i in range(n):
                report("testing", i / n)
                gradient = next(gradients)
                norms[gradient.text] = gradient.norm
                yield gradient

        rows = together(reported(), *perturb.ready(lm.model, wm, keys))
        row, control = rows.to_dict("records")
        promises = []
        tables = []
        settings = {"token_weights": weigh, "unknown_prompt": lm.unknown_prompt()}
        for i, (start, part) in enumerate(zip(starts, parts, strict=True)):
            report("looking at each token", i / n)
            promises.append(promise.table(lm.model, [start], [part], wm, **settings))
            report("looking at each token", (i + 0.5) / n)
            table = evidence.per_token(lm.model, start, part, wm, keys[0], token_weights=weigh)
            # It adds up to the ψ of the window: scale it to the window's part of the text's ψ.
            table["evidence"] *= norms[i] / row["grad_norm"]
            tables.append(table)
        row |= promise.together(pd.concat(promises)) | ({"windows": n} if n > 1 else {})
        row |= verdict.of(row, wm.sigma, control=control["p_value"])
        pieces = show.pieces(pd.concat(tables, ignore_index=True), lm.decode)
        return Tested(lm.decode(response), edit, row, control, pieces)

    def _watermark(self, question: Question, report: Report) -> Watermark:
        one_weight(self.lm.model, question.weight)
        return Watermark(question.weight, self.sigma(question, report))

    def _prompt(self, text: str) -> list[int]:
        if text.strip():
            return self.lm.prompt(text)
        expected = "a prompt, got an empty prompt; type a few words for the model to continue"
        if self.lm.is_chat:
            expected = "an instruction, got an empty text; type what the model should do"
        raise InvalidTextError(f"expected {expected}")

    def _keys(self, key: Key) -> list[Key]:
        """This key and the negative control, which is always another key."""
        is_wrong = key.key_id == self.wrong_key.key_id
        return [key, Key.new() if is_wrong else self.wrong_key]


def _kind_of_text(question: Question) -> tuple[str, int, float]:
    """What ‖G‖ of a text depends on."""
    return question.weight, question.n_tokens, question.temperature


def _operator(lm: models.LM, how: str) -> corrupt.Change:
    """The edit of this name."""
    if how == ROUND_TRIP:
        return rewrite.round_trips(lm)[how]
    return corrupt.named(lm, [how])[how]


def figure(result: Comparison) -> Figure:
    """Draw ψ of each text below the density of ψ without a watermark, and p of the first texts as
    they grow.

    It does not use pyplot, because a panel draws in another thread.
    """
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    level = verdict.LEVEL
    scores = result.scores
    wanted = result.question.psi
    low = min(-4.0, scores["psi"].min())
    high = max(wanted, scores["psi"].max()) + 1
    style.normal_density(left, low, high)
    left.axvline(stats.threshold(level), **style.DASHED)
    left.plot(wanted, 0, "v", color="black", clip_on=False)
    left.annotate("wanted", (wanted, 0.015), ha="center", fontsize="small")
    rows = -0.055 * np.arange(1, 5)  # heights below the axis
    psis_of = scores.groupby(["kind", "key"])["psi"]
    curve_of = result.curve.groupby(["kind", "key"])
    for row, (group, look) in zip(rows, LOOKS.items(), strict=True):
        psis = psis_of.get_group(group)
        curve = curve_of.get_group(group)
        left.plot(psis, np.full(len(psis), row), linestyle="none", **look)
        right.plot(curve["n_tokens"], curve["log10_p"], **look)
    left.set_yticks(rows, [", ".join(group) for group in LOOKS], fontsize="small")
    left.grid(axis="y", visible=False)
    left.set(xlabel="ψ", title="Where does each ψ lie under N(0, 1)?")
    right.axhline(np.log10(level), **style.DASHED, label=f"level {level:g}")
    right.legend()
    right.set(xlabel="tokens of the first texts", ylabel="log10 p")
    right.set_title("How does p fall as a text grows?")
    return figure
