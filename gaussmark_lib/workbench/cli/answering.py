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
    """Answers each text with a verdict alone."""

    queries: joint.Public

    done: ClassVar[str] = "answered"
    hidden: ClassVar[frozenset[str]] = frozenset([DIGEST])  # it depends on the key
    per_text = 1

    @property
    def asked(self) -> list[Any]:
        """What distinguishes these answers from those of ``detect``."""
        return [*super().asked, "answered"]

    def about(self, item: Item) -> Row:
        """Return the name of a text, and nothing else about it."""
        return {"name": item.name}  # no prompt, model or weight, which are not the user's

    def answer(self, texts: Sequence[Encoded], advance: Callable[[int], object]) -> list[list[Row]]:
        """Answer texts; each query is stored on disk before its answer is seen."""
        scored = super().answer(texts, advance)
        answers = []
        for text, [row] in zip(texts, scored, strict=True):
            if "error" not in row:
                row = {"verdict": self._verdict(text, row["p_value"])}
            answers.append([row])
        return answers

    def of_short(self, texts: Windows) -> list[list[Row]]:
        """Return the p-values of texts in one window each."""
        table = measure.alone(self.question, texts)
        return [self.rows(scores) for _, scores in table.groupby("text")]

    def of_long(self, text: Encoded) -> list[Row]:
        """Return the p-value of a text in several windows."""
        try:
            return self.rows(measure.together(self.question, text.versions))
        except DegenerateScoreError as error:
            return [{"error": str(error)}]

    def rows(self, of_text: pd.DataFrame) -> list[Row]:
        """Return the p-value of a text, without a promise."""
        scores = of_text.to_dict("records")[0]  # of the key; the control key's are not needed
        if isinstance(scores["error"], str):
            return [{"error": scores["error"]}]
        return [{"p_value": scores["p_value"]}]

    def remarks(self, item: Item) -> list[str]:
        """Return no remark: the answer is a verdict alone."""
        return []

    def sentence(self, row: Row, *, alone: bool) -> str:
        """Return the verdict, after the name of the text if there are several texts."""
        return row["verdict"] if alone else f"{visible(row['name'])}: {row['verdict']}"

    def _verdict(self, text: Encoded, p_value: float) -> str:
        [(prompts, responses)] = text.versions
        ids = [token for response in responses for token in response]
        same_text = json.dumps([prompts[0], ids])  # equal for the very same text and prompt
        name = hashlib.sha256(same_text.encode()).hexdigest()
        is_detected = self.queries.answer(name, joint.public.runs(ids), p_value)
        return "detected" if is_detected else "not detected"


def opened(path: str, question: Question) -> joint.Public:
    """Open the queries in a file, or a new file.

    Raises:
        KeyMismatchError: if the file belongs to another question.
    """
    watermark, keys = perturb.ready(question.lm.model, question.watermark, question.keys)
    about = identity(watermark, keys) | {"edited": question.edited}
    return joint.Public(path, question.level, about)
