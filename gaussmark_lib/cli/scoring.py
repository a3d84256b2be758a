"""What ``gaussmark detect`` computes for a batch of texts: plainly, as a stream that remembers its
answers, or for all users of a codebook.
"""

import argparse
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gaussmark_lib import files, models, perturb, score, stats, tokens, tracing
from gaussmark_lib.cli import inputs
from gaussmark_lib.cli.answers import LAST, Row
from gaussmark_lib.cli.inputs import Item
from gaussmark_lib.cli.keys import codebook
from gaussmark_lib.errors import DegenerateScoreError, GaussMarkError, GaussMarkWarning
from gaussmark_lib.experiments.played import ENOUGH
from gaussmark_lib.keys import Key
from gaussmark_lib.tracing.windows import windows

Windows = tuple[
    list[list[int]], list[list[int]]
]  # prompts and responses of one text, a pair a window of the context
CONTROL = (
    2**64
)  # seed of a key that nobody writes with: beside each answer, what the test says of a wrong key
FIELDS = ["key_id", "psi", "p_value", "log10_p", "p_given", "e_value", "n_tokens"]
VERDICT = ["verdict", "level", "power", "control_p_value", "warnings"]
OF_STREAM = ["innovation", "residual", "log_e", "repeats"]
PENDING, GIVEN = "pending", "given"  # notes of a stream's state


class Scoring:
    """Calling it with a batch of items gives each one's rows: one a key, or one with an
    ``error``.
    """

    def __init__(self, arguments: argparse.Namespace, prompt: str):
        self.keys = [Key.load(file) for file in arguments.key]
        self.wm = _one_watermark(self.keys)  # refuses unbound keys before the model is loaded
        self.book = (
            codebook(arguments.codebook, self.keys[0]) if arguments.codebook is not None else None
        )
        self.state_file = (
            files.named(arguments.stream, "--stream", GaussMarkError)
            if arguments.stream is not None
            else None
        )
        self.state = _state(self.state_file) if self.state_file or arguments.given else None
        tokens.check_text(prompt, "prompt")
        self.prompt, self.share, self.per_text = prompt, arguments.share, len(self.keys)
        self._said: set[str] = set()
        self._unsaid: list[str] = []
        self.lm = models.load(arguments.model)
        self.level, controls = (
            arguments.level,
            ([] if self.book or self.state else [Key.from_seed(CONTROL)]),
        )
        self.tested = self.keys + [
            key for key in controls if key.secret not in [own.secret for own in self.keys]
        ]
        self.xis = (
            None if self.book else score.Noises(self.wm.on(self.lm.model), self.tested).held
        )  # None where they are too many to hold
        self.sigma = self.keys[0].binding.sigma_carried or self.wm.sigma
        if self.state:
            self.state.use(
                self.wm.on(self.lm.model), self.keys
            )  # refuses another key's state before any answer
        references = _references(arguments.given)
        self.given = self._new(references)
        self._asked = [  # all that makes an answer, beside its text
            models.digest(self.lm.model),
            [key.fingerprint for key in self.keys],
            prompt,
            arguments.level,
            [self.book.n_users, self.book.n_base] if self.book else None,
            [arguments.share, [item.digest for item in references]] if self.state else None,
        ]

    def __call__(self, items: Sequence[Item]) -> list[list[Row]]:
        pending = self._pending()
        found: dict[int, list[Row]] = {
            i: pending[name] for i, name in enumerate(map(self._question, items)) if name in pending
        }
        ready: dict[int, Windows] = {}
        for i, item in enumerate(items):
            if i not in found:
                encoded = self._encoded(item)
                if isinstance(encoded, str):
                    found[i] = [{"text": item.name, "error": encoded}]
                else:
                    ready[i] = encoded
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", GaussMarkWarning)
            scored = self._scored(list(ready.values())) if ready else []
        noted = list(
            dict.fromkeys(
                str(each.message) for each in caught if issubclass(each.category, GaussMarkWarning)
            )
        )
        self._unsaid += [text for text in noted if text not in self._said]
        self._said.update(noted)
        for i, rows in zip(ready, scored, strict=True):
            found[i] = [{"text": items[i].name} | row for row in rows]
        answers = [
            [row | {LAST: self.digest(item)} for row in found[i]] for i, item in enumerate(items)
        ]
        if self.state_file:  # on the disk before anybody sees an answer
            self.state.notes[PENDING] = [
                [self._question(item), rows] for item, rows in zip(items, answers, strict=True)
            ]
            self.state.save(self.state_file)
        return answers

    def digest(self, item: Item) -> str:
        """What tells whether a result is of this text, tested as here: sixteen hexadecimal
        digits.
        """
        return inputs.digest([item.digest, *self._asked])

    def _question(self, item: Item) -> str:
        return f"{item.name} {self.digest(item)}"

    def new_warnings(self) -> Iterator[str]:
        """What the library warned of, each once."""
        while self._unsaid:
            yield self._unsaid.pop(0)

    def _pending(self) -> dict[str, list[Row]]:
        """Answers that the state has counted, and that a killed process may not have given."""
        pending = self.state.notes.get(PENDING, []) if self.state else []
        try:
            found = {name: [_checked(row) for row in rows] for name, rows in pending}
            if not all(found.values()):
                raise GaussMarkError("not an answer")
        except (TypeError, ValueError):
            raise GaussMarkError(
                f"{self.state_file}: expected a whole state file, got one whose answers are"
                " damaged; restore it from a copy"
            ) from None
        return found

    def _encoded(self, item: Item) -> Windows | str:
        """Prompt and text as token ids, in windows where the text is longer than the context, or
        why not.
        """
        try:
            if item.error:
                return item.error
            prompt = self.prompt if item.prompt is None else item.prompt
            before, ids = self.lm.prompt(prompt) if prompt else [], self.lm.encode(item.text)
            if not self.state:
                return windows(self.lm.model, before, ids)
            tokens.checked_response(
                self.lm.model,
                tokens.checked_prompt(self.lm.model, before, "the prompt"),
                ids,
                "the text",
            )
            return [before], [ids]  # a stream's law is that of whole texts
        except GaussMarkError as error:
            return str(error).removeprefix(
                "the text: "
            )  # who reads it is told the name of the file

    def _scored(self, texts: Sequence[Windows]) -> list[list[Row]]:
        whole = [(prompts[0], responses[0]) for prompts, responses in texts if len(prompts) == 1]
        rows = iter(self._whole(whole) if whole else [])
        return [
            next(rows) if len(prompts) == 1 else self._in_windows(prompts, responses)
            for prompts, responses in texts
        ]

    def _in_windows(self, prompts: list[list[int]], responses: list[list[int]]) -> list[Row]:
        """The rows of a text that is longer than the context: its windows are tested as one, by
        their summed gradient.
        """
        try:
            if self.book:
                table = tracing.attribute(
                    self.lm.model,
                    prompts,
                    responses,
                    self.wm,
                    self.book,
                    together=True,
                    batch_size=1,
                )
                rows = [self._row_of_user(row) for row in table.to_dict("records")]
            else:
                table = tracing.author(
                    self.lm.model, prompts, responses, self.wm, self.tested, batch_size=1
                )
                rows = self._rows(
                    table.assign(
                        p_given=None,
                        e_value=self._e_values(table["psi"], table["grad_norm"]),
                        error=None,
                    )
                )
        except DegenerateScoreError as error:
            return [{"error": str(error)}]
        return [row | {"windows": len(prompts)} for row in rows]

    def _whole(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[Row]]:
        if self.book:
            return self._named(pairs)
        prompts, responses = zip(*pairs, strict=True)
        if self.state:
            from gaussmark_lib import joint

            memory = {
                "share": self.share,
                "state": self.state,
                "given": self.given,
            }
            self.given = None
            table = joint.sequence(
                self.lm.model, prompts, responses, self.wm, self.keys, **memory, on_error="record"
            )
        else:
            table = score.score(
                self.lm.model,
                prompts,
                responses,
                self.wm,
                self.tested,
                xis=self.xis,
                on_error="record",
            )
            table = table.assign(
                p_given=None, e_value=self._e_values(table["psi"], table["grad_norm"])
            )
        return [self._rows(of_text) for _, of_text in table.groupby("text")]

    def _rows(self, of_text: Any) -> list[Row]:
        if isinstance(of_text["error"].iloc[0], str):
            return [{"error": of_text["error"].iloc[0]}]
        columns = FIELDS + [name for name in OF_STREAM if name in of_text]
        rows = [
            {name: _plain(value) for name, value in row.items()}
            for row in of_text[columns].to_dict("records")
        ]
        control = rows[len(self.keys)]["p_value"] if len(rows) > len(self.keys) else None
        power = stats.predicted_power(of_text["grad_norm"].iloc[:1], self.sigma, self.level)
        return [
            row | self._verdict(row, power) | {"control_p_value": control}
            for row in rows[: len(self.keys)]
        ]

    def _e_values(self, psi: Any, grad_norm: Any) -> Any:
        """exp(λψ − λ²/2) with λ = σ‖G‖: mean 1 where the text does not depend on the key, and large
        where it is marked as predicted.
        """
        shift = self.sigma * grad_norm
        return np.exp(np.minimum(shift * psi - shift**2 / 2, 709))

    def _verdict(self, row: Row, power: float) -> Row:
        p = row["p_value"] if row["p_given"] is None else row["p_given"]
        verdict = (
            "detected"
            if p <= self.level
            else "too short to tell"
            if power < ENOUGH
            else "not detected"
        )
        short = (
            f"{row['n_tokens']} tokens: power {power:.2f} at this length, at level {self.level:g}"
        )
        return {
            "verdict": verdict,
            "level": self.level,
            "power": power,
            "warnings": [short] if power < ENOUGH else [],
        }

    def _named(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[Row]]:
        """The rows of texts that are tested for all users; where one text's gradient does not
        exist, one after another.
        """
        try:
            table = tracing.attribute(
                self.lm.model, *map(list, zip(*pairs, strict=True)), self.wm, self.book
            )
        except DegenerateScoreError as error:
            return (
                [[{"error": str(error)}]]
                if len(pairs) == 1
                else [self._named([pair])[0] for pair in pairs]
            )
        return [[self._row_of_user(row)] for row in table.to_dict("records")]

    def _row_of_user(self, row: Row) -> Row:
        right = tracing.share_right(
            self.sigma * row["grad_norm"], self.book.n_users, self.book.n_base
        )
        short = (
            f"{row['n_tokens']} tokens: {right:.0%} of marked texts of this length are named"
            " rightly"
        )
        found = {
            "key_id": self.keys[0].key_id,
            "user": row["user"],
            "psi": row["psi"],
            "p_value": row["p_family"],
            "runner_up": row["runner_up"],
        }
        found |= {"n_tokens": row["n_tokens"], "warnings": [short] if right < ENOUGH else []}
        return {name: _plain(value) for name, value in found.items()}

    def _new(self, texts: Sequence[Item]) -> tuple[list, list] | None:
        """Prompts and texts of the references that the state is to remember before the first text;
        none where it does already.
        """
        digests = [self.prompt, *(item.digest for item in texts)]
        if not texts or self.state.notes.get(GIVEN) == digests:
            return None
        encoded = [self._encoded(item) for item in texts]
        if bad := [
            f"{item.name}: {found}"
            for item, found in zip(texts, encoded, strict=True)
            if isinstance(found, str)
        ]:
            raise GaussMarkError(f"--given: {bad[0]}")
        self.state.notes[GIVEN] = digests  # saved with the first answers, not before
        return [prompts[0] for prompts, _ in encoded], [responses[0] for _, responses in encoded]


def _references(names: Sequence[str]) -> list[Item]:
    texts = list(inputs.items(names))
    if names and not texts:
        raise GaussMarkError(f"--given: expected at least one text, got none in {', '.join(names)}")
    return texts


def _state(path: Path | None) -> Any:
    from gaussmark_lib import joint

    return joint.State.load(path) if path and os.path.lexists(path) else joint.State()


def _checked(row: Row) -> Row:
    """An answer that a state holds, itself; TypeError or ValueError for what is none."""
    row = dict(row)
    if not ("error" in row or row.keys() >= {*FIELDS, *VERDICT}):
        raise GaussMarkError("not an answer")
    return row


def _one_watermark(keys: Sequence[Key]) -> perturb.Watermark:
    """The watermark that all keys are for. GaussMarkError where they differ, or one key is there
    twice.
    """
    if twice := {
        key.key_id for key in keys if [other.secret for other in keys].count(key.secret) > 1
    }:
        raise GaussMarkError(
            f"--key: expected different keys, got {', '.join(sorted(twice))} twice"
        )
    first, *others = [key.watermark for key in keys]
    for key, other in zip(keys[1:], others, strict=True):
        if other != first:
            raise GaussMarkError(
                f"--key: expected keys of one watermark, got {first} and, of key {key.key_id},"
                f" {other}; test them one after another"
            )
    return first


def _plain(value: Any) -> Any:
    """A number as JSON has it; None where it does not exist."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
