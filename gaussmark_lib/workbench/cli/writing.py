"""``gaussmark generate``: the watermarked model continues prompts."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from gaussmark_lib import generate, tokens
from gaussmark_lib.engine import checkpoints
from gaussmark_lib.keys import Key
from gaussmark_lib.models import LM
from gaussmark_lib.workbench.cli.answers import Row, Work
from gaussmark_lib.workbench.cli.inputs import Item, visible


class Sampling(NamedTuple):
    """How texts are written."""

    n_tokens: int
    until_end: bool
    seed: int
    top_p: float
    temperature: float


class Prompt(NamedTuple):
    """A prompt as token ids."""

    item: Item
    ids: list[int]


class Writing(Work):
    """Gives each prompt one row, with its text."""

    doing: ClassVar[str] = "writing"
    done: ClassVar[str] = "written"
    unit: ClassVar[str] = " tokens"
    results: ClassVar[str] = "texts of these prompts, with this model, this key and these options"
    hidden: ClassVar[frozenset[str]] = frozenset()
    per_text = 1

    def __init__(self, lm: LM, key: Key, sampling: Sampling):
        self.lm = lm
        self.key = key
        self.sampling = sampling
        # What distinguishes these texts from others.
        self.asked: list[Any] = [*sampling, key.fingerprint, checkpoints.digest(lm.model)]

    def about(self, item: Item) -> Row:
        """Return the first fields of a row; ``text`` stands first, and is filled in later."""
        return {
            "text": None,
            "name": item.name,
            "prompt": item.text,
            "key_id": self.key.key_id,
            "seed": self.sampling.seed,
        }

    def encode(self, item: Item) -> Prompt:
        """Return the prompt as token ids; an empty prompt is allowed."""
        text = item.valid()
        ids = self.lm.prompt(text) if text or self.lm.is_chat else []
        reader = tokens.Reader(self.lm.model)
        return Prompt(item, reader.prompt(ids, n=self.sampling.n_tokens))

    def answer(
        self, prompts: Sequence[Prompt], advance: Callable[[int], object]
    ) -> list[list[Row]]:
        """Write the texts of a batch; the random numbers of a row do not depend on its batch."""
        texts = self._sampled(
            [prompt.ids for prompt in prompts],
            self.sampling.n_tokens,
            rows=[prompt.item.row for prompt in prompts],
            on_step=lambda *_: advance(len(prompts)),
        )
        return [[{"text": self.lm.decode(ids), "n_tokens": len(ids)}] for ids in texts]

    def refuse_options(self) -> None:
        """Raise the library's error for sampling options that are not valid."""
        self._sampled([[0]], 1, rows=None, on_step=None)  # one token after any prompt

    def _sampled(
        self,
        prompts: list[list[int]],
        n_tokens: int,
        rows: list[int] | None,
        on_step: Callable | None,
    ) -> list[list[int]]:
        return generate.sample(
            self.lm.model,
            prompts,
            n_tokens,
            seed=self.sampling.seed,
            rows=rows,
            until_end=self.sampling.until_end,
            batch_size=max(1, len(prompts)),
            top_p=self.sampling.top_p,
            temperature=self.sampling.temperature,
            on_step=on_step,
        )

    def sentence(self, row: Row, *, alone: bool) -> str:
        """Return the text, with the name of its prompt if there are several prompts."""
        return row["text"] if alone else f"[{visible(row['name'])}]\n{row['text']}\n"
