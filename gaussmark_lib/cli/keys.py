"""``gaussmark key`` and ``export``: key files, what they are for, and a model that carries one."""

import argparse
import os
from typing import Any

from gaussmark_lib.cli.arguments import ACTION, KEY, MODEL, command
from gaussmark_lib.errors import GaussMarkError

MOST_DIGITS = 100  # of a number of users


def add(commands: Any) -> None:
    """Adds these commands to the parser."""
    key = commands.add_parser(
        "key", help="make and look at key files", description="Makes and shows key files."
    )
    actions = key.add_subparsers(title="actions", metavar=ACTION, required=True)
    new = command(actions, "new", _new, "make a key for one weight of one model")
    new.add_argument(
        "path", metavar="PATH", help="key file to write; never overwritten, readable by you only"
    )
    new.add_argument(
        "--weight",
        required=True,
        help="full name of a linear layer's matrix, e.g. model.layers.4.mlp.down_proj.weight",
    )
    new.add_argument("--sigma", required=True, type=float, help="standard deviation of the noise")
    new.add_argument("--model", **MODEL)
    new.add_argument(
        "--rank-dropped",
        type=int,
        default=0,
        metavar="K",
        help="top singular directions that the noise avoids (0)",
    )
    show = command(actions, "show", _show, "print what a key is for, but not its secret")
    show.add_argument("path", metavar="PATH")
    users = command(
        actions,
        "users",
        _users,
        "describe a codebook: a key for each of many users, all from one key file, which stays the"
        " only secret",
    )
    users.add_argument(
        "path",
        metavar="PATH",
        help="codebook file to write, for `detect --codebook`; there is no secret in it",
    )
    users.add_argument("--key", **KEY)
    users.add_argument(
        "--users",
        required=True,
        type=int,
        metavar="N",
        help="number of users; more of them later change nothing for these",
    )
    users.add_argument("--base", type=int, default=256, metavar="M", help="base noises (256)")

    export = command(
        commands,
        "export",
        _export,
        "write the watermarked model as a checkpoint that any inference engine serves",
    )
    export.add_argument(
        "folder",
        metavar="FOLDER",
        help="folder to write, which must not exist; the key is not in it",
    )
    export.add_argument("--key", **KEY)
    export.add_argument(
        "--user", metavar="U", type=int, help="with --codebook: the user whose key it carries"
    )
    export.add_argument(
        "--codebook", metavar="FILE|N", help="a codebook of this key, or its number of users"
    )
    export.add_argument("--model", **MODEL)


def _new(arguments: argparse.Namespace) -> None:
    if os.path.exists(arguments.path):
        raise GaussMarkError(
            f"{arguments.path} exists, and a key is never overwritten; name another file"
        )

    from gaussmark_lib import models, perturb

    watermark = perturb.Watermark(arguments.weight, arguments.sigma, arguments.rank_dropped)
    key = perturb.bind(models.load(arguments.model).model, watermark, perturb.Key.new())
    key.save(arguments.path)
    print(
        f"key {key.key_id} for {arguments.weight}: {arguments.path}\n"
        "Keep it secret and never commit it: whoever has it can detect the watermark, and remove"
        " it."
    )


def _show(arguments: argparse.Namespace) -> None:
    from gaussmark_lib.keys import Key

    key = Key.load(arguments.path)
    binding = (
        key.binding.model_dump(exclude={"weights"}) if key.binding else {"bound to": "nothing"}
    )
    for name, value in ({"key_id": key.key_id} | binding).items():
        print(f"{name:14} {value}")


def _users(arguments: argparse.Namespace) -> None:
    from gaussmark_lib.keys import Key
    from gaussmark_lib.tracing import Codebook

    book = Codebook(Key.load(arguments.key), arguments.users, arguments.base)
    book.save(arguments.path)
    print(
        f"{book.n_users:,} users of key {book.master.key_id} over {book.n_base} base noises:"
        f" {arguments.path}"
    )


def _export(arguments: argparse.Namespace) -> None:
    if (arguments.user is None) != (arguments.codebook is None):
        raise GaussMarkError("expected --user and --codebook together, or neither")

    from gaussmark_lib import models, perturb
    from gaussmark_lib.keys import Key

    key = Key.load(arguments.key)
    watermark = key.watermark  # refuses an unbound key before the model is loaded
    if arguments.codebook is not None:
        key = codebook(arguments.codebook, key).key(arguments.user)
    lm = models.load(arguments.model)
    folder = perturb.export(lm.model, watermark, key, arguments.folder, lm.tokenizer)
    print(
        f"{lm.name} with the watermark of key {key.key_id} on {watermark.weight}: {folder}\nIts"
        f" texts are tested against {lm.name}, not against it."
    )


def codebook(named: str, key: Any) -> Any:
    """The codebook of a file, or of this number of users."""
    from gaussmark_lib.tracing import Codebook

    if not named.isdecimal() or os.path.exists(named):
        return Codebook.load(named, key)
    if len(named) > MOST_DIGITS:
        raise GaussMarkError(
            f"--codebook: expected a file or a number of users, got a number of {len(named):,}"
            " digits"
        )
    return Codebook(key, int(named))
