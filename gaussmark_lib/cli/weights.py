"""``gaussmark verify``: does a checkpoint carry a key's noise in its weights?"""

import json
from typing import Annotated

import typer

from gaussmark_lib.cli.inputs import AsJson, KeyFiles, visible


def verify(
    checkpoint: Annotated[
        str,
        typer.Argument(help="A folder of safetensors in any dtype, or a .gguf file."),
    ],
    key: KeyFiles,
    base: Annotated[
        str, typer.Option(help="The model before it was marked: doclm, a folder or a hub id.")
    ] = "doclm",
    level: Annotated[
        float, typer.Option(min=1e-300, max=1, help="Of the test, over all keys given.")
    ] = 0.001,
    as_json: AsJson = False,
) -> None:
    """Test whether a checkpoint's weights carry a key's watermark; no text is needed."""
    from gaussmark_lib.keys import Key
    from gaussmark_lib.release import provenance

    keys = [Key.load(path) for path in key]
    wm, *_ = [one.watermark for one in keys]  # refuses unbound keys before the model is loaded
    table = provenance.weights(base, checkpoint, wm, keys)
    for row in table.to_dict("records"):
        row = {"checkpoint": checkpoint, **provenance.verdict(row, level, len(keys)), **row}
        print(json.dumps(row) if as_json else visible(provenance.sentence(row, base)))
    if not as_json:
        print(visible(provenance.PROVES))
