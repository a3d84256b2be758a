"""What ``detect`` and ``generate`` do with a batch of texts: test them plainly, as a stream that
remembers its answers, by the rule for strangers, or for all users of a codebook; and continue
prompts on a marked model.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from gaussmark_lib import generate, models, perturb, score, tokens
from gaussmark_lib.beyond import channel, joint, promise, tracing
from gaussmark_lib.beyond.joint.state import identity
from gaussmark_lib.beyond.tracing.authors import windows
from gaussmark_lib.engine import checkpoints, typography
from gaussmark_lib.errors import DegenerateScoreError, GaussMarkError
from gaussmark_lib.keys import Key
from gaussmark_lib.workbench import verdict
from gaussmark_lib.workbench.cli import inputs
from gaussmark_lib.workbench.cli.answers import DIGEST, Row
from gaussmark_lib.workbench.cli.inputs import Item, digest, visible

Windows = tuple[list[list[int]], list[list[int]]]  # prompts and responses that fit the context
CONTROL = 2**64  # seed of a key that nobody writes with: what the test says of a wrong key
FIELDS = ["key_id", "psi", "p_value", "log10_p", "p_given", "e_value", "n_tokens"]
OF_STREAM = ["innovation", "residual", "log_e", "repeats"]
MOST_DIGITS = 30  # that are read of a number of users; a codebook refuses fewer
AGAIN = "The stream has had this text before: this is its answer again, and no new evidence."
PENDING, GIVEN = "pending", "given"  # notes of a stream's state


def tried(
    items: Sequence[Item],
    encode: Callable[[Item], Any],
    answer: Callable[[Mapping[int, Any]], Sequence[list[Row]]],
) -> list[list[Row]]:
    """The rows of each item: those of ``answer`` where ``encode`` takes the item, or an
    ``error``.
    """
    rows, encoded = {}, {}
    for item in items:
        try:
            encoded[item.row] = encode(item)
        except GaussMarkError as error:  # who reads it is told the item's name
            why = re.sub("^(prompt|response|text) 0: ", "", str(error))
            rows[item.row] = [{"error": why}]
    if encoded:
        rows |= zip(encoded, answer(encoded), strict=True)
    return [rows[item.row] for item in items]


@dataclass
class Scoring:
    """Of each text one row per key."""

    key_files: Sequence[Path]
    model: str
    prompt: str
    level: float
    share: float
    codebook: str | None
    state_file: Path | None
    given: Sequence[str]  # names of reference texts
    edited: float | None  # of the direction, ``channel``
    alone: bool  # one text, of which more is said

    done = "scored"
    promises: ClassVar[bool] = True  # whether an answer says what to expect of marked texts
    hidden: ClassVar[frozenset[str]] = frozenset()  # fields that only a file of answers has
    results = "results of these texts with this model, these keys, this prompt and level"

    def __post_init__(self):
        self.keys = [Key.load(file) for file in self.key_files]
        self.per_text = len(self.keys)
        # refuses unbound keys before the model is loaded
        self.wm, *_ = [key.watermark for key in self.keys]
        shares = {key.binding.edited for key in self.keys} if self.edited is None else {self.edited}
        if len(shares) > 1:
            raise GaussMarkError(
                f"--key: expected keys for one share of exchanged tokens, got {sorted(shares)}; say"
                " --edited SHARE"
            )
        [exchanged] = shares
        self.edited = channel.share(exchanged, "--edited")
        self.sigma = self.keys[0].binding.sigma_carried or self.wm.sigma
        self.book = codebook_of(self.codebook, self.keys[0]) if self.codebook is not None else None
        self.state = None
        if self.state_file or self.given:
            is_old = self.state_file and os.path.lexists(self.state_file)
            self.state = joint.State.load(self.state_file) if is_old else joint.State()
        tokens.check_text(self.prompt, "prompt")
        self.lm = models.load(self.model)
        self.token_weights = channel.weights(self.lm.model, self.edited)
        self.assumed = {"model": self.lm.title, "weight": self.wm.weight, "edited": self.edited}
        self.asked = [
            checkpoints.digest(self.lm.model),
            [key.fingerprint for key in self.keys],
            self.prompt,
            self.level,
            self.edited,
            [self.book.n_users, self.book.n_base] if self.book else None,
        ]
        if self.state:
            self.state.use(self.wm.on(self.lm.model), self.keys)  # refuses another key's state
            references = list(inputs.items(self.given))
            self.references = self._new(references) if self.given else None
            self.asked += [self.share, [digest(item, []) for item in references]]

    def close(self) -> None:
        """Whoever has a file for this process alone gives it back."""

    def about(self, item: Item) -> Row:
        return {"text": item.name, **self.assumed, "prompt": self._prompt(item)}

    def answers(self, items: Sequence[Item], advance: Callable[[int], object]) -> list[list[Row]]:
        questions = [digest(item, self.asked) for item in items]
        # answers that the state has counted, and that a killed process may not have given
        known = dict(self.state.notes.get(PENDING, {})) if self.state else {}
        new = {q: item for q, item in zip(questions, items, strict=True) if q not in known}
        rows = tried(list(new.values()), self._encoded, self._scored)
        for item, of_item in zip(new.values(), rows, strict=True):
            for row in of_item:
                if "error" not in row:
                    row["warnings"] = [*row["warnings"], *self._remarks(item)]
        known |= zip(new, rows, strict=True)
        if self.state_file:  # on the disk before anybody sees an answer
            self.state.notes[PENDING] = {question: known[question] for question in questions}
            self.state.save(self.state_file)
        advance(len(items))
        return [known[question] for question in questions]

    def sentence(self, row: Row, *, alone: bool) -> str:
        """Sentences on a text alone; of several, one line for each."""
        sentences = verdict.sentences(row)
        if alone:
            return "\n".join(sentences)
        return "; ".join([f"{visible(row['text'])}: {sentences[0]}", *row["warnings"]])

    def _remarks(self, item: Item) -> list[str]:
        """What to say of a text's characters, in one sentence or none."""
        remark = typography.remark(item.text)
        if remark is None:
            return []
        return [
            f"{remark}; a word processor may have put them there. --normalise also tests the text"
            " with plain ones."
        ]

    def _prompt(self, item: Item) -> str:
        return self.prompt if item.prompt is None else item.prompt

    def _encoded(self, item: Item) -> Windows:
        """Prompt and text as token ids, in windows where the text is longer than the context."""
        prompt = self._prompt(item)
        before = self.lm.prompt(prompt) if prompt else self.lm.unknown_prompt()
        ids = self.lm.encode(item.valid())
        if not self.state:
            return windows(self.lm.model, before, ids)
        [(before, ids)] = tokens.Reader(self.lm.model).pairs([before], [ids]).values()
        return [before], [ids]  # a stream's law is that of uncut texts

    def _scored(self, encoded: Mapping[int, Windows]) -> list[list[Row]]:
        short = [text for text in encoded.values() if len(text[0]) == 1]
        of_short = self._users if self.book else self._tested
        pairs = [[windows[0] for windows in part] for part in zip(*short, strict=True)]
        rows = iter(of_short(*pairs) if short else [])
        return [
            next(rows) if len(text[0]) == 1 else self._together(*text) for text in encoded.values()
        ]

    def _tested(self, prompts: list[list[int]], responses: list[list[int]]) -> list[list[Row]]:
        texts = self.lm.model, prompts, responses, self.wm
        if self.state:
            given, self.references = self.references, None
            table = joint.sequence(
                *texts,
                self.keys,
                share=self.share,
                state=self.state,
                given=given,
                token_weights=self.token_weights,
                on_error="record",
            )
        else:
            keys = self._keys_and_control()
            table = score.score(*texts, keys, token_weights=self.token_weights, on_error="record")
        if self.promises:
            table = table.merge(self._promised(prompts, responses), on="text")
        return [self._rows(of_text) for _, of_text in table.groupby("text")]

    def _promised(self, prompts: list[list[int]], responses: list[list[int]]) -> pd.DataFrame:
        """What each text promises, by its number: one more forward and backward pass."""
        found = promise.table(
            self.lm.model,
            prompts,
            responses,
            self.wm,
            token_weights=self.token_weights,
            unknown_prompt=self.lm.unknown_prompt(),
        )
        return found.drop(columns="n_tokens")

    def _users(self, prompts: list[list[int]], responses: list[list[int]]) -> list[list[Row]]:
        """Which user each text leans to; where one has no gradient, one after another."""
        texts = self.lm.model, prompts, responses, self.wm
        try:
            table = tracing.attribute(*texts, self.book, token_weights=self.token_weights)
        except DegenerateScoreError:
            pairs = zip(prompts, responses, strict=True)
            return [self._together([prompt], [response]) for prompt, response in pairs]
        table = table.merge(self._promised(prompts, responses), on="text")
        return [[self._row_of_user(row)] for row in table.to_dict("records")]

    def _together(self, prompts: list[list[int]], responses: list[list[int]]) -> list[Row]:
        """The rows of a text that is longer than the context: its windows are tested as one, by
        their summed gradient.
        """
        texts = self.lm.model, prompts, responses, self.wm
        settings = {"token_weights": self.token_weights, "batch_size": 1}
        promised = {}
        if self.promises:
            of_windows = promise.table(*texts, **settings, unknown_prompt=self.lm.unknown_prompt())
            promised = promise.together(of_windows)
        try:
            if self.book:
                table = tracing.attribute(*texts, self.book, together=True, **settings)
                rows = [self._row_of_user(row | promised) for row in table.to_dict("records")]
            else:
                table = tracing.author(*texts, self._keys_and_control(), **settings)
                rows = self._rows(table.assign(error=None, **promised))
        except DegenerateScoreError as error:
            return [{"error": str(error)}]
        return [row | ({"windows": len(prompts)} if len(prompts) > 1 else {}) for row in rows]

    def _keys_and_control(self) -> list[Key]:
        return [*self.keys, Key.from_seed(CONTROL)]

    def _rows(self, of_text: Any) -> list[Row]:
        """One row per key of a text's scores, which may have a control key's behind them."""
        if isinstance(of_text["error"].iloc[0], str):
            return [{"error": of_text["error"].iloc[0]}]
        control = None
        if not self.state:
            # e = exp(λψ − λ²/2) with λ = σ‖G‖: mean 1 over keys, large where marked as predicted
            shift = self.sigma * of_text["grad_norm"]
            log_e = shift * of_text["psi"] - shift**2 / 2
            of_text = of_text.assign(p_given=None, e_value=np.exp(np.minimum(log_e, 709)))
            control = of_text["p_value"].iloc[-1]
        fields = FIELDS + OF_STREAM if self.state else FIELDS
        rows = []
        for scores in of_text.to_dict("records")[: self.per_text]:
            row = {name: _plain(scores[name]) for name in fields}
            if self.promises:
                row |= verdict.of(scores, self.sigma, self.level, control)
                if row.get("repeats", -1) >= 0:
                    row["warnings"].append(AGAIN)
            rows.append(row)
        return rows

    def _row_of_user(self, row: Row) -> Row:
        warnings = verdict.cautions(row)
        if not warnings:
            mean = promise.mean_psi(row["information"], row["grad_norm"], self.sigma)
            right = tracing.share_right(float(mean), self.book.n_users, self.book.n_base)
            if right < verdict.ENOUGH:
                length = f"{row['n_tokens']} tokens"
                named_rightly = f"{right:.0%} of marked texts of this length are named rightly"
                warnings = [f"{length}: {named_rightly}"]
        named = {"key_id": self.keys[0].key_id, "p_value": _plain(row["p_family"])}
        named |= {name: _plain(row[name]) for name in ("user", "psi", "runner_up", "n_tokens")}
        return named | {"warnings": warnings}

    def _new(self, references: Sequence[Item]) -> Windows | None:
        """Prompts and texts of the references, which the state is to remember before the first
        text; None where it does already.
        """
        if not references:
            raise GaussMarkError("--given: expected at least one text, got none")
        digests = [digest(item, [self.prompt]) for item in references]
        if self.state.notes.get(GIVEN) == digests:
            return None
        self.state.notes[GIVEN] = digests  # saved with the first answers, not before
        texts = []
        for item in references:
            try:
                texts.append(self._encoded(item))
            except GaussMarkError as error:
                raise GaussMarkError(f"--given: {item.name}: {error}") from None
        return [before for [before], _ in texts], [ids for _, [ids] in texts]


@dataclass
class Answering(Scoring):
    """Of each text one word, by the rule of ``joint.public``."""

    public: str

    done, hidden, promises = "answered", frozenset([DIGEST]), False

    def __post_init__(self):
        super().__post_init__()
        asked = identity(*perturb.ready(self.lm.model, self.wm, self.keys))
        asked["edited"] = self.edited
        self.questions = joint.Public(self.public, self.level, asked)

    def close(self) -> None:
        self.questions.close()

    def about(self, item: Item) -> Row:
        return {"name": item.name}

    def answers(self, items: Sequence[Item], advance: Callable[[int], object]) -> list[list[Row]]:
        rows = tried(items, self._encoded, self._answered)
        advance(len(items))
        return rows

    def _answered(self, encoded: Mapping[int, Windows]) -> list[list[Row]]:
        return [
            [row if "error" in row else {"verdict": self._verdict(*text, row["p_value"])}]
            for text, [row] in zip(encoded.values(), self._scored(encoded), strict=True)
        ]

    def _verdict(self, prompts: list[list[int]], responses: list[list[int]], p: float) -> str:
        ids = [token for window in responses for token in window]
        text = hashlib.sha256(json.dumps([prompts[0], ids]).encode()).hexdigest()
        is_detected = self.questions.answer(text, joint.public.runs(ids), p)
        return "detected" if is_detected else "not detected"

    def sentence(self, row: Row, *, alone: bool) -> str:
        return row["verdict"] if alone else f"{visible(row['name'])}: {row['verdict']}"


def codebook_of(name: str, key: Key) -> tracing.Codebook:
    """The codebook of a file, or of this number of users."""
    if name.isdecimal() and not os.path.exists(name):
        return tracing.Codebook(key, int(name[:MOST_DIGITS]))
    return tracing.Codebook.load(name, key)


def _plain(value: Any) -> Any:
    """None in place of NaN, which JSON has not."""
    return None if value != value else value


@dataclass
class Writing:
    """Of each prompt one row, with the text that continues it on a model that carries the
    watermark.
    """

    lm: models.LM
    key: Key
    n_tokens: int
    until_end: bool
    seed: int
    top_p: float
    temperature: float
    batch: int

    done, per_text, hidden = "written", 1, frozenset()
    results = "texts of these prompts, with this model, this key and these options"

    def __post_init__(self):
        self.options = {"top_p": self.top_p, "temperature": self.temperature}
        generate.sample(self.lm.model, [[0]], 1, batch_size=self.batch, **self.options)  # refuses
        made_by = [self.n_tokens, self.until_end, self.seed, self.top_p, self.temperature]
        self.asked = [*made_by, self.key.fingerprint, checkpoints.digest(self.lm.model)]

    def about(self, item: Item) -> Row:
        of_key = {"key_id": self.key.key_id, "seed": self.seed}
        return {"text": None, "name": item.name, "prompt": item.text, **of_key}

    def sentence(self, row: Row, *, alone: bool) -> str:
        return row["text"] if alone else f"[{visible(row['name'])}]\n{row['text']}\n"

    def answers(self, items: Sequence[Item], advance: Callable[[int], object]) -> list[list[Row]]:
        return tried(items, self._encoded, partial(self._continued, advance))

    def _encoded(self, item: Item) -> list[int]:
        text = item.valid()
        ids = self.lm.prompt(text) if text or self.lm.is_chat else []
        return tokens.Reader(self.lm.model).prompt(ids, n=self.n_tokens)

    def _continued(
        self, advance: Callable[[int], object], prompts: Mapping[int, list[int]]
    ) -> list[list[Row]]:
        """Each row draws from a stream of its own, whatever the batch."""
        texts = generate.sample(
            self.lm.model,
            list(prompts.values()),
            self.n_tokens,
            seed=self.seed,
            rows=list(prompts),
            until_end=self.until_end,
            batch_size=self.batch,
            **self.options,
            on_step=lambda *_: advance(len(prompts)),
        )
        return [[{"text": self.lm.decode(ids), "n_tokens": len(ids)}] for ids in texts]
