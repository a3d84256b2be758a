"""``gaussmark key``, ``export`` and ``audit``: key files, a model that carries one, and what a key
does to human texts.
"""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from gaussmark_lib.cli.common import KeyFile, Model
from gaussmark_lib.errors import GaussMarkError

if TYPE_CHECKING:
    from gaussmark_lib.keys import Key
    from gaussmark_lib.tracing import Codebook

MOST_DIGITS = 100  # of a number of users
CodebookName = Annotated[
    str | None,
    typer.Option(metavar="FILE|N", help="A codebook of the key, or its number of users."),
]
group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make and show key files.")


def add(app: typer.Typer) -> None:
    app.add_typer(group, name="key")
    app.command()(export)
    app.command()(audit)


@group.command()
def new(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Key file to write; never overwritten.")
    ],
    weight: Annotated[
        str, typer.Option(help="A matrix of the model, e.g. model.layers.4.mlp.down_proj.weight.")
    ],
    sigma: Annotated[float, typer.Option(help="Standard deviation of the noise.")],
    model: Model = "doclm",
    rank_dropped: Annotated[
        int, typer.Option(metavar="K", help="Top singular directions that the noise avoids.")
    ] = 0,
) -> None:
    """Make a key for one weight of one model, readable by you only."""
    if os.path.exists(path):
        raise GaussMarkError(f"{path} exists, and a key is never overwritten; name another file")

    from gaussmark_lib import models, perturb

    watermark = perturb.Watermark(weight, sigma, rank_dropped)
    key = perturb.bind(models.load(model).model, watermark, perturb.Key.new())
    key.save(path)
    print(
        f"key {key.key_id} for {weight}: {path}\n"
        "Keep it secret and never commit it: whoever has it can detect the watermark, and remove"
        " it."
    )


@group.command()
def show(path: Annotated[str, typer.Argument(metavar="PATH")]) -> None:
    """Print what a key is for, but not its secret."""
    from gaussmark_lib.keys import Key

    key = Key.load(path)
    unbound = {"bound to": "nothing"}
    binding = key.binding.model_dump(exclude={"weights"}) if key.binding else unbound
    for name, value in ({"key_id": key.key_id} | binding).items():
        print(f"{name:14} {value}")


@group.command()
def users(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="Codebook file to write; there is no secret in it."),
    ],
    key: KeyFile,
    users: Annotated[
        int,
        typer.Option(metavar="N", help="Users; more of them later change nothing for these."),
    ],
    base: Annotated[int, typer.Option(metavar="M", help="Base noises.")] = 256,
) -> None:
    """Describe a codebook: a key for each of many users, all from one key file."""
    from gaussmark_lib.keys import Key
    from gaussmark_lib.tracing import Codebook

    book = Codebook(Key.load(key), users, base)
    book.save(path)
    print(f"{book.n_users:,} users of key {book.master.key_id} over {base} base noises: {path}")


def export(
    folder: Annotated[
        str,
        typer.Argument(metavar="FOLDER", help="Must not exist; the key will not be in it."),
    ],
    key: KeyFile,
    model: Model = "doclm",
    codebook: CodebookName = None,
    user: Annotated[
        int | None, typer.Option(metavar="U", help="The user of the codebook whose key it carries.")
    ] = None,
) -> None:
    """Write the watermarked model as a checkpoint that any inference engine serves."""
    if (user is None) != (codebook is None):
        raise GaussMarkError("expected --user and --codebook together, or neither")

    from gaussmark_lib import models, perturb
    from gaussmark_lib.keys import Key

    carried = Key.load(key)
    watermark = carried.watermark  # refuses an unbound key before the model is loaded
    if codebook is not None:
        carried = codebook_of(codebook, carried).key(user)
    lm = models.load(model)
    written = perturb.export(lm.model, watermark, carried, folder, lm.tokenizer)
    print(
        f"{lm.name} with the watermark of key {carried.key_id} on {watermark.weight}: {written}\n"
        f"Its texts are tested against {lm.name}, not against it."
    )


def codebook_of(name: str, key: "Key") -> "Codebook":
    """The codebook of a file, or of this number of users."""
    from gaussmark_lib.tracing import Codebook

    if not name.isdecimal() or os.path.exists(name):
        return Codebook.load(name, key)
    if len(name) > MOST_DIGITS:
        raise GaussMarkError(
            f"--codebook: expected a file or a number of users, got a number of {len(name):,}"
            " digits"
        )
    return Codebook(key, int(name))


def audit(
    card: Annotated[
        str, typer.Argument(metavar="CARD", help="Writes CARD.html and CARD.json, which are new.")
    ],
    key: KeyFile,
    model: Model = "doclm",
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Kind of human text, or a .jsonl file; may be repeated [docs, licences, source].",
        ),
    ] = None,
    texts: Annotated[
        int, typer.Option(metavar="N", min=4, max=100_000, help="Texts of each kind.")
    ] = 100,
    tokens: Annotated[
        int, typer.Option(metavar="N", min=4, max=100_000, help="Tokens of each text.")
    ] = 150,
    keys: Annotated[
        int,
        typer.Option(metavar="N", min=4, max=100_000, help="Other keys, to say what is usual."),
    ] = 200,
) -> None:
    """Write a key's calibration card: power by length, false alarms by kind of text."""
    from gaussmark_lib.cli import audit
    from gaussmark_lib.runs.ask import stoppable

    files = audit.new_files(card)
    with stoppable():
        content = audit.card(key, model, text or audit.KINDS, texts, tokens, keys)
        audit.write(files, content)
    print(f"{files[1]}: {audit.headline(content)}")
