"""``gaussmark verify``: does a checkpoint carry a key's noise in its weights?"""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.workbench.cli.inputs import visible
from gaussmark_lib.workbench.cli.options import AsJson, KeyFiles

PROVES = (
    "A small p-value is evidence that the checkpoint descends from this watermarked release, or was"
    " made by somebody who has the key, or who has both the base and the watermarked weights. It"
    " does not prove who was first. A large p-value does not prove that the checkpoint has no"
    " watermark."
)
UNMARKED = "does not carry the key"
FAR = 0.5  # from this ‖Δ‖/‖θ‖, a checkpoint is called another model and not a changed base


def verify(
    checkpoint: Annotated[
        str,
        typer.Argument(help="A folder of safetensors in any dtype, or a .gguf file."),
    ],
    key: KeyFiles,
    base: Annotated[
        str,
        typer.Option(
            "--model",
            "--base",
            help="The unwatermarked model: doclm, smollm2, gemma-3-270m, a folder, a .gguf file or"
            " a hub id.",
        ),
    ] = "doclm",
    level: Annotated[
        float, typer.Option(min=1e-300, max=1, help="False-alarm rate, over all given keys.")
    ] = 0.001,
    as_json: AsJson = False,
) -> None:
    """Test whether a checkpoint's weights carry a key's watermark; no text is needed."""
    from gaussmark_lib.beyond.release import provenance
    from gaussmark_lib.keys import Key

    keys = [Key.load(path) for path in key]
    watermarks = [bound.watermark for bound in keys]  # refuses unbound keys before the work
    try:
        table = provenance.weights(base, checkpoint, watermarks[0], keys)
    except DegenerateScoreError:
        _tell_equal(checkpoint, base, [bound.key_id for bound in keys], as_json)
        return
    for row in table.to_dict("records"):
        verdict = provenance.verdict(row, level, len(keys))
        row = {"checkpoint": checkpoint, **verdict, **row}
        print(json.dumps(row) if as_json else visible(sentence(row, base)))
    if not as_json:
        print(visible(PROVES))


def _tell_equal(checkpoint: str, base: str, key_ids: Iterable[str], as_json: bool) -> None:
    """Answer for a checkpoint whose matrix is that of the base in every number."""
    if not as_json:
        equal = f"its matrix equals that of {base} in every number, so it has no watermark"
        print(visible(f"{checkpoint} {UNMARKED}: {equal}."))
        return
    for key_id in key_ids:
        row = {"checkpoint": checkpoint, "verdict": UNMARKED, "log10_p_all": 0.0}
        print(json.dumps(row | {"key_id": key_id, "distance": 0.0, "relative": 0.0}))


def sentence(row: Mapping[str, Any], base: str) -> str:
    """Return the verdict on a checkpoint, and its distance from the base, in sentences."""
    from gaussmark_lib.workbench import verdict

    scores = f"ψ = {row['psi']:.1f} whole, {row['psi_rows']:.1f} by rows, key {row['key_id']}"
    is_other = row["relative"] > FAR and row["verdict"] != "carries the key"
    kind = f"a version of {base}"
    if is_other:
        kind = "another model's weights, or another key's watermark"
    return (
        f"{row['checkpoint']} {row['verdict']}: p = {verdict.p_value(row['log10_p_all'])} "
        f" ({scores}). Its matrix differs from that of {base} by {row['relative']:.2g} ‖θ‖, which"
        f" is {row['distance']:.2f} times the length of the watermark: {kind}."
    )
