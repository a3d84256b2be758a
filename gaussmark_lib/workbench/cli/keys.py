"""``gaussmark key``, ``export``, ``audit`` and ``power``: key files, watermarked models, the false
alarms of a key on human texts, and how much text a key needs.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer.models import OptionInfo

from gaussmark_lib import files
from gaussmark_lib.engine import key_files
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench.cli import answers, inputs
from gaussmark_lib.workbench.cli.options import AsJson, CodebookName, KeyFile, Model
from gaussmark_lib.workbench.cli.panels import ADVANCED, Command, examples

EDITED = 0.1  # lowers ψ of an unedited text by 1%, and raises that of edited texts by half
group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make and show key files.")


@group.command(
    cls=Command,
    epilog=examples("key new my.key", "key new chat.key --model smollm2 --sigma 0.1"),
)
def new(
    path: Annotated[str, typer.Argument(help="Key file to write; never overwritten.")],
    weight: Annotated[
        str | None,
        typer.Option(
            help="A matrix of the model.  [the last matrix of the MLP in the block two thirds of"
            " the way up]"
        ),
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            min=1e-31,
            max=10,
            help="Standard deviation of the noise.  [solved for ψ = 4 after 200 tokens]",
        ),
    ] = None,
    model: Model = "doclm",
    rank_dropped: Annotated[
        int,
        typer.Option(
            help="Number of top singular directions that the noise avoids.",
            rich_help_panel=ADVANCED,
        ),
    ] = 0,
    edited: Annotated[
        float, typer.Option(help="Share of replaced tokens that `detect` is tuned for.")
    ] = EDITED,
) -> None:
    """Make a key for one weight of one model, readable by you only."""
    inputs.new(path)  # refuses before the model is loaded
    answers.loading(model)
    from gaussmark_lib import models, perturb
    from gaussmark_lib.beyond import channel
    from gaussmark_lib.workbench import begin

    channel.share(edited, "--edited")  # refuses before the work
    lm = models.load(model)
    weight = weight or models.default_weight(lm.model)
    watermark = perturb.Watermark(weight, sigma or 1.0, rank_dropped)  # 1.0 until σ is solved
    if sigma is None:
        perturb.ready(lm.model, watermark, [perturb.Key.from_seed(0)])  # refuses before the work
        answers.waiting("solving for sigma on unwatermarked text of the model …")
        watermark = begin.solved_for_key(lm, watermark, edited)
    key = perturb.bind(lm.model, watermark, perturb.Key.new(), lm.file_sha256)
    key = channel.allowing(key, edited)
    key.save(path)
    print(f"key {key.key_id} for {lm.title}: {path}")
    print(f"weight {watermark.weight}, sigma {watermark.sigma:.4g}")
    if sigma is None:
        print(
            f"This sigma is solved for a predicted ψ of {begin.KEY_PSI:g} after"
            f" {begin.KEY_TOKENS} tokens of the model's text, sampled at temperature"
            f" {begin.KEY_TEMPERATURE:g} and tested with an unknown prompt."
        )
    print(
        "Keep the key secret and never commit it: anybody with the key can detect the watermark and"
        " remove it."
    )


@group.command(cls=Command, epilog=examples("key show my.key"))
def show(path: Annotated[Path, typer.Argument(exists=True)]) -> None:
    """Print the weight, the model and the settings of a key, but not its secret."""
    content = key_files.read(path)
    if isinstance(content, str):
        raise GaussMarkError(content)
    secret, binding = content
    about = {"key_id": key_files.key_id(secret)}  # a hash
    about |= binding.model_dump(exclude={"weights"}) if binding else {"weight": None}
    print(json.dumps(about, indent=1))


@group.command(cls=Command, epilog=examples("key users users.json --key my.key --users 1000"))
def users(
    path: Annotated[str, typer.Argument(help="Codebook file to write; it contains no secret.")],
    key: KeyFile,
    users: Annotated[int, typer.Option(help="Number of users; you can increase it later.")],
    base: Annotated[int, typer.Option(help="Number of base noises.")] = 256,
) -> None:
    """Write a codebook: a key for each of many users, all from one key file."""
    from gaussmark_lib.beyond.tracing import Codebook
    from gaussmark_lib.keys import Key

    book = Codebook(Key.load(key), users, base)  # no code is drawn yet
    book.save(path)
    print(f"{book.n_users:,} users of key {book.master.key_id} over {base} base noises: {path}")


def export(
    path: Annotated[
        str,
        typer.Argument(
            help="New folder, or new .gguf file if the model is a .gguf file. It never contains the"
            " key."
        ),
    ],
    key: KeyFile,
    model: Model = "doclm",
    type_: Annotated[
        Literal["f16", "f32", "q8_0"] | None,
        typer.Option("--type", help="Type of the watermarked matrix in a .gguf file.  [f16]"),
    ] = None,
    codebook: CodebookName = None,
    user: Annotated[
        int | None, typer.Option(help="User of the codebook whose key the model carries.")
    ] = None,
) -> None:
    """Write the watermarked model as a checkpoint for any inference engine: a folder of
    safetensors, or a GGUF file for llama.cpp, Ollama and LM Studio.
    """
    is_gguf = path.lower().endswith(".gguf")
    if os.path.lexists(path):
        what = "file" if is_gguf else "folder"
        raise GaussMarkError(f"expected a new {what} to export to, but {path} exists")
    if type_ and not is_gguf:
        raise GaussMarkError(f"--type: expected a new file that ends in .gguf, got {path}")
    if (user is None) != (codebook is None):
        raise GaussMarkError("expected --user and --codebook together, or neither")

    answers.loading(model)
    from gaussmark_lib import models, perturb
    from gaussmark_lib.keys import Key

    carried = Key.load(key)
    watermark = carried.watermark  # refuses an unbound key before the model is loaded
    if codebook is not None:
        from gaussmark_lib.workbench.cli.naming import codebook_of

        carried = codebook_of(codebook, carried).key(user)
    if is_gguf:
        title = model
        base = models.gguf_file(model)  # the model itself is not loaded
        written = perturb.export_gguf(base, watermark, carried, path, type_ or "f16")
    else:
        lm = models.load(model)
        title = lm.title
        written = perturb.export(lm.model, watermark, carried, path, lm.tokenizer)
    print(
        f"{title} with the watermark of key {carried.key_id} on {watermark.weight}: {written}\n"
        f"Test its texts against {model}, not against this checkpoint."
    )


def _count(about: str, least: int = 4) -> OptionInfo:
    return typer.Option(min=least, max=100_000, help=about, rich_help_panel=ADVANCED)


Kinds = Annotated[
    list[str] | None,
    typer.Option(
        help="Kind of human text, or a file of texts (.csv, .json, .jsonl, .txt, …); may be"
        " repeated.  [docs, licences, source; for a real model also speeches and news]",
    ),
]


def audit(
    card: Annotated[str, typer.Argument(help="Name of the card; the new file is CARD.json.")],
    key: KeyFile,
    model: Model = "doclm",
    text: Kinds = None,
    texts: Annotated[int, _count("Texts of each kind.")] = 100,
    tokens: Annotated[int, _count("Tokens of each text.")] = 150,
    keys: Annotated[
        int | None, _count("Number of random comparison keys, only for GaussMark.  [200]")
    ] = None,
    scheme: Annotated[
        str,
        typer.Option(
            help="The scheme that uses the key: its name in notebook 08, or my_module:name."
        ),
    ] = "GaussMark",
) -> None:
    """Write a key's calibration card: its false alarms on human texts of each kind, and the
    p-value threshold that holds the level on that kind.
    """
    if keys is not None and scheme != "GaussMark":
        raise GaussMarkError(
            f"--keys: expected --scheme GaussMark, the only one with comparison keys, got {scheme}"
        )
    path = inputs.new(card, ".json")
    answers.loading(model)
    from gaussmark_lib.workbench.cli import audit

    n_keys = 200 if keys is None else keys  # None: the option was not given
    content = audit.card(key, model, text or [], texts, tokens, n_keys, scheme)
    files.write_json(path, content)
    print(f"{path}: {audit.headline(content)}")
    answers.table(audit.table(content), heading=True)
    print(
        "Flag a text only if its p-value is below the threshold of its kind. Then the level holds"
        ' on further texts of the kind; the column "false alarms there" has the expected rate. The'
        ' column "as a stream", which only GaussMark has, is the share flagged if each text is'
        " tested only for new evidence."
    )


def power(
    key: KeyFile,
    model: Model = "doclm",
    text: Kinds = None,
    texts: Annotated[int, _count("Prompts of each kind.")] = 32,
    tokens: Annotated[int, _count("Tokens of each text written for the prediction.", 8)] = 200,
    scheme: Annotated[
        str,
        typer.Option(
            help="The scheme that uses the key: its name in notebook 08, or my_module:name."
        ),
    ] = "GaussMark",
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature of the texts, above 0.")
    ] = 1.0,
    top_p: Annotated[
        float, typer.Option(help="Nucleus sampling: total probability of the kept tokens.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Predict how many tokens detection needs, by kind of prompt, without writing texts with the
    key.
    """
    answers.loading(model)
    from gaussmark_lib.workbench.cli import power

    rows = power.table(key, model, text or [], texts, tokens, scheme, temperature, top_p)
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    answers.table(power.shown(rows), heading=True)
    print(
        f"Tokens of an unedited text after a known prompt, at temperature {temperature:g} and top-p"
        f" {top_p:g}, predicted from {texts} texts per kind, with 95% intervals over texts. Edited"
        " texts and texts with an unknown prompt need more tokens."
    )
