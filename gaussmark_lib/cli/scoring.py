"""What ``gaussmark detect`` computes for a batch of texts: plainly, as a stream that remembers its
answers, or for all users of a codebook.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gaussmark_lib import joint, models, perturb, score, tokens, tracing, verdict
from gaussmark_lib.cli import inputs
from gaussmark_lib.cli.answers import Row
from gaussmark_lib.cli.inputs import Item
from gaussmark_lib.cli.keys import codebook_of
from gaussmark_lib.errors import DegenerateScoreError, GaussMarkError
from gaussmark_lib.keys import Key
from gaussmark_lib.tracing.authors import windows

Windows = tuple[list[list[int]], list[list[int]]]  # prompts and responses that fit the context
CONTROL = 2**64  # seed of a key that nobody writes with: what the test says of a wrong key
FIELDS = ["key_id", "psi", "p_value", "log10_p", "p_given", "e_value", "n_tokens"]
OF_STREAM = ["innovation", "residual", "log_e", "repeats"]
PENDING, GIVEN = "pending", "given"  # notes of a stream's state


class Scoring:
    """Calling it with a batch of items gives each one's rows: one per key, or one with an
    ``error``.
    """

    def __init__(
        self,
        key_files: Sequence[str],
        model: str,
        prompt: str,
        *,
        level: float,
        share: float,
        codebook: str | None,
        state_file: Path | None,
        given: Sequence[str],
    ):
        self.keys = [Key.load(file) for file in key_files]
        self.wm = _one_watermark(self.keys)  # refuses unbound keys before the model is loaded
        self.sigma = self.keys[0].binding.sigma_carried or self.wm.sigma
        self.book = codebook_of(codebook, self.keys[0]) if codebook is not None else None
        self.state_file = state_file
        self.state = _state(state_file) if state_file or given else None
        tokens.check_text(prompt, "prompt")
        self.prompt, self.level, self.share = prompt, level, share
        self.per_text = len(self.keys)
        self.lm = models.load(model)
        if self.state:
            self.state.use(self.wm.on(self.lm.model), self.keys)  # refuses another key's state
        references = _references(given)
        self.given = self._new(references)
        self._asked = [  # all that makes an answer, beside its text
            models.digest(self.lm.model),
            [key.fingerprint for key in self.keys],
            prompt,
            level,
            [self.book.n_users, self.book.n_base] if self.book else None,
            [share, [item.digest for item in references]] if self.state else None,
        ]

    def digest(self, item: Item) -> str:
        """Whether a result is of this text, tested as here: sixteen hexadecimal digits."""
        return inputs.digest([item.digest, *self._asked])

    def __call__(self, items: Sequence[Item]) -> list[list[Row]]:
        # answers that the state has counted, and that a killed process may not have given
        pending = dict(self.state.notes.get(PENDING, [])) if self.state else {}
        answers = [pending.get(self._question(item)) for item in items]
        new = {i: self._encoded(item) for i, item in enumerate(items) if answers[i] is None}
        ready = {i: texts for i, texts in new.items() if not isinstance(texts, str)}
        scored = dict(zip(ready, self._scored(list(ready.values())), strict=True))
        for i, texts in new.items():
            rows = scored.get(i, [{"error": texts}])
            answers[i] = [{"text": items[i].name} | row for row in rows]
        if self.state_file:  # on the disk before anybody sees an answer
            questions = map(self._question, items)
            self.state.notes[PENDING] = [
                list(pair) for pair in zip(questions, answers, strict=True)
            ]
            self.state.save(self.state_file)
        return answers

    def _question(self, item: Item) -> str:
        return f"{item.name} {self.digest(item)}"

    def _encoded(self, item: Item) -> Windows | str:
        """Prompt and text as token ids, in windows where the text is longer than the context; or
        why not.
        """
        try:
            if item.error:
                return item.error
            prompt = self.prompt if item.prompt is None else item.prompt
            before, ids = self.lm.prompt(prompt) if prompt else [], self.lm.encode(item.text)
            if not self.state:
                return windows(self.lm.model, before, ids)
            before = tokens.checked_prompt(self.lm.model, before, "the prompt")
            tokens.checked_response(self.lm.model, before, ids, "the text")
            return [before], [ids]  # a stream's law is that of uncut texts
        except GaussMarkError as error:
            return str(error).removeprefix("the text: ")  # who reads it is told the file's name

    def _scored(self, texts: Sequence[Windows]) -> list[list[Row]]:
        short = [(prompts[0], responses[0]) for prompts, responses in texts if len(prompts) == 1]
        of_short = self._users if self.book else self._tested
        rows = iter(of_short(short) if short else [])
        return [next(rows) if len(text[0]) == 1 else self._long(*text) for text in texts]

    def _tested(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[Row]]:
        prompts, responses = zip(*pairs, strict=True)
        texts = self.lm.model, prompts, responses, self.wm
        if self.state:
            given, self.given = self.given, None
            memory = {"share": self.share, "state": self.state, "given": given}
            table = joint.sequence(*texts, self.keys, **memory, on_error="record")
        else:
            table = score.score(*texts, self._keys_and_control(), on_error="record")
        return [self._rows(of_text) for _, of_text in table.groupby("text")]

    def _users(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[Row]]:
        """Which user each text leans to; where one has no gradient, one after another."""
        try:
            prompts, responses = map(list, zip(*pairs, strict=True))
            table = tracing.attribute(self.lm.model, prompts, responses, self.wm, self.book)
        except DegenerateScoreError as error:
            if len(pairs) == 1:
                return [[{"error": str(error)}]]
            return [self._users([pair])[0] for pair in pairs]
        return [[self._row_of_user(row)] for row in table.to_dict("records")]

    def _long(self, prompts: list[list[int]], responses: list[list[int]]) -> list[Row]:
        """The rows of a text that is longer than the context: its windows are tested as one, by
        their summed gradient.
        """
        texts = self.lm.model, prompts, responses, self.wm
        try:
            if self.book:
                table = tracing.attribute(*texts, self.book, together=True, batch_size=1)
                rows = [self._row_of_user(table.iloc[0].to_dict())]
            else:
                table = tracing.author(*texts, self._keys_and_control(), batch_size=1)
                rows = self._rows(table.assign(error=None))
        except DegenerateScoreError as error:
            return [{"error": str(error)}]
        return [row | {"windows": len(prompts)} for row in rows]

    def _keys_and_control(self) -> list[Key]:
        control = Key.from_seed(CONTROL)
        others = [control] if control.secret not in [key.secret for key in self.keys] else []
        return self.keys + others

    def _rows(self, of_text: Any) -> list[Row]:
        """One row per key of a text's scores, which may have a control key's behind them."""
        if isinstance(of_text["error"].iloc[0], str):
            return [{"error": of_text["error"].iloc[0]}]
        if "p_given" not in of_text:
            # e = exp(λψ − λ²/2) with λ = σ‖G‖: mean 1 over keys, large where marked as predicted
            shift = self.sigma * of_text["grad_norm"]
            log_e = shift * of_text["psi"] - shift**2 / 2
            of_text = of_text.assign(p_given=None, e_value=np.exp(np.minimum(log_e, 709)))
        fields = FIELDS + [name for name in OF_STREAM if name in of_text]
        of_keys = of_text.to_dict("records")
        control = of_keys[self.per_text]["p_value"] if len(of_keys) > self.per_text else None
        return [
            {name: _plain(row[name]) for name in fields}
            | verdict.of(row, self.sigma, self.level, control)
            for row in of_keys[: self.per_text]
        ]

    def _row_of_user(self, row: Row) -> Row:
        right = tracing.share_right(
            self.sigma * row["grad_norm"], self.book.n_users, self.book.n_base
        )
        short = (
            f"{row['n_tokens']} tokens: {right:.0%} of marked texts of this length are named"
            " rightly"
        )
        fields = {name: _plain(row[name]) for name in ("user", "psi", "runner_up", "n_tokens")}
        warnings = [short] if right < verdict.ENOUGH else []
        key_id, p = self.keys[0].key_id, _plain(row["p_family"])
        return {"key_id": key_id, "p_value": p, **fields, "warnings": warnings}

    def _new(self, texts: Sequence[Item]) -> tuple[list, list] | None:
        """Prompts and texts of the references that the state is to remember before the first text;
        none where it does already.
        """
        digests = [self.prompt, *(item.digest for item in texts)]
        if not texts or self.state.notes.get(GIVEN) == digests:
            return None
        encoded = [self._encoded(item) for item in texts]
        for item, windows_or_error in zip(texts, encoded, strict=True):
            if isinstance(windows_or_error, str):
                raise GaussMarkError(f"--given: {item.name}: {windows_or_error}")
        self.state.notes[GIVEN] = digests  # saved with the first answers, not before
        return [prompts[0] for prompts, _ in encoded], [responses[0] for _, responses in encoded]


def _references(names: Sequence[str]) -> list[Item]:
    texts = list(inputs.items(names))
    if names and not texts:
        raise GaussMarkError(f"--given: expected at least one text, got none in {', '.join(names)}")
    return texts


def _state(path: Path | None) -> joint.State:
    return joint.State.load(path) if path and os.path.lexists(path) else joint.State()


def _one_watermark(keys: Sequence[Key]) -> perturb.Watermark:
    """The watermark that all keys are for."""
    if len({key.secret for key in keys}) < len(keys):
        names = ", ".join(key.key_id for key in keys)
        raise GaussMarkError(f"--key: expected different keys, got one twice: {names}")
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
