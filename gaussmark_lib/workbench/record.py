"""What a notebook keeps: numbers, tables and figures, written into its run's folder.

The process that runs the notebook names the folder in an environment variable. In JupyterLab there
is no run: the same calls then check what they are given, show it, write nothing, and say so at the
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
WEIGHTS = "weights.json"  # in a run's folder, until its status has the content
UNRECORDED = (
    "*This notebook runs by hand, and keeps no record. `gaussmark run NN`, with its number, runs it"
    " and keeps one.*"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def record(results: dict[str, Any]) -> None:
    """Adds numbers, words, lists or dictionaries of them to the run's ``results.json``.

    NumPy's and pandas' scalars and arrays become plain numbers and lists, a ``stats.Estimate`` (or
    another dataclass or named tuple) the dictionary of its fields. None stands for a number that
    does not exist, also for both ends of an estimate without an interval (NaN).

    Raises:
        GaussMarkError: what JSON cannot hold, as nan and infinity, or a name that is recorded
            already.
    """
    plain = _plain(results, "results")
    if not (folder := _folder()):
        return
    path = folder / "results.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if again := known.keys() & plain.keys():
        names = ", ".join(sorted(again))
        raise GaussMarkError(f"recorded already: {names}; give each result a name of its own")
    write_json(path, known | plain)


def headline(sentence: str, estimate: "Estimate", unit: str = "") -> None:
    """Records the one number that a reader came for; the tour's page begins with it. A second
    headline is a GaussMarkError.

    Args:
        sentence: the quantity in words, e.g. "texts detected at level 0.05 after 400 tokens".
        unit: of the number, e.g. "nats per token"; empty for a share.
    """
    record({"headline": {"sentence": sentence, **_fields(estimate), "unit": unit}})
    if not _folder():
        from IPython.display import Markdown, display

        display(Markdown(UNRECORDED))


def weights(lm: "LM") -> None:
    """Notes which weights the run uses: ``status.json`` keeps the SHA-256 of the parameters
    (``checkpoints.digest``), and that of the file which they were read from, if it is one file.
    """
    if not (folder := _folder()):
        return
    from gaussmark_lib.engine import checkpoints  # imports torch

    path = folder / WEIGHTS
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    hashes = {"parameters": checkpoints.digest(lm.model), "file": lm.file_sha256}
    write_json(path, known | {lm.name: hashes})


def save_table(table: "pd.DataFrame", name: str) -> "pd.DataFrame":
    """Writes the table to ``<name>.parquet`` of the run, and returns it."""
    _check(name)
    if folder := _folder():
        table.to_parquet(folder / f"{name}.parquet")
    return table


def save_figure(figure: "Figure", name: str) -> "Figure":
    """Writes the figure to ``figures/<name>.png`` of the run, and returns it: as a cell's last
    expression it is shown, once.

    Its titles, axes, legends and caption describe it for a reader who cannot see it: the PNG file
    and the notebook keep the description.
    """
    from matplotlib import pyplot

    _check(name)
    described = _described(figure)
    if folder := _folder():
        path = folder / "figures" / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, dpi=144, metadata={"Description": described})
    # what IPython asks a figure for before it draws it: here its metadata alone
    figure._repr_mimebundle_ = lambda **_: ({}, {"image/png": {"alt": described}})
    pyplot.close(figure)  # or the notebook would show it a second time
    return figure


def _described(figure: "Figure") -> str:
    """A description made of title, panels, legends and caption."""
    title = figure.get_suptitle().strip()
    texts = [_line(text.get_text()) for text in figure.texts]
    caption = " ".join(text for text in texts if text != _line(title))
    shown = [axes for axes in figure.axes if axes.axison]
    legends = [axes.get_legend() for axes in shown if axes.get_legend()]
    names = dict.fromkeys(_line(text.get_text()) for one in legends for text in one.get_texts())
    legend = f"Legend: {'; '.join(filter(None, names))}" if any(names) else ""
    sentences = [title, *map(_panel, shown), legend, caption]
    return " ".join(filter(None, map(_sentence, sentences)))


def _panel(axes: "Axes") -> str:
    across, up = _line(axes.get_xlabel()), _line(axes.get_ylabel())
    against = f"{up} against {across}" if up and across else up or across
    parts = [axes.get_title(), axes.get_title("left"), against]
    stripped = [text.rstrip(".,;:") for part in parts if (text := _line(part))]
    return ", ".join(stripped).replace("?, ", "? ")


def _sentence(text: str) -> str:
    text = _line(text).rstrip(".,;:")
    return text + "." if text and not text.endswith("?") else text


def _line(text: str) -> str:
    return " ".join(text.split())


def _folder() -> Path | None:
    return Path(os.environ[RUN_DIR]) if os.environ.get(RUN_DIR) else None


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise GaussMarkError(f"expected a plain file name without its ending, got {name!r}")


def _fields(value: Any) -> dict[str, Any]:
    """Of a dataclass. An estimate without an interval has NaN for both ends, which become None."""
    fields = asdict(value)
    ends = [fields.get(name) for name in ("low", "high")]
    if all(isinstance(end, float) and math.isnan(end) for end in ends):
        fields |= {"low": None, "high": None}
    return fields


def _plain(value: Any, where: str) -> Any:
    """``value`` as JSON holds it; ``where`` names it in an error."""
    if is_dataclass(value):
        value = _fields(value)
    elif hasattr(value, "_asdict"):  # a named tuple, such as ``accuracy.Paired``
        value = value._asdict()
    if isinstance(value, dict):
        if others := [key for key in value if not isinstance(key, str)]:
            raise GaussMarkError(f"{where}: expected names, got the key {others[0]!r}")
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
