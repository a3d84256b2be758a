"""``gaussmark detect``: the test of one text or of millions, and how a provider answers strangers.

A text alone: what cannot be scored ends the command. Several texts: each gets its answer, a broken
one its reason, and the rest goes on. With ``--out`` every batch of answers is on the disk before
the next one begins, and the same command again goes on behind the last of them.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Any

from gaussmark_lib import files
from gaussmark_lib.cli.arguments import KEY, MODEL, PARTLY, command, read_prompt, visible
from gaussmark_lib.errors import GaussMarkError

LEVEL, SHARE = 0.05, 0.1  # where nothing is said
MOST_AT_ONCE = 1_000_000  # texts of a batch, which are all held in memory
EXIT = (
    "Exit codes: 0 all texts were scored, whatever their p; 1 failed, as on a full disk; 2 refused:"
    " arguments, key or model, or the one text; 3 some texts could not be scored (their names and"
    " reasons are on standard error), and all others were; 130 interrupted."
)


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    detect = command(
        commands, "detect", _detect, "test whether texts carry a key's watermark", EXIT
    )
    detect.add_argument(
        "texts",
        metavar="FILE",
        nargs="*",
        help=(
            "a text; a folder of texts; a .jsonl file with a `text`, and perhaps a `prompt`, a"
            " line; - reads standard input"
        ),
    )
    detect.add_argument("--text", help="the text itself")
    detect.add_argument("--jsonl", action="store_true", help="standard input holds JSON lines")
    detect.add_argument(
        "--key",
        **KEY
        | {
            "action": "append",
            "help": "key file; may be repeated, for keys of one weight and sigma",
        },
    )
    detect.add_argument("--model", **MODEL)
    detect.add_argument(
        "--prompt",
        default="",
        help="the texts' prompt; without it the test stays exact and has less power",
    )
    detect.add_argument("--prompt-file", help="the same from a file")
    detect.add_argument(
        "--level",
        metavar="α",
        type=float,
        help="of the verdict: how often a text without the key may be detected (.05)",
    )
    detect.add_argument(
        "--codebook",
        metavar="FILE|N",
        help="name the user: a codebook of the key (`gaussmark key users`), or its number of users",
    )
    what = (
        "answer strangers: the file STATE remembers all answers, so that what they gave away counts"
        " no more; it is kept like a key"
    )
    detect.add_argument("--stream", metavar="STATE", help=what)
    detect.add_argument(
        "--given",
        metavar="FILE",
        action="append",
        default=[],
        help="texts of the kind to expect, known to be unmarked",
    )
    detect.add_argument(
        "--share", type=float, help="of a stream's texts, how many are expected to be marked (.1)"
    )
    detect.add_argument(
        "--out",
        metavar="RESULTS",
        help="write JSON lines there; where they are there already, go on behind the last",
    )
    detect.add_argument(
        "--batch",
        metavar="N",
        type=int,
        default=64,
        help="texts that are answered together (64); 1 answers each as it comes",
    )
    detect.add_argument("--json", action="store_true", help="print JSON, a line a text and key")


def _detect(arguments: argparse.Namespace) -> int:
    from gaussmark_lib.cli import answers, inputs

    if bool(arguments.texts) == (arguments.text is not None):
        raise GaussMarkError(
            "expected one text to test, or more: FILEs, - for standard input, or --text"
        )
    if arguments.prompt and arguments.prompt_file is not None:
        raise GaussMarkError("expected one prompt: --prompt or --prompt-file")
    if [*arguments.texts, *arguments.given, arguments.prompt_file].count("-") > 1:
        raise GaussMarkError("-: expected standard input to be named once, since it is read once")
    if arguments.jsonl and "-" not in arguments.texts:
        raise GaussMarkError(
            "--jsonl: expected standard input (-) among the texts; a file of JSON lines is known by"
            " its name, .jsonl"
        )
    if arguments.codebook is not None and (
        len(arguments.key) > 1 or arguments.stream is not None or arguments.given
    ):
        raise GaussMarkError(
            "--codebook: expected one --key, the codebook's own, and neither --stream nor --given"
        )
    if arguments.given and arguments.out is not None and arguments.stream is None:
        raise GaussMarkError(
            "--given with --out: expected --stream STATE too, so that an interrupted run goes on"
            " with what it remembers"
        )
    if arguments.level is not None and not 0 < arguments.level < 1:
        raise GaussMarkError(f"--level: expected a number between 0 and 1, got {arguments.level}")
    if not 1 <= arguments.batch <= MOST_AT_ONCE:
        raise GaussMarkError(
            f"--batch: expected a whole number from 1 to {MOST_AT_ONCE:,}, got {arguments.batch}"
        )
    if arguments.share is not None and not 0 < arguments.share < 1:
        raise GaussMarkError(f"--share: expected 0 < share < 1, got {arguments.share}")
    if arguments.codebook is not None and arguments.level is not None:
        raise GaussMarkError(
            "--level: expected it without --codebook, which gives a user and a p-value, and no"
            " verdict"
        )
    if arguments.share is not None and arguments.stream is None and not arguments.given:
        raise GaussMarkError(
            "--share: expected --stream or --given too: only a stream of texts has a share of"
            " marked ones"
        )
    arguments.level = LEVEL if arguments.level is None else arguments.level
    arguments.share = SHARE if arguments.share is None else arguments.share
    if arguments.out is not None:
        inputs.refuse_among(arguments.out, [*arguments.texts, *arguments.given])
    many = arguments.text is None and inputs.are_many(arguments.texts, lines=arguments.jsonl)
    items = (
        iter([inputs.Item("text", arguments.text)])
        if not arguments.texts
        else inputs.items(arguments.texts, lines=arguments.jsonl)
    )
    if not many:
        items = iter(
            list(islice(items, 1))
        )  # what cannot be read is said before the model is loaded
    prompt = (
        arguments.prompt if arguments.prompt_file is None else read_prompt(arguments.prompt_file)
    )

    state = (
        files.named(arguments.stream, "--stream", GaussMarkError)
        if arguments.stream is not None
        else None
    )

    from gaussmark_lib.cli.scoring import Scoring
    from gaussmark_lib.runs.stopping import stoppable

    with stoppable(), answers.alone(state) if state else nullcontext():
        return _answer(arguments, items, Scoring(arguments, prompt), many)


def _answer(arguments: argparse.Namespace, items: Iterator, scoring: Any, many: bool) -> int:
    """Tests all texts, a batch at a time, and says how it went."""
    from tqdm import tqdm

    from gaussmark_lib.cli import answers, inputs

    failed = n = 0
    with (
        answers.Kept(arguments.out, scoring.per_text)
        if arguments.out is not None
        else nullcontext()
    ) as kept:
        before, failed_before = kept.skipped(items, scoring.digest) if kept else (0, 0)
        with tqdm(
            desc="testing",
            unit=" texts",
            initial=before,
            file=sys.stderr,
            disable=None if many else True,
        ) as progress:
            for batch in iter(lambda: list(islice(items, arguments.batch)), []):
                found = scoring(batch)
                bad = [row for rows in found for row in rows if "error" in row]
                if bad and not many:
                    raise GaussMarkError(
                        f"{inputs.spoken(bad[0]['text'] if arguments.texts else '--text')}:"
                        f" {bad[0]['error']}"
                    )
                said = [f"{visible(row['text'])}: {row['error']}" for row in bad] + list(
                    scoring.new_warnings()
                )
                for line in said:
                    progress.write(f"gaussmark: {line}", file=sys.stderr)
                if kept:
                    kept(found)
                else:
                    progress.clear()  # the answers are not to stand behind the bar
                    answers.printed(found, as_json=arguments.json, alone=not many)
                failed, n, arguments.begun = failed + len(bad), n + len(found), True
                progress.update(len(found))
    if not n + before:
        raise GaussMarkError(
            "expected at least one text to test, got none in"
            f" {', '.join(map(inputs.spoken, arguments.texts))}"
        )
    if many or failed_before:
        earlier = (
            f", behind {before:,} of an earlier run, {failed_before:,} of which could not be"
            if before
            else ""
        )
        print(
            f"gaussmark: {n - failed:,} text{'s'[: n - failed != 1]} scored, {failed:,} could not"
            f" be{earlier}",
            file=sys.stderr,
        )
    return PARTLY if failed + failed_before else 0
