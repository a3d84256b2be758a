"""``gaussmark answer``: yes or no for untrusted users, by the rule of ``joint.public``."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from gaussmark_lib import perturb
from gaussmark_lib.beyond import joint
from gaussmark_lib.beyond.joint.state import identity
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.workbench.cli import measure
from gaussmark_lib.workbench.cli.answers import DIGEST, Row
from gaussmark_lib.workbench.cli.inputs import Item, visible
from gaussmark_lib.workbench.cli.measure import Windows
from gaussmark_lib.workbench.cli.question import Question
from gaussmark_lib.workbench.cli.scoring import Encoded, Scoring


@dataclass
class Answering(Scoring):
    """Gives each text one word."""

    queries: joint.Public

    done: ClassVar[str] = "answered"
    hidden: ClassVar[frozenset[str]] = frozenset([DIGEST])
    per_text = 1

    @property
    def asked(self) -> list[Any]:
        return [*super().asked, "answered"]

    def about(self, item: Item) -> Row:
        return {"name": item.name}

    def answer(self, texts: Sequence[Encoded], advance: Callable[[int], object]) -> list[list[Row]]:
        """A query is on the disk before anybody sees its answer."""
        scored = super().answer(texts, advance)
        return [
            rows if "error" in rows[0] else [{"verdict": self._verdict(text, rows[0]["p_value"])}]
            for text, rows in zip(texts, scored, strict=True)
        ]

    def of_short(self, texts: Windows) -> list[list[Row]]:
        table = measure.alone(self.question, texts)
        return [self.rows(scores) for _, scores in table.groupby("text")]

    def of_long(self, text: Encoded) -> list[Row]:
        try:
            return self.rows(measure.together(self.question, text.versions))
        except DegenerateScoreError as error:
            return [{"error": str(error)}]

    def rows(self, of_text: pd.DataFrame) -> list[Row]:
        """The p-value, without a promise."""
        scores = of_text.to_dict("records")[0]
        if isinstance(scores["error"], str):
            return [{"error": scores["error"]}]
        return [{"p_value": scores["p_value"]}]

    def remarks(self, item: Item) -> list[str]:
        return []  # only a word is answered

    def sentence(self, row: Row, *, alone: bool) -> str:
        return row["verdict"] if alone else f"{visible(row['name'])}: {row['verdict']}"

    def _verdict(self, text: Encoded, p_value: float) -> str:
        [(prompts, responses)] = text.versions
        ids = [token for response in responses for token in response]
        name = hashlib.sha256(json.dumps([prompts[0], ids]).encode()).hexdigest()
        is_detected = self.queries.answer(name, joint.public.runs(ids), p_value)
        return "detected" if is_detected else "not detected"


def opened(path: str, question: Question) -> joint.Public:
    """The queries in a file, or a new one. KeyMismatchError if it is that of another question."""
    watermark, keys = perturb.ready(question.lm.model, question.watermark, question.keys)
    about = identity(watermark, keys) | {"edited": question.edited}
    return joint.Public(path, question.level, about)
