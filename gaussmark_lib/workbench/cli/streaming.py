"""``gaussmark stream``: each text is tested for what earlier answers had not said."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gaussmark_lib import tokens
from gaussmark_lib.beyond import joint
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench.cli import measure
from gaussmark_lib.workbench.cli.answers import Row
from gaussmark_lib.workbench.cli.inputs import Item, digest
from gaussmark_lib.workbench.cli.measure import Windows
from gaussmark_lib.workbench.cli.question import Question
from gaussmark_lib.workbench.cli.scoring import FIELDS, Encoded, Scoring

AGAIN = "The stream has had this text before: this is its answer again, and no new evidence."
PENDING = "pending"  # note of a state: answers that it counted, and that a killed process may owe
GIVEN = "given"  # note of a state: the references that it remembers


@dataclass
class Streaming(Scoring):
    """Gives each text one row per key, and keeps all answers in a state."""

    state: joint.State
    path: Path  # of the state
    share: float  # of the texts that are expected to be marked
    references: Sequence[Item]  # unmarked texts that the state is to remember

    fields: ClassVar[list[str]] = [*FIELDS, "innovation", "residual", "log_e", "repeats"]

    @property
    def asked(self) -> list[Any]:
        return [*super().asked, self.share, [digest(item, []) for item in self.references]]

    def encode(self, item: Item) -> Encoded:
        """The law of a stream is that of texts in one window."""
        lm = self.question.lm
        prompt = lm.prompt(item.prompt) if item.prompt else lm.unknown_prompt()
        pairs = tokens.Reader(lm.model).pairs([prompt], [lm.encode(item.valid())])
        [(prompt, response)] = pairs.values()
        return Encoded(item, [([prompt], [response])], n_windows=1)

    def answer(self, texts: Sequence[Encoded], advance: Callable[[int], object]) -> list[list[Row]]:
        """The state is on the disk before anybody sees an answer."""
        asked = self.asked
        digests = [digest(text.item, asked) for text in texts]
        rows = dict(self.state.notes.get(PENDING, {}))
        new = {name: text for name, text in zip(digests, texts, strict=True) if name not in rows}
        if new:
            answers = super().answer(list(new.values()), advance)
            rows |= zip(new, answers, strict=True)
        self.state.notes[PENDING] = {name: rows[name] for name in digests}
        self.state.save(self.path)
        return [rows[name] for name in digests]

    def of_short(self, texts: Windows) -> list[list[Row]]:
        references = self._new_references()
        table = measure.in_stream(self.question, texts, self.state, self.share, references)
        table = measure.with_promise(self.question, table, texts)
        return [self.rows(scores) for _, scores in table.groupby("text")]

    def rows(self, of_text: Any) -> list[Row]:
        scores = of_text.to_dict("records")
        if isinstance(scores[0]["error"], str):
            return [{"error": scores[0]["error"]}]
        rows = [self.row(of_key, None) for of_key in scores]
        for row in rows:
            if row["repeats"] >= 0:
                row["warnings"].append(AGAIN)
        return rows

    def _new_references(self) -> Windows | None:
        """Prompts and responses of the references; None if the state remembers them already."""
        digests = [digest(item, []) for item in self.references]
        if not digests or self.state.notes.get(GIVEN) == digests:
            return None
        prompts = []
        responses = []
        for item in self.references:
            try:
                [([prompt], [response])] = self.encode(item).versions
            except GaussMarkError as error:
                raise GaussMarkError(f"--given: {item.name}: {error}") from None
            prompts.append(prompt)
            responses.append(response)
        self.state.notes[GIVEN] = digests  # saved with the answers
        return prompts, responses


def opened(path: Path, question: Question) -> joint.State:
    """The state in a file, or a new one. KeyMismatchError if it is that of another key."""
    state = joint.State.load(path) if os.path.lexists(path) else joint.State()
    state.use(question.watermark.on(question.lm.model), question.keys)
    return state
