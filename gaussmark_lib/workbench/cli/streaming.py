"""``gaussmark stream``: each text is tested only for evidence that earlier texts did not have."""

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

AGAIN = "This text occurred earlier in the stream: the answer is repeated and is no new evidence."
PENDING = (
    "pending"  # note of a state: its latest answers, which a killed process may not have given
)
GIVEN = "given"  # note of a state: the reference texts in its memory


@dataclass
class Streaming(Scoring):
    """Gives each text one row per key, and keeps all answers in a state."""

    state: joint.State
    path: Path  # of the state
    share: float | None  # of texts that are expected to be watermarked; None: bets on several
    references: Sequence[Item]  # human texts of the stream's kind

    fields: ClassVar[list[str]] = [*FIELDS, "innovation", "residual", "log_e", "repeats"]

    @property
    def asked(self) -> list[Any]:
        """What distinguishes these answers: the question, the share and the references."""
        digests = [digest(item, []) for item in self.references]
        return [*super().asked, self.share, digests]

    def encode(self, item: Item) -> Encoded:
        """Return the text as token ids in one window: the law of a stream is for such texts."""
        lm = self.question.lm
        prompt = lm.prompt(item.prompt) if item.prompt else lm.unknown_prompt()
        pairs = tokens.Reader(lm.model).pairs([prompt], [lm.encode(item.valid())])
        [(prompt, response)] = pairs.values()
        return Encoded(item, [([prompt], [response])], n_windows=1)

    def answer(self, texts: Sequence[Encoded], advance: Callable[[int], object]) -> list[list[Row]]:
        """Answer texts; the state is stored on disk before the answers are seen."""
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
        """Return the rows of texts, given all earlier answers."""
        references = self._new_references()
        table = measure.in_stream(self.question, texts, self.state, self.share, references)
        table = measure.with_promise(self.question, table, texts)
        return [self.rows(scores) for _, scores in table.groupby("text")]

    def rows(self, of_text: Any) -> list[Row]:
        """Return one row per key; there is no control key."""
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
    """Open the state in a file, or a new state.

    Raises:
        KeyMismatchError: if the state belongs to another key.
    """
    state = joint.State.load(path) if os.path.lexists(path) else joint.State()
    state.use(question.watermark.on(question.lm.model), question.keys)
    return state
