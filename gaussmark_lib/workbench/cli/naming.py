"""``gaussmark trace``: which user of a codebook each text leans to most."""

import os
from dataclasses import dataclass
from typing import Any, ClassVar

from gaussmark_lib.beyond import promise, tracing
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.keys import Key
from gaussmark_lib.workbench import verdict
from gaussmark_lib.workbench.cli import measure
from gaussmark_lib.workbench.cli.answers import Row
from gaussmark_lib.workbench.cli.measure import Windows
from gaussmark_lib.workbench.cli.scoring import Encoded, Scoring, plain

MOST_DIGITS = 30  # that are read of a number of users; a codebook refuses fewer


@dataclass
class Naming(Scoring):
    """Gives each text one row, with the user that it leans to most."""

    book: tracing.Codebook

    fields: ClassVar[list[str]] = ["user", "psi", "runner_up", "n_tokens"]
    per_text = 1

    @property
    def asked(self) -> list[Any]:
        return [*super().asked, self.book.n_users, self.book.n_base]

    def of_short(self, texts: Windows) -> list[list[Row]]:
        try:
            table = measure.users(self.question, texts, self.book)
        except DegenerateScoreError:  # of at least one: each for itself
            return [self._of_one(([prompt], [text])) for prompt, text in zip(*texts, strict=True)]
        table = measure.with_promise(self.question, table, texts)
        return [[self.row(scores)] for scores in table.to_dict("records")]

    def of_long(self, text: Encoded) -> list[Row]:
        [windows] = text.versions
        rows = self._of_one(windows)
        return [row | {"windows": text.n_windows} for row in rows]

    def _of_one(self, windows: Windows) -> list[Row]:
        try:
            table = measure.users(self.question, windows, self.book, together=True)
        except DegenerateScoreError as error:
            return [{"error": str(error)}]
        [scores] = table.to_dict("records")
        return [self.row(scores | measure.promised_together(self.question, windows))]

    def row(self, scores: Row, control: float | None = None) -> Row:
        row = {"key_id": self.question.keys[0].key_id, "p_value": plain(scores["p_family"])}
        row |= {name: plain(scores[name]) for name in self.fields}
        return row | {"warnings": verdict.cautions(scores) or self._too_short(scores)}

    def _too_short(self, scores: Row) -> list[str]:
        """That fewer than half of such texts are named rightly, in one sentence or none."""
        mean = promise.mean_psi(scores["information"], scores["grad_norm"], self.question.sigma)
        share = tracing.share_right(float(mean), self.book.n_users, self.book.n_base)
        if share >= verdict.ENOUGH:
            return []
        return [
            f"{scores['n_tokens']} tokens: {share:.0%} of marked texts of this length are named"
            " rightly"
        ]


def codebook_of(name: str, key: Key) -> tracing.Codebook:
    """The codebook of a file, or of this number of users."""
    if name.isdecimal() and not os.path.exists(name):
        return tracing.Codebook(key, int(name[:MOST_DIGITS]))
    return tracing.Codebook.load(name, key)
