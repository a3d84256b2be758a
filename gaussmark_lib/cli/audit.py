"""``gaussmark audit``: the calibration card of a key, what it does to human texts of several kinds
before they are a stream, and after.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from gaussmark_lib.cli.arguments import KEY, MODEL, command
from gaussmark_lib.errors import GaussMarkError

LEAST, MOST = 4, 100_000  # texts, tokens and keys


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    audit = command(
        commands,
        "audit",
        _audit,
        "write a key's calibration card: predicted power by length, false alarms by kind of text",
    )
    audit.add_argument(
        "card", metavar="CARD", help="writes CARD.html and CARD.json, which must not exist"
    )
    audit.add_argument("--key", **KEY)
    audit.add_argument("--model", **MODEL)
    audit.add_argument(
        "--text",
        metavar="KIND",
        action="append",
        help="kind of human text, or a .jsonl file; may be repeated (docs, licences, source)",
    )
    audit.add_argument(
        "--texts", metavar="N", type=int, default=100, help="texts of each kind (100)"
    )
    audit.add_argument(
        "--tokens", metavar="N", type=int, default=150, help="tokens of each text (150)"
    )
    audit.add_argument(
        "--keys", metavar="N", type=int, default=200, help="other keys, to say what is usual (200)"
    )


def _audit(arguments: argparse.Namespace) -> None:
    files = [Path(f"{arguments.card}.{ending}") for ending in ("json", "html")]
    if there := [str(file) for file in files if os.path.lexists(file)]:
        raise GaussMarkError(f"{there[0]} exists; expected a new name for the card")
    if not os.path.basename(arguments.card):
        raise GaussMarkError(f"expected a name for the card, got {arguments.card!r}")
    for option in ("texts", "tokens", "keys"):
        if not LEAST <= (got := getattr(arguments, option)) <= MOST:
            raise GaussMarkError(
                f"--{option}: expected a whole number from {LEAST} to {MOST:,}, got {got}"
            )

    for file in files:  # before the work, not after it
        try:
            file.touch()
            file.unlink()
        except OSError as error:
            raise GaussMarkError(
                f"cannot write {file}: {error.strerror}; expected a name in a folder that can be"
                " written to"
            ) from None

    from gaussmark_lib.runs.stopping import stoppable

    with stoppable():
        _write(arguments, files)


def _write(arguments: argparse.Namespace, files: list[Path]) -> None:
    import pandas as pd
    from tqdm import tqdm

    from gaussmark_lib import models, perturb
    from gaussmark_lib.experiments import calibration_card
    from gaussmark_lib.experiments import one_key_in_production as production
    from gaussmark_lib.keys import Key

    key = Key.load(arguments.key)
    wm = key.watermark  # refuses an unbound key before the model is loaded
    lm = models.load(arguments.model)
    kinds = arguments.text or ["docs", "licences", "source"]
    xi = perturb.noise(lm.model, wm, key).flatten()
    rows, lengths = (
        {},
        sorted({max(1, arguments.tokens // 4), max(1, arguments.tokens // 2), arguments.tokens}),
    )
    for kind in tqdm(
        kinds, desc="auditing", unit=" kinds of text", file=sys.stderr, leave=False, disable=None
    ):
        pairs = production.human(lm, kind, arguments.texts, n_tokens=arguments.tokens)
        units, _ = production.directions(lm, pairs, wm)
        K = (units.double() @ units.double().T).cpu().numpy()
        own = (units @ xi.to(units)).double().cpu().numpy()[None] / wm.sigma
        rows[kind] = calibration_card.of_key(own, K) | production.audited(
            production.over_keys(lm, units, wm, range(arguments.keys)), K
        )
        if kind == kinds[0]:
            norms = {
                n: production.directions(lm, (pairs[0], [ids[:n] for ids in pairs[1]]), wm)[1]
                for n in lengths
            }
    card = calibration_card.card(
        wm, key.key_id, pd.DataFrame.from_dict(rows, orient="index"), norms
    )
    try:
        for file, content in zip(
            files, (json.dumps(card, indent=1), calibration_card.page(card)), strict=True
        ):
            file.write_text(content, encoding="utf-8")
    except BaseException:  # a full disk: both or none
        for file in files:
            file.unlink(missing_ok=True)
        raise
    worst = max(rows, key=lambda kind: rows[kind]["this key, ψ"])
    print(
        f"{files[1]}: key {key.key_id} calls {rows[worst]['this key, ψ']:.0%} of {worst} marked at"
        f" level {card['level']}, and {rows[worst]['this key, r']:.0%} of them as a stream (`detect"
        " --stream`)"
    )
