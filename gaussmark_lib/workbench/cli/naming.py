"""``gaussmark trace``: the user of a codebook with the highest score for each text."""

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

MOST_DIGITS = 30  # read of a number of users; a codebook refuses such a number


@dataclass
class Naming(Scoring):
    """Gives each text one row, with the user with the highest score."""

    book: tracing.Codebook

    fields: ClassVar[list[str]] = ["user", "psi", "runner_up", "n_tokens"]
    per_text = 1

    @property
    def asked(self) -> list[Any]:
        """What distinguishes these answers: the question and the codebook."""
        return [*super().asked, self.book.n_users, self.book.n_base]

    def of_short(self, texts: Windows) -> list[list[Row]]:
        """Return the rows of texts in one window each."""
        try:
            table = measure.users(self.question, texts, self.book)
        except DegenerateScoreError:  # one text has no gradient: test each text alone
            prompts, responses = texts
            return [
                self._of_one(([prompt], [response]))
                for prompt, response in zip(prompts, responses, strict=True)
            ]
        table = measure.with_promise(self.question, table, texts)
        return [[self.row(scores)] for scores in table.to_dict("records")]

    def of_long(self, text: Encoded) -> list[Row]:
        """Return the row of a text in several windows."""
        [windows] = text.versions
        rows = self._of_one(windows)
        return [row | {"windows": text.n_windows} for row in rows]

    def _of_one(self, windows: Windows) -> list[Row]:
        try:
            table = measure.users(self.question, windows, self.book, together=True)
        except DegenerateScoreError as error:
            return [{"error": str(error)}]
        [scores] = table.to_dict("records")
        promised = measure.promised_together(self.question, windows)
        return [self.row(scores | promised)]

    def row(self, scores: Row, control: float | None = None) -> Row:
        """Return the answer to a text; there is no control key."""
        row = {"key_id": self.question.keys[0].key_id, "p_value": plain(scores["p_family"])}
        row |= {name: plain(scores[name]) for name in self.fields}
        return row | {"warnings": verdict.cautions(scores) or self._too_short(scores)}

    def _too_short(self, scores: Row) -> list[str]:
        """A sentence if fewer than half of such texts are attributed correctly."""
        mean = promise.mean_psi(scores["information"], scores["grad_norm"], self.question.sigma)
        share = tracing.share_right(float(mean), self.book.n_users, self.book.n_base)
        if share >= verdict.ENOUGH:
            return []
        return [
            f"{scores['n_tokens']} tokens: {share:.0%} of watermarked texts of this length are"
            " attributed to the right user"
        ]


def codebook_of(name: str, key: Key) -> tracing.Codebook:
    """Return the codebook in a file, or of this number of users."""
    if name.isdecimal() and not os.path.exists(name):
        return tracing.Codebook(key, int(name[:MOST_DIGITS]))
    return tracing.Codebook.load(name, key)
