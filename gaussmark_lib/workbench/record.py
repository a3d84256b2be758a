"""The results that a notebook records: numbers, tables and figures, written into its run's folder.

The process that runs the notebook names the folder in an environment variable. In JupyterLab there
is no run. The same calls then check their arguments, show them, write nothing, and say so at the
headline.
"""

import json
import math
import os
import re
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.files import write_json

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gaussmark_lib.models import LM
    from gaussmark_lib.stats import Estimate

RUN_DIR = "GAUSSMARK_RUN_DIR"
WEIGHTS = "weights.json"  # in a run's folder, until status.json has the content
UNRECORDED = (
    "*You are running this notebook by hand, so it keeps no record. `gaussmark run NN`, with its"
    " number, runs it and keeps a record.*"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def record(results: dict[str, Any]) -> None:
    """Add numbers, words, lists or dictionaries of them to the run's ``results.json``.

    NumPy's and pandas' scalars and arrays become plain numbers and lists. A ``stats.Estimate``, or
    another dataclass or named tuple, becomes the dictionary of its fields. None stands for a number
    that does not exist, also for both ends of an estimate without an interval (NaN).

    Raises:
        GaussMarkError: a value that JSON cannot hold, such as nan and infinity, or a name that is
            already recorded.
    """
    plain = _plain(results, "results")
    folder = _folder()
    if folder is None:
        return
    path = folder / "results.json"
    recorded = _read_if_there(path)
    repeated = recorded.keys() & plain.keys()
    if repeated:
        names = ", ".join(sorted(repeated))
        raise GaussMarkError(f"already recorded: {names}; give each result its own name")
    write_json(path, recorded | plain)


def _read_if_there(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def headline(sentence: str, estimate: "Estimate", unit: str = "") -> None:
    """Record the most important number of the notebook; the tour's page begins with it. A second
    headline is a GaussMarkError.

    Args:
        sentence: the quantity in words, e.g. "texts detected at level 0.05 after 400 tokens".
        unit: of the number, e.g. "nats per token"; empty for a share.
    """
    fields = _fields(estimate)
    record({"headline": {"sentence": sentence, **fields, "unit": unit}})
    if _folder() is None:
        from IPython.display import Markdown, display

        display(Markdown(UNRECORDED))


def weights(lm: "LM") -> None:
    """Note which weights the run uses. ``status.json`` keeps the SHA-256 of the parameters
    (``checkpoints.digest``) and, if they were read from a single file, the SHA-256 of this file.
    """
    folder = _folder()
    if folder is None:
        return
    from gaussmark_lib.engine import checkpoints  # imports torch

    path = folder / WEIGHTS
    hashes = {"parameters": checkpoints.digest(lm.model), "file": lm.file_sha256}
    hashes_by_model = _read_if_there(path) | {lm.name: hashes}
    write_json(path, hashes_by_model)


def save_table(table: "pd.DataFrame", name: str) -> "pd.DataFrame":
    """Write the table to ``<name>.parquet`` of the run, and return it."""
    _check(name)
    folder = _folder()
    if folder is not None:
        table.to_parquet(folder / f"{name}.parquet")
    return table


def save_figure(figure: "Figure", name: str) -> "Figure":
    """Write the figure to ``figures/<name>.png`` of the run, and return it: as the last expression
    of a cell, it is shown once.

    Titles, axes, legends and caption describe the figure for a reader who cannot see it. The PNG
    file and the notebook keep this description.
    """
    from matplotlib import pyplot

    _check(name)
    described = _described(figure)
    folder = _folder()
    if folder is not None:
        path = folder / "figures" / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, dpi=144, metadata={"Description": described})
    # IPython asks a figure for this before it draws it: no data, and the description as metadata
    figure._repr_mimebundle_ = lambda **_: ({}, {"image/png": {"alt": described}})
    pyplot.close(figure)  # or the notebook would show it a second time
    return figure


def _described(figure: "Figure") -> str:
    """A description made of title, panels, legends and caption."""
    title = figure.get_suptitle().strip()
    texts = [_line(text.get_text()) for text in figure.texts]
    caption = " ".join(text for text in texts if text != _line(title))
    visible_axes = [axes for axes in figure.axes if axes.axison]
    panels = [_panel(axes) for axes in visible_axes]
    sentences = [title, *panels, _legend(visible_axes), caption]
    return " ".join(filter(None, map(_sentence, sentences)))


def _legend(visible_axes: "list[Axes]") -> str:
    names: dict[str, None] = {}  # in order, without repetition
    for axes in visible_axes:
        legend = axes.get_legend()
        if legend:
            names |= dict.fromkeys(_line(text.get_text()) for text in legend.get_texts())
    not_empty = [name for name in names if name]
    return f"Legend: {'; '.join(not_empty)}" if not_empty else ""


def _panel(axes: "Axes") -> str:
    x_label = _line(axes.get_xlabel())
    y_label = _line(axes.get_ylabel())
    labels = f"{y_label} against {x_label}" if x_label and y_label else y_label or x_label
    parts = [axes.get_title(), axes.get_title("left"), labels]
    lines = [_line(part).rstrip(".,;:") for part in parts if _line(part)]
    return ", ".join(lines).replace("?, ", "? ")


def _sentence(text: str) -> str:
    text = _line(text).rstrip(".,;:")
    return text + "." if text and not text.endswith("?") else text


def _line(text: str) -> str:
    return " ".join(text.split())


def _folder() -> Path | None:
    """The run's folder, or None where a notebook runs by hand."""
    name = os.environ.get(RUN_DIR)
    return Path(name) if name else None


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise GaussMarkError(f"expected a plain file name without its ending, got {name!r}")


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass. In an estimate without an interval, NaN at both ends becomes
    None.
    """
    fields = asdict(value)
    ends = [fields.get(name) for name in ("low", "high")]
    if all(isinstance(end, float) and math.isnan(end) for end in ends):
        fields["low"] = None
        fields["high"] = None
    return fields


def _plain(value: Any, where: str) -> Any:
    """``value`` as JSON holds it; an error calls it ``where``."""
    if is_dataclass(value):
        value = _fields(value)
    elif hasattr(value, "_asdict"):  # a named tuple, such as ``accuracy.Paired``
        value = value._asdict()
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise GaussMarkError(f"{where}: expected names, got the key {key!r}")
        return {key: _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise GaussMarkError(f"{where} is {value}; record None for a number that does not exist")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "tolist"):  # an array, a series, a tensor, or a scalar of one
        return _plain(value.tolist(), where)
    raise GaussMarkError(
        f"{where}: expected numbers, words, or lists and dictionaries of them, got"
        f" {type(value).__name__} (a table goes to save_table)"
    )
