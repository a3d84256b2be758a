"""11: the playground without its widgets, and its figures. Solve σ for a wanted ψ, write plain and
watermarked text with the same random numbers, test any text, edit it and test it again.

A panel shows only what these functions return. What uses a model takes turns (``alone``): noise in
the weights and hooks on a layer affect every user of the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gaussmark_lib import corrupt, evidence, generate, models, perturb, score, stats, texts
from gaussmark_lib.beyond import channel, promise, tracing
from gaussmark_lib.beyond.tracing.authors import windows
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.gradients import Weigh
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import verdict
from gaussmark_lib.workbench.plots import show, style

THIS_KEY, WRONG_KEY = "this key", "wrong key"
PLAIN, WATERMARKED = KINDS = "plain", "watermarked"
LOOKS = {  # of each kind under each key
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
EDIT_SEED = 0
MOST_POINTS = 8  # of p against tokens
Report = Callable[[str, float], None]  # a step's name and the share of it that is done

alone = RLock()


class StoppedError(Exception):
    """The reader pressed Stop; a report raises it, which ends the work."""


def silent(step: str, share: float) -> None:
    """The default report, which does nothing."""


@dataclass(frozen=True)
class Question:
    """What to write: ``n_samples`` plain and as many watermarked continuations of ``prompt``, of
    ``n_tokens`` each, with noise on ``weight`` whose σ is solved for a mean ψ of ``psi``.
    """

    prompt: str
    weight: str
    psi: float = 3.0
    n_tokens: int = 100
    n_samples: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Comparison:
    """Plain and watermarked text from the same random numbers.

    Args:
        scores: one row per text and key: ``kind, sample, key`` and those of ``score.score``.
        pieces: the texts piece by piece: ``kind``, ``sample`` and those of ``show.pieces``.
        curve: the first text of each kind, tested on its beginnings; columns as ``scores``.
        bend: mean ‖G‖ of texts under other keys, divided by that of plain texts.
        copied: ψ of each watermarked text when its characters are cut into tokens anew.
    """

    question: Question
    wm: Watermark
    key_id: str
    scores: pd.DataFrame
    pieces: pd.DataFrame
    curve: pd.DataFrame
    bend: float
    copied: list[float]

    @property
    def shifts(self) -> pd.Series:
        """σ‖G‖ / bend of these plain texts: the ψ that they promise for watermarked ones."""
        plain = self.scores.query("kind == @PLAIN and key == @THIS_KEY")
        return self.wm.sigma * plain["grad_norm"] / self.bend

    @property
    def predicted(self) -> float:
        return self.shifts.median()

    @property
    def power(self) -> float:
        """The share of watermarked texts that these plain texts promise to be detected."""
        return stats.predicted_power(self.shifts, 1.0, verdict.LEVEL)

    def detected(self, kind: str) -> int:
        """How many texts of a kind this key calls detected."""
        rows = self.scores.query("kind == @kind and key == @THIS_KEY")
        return int((rows["p_value"] <= verdict.LEVEL).sum())

    def row(self, kind: str, sample: int = 0) -> dict[str, Any]:
        """One text's scores under this key, with its verdict; the wrong key is the control."""
        rows = self.scores.query("kind == @kind and sample == @sample").to_dict("records")
        return rows[0] | verdict.of(rows[0], self.wm.sigma, control=rows[1]["p_value"])

    def text(self, kind: str, sample: int = 0) -> str:
        return "".join(self.pieces.query("kind == @kind and sample == @sample")["text"])


@dataclass(frozen=True)
class Tested:
    """A text's scores and verdict in ``row``, and its pieces with their evidence."""

    text: str
    prompt: str
    question: Question
    row: dict[str, Any]
    pieces: pd.DataFrame


def heldout_prompts(n: int) -> list[str]:
    """Beginnings of n held-out documentation texts, at most 160 characters, cut after a word."""
    rows = texts.load("docs", split="heldout", n=n, min_chars=320)
    return [text[:160].rpartition(" ")[0] for text in rows["text"]]


@dataclass
class Session:
    """A model with which to write and test; ``wrong_key`` is the negative control."""

    lm: models.LM
    prompts: Sequence[str]
    wrong_key: Key = field(default_factory=Key.new)
    n_reference: int = 8  # plain texts on which ‖G‖ is measured
    _norms: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    _bends: dict[tuple, float] = field(default_factory=dict)

    def knows(self, weight: str, n_tokens: int) -> bool:
        """Whether :meth:`sigma` needs no work."""
        return (weight, n_tokens) in self._norms

    def sigma(self, weight: str, n_tokens: int, psi: float, report: Report = silent) -> float:
        """ψ / median‖G‖ over plain texts of n_tokens, measured once per weight and length."""
        if not self.knows(weight, n_tokens):
            settings = n_tokens, "writing reference texts", report
            self._norms[weight, n_tokens] = self._measured(Watermark(weight, 1.0), *settings)
        return stats.sigma_for_psi(self._norms[weight, n_tokens], psi)

    def bend(self, wm: Watermark, n_tokens: int, report: Report = silent) -> float:
        """How much longer the gradients of marked texts are, of the reference prompts under other
        keys: ψ falls behind σ‖G‖ by this factor, where the noise is too large for first order.
        """
        asked = wm, n_tokens
        if asked not in self._bends:
            n = len(self.prompts[: self.n_reference])
            marks = [(wm, Key.from_seed(seed)) for seed in range(n)]
            settings = n_tokens, "writing watermarked reference texts", report
            norms = self._measured(wm, *settings, marks=marks)
            self._bends[asked] = np.mean(norms) / np.mean(self._norms[wm.weight, n_tokens])
        return self._bends[asked]

    def _measured(
        self, wm: Watermark, n_tokens: int, step: str, report: Report, **settings: Any
    ) -> list[float]:
        """‖G‖ of texts after the reference prompts."""
        with alone:
            prompts = [self._prompt(prompt) for prompt in self.prompts[: self.n_reference]]
            written = self._sample(prompts, n_tokens, 0, step, report, **settings)
            report("measuring gradients", 0.0)
            gradients = score.gradients(self.lm.model, prompts, written, wm)
            return [gradient.norm for gradient in gradients]

    def compare(self, question: Question, key: Key, report: Report = silent) -> Comparison:
        """Plain and watermarked text side by side, tested against this key and the wrong one. After
        any error, the model is the base model again.
        """
        with alone:
            model, n = self.lm.model, question.n_samples
            prompts = [self._prompt(question.prompt)] * n
            sigma = self.sigma(question.weight, question.n_tokens, question.psi, report)
            wm, keys = Watermark(question.weight, sigma), self._keys(key)
            bend = self.bend(wm, question.n_tokens, report)
            settings = prompts, question.n_tokens, question.seed
            plain = self._sample(*settings, "writing plain text", report)
            with perturb.watermarked(model, wm, key):
                marked = self._sample(*settings, "writing watermarked text", report)
            report("testing", 0.0)
            scores = score.score(model, 2 * prompts, plain + marked, wm, keys)
            promised = promise.table(model, 2 * prompts, plain + marked, wm)
            scores = scores.merge(promised.drop(columns="n_tokens"), on="text")
            first = score.score(
                model, 2 * prompts[:1], [plain[0], marked[0]], wm, keys, lengths=_lengths(plain[0])
            )
            anew = [self.lm.encode(self.lm.decode(text)) for text in marked]
            copied = score.score(model, prompts, anew, wm, [key])["psi"]
            pieces = [
                self._pieces(prompts[:1], [text], wm, key).assign(kind=KINDS[i // n], sample=i % n)
                for i, text in enumerate(plain + marked)
            ]
            return Comparison(
                question,
                wm,
                key.key_id,
                _labelled(scores, n),
                pd.concat(pieces, ignore_index=True),
                _labelled(first, 1),
                bend,
                copied.tolist(),
            )

    def test(
        self,
        text: str,
        question: Question,
        key: Key,
        prompt: str = "",
        report: Report = silent,
        allowed: float = 0.0,
    ) -> Tested:
        """Any text against this key at the question's weight, with what to expect of such a text at
        the question's σ. ``allowed`` is the share of exchanged tokens that the test allows for
        (``channel.weights``). Without the prompt the test is as exact, and has less power. A text
        beyond the context is tested in windows, as one (``tracing.authors.windows``).
        """
        if not text.strip():
            raise InvalidTextError("expected a text to test, got an empty one; type or paste some")
        with alone:
            sigma = self.sigma(question.weight, question.n_tokens, question.psi, report)
            unknown = self.lm.unknown_prompt()
            before = self._prompt(prompt) if prompt.strip() else unknown
            pairs = windows(self.lm.model, before, self.lm.encode(text))
            wm = Watermark(question.weight, 1.0)  # σ cancels in ψ
            weigh = channel.weights(self.lm.model, allowed)
            report("looking at each token", 0.0)
            pieces = self._pieces(*pairs, wm, key, weigh)
            report("testing", 0.0)
            keys, n_windows = self._keys(key), len(pairs[0])
            table = tracing.author(
                self.lm.model, *pairs, wm, keys, token_weights=weigh, batch_size=1
            )
            this, wrong = table.to_dict("records")
            of_windows = promise.table(
                self.lm.model,
                *pairs,
                wm,
                token_weights=weigh,
                unknown_prompt=unknown,
                batch_size=1,
            )
            row = this | promise.together(of_windows)
            if n_windows > 1:
                row["windows"] = n_windows
            row |= verdict.of(row, sigma, control=wrong["p_value"])
            return Tested(text, prompt, question, row, pieces)

    def edited(
        self,
        before: Tested,
        how: str,
        share: float,
        key: Key,
        report: Report = silent,
        allowed: float = 0.0,
    ) -> Tested:
        """A tested text after an edit of a share of its tokens; ``allowed`` as in :meth:`test`."""
        with alone:
            report("editing", 0.0)
            ids = self.lm.encode(before.text)
            _, [ids] = corrupt.named(self.lm, [how])[how]([[]], [ids], share, EDIT_SEED)
            text = self.lm.decode(ids)
            return self.test(text, before.question, key, before.prompt, report, allowed)

    def bound(self, question: Question, key: Key, report: Report = silent) -> Key:
        """The key for a key file, bound to this question's weight and σ."""
        with alone:
            sigma = self.sigma(question.weight, question.n_tokens, question.psi, report)
            return perturb.bind(self.lm.model, Watermark(question.weight, sigma), key)

    def _prompt(self, text: str) -> list[int]:
        if not text.strip():
            raise InvalidTextError(
                "expected a prompt, got an empty one; type a few words for the model to go on from"
            )
        return self.lm.prompt(text)

    def _keys(self, key: Key) -> list[Key]:
        """This key and the negative control, which is never the key itself."""
        is_wrong = key.key_id == self.wrong_key.key_id
        return [key, Key.new() if is_wrong else self.wrong_key]

    def _sample(
        self, prompts: list, n_tokens: int, seed: int, step: str, report: Report, **settings: Any
    ) -> list:
        return generate.sample(
            self.lm.model,
            prompts,
            n_tokens,
            seed=seed,
            on_step=lambda done, total: report(step, done / total),
            **settings,
        )

    def _pieces(
        self, prompts: list, responses: list, wm: Watermark, key: Key, weigh: Weigh | None = None
    ) -> pd.DataFrame:
        """The pieces of one text with their evidence, which adds up to ψ over all its windows."""
        model = self.lm.model
        pairs = zip(prompts, responses, strict=True)
        tables = [evidence.per_token(model, *pair, wm, key, token_weights=weigh) for pair in pairs]
        if len(tables) > 1:
            texts_of = model, prompts, responses, wm
            gradients = list(score.gradients(*texts_of, token_weights=weigh, batch_size=1))
            total = tracing.summed(gradients).norm
            norms = {gradient.text: gradient.norm for gradient in gradients}
            for i, table in enumerate(tables):
                table["evidence"] *= norms[i] / total
        return show.pieces(pd.concat(tables, ignore_index=True), self.lm.decode)


def _lengths(text: list[int]) -> list[int]:
    n = len(text)
    step = -(-n // MOST_POINTS)
    return sorted({*range(step, n, step), n})


def _labelled(scores: pd.DataFrame, n_samples: int) -> pd.DataFrame:
    """Scores of plain texts and as many watermarked ones, under this key and the wrong one, with
    the kind and the number of each text.
    """
    kind, sample = np.divmod(scores["text"], n_samples)
    key = np.resize([THIS_KEY, WRONG_KEY], len(scores))
    labels = pd.DataFrame({"kind": np.array(KINDS)[kind], "sample": sample, "key": key})
    return pd.concat([labels, scores.drop(columns="text")], axis=1)


def turned(session: Session, question: Question, key: Key, wanted: Sequence[float]) -> pd.DataFrame:
    """The scores of :meth:`Session.compare` at each wanted ψ, with ``wanted``."""
    tables = [
        session.compare(replace(question, psi=psi), key).scores.assign(wanted=psi) for psi in wanted
    ]
    return pd.concat(tables, ignore_index=True)


def figure(result: Comparison) -> Figure:
    """ψ of each text and key below the density that ψ has without a watermark; and beside it p of
    the first texts as they grow. Drawn without pyplot, since a panel draws in a thread of its own.
    """
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    level, scores = verdict.LEVEL, result.scores
    style.normal_density(left, min(-4.0, scores["psi"].min() - 0.5), scores["psi"].max() + 1)
    left.plot(result.predicted, 0, "v", color="black", clip_on=False, zorder=5)
    left.annotate("predicted", (result.predicted, 0.015), ha="center", fontsize="small")
    left.axvline(stats.threshold(level), **style.DASHED)
    rows = -0.055 * np.arange(1, 5)
    of_group, curves = (table.groupby(["kind", "key"]) for table in (scores, result.curve))
    for row, (group, look) in zip(rows, LOOKS.items(), strict=True):
        psis, curve = of_group.get_group(group)["psi"], curves.get_group(group)
        left.plot(psis, np.full(len(psis), row), linestyle="none", alpha=0.8, **look)
        right.plot(curve["n_tokens"], curve["log10_p"], **look)
    left.set_yticks(rows, [", ".join(group) for group in LOOKS], fontsize="small")
    left.grid(axis="y", visible=False)
    left.set(xlabel="ψ", title="Where does each ψ lie under N(0, 1)?")
    right.axhline(np.log10(level), **style.DASHED)
    at = right.dataLim.x0, np.log10(level)
    right.annotate(f"detected below, level {level:g}", at, fontsize="small", va="top")
    right.set(
        xlabel="tokens of the first texts",
        ylabel="log10 p",
        title="How does p fall as a text grows?",
    )
    return figure
