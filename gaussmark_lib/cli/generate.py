"""``gaussmark generate``: text under a key's watermark, for one prompt or for a file of them.

One prompt: its text is printed, and nothing else. Several: each under its name, or with ``--json``
a JSON line each, which ``detect`` takes as it is; a prompt that cannot be continued gets its
reason, and the others go on. With ``--out`` every batch is on the disk before the next one begins,
and the same command again goes on behind the last of them. What is written does not depend on the
batches: row i draws from a stream of its own.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, NamedTuple

from gaussmark_lib.cli.arguments import KEY, MODEL, PARTLY, command, visible
from gaussmark_lib.errors import GaussMarkError, GaussMarkWarning

Row = dict[str, Any]
MOST_AT_ONCE, MOST_TOKENS = 10_000, 1_000_000  # texts of a batch, tokens of a text
DELAY = 0.5  # seconds before progress is shown


class Asked(NamedTuple):
    """A prompt, or why there is none; ``row`` is its place among all, and ``digest`` tells whether
    a text is the answer to it.
    """

    name: str
    prompt: str
    error: str | None
    row: int
    digest: str


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    generate = command(
        commands, "generate", _generate, "write text that carries a key's watermark", EXIT
    )
    generate.add_argument(
        "prompts",
        metavar="PROMPT",
        nargs="*",
        help="a text to be continued; - reads one from standard input",
    )
    generate.add_argument("--key", **KEY)
    generate.add_argument("--model", **MODEL)
    what = (
        "prompts: a file is one, a .jsonl file has one a line (`prompt`), a folder has such files;"
        " may be repeated"
    )
    generate.add_argument("--file", metavar="FILE", action="append", default=[], help=what)
    generate.add_argument("--jsonl", action="store_true", help="standard input holds JSON lines")
    generate.add_argument(
        "--tokens", metavar="N", type=int, default=200, help="tokens of each text (200)"
    )
    generate.add_argument(
        "--until-end",
        action="store_true",
        help="end a text where the model ends it, if that is earlier",
    )
    generate.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        default=1.0,
        help="0 takes the most likely token (1)",
    )
    generate.add_argument(
        "--top-p",
        metavar="P",
        type=float,
        default=1.0,
        help="leave out the least likely tokens, beyond this probability (1)",
    )
    generate.add_argument(
        "--seed",
        metavar="N",
        type=int,
        default=0,
        help="of the random numbers that choose tokens; not of the key (0)",
    )
    generate.add_argument(
        "--out",
        metavar="TEXTS",
        help=(
            "write JSON lines there, for `detect`; where they are there already, go on behind the"
            " last"
        ),
    )
    generate.add_argument(
        "--batch", metavar="N", type=int, default=16, help="texts that are written together (16)"
    )
    generate.add_argument(
        "--json", action="store_true", help="print JSON, a line a text, with its prompt"
    )


EXIT = (
    "Exit codes: 0 all texts were written; 1 failed; 2 refused; 3 some prompts could not be"
    " continued, and all others were; 130 interrupted."
)


def _generate(arguments: argparse.Namespace) -> int:
    if not arguments.prompts and not arguments.file:
        raise GaussMarkError(
            "expected a prompt to continue, or more: PROMPTs, - for standard input, or --file"
        )
    if [*arguments.prompts, *arguments.file].count("-") > 1:
        raise GaussMarkError("-: expected standard input to be named once, since it is read once")
    if arguments.jsonl and "-" not in [*arguments.prompts, *arguments.file]:
        raise GaussMarkError(
            "--jsonl: expected standard input (-) among the prompts; a file of JSON lines is known"
            " by its name, .jsonl"
        )
    for prompt in arguments.prompts:
        if os.path.exists(prompt) and ("." in prompt[1:] or os.sep in prompt):
            raise GaussMarkError(
                f"expected a prompt, got the name of a file, {visible(prompt)}; to continue what is"
                " in it, say --file"
            )
    for option, most in (("batch", MOST_AT_ONCE), ("tokens", MOST_TOKENS)):
        if not 1 <= (got := getattr(arguments, option)) <= most:
            raise GaussMarkError(
                f"--{option}: expected a whole number from 1 to {most:,}, got {got}"
            )

    from gaussmark_lib import models
    from gaussmark_lib.cli import answers, inputs
    from gaussmark_lib.keys import Key
    from gaussmark_lib.runs.stopping import stoppable

    if arguments.out is not None:
        inputs.refuse_among(arguments.out, arguments.file)
    items = list(_items(arguments))
    many = len(items) != 1 or inputs.are_many(
        [*arguments.file, *(["-"] if "-" in arguments.prompts else [])], lines=arguments.jsonl
    )
    if not items:
        raise GaussMarkError(
            "expected at least one prompt, got none in"
            f" {', '.join(map(inputs.spoken, arguments.file or arguments.prompts))}"
        )
    if items[0].error and not many:
        raise GaussMarkError(items[0].error)
    key = Key.load(arguments.key)
    key.watermark  # noqa: B018 - refuses an unbound key before the model is loaded
    with stoppable(), ExitStack() as stack:
        lm = models.load(arguments.model)
        options = [
            arguments.tokens,
            arguments.temperature,
            arguments.top_p,
            arguments.seed,
            arguments.until_end,
            key.fingerprint,
            models.digest(lm.model),
        ]
        asked = [
            Asked(item.name, item.text, item.error, i, inputs.digest([item.digest, i, *options]))
            for i, item in enumerate(items)
        ]
        write = stack.enter_context(_writing(lm, arguments, key))
        what = "texts of these prompts, with this model, this key and these options"
        kept = (
            stack.enter_context(answers.Kept(arguments.out, 1, what))
            if arguments.out is not None
            else None
        )
        return _write(arguments, asked, write, kept, many)


def _items(arguments: argparse.Namespace) -> Iterator[Any]:
    from gaussmark_lib.cli import inputs

    files = inputs.items(
        arguments.file, lines=arguments.jsonl, field="prompt"
    )  # names are checked before anything is read
    for number, prompt in enumerate(arguments.prompts, 1):
        if prompt == "-":
            yield from inputs.items(["-"], lines=arguments.jsonl, field="prompt")
        else:
            yield inputs.Item(f"prompt {number}", prompt)
    yield from files


def _write(
    arguments: argparse.Namespace, asked: Sequence[Asked], write: Any, kept: Any, many: bool
) -> int:
    """Writes all texts, a batch at a time, and says how it went."""
    from tqdm import tqdm

    from gaussmark_lib.cli import inputs

    left = iter(asked)
    before, failed_before = kept.skipped(left) if kept else (0, 0)
    failed = n = 0
    total = (len(asked) - before) * arguments.tokens
    with tqdm(
        desc="writing",
        unit=" tokens",
        total=total,
        file=sys.stderr,
        leave=False,
        delay=DELAY,
        disable=None,
    ) as bar:
        for batch in iter(lambda: list(islice(left, arguments.batch)), []):
            rows = write(batch, bar.update)
            for row in (bad := [row for row in rows if "error" in row]):
                if not many:
                    raise GaussMarkError(f"{inputs.spoken(row['name'])}: {row['error']}")
                bar.write(f"gaussmark: {visible(row['name'])}: {row['error']}", file=sys.stderr)
            if kept:
                kept([[row] for row in rows])
            else:
                bar.clear()  # the texts are not to stand behind the bar
                _print(rows, as_json=arguments.json, alone=not many)
            failed, n, arguments.begun = failed + len(bad), n + len(rows), True
    if many or failed_before:
        earlier = (
            f", behind {before:,} of an earlier run, {failed_before:,} of which could not be"
            if before
            else ""
        )
        print(
            f"gaussmark: {n - failed:,} text{'s'[: n - failed != 1]} written, {failed:,} could not"
            f" be{earlier}",
            file=sys.stderr,
        )
    return PARTLY if failed + failed_before else 0


def _print(rows: Sequence[Row], *, as_json: bool, alone: bool) -> None:
    for row in rows:
        if as_json:
            print(json.dumps(row), flush=True)
        elif "error" not in row:
            print(
                row["text"] if alone else f"[{visible(row['name'])}]\n{row['text']}\n", flush=True
            )


@contextmanager
def _writing(lm: Any, arguments: argparse.Namespace, key: Any) -> Iterator[Any]:
    """What continues a batch of prompts: one row each, a text or an error. Inside, the model
    carries the watermark.
    """
    from gaussmark_lib import generate, perturb, tokens

    model, n, options = (
        lm.model,
        arguments.tokens,
        (arguments.top_p, arguments.temperature, arguments.batch),
    )
    generate.checked(
        model, [[0]], 1, *options
    )  # refuses options before anything is written; what fits is asked of each prompt
    generate.uniform(arguments.seed, 1, 1)

    def encoded(one: Asked) -> list[int] | str:
        if one.error:
            return one.error
        try:
            ids = tokens.checked_prompt(
                model, lm.prompt(one.prompt) if one.prompt else [], "the prompt"
            )
            tokens.check_fits(model, len(ids), n, "the prompt")
            return ids
        except GaussMarkError as error:
            return str(error).removeprefix("the prompt: ")  # who reads it is told its name

    def write(batch: Sequence[Asked], advance: Any) -> list[Row]:
        prompts = {one.row: encoded(one) for one in batch}
        ready = {row: ids for row, ids in prompts.items() if not isinstance(ids, str)}
        texts: list[list[int]] = []
        if ready:
            first, last = min(ready), max(ready)
            uniforms = generate.uniform(arguments.seed, last - first + 1, n, first=first)[
                [row - first for row in ready]
            ]
            texts = generate.continued(
                model,
                list(ready.values()),
                uniforms,
                *options,
                on_step=lambda *_: advance(len(ready)),
            )
        found = dict(
            zip(ready, generate.cut(model, texts) if arguments.until_end else texts, strict=True)
        )
        rows = []
        for one in batch:
            about = {
                "name": one.name,
                "prompt": one.prompt,
                "key_id": key.key_id,
                "seed": arguments.seed,
            }
            of_text = (
                {"text": lm.decode(found[one.row]), "n_tokens": len(found[one.row])}
                if one.row in found
                else {"text": None}
            )
            rows.append(
                of_text
                | about
                | ({} if one.row in found else {"error": prompts[one.row]})
                | {"digest": one.digest}
            )
        return rows

    with ExitStack() as marked:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", GaussMarkWarning)
            marked.enter_context(perturb.watermarked(model, key.watermark, key))
        for warning in caught:
            print(f"gaussmark: {warning.message}", file=sys.stderr)
        yield write
