"""``gaussmark generate``: text under a key's watermark, for one prompt or for a file of them.

One prompt: its text is printed, and nothing else. Several: each under its name, or with ``--json``
a JSON line each, which ``detect`` takes as it is; a prompt that cannot be continued gets its
reason, and the others go on. With ``--out`` every batch is on the disk before the next one begins,
and the same command again goes on behind the last of them. What is written does not depend on the
batches: row i draws from a stream of its own.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gaussmark_lib.cli.common import AsJson, KeyFile, Lines, Model, Out, visible
from gaussmark_lib.errors import GaussMarkError

if TYPE_CHECKING:
    from gaussmark_lib.cli.answers import Row
    from gaussmark_lib.cli.inputs import Item
    from gaussmark_lib.models import LM

MOST_AT_ONCE, MOST_TOKENS = 10_000, 1_000_000  # texts of a batch, tokens of a text
EXIT = (
    "Exit codes: 0 all texts were written; 1 failed; 2 refused; 3 some prompts could not be"
    " continued, and all others were; 130 interrupted."
)
WHAT = "texts of these prompts, with this model, this key and these options"


def add(app: typer.Typer) -> None:
    app.command(epilog=EXIT)(generate)


def generate(
    key: KeyFile,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT", help="A text to be continued; - reads one from standard input."
        ),
    ] = None,
    model: Model = "doclm",
    file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Prompts: a file is one, a .jsonl file has one per line (`prompt`), a folder has"
            " such files; may be repeated.",
        ),
    ] = None,
    jsonl: Lines = False,
    tokens: Annotated[
        int, typer.Option(metavar="N", min=1, max=MOST_TOKENS, help="Tokens of each text.")
    ] = 200,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End a text where the model ends it, if earlier.")
    ] = False,
    temperature: Annotated[
        float, typer.Option(metavar="T", help="0 takes the most likely token.")
    ] = 1.0,
    top_p: Annotated[
        float,
        typer.Option(
            metavar="P", help="Leave out the least likely tokens, beyond this probability."
        ),
    ] = 1.0,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Of the random numbers that choose tokens; not of the key."
        ),
    ] = 0,
    out: Out = None,
    batch: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=MOST_AT_ONCE, help="Texts that are written together."),
    ] = 16,
    as_json: AsJson = False,
) -> int:
    """Write text that carries a key's watermark."""
    prompts, files = list(prompts or ()), list(file or ())
    if not prompts and not files:
        raise GaussMarkError(
            "expected a prompt to continue, or more: PROMPTs, - for standard input, or --file"
        )
    for prompt in prompts:
        if os.path.exists(prompt) and ("." in prompt[1:] or os.sep in prompt):
            raise GaussMarkError(
                f"expected a prompt, got the name of a file, {visible(prompt)}; to continue what is"
                " in it, say --file"
            )

    from gaussmark_lib import models, perturb
    from gaussmark_lib.cli import answers, inputs
    from gaussmark_lib.keys import Key
    from gaussmark_lib.runs.ask import stoppable

    inputs.check_stdin([*prompts, *files], jsonl, "prompts")
    if out is not None:
        inputs.refuse_among(out, files)
    items = list(_items(prompts, files, jsonl))
    stdin = ["-"] if "-" in prompts else []
    many = len(items) != 1 or inputs.are_many([*files, *stdin], lines=jsonl)
    if items and items[0].error and not many:
        raise GaussMarkError(items[0].error)
    carried = Key.load(key)
    watermark = carried.watermark  # refuses an unbound key before the model is loaded
    options = {"temperature": temperature, "top_p": top_p, "seed": seed}

    def show(row: "Row") -> None:
        if as_json:
            print(json.dumps(row))
        elif "error" not in row:
            print(f"[{visible(row['name'])}]\n{row['text']}\n" if many else row["text"])

    with stoppable(), ExitStack() as stack:
        lm = models.load(model)
        writer = Writer(lm, tokens, until_end, batch, carried.key_id, **options)
        made_by = [tokens, *options.values(), until_end, carried.fingerprint]
        made_by += [models.digest(lm.model)]
        items = [item._replace(row=row) for row, item in enumerate(items)]
        stack.enter_context(perturb.watermarked(lm.model, watermark, carried))
        kept = stack.enter_context(answers.Kept(out, 1, WHAT)) if out is not None else None
        work = answers.Work(
            [*prompts, *files],
            "written",
            lambda batch: writer(batch, work.bar.update),
            show,
            many,
            lambda item: inputs.digest([item.digest, item.row, *made_by]),
        )
        total = len(items) * tokens
        return work.all(iter(items), batch, kept, desc="writing", unit=" tokens", total=total)


def _items(prompts: Sequence[str], files: Sequence[str], jsonl: bool) -> "Iterator[Item]":
    from gaussmark_lib.cli import inputs

    of_files = inputs.items(files, lines=jsonl, field="prompt")  # checks names before it reads
    for number, prompt in enumerate(prompts, 1):
        if prompt == "-":
            yield from inputs.items(["-"], lines=jsonl, field="prompt")
        else:
            yield inputs.Item(f"prompt {number}", prompt)
    yield from of_files


class Writer:
    """Continues a batch of prompts on a model that carries the watermark: a row for each, with a
    text or an error.
    """

    def __init__(
        self, lm: "LM", n_tokens: int, until_end: bool, batch: int, key_id: str, **options: Any
    ):
        from gaussmark_lib import generate

        self.lm, self.n_tokens, self.until_end, self.key_id = lm, n_tokens, until_end, key_id
        self.seed = options["seed"]
        self.options = options["top_p"], options["temperature"], batch
        generate.checked(lm.model, [[0]], 1, *self.options)  # before anything is written

    def __call__(self, batch: Sequence["Item"], advance: Any) -> list[list["Row"]]:
        prompts = {item.row: self._encoded(item) for item in batch}
        ready = {row: ids for row, ids in prompts.items() if not isinstance(ids, str)}
        texts = dict(zip(ready, self._continued(ready, advance), strict=True)) if ready else {}
        return [[self._row(item, texts.get(item.row), prompts[item.row])] for item in batch]

    def _encoded(self, item: "Item") -> list[int] | str:
        """The prompt's token ids, or why it cannot be continued."""
        from gaussmark_lib import generate

        if item.error:
            return item.error
        try:
            ids = self.lm.prompt(item.text) if item.text else []
            return generate.checked(self.lm.model, [ids], self.n_tokens, *self.options)[0]
        except GaussMarkError as error:
            return str(error).removeprefix("prompt 0: ")  # who reads it is told its name

    def _continued(self, ready: dict[int, list[int]], advance: Any) -> list[list[int]]:
        from gaussmark_lib import generate

        top_p, temperature, batch = self.options
        return generate.sample(
            self.lm.model,
            list(ready.values()),
            self.n_tokens,
            seed=self.seed,
            rows=list(ready),
            until_end=self.until_end,
            top_p=top_p,
            temperature=temperature,
            batch_size=batch,
            on_step=lambda *_: advance(len(ready)),
        )

    def _row(self, item: "Item", ids: list[int] | None, error: Any) -> "Row":
        written = {"text": None} if ids is None else {"text": self.lm.decode(ids)}
        about = {"name": item.name, "prompt": item.text, "key_id": self.key_id, "seed": self.seed}
        return written | about | ({"error": error} if ids is None else {"n_tokens": len(ids)})
