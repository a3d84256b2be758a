"""What is asked of the playground, and what it answers: each answer with the settings that it was
made with.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gaussmark_lib import perturb, stats
from gaussmark_lib.errors import InvalidTextError, InvalidWatermarkError

THIS_KEY, WRONG_KEY = "this key", "wrong key"
PLAIN, WATERMARKED = "plain", "watermarked"
EDITS = (
    "substitute at random",
    "delete at random",
    "insert at random",
    "substitute own tokens",
    "insert own tokens",
    "truncate",
)
EDIT_SEED = 0  # of their random numbers
ENOUGH = 0.5  # power below which a text that is not detected is called too short to tell


@dataclass(frozen=True)
class Question:
    """What to write.

    Args:
        prompt: text to be continued.
        weight: full name of the matrix that carries the noise.
        psi: wanted mean of ψ, > 0; σ is solved for it.
        n_tokens, n_samples: length and number of the plain and of the watermarked texts.
        seed: of the sampler; the n-th plain and the n-th watermarked text have the same random
            numbers.
    """

    prompt: str
    weight: str
    psi: float = 3.0
    n_tokens: int = 100
    n_samples: int = 1
    seed: int = 0

    def __post_init__(self):
        if not np.isfinite(self.psi) or self.psi <= 0:
            raise InvalidWatermarkError(
                f"expected a wanted ψ that is finite and > 0, got {self.psi!r}"
            )
        for name in ("n_tokens", "n_samples"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InvalidTextError(
                    f"{name}: expected a whole number ≥ 1, got {getattr(self, name)!r}"
                )


@dataclass(frozen=True)
class Draft:
    """What is written so far.

    Args:
        texts: the texts of each kind, plain ones first.
        curve: as that of a :class:`Comparison`, as far as it goes.
    """

    question: Question
    wm: perturb.Watermark
    key_id: str
    texts: dict[str, list[str]]
    curve: pd.DataFrame


@dataclass(frozen=True)
class Comparison:
    """Plain and watermarked text from the same random numbers, ``wm`` with the σ that was solved
    for.

    Args:
        scores: one row a text × key: ``sample``, ``kind`` (plain, watermarked), ``key`` (this key,
            wrong key) and the columns of ``score.score``.
        pieces: the texts piece by piece with their evidence for this key: ``sample``, ``kind`` and
            the columns of ``evidence.pieces``.
        curve: the first text of each kind × key, tested on its beginnings while it was written, and
            as a whole: ``kind``, ``key``, and the columns of ``score.score`` without ``text``;
            nothing where nobody watched.
    """

    question: Question
    wm: perturb.Watermark
    key_id: str
    scores: pd.DataFrame
    pieces: pd.DataFrame
    curve: pd.DataFrame

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
class Given:
    """What a text says that the texts tested before it with one key and weight had not.

    Args:
        n_before: how many those are.
        p_value, innovation: ``p_given`` and r of ``joint.sequence``.
        repeats: the place, from 0, of the earlier text that this one repeats; −1 if there is
            none.
    """

    n_before: int
    p_value: float
    innovation: float
    repeats: int


@dataclass(frozen=True)
class Verdict:
    """A text tested: ``scores`` has a row a key (this key, wrong key), ``pieces`` the text with its
    evidence for this key.

    Args:
        n_windows: into how many windows the text was cut to fit the context; tested as one by their
            summed gradient.
        question, sigma: the settings that the text is asked about with, of which ``weight, psi,
            n_tokens`` count, and their σ; none where only p was asked for, in which σ cancels.
        given: what the text says beyond those that were asked about before; none where only p was
            asked for.
    """

    text: str
    prompt: str
    weight: str
    key_id: str
    n_windows: int
    scores: pd.DataFrame
    pieces: pd.DataFrame
    question: Question | None = None
    sigma: float | None = None
    given: Given | None = None

    def row(self, key: str) -> pd.Series:
        """The scores of one key."""
        return self.scores.query("key == @key").iloc[0]

    def power(self, level: float) -> float:
        """Φ(σ‖G‖ − τ_α): how likely a text like this one is detected if it is written under the key
        with this σ.
        """
        if self.sigma is None:
            raise InvalidWatermarkError(
                "expected a verdict with its σ, got one of a test alone; ask with Session.ask"
            )
        return stats.predicted_power([self.row(THIS_KEY)["grad_norm"]], self.sigma, level)


@dataclass(frozen=True)
class Edited:
    """A tested text, and the same ``after`` an edit of a share of its tokens: ``how`` is the edit's
    name in ``corrupt.named``.
    """

    before: Verdict
    how: str
    share: float
    after: Verdict
