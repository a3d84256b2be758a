"""``gaussmark detect``: each text is tested as given, against each key."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pandas as pd

from gaussmark_lib.beyond.tracing.authors import windows
from gaussmark_lib.engine import typography
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.workbench import verdict
from gaussmark_lib.workbench.cli import measure
from gaussmark_lib.workbench.cli.answers import Row, Work
from gaussmark_lib.workbench.cli.inputs import Item, visible
from gaussmark_lib.workbench.cli.measure import Windows
from gaussmark_lib.workbench.cli.question import Question

FIELDS = ["key_id", "psi", "p_value", "log10_p", "p_given", "e_value", "n_tokens"]


class Encoded(NamedTuple):
    """A text as token ids, perhaps in several versions."""

    item: Item
    versions: list[Windows]
    n_windows: int  # of all versions; 1 for one version that fits the context


@dataclass
class Scoring(Work):
    """Gives each text one row per key."""

    question: Question

    doing: ClassVar[str] = "testing"
    done: ClassVar[str] = "scored"
    unit: ClassVar[str] = " texts"
    results: ClassVar[str] = (
        "results of these texts with this model, these keys, this prompt and level"
    )
    hidden: ClassVar[frozenset[str]] = frozenset()  # fields that only a file of answers has
    fields: ClassVar[list[str]] = FIELDS

    @property
    def per_text(self) -> int:
        """Rows of a text that can be scored."""
        return len(self.question.keys)

    @property
    def asked(self) -> list[Any]:
        """What distinguishes these answers from others: the question."""
        return self.question.identity

    def about(self, item: Item) -> Row:
        """Return the first fields of a text's rows."""
        return {
            "text": item.name,
            "model": self.question.lm.title,
            "weight": self.question.watermark.weight,
            "edited": self.question.edited,
            "prompt": item.prompt,
        }

    def encode(self, item: Item) -> Encoded:
        """Return the text as token ids, in windows that fit into the context."""
        lm = self.question.lm
        prompt = lm.prompt(item.prompt) if item.prompt else lm.unknown_prompt()
        prompts, responses = windows(lm.model, prompt, lm.encode(item.valid()))
        return Encoded(item, [(prompts, responses)], len(prompts))

    def answer(self, texts: Sequence[Encoded], advance: Callable[[int], object]) -> list[list[Row]]:
        """Return the rows of each text."""
        short = [text for text in texts if text.n_windows == 1]
        rows = {}  # number of the text → its rows
        if short:
            prompts = [prompt for text in short for prompt in text.versions[0][0]]
            responses = [response for text in short for response in text.versions[0][1]]
            rows_of_short = self.of_short((prompts, responses))
            for text, rows_of_text in zip(short, rows_of_short, strict=True):
                rows[text.item.row] = rows_of_text
        for text in texts:
            if text.n_windows > 1:  # not in a batch: its windows are one text
                rows[text.item.row] = self.of_long(text)
            remarks = self.remarks(text.item)
            for row in rows[text.item.row]:
                if remarks and "error" not in row:
                    row["warnings"] = [*row["warnings"], *remarks]
        advance(len(texts))
        return [rows[text.item.row] for text in texts]

    def of_short(self, texts: Windows) -> list[list[Row]]:
        """Return the rows of texts in one window each, tested in batches."""
        table = measure.alone(self.question, texts)
        table = measure.with_promise(self.question, table, texts)
        return [self.rows(scores) for _, scores in table.groupby("text")]

    def of_long(self, text: Encoded) -> list[Row]:
        """Return the rows of a text in several windows or versions, which are tested together.

        Promise and length are those of the first version.
        """
        prompts, _ = text.versions[0]
        try:
            table = measure.together(self.question, text.versions)
        except DegenerateScoreError as error:
            return [{"error": str(error)}]
        promised = measure.promised_together(self.question, text.versions[0])
        # The promise is the same for all keys.
        rows = self.rows(table.assign(**promised))
        if len(prompts) > 1:
            for row in rows:
                row["windows"] = len(prompts)
        return rows

    def rows(self, of_text: pd.DataFrame) -> list[Row]:
        """Return one row per key; the last scores of a text are those of the control key."""
        scores = of_text.to_dict("records")
        if isinstance(scores[0]["error"], str):
            return [{"error": scores[0]["error"]}]
        control = scores[-1]["p_value"]  # of the control key, the last
        return [self.row(of_key | {"p_given": None}, control) for of_key in scores[:-1]]

    def row(self, scores: Row, control: float | None) -> Row:
        """Return the scores and the verdict of a text under a key."""
        question = self.question
        row = {name: plain(scores[name]) for name in self.fields}
        return row | verdict.of(scores, question.sigma, question.level, control)

    def remarks(self, item: Item) -> list[str]:
        """Return at most one sentence on unusual characters of a text."""
        remark = typography.remark(item.text)
        if remark is None:
            return []
        return [
            f"{remark}; a word processor may have put them there. `gaussmark detect --normalise`"
            " also tests the text with plain characters."
        ]

    def sentence(self, row: Row, *, alone: bool) -> str:
        """Return several sentences on a single text, or one line per text if there are several."""
        sentences = verdict.sentences(row)
        if alone:
            return "\n".join(sentences)
        return "; ".join([f"{visible(row['text'])}: {sentences[0]}", *row["warnings"]])


def plain(value: Any) -> Any:
    """Return None instead of NaN, which JSON does not have."""
    is_nan = value != value
    return None if is_nan else value
