"""The plan of one run: its steps with their costs, the peak of its memory, and what to change where
that is more than there is.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmark_lib.errors import GaussMarkError, InvalidModelError
from gaussmark_lib.plan import device, early, late, shapes, work
from gaussmark_lib.plan.device import Device, Rates
from gaussmark_lib.plan.shapes import BYTES
from gaussmark_lib.plan.steps import FLOAT, Bytes, Setting, Step

if TYPE_CHECKING:
    from gaussmark_lib.runs.notebook import Notebook

__all__ = ["early", "late"]  # imported so that they tell ``work`` what their notebooks do

PROGRAM = 0.8 * 2**30  # bytes of Python with its libraries
# as many times the memory there is, and a run is refused: an estimate may be a fifth too high
CLEARLY = 1.25
DOWNLOADS = {  # parameter → value → what is fetched, and about how many bytes
    "text": {"c4": ("allenai/c4, realnewslike, as far as it is read", 50e6)},
    "translation": {True: ("two Marian models for the round trip by French", 1e9)},
}
OTHERS = ("KGW", "SynthID", "Gumbel")
MOST_CHANGES = 40  # steps of the search for what to change


@dataclass(frozen=True)
class Row:
    """A step and what it costs. ``bytes`` are at its peak, beside the model's weights."""

    step: Step
    flops: float
    bytes: Bytes
    seconds: float | None


@dataclass(frozen=True)
class Plan:
    """What a run would do, on which device, and whether it fits; printed, it says so in words."""

    notebook: str
    setting: Setting | None
    device: Device
    rows: tuple[Row, ...]
    downloads: tuple[tuple[str, float], ...]
    changes: tuple[str, ...]
    note: str = ""

    @property
    def weights(self) -> float:
        """Bytes of the model's own weights."""
        return (
            0.0
            if self.setting is None
            else self.setting.shape.parameters * BYTES[self.setting.held]
        )

    @property
    def worst(self) -> Row | None:
        return max(self.rows, key=lambda row: row.bytes.total, default=None)

    @property
    def peak(self) -> float:
        """Bytes on the device, with the program's own where that is the CPU."""
        return (
            self.weights
            + (self.worst.bytes.total if self.worst else 0.0)
            + PROGRAM * self.device.is_cpu
        )

    @property
    def host(self) -> float:
        """Bytes on the machine beside a GPU: the model passes it when it is loaded, and every noise
        when it is drawn.
        """
        return PROGRAM + max(
            [self.weights, *(_at_home(row.step, self.setting) for row in self.rows)]
        )

    @property
    def fits(self) -> bool:
        return self.peak <= self.device.memory and (
            self.device.is_cpu or self.host <= self.device.host
        )

    @property
    def seconds(self) -> float | None:
        return (
            sum(row.seconds for row in self.rows)
            if all(row.seconds is not None for row in self.rows)
            else None
        )

    def as_json(self) -> dict[str, Any]:
        """All of it, in bytes, operations and seconds."""
        rows = [
            {
                "what": row.step.what,
                "texts": row.step.texts,
                "tokens": row.step.n_tokens,
                "noises_drawn": row.step.drawn,
            }
            | {"flops": row.flops, "bytes": row.bytes.parts(), "seconds": row.seconds}
            for row in self.rows
        ]
        about = {
            "notebook": self.notebook,
            "note": self.note,
            "device": self.device.name,
            "memory": self.device.memory,
            "free": self.device.free,
        }
        if self.setting:
            weight = self.setting.weight
            about |= {
                "model": self.setting.shape.name,
                "parameters": self.setting.shape.parameters,
                "weight": weight.name,
            }
            about |= {
                "weight_shape": [weight.matrix.d_out, weight.matrix.d_in],
                "held": self.setting.held,
                "scoring": self.setting.scoring,
            }
        totals = {
            "flops": sum(row.flops for row in self.rows),
            "weights": self.weights,
            "peak": self.peak,
            "seconds": self.seconds,
        }
        after = {
            "downloads": [list(one) for one in self.downloads],
            "fits": self.fits,
            "changes": list(self.changes),
        }
        return (
            about
            | {"steps": rows}
            | totals
            | ({} if self.device.is_cpu else {"host_peak": self.host})
            | after
        )

    def __str__(self) -> str:
        from gaussmark_lib.plan.words import said

        return said(self)


def of(
    notebook: "Notebook",
    given: Mapping[str, Any],
    *,
    calibrate: bool = True,
    on: Device | None = None,
) -> Plan:
    """The plan of a notebook's run with these values; the others are its defaults.

    Args:
        calibrate: measure this device for some seconds, so that the plan has seconds. on: a device
            other than this machine's.

    Raises:
        ParameterError: the notebook has no such parameter, or it takes no such value.
            InvalidModelError: nothing here tells the model's shape.
    """
    values = notebook.check(given)
    there = on or device.of(values.get("device"))
    if (setting := _setting(values, there, notebook.path.parent)) is None:
        return Plan(
            notebook.name,
            None,
            there,
            (),
            (),
            (),
            "This notebook uses no language model: it needs no more than a laptop.",
        )
    plan = _plan(
        notebook,
        values,
        there,
        device.calibrated(setting, there) if calibrate and on is None else None,
    )
    return plan if plan.fits else replace(plan, changes=tuple(_changes(notebook, values, there)))


def _plan(
    notebook: "Notebook", values: Mapping[str, Any], there: Device, rates: Rates | None = None
) -> Plan:
    """The plan of complete values, without what to change."""
    setting = _setting(values, there, notebook.path.parent)
    try:
        steps, note = work.steps(notebook.name[:2], values, setting), _note(values)
    except (
        AttributeError,
        TypeError,
    ):  # somebody's own notebook of this number, with other parameters
        steps, note = None, ""
    if steps is None:
        steps, note = (
            [],
            (
                "What this notebook does is not known to the plan: the model's weights alone are"
                " counted."
            ),
        )
    rows = tuple(_row(step, setting, rates) for step in steps)
    return Plan(notebook.name, setting, there, rows, _downloads(values, setting), (), note)


def refusal(notebook: "Notebook", given: Mapping[str, Any]) -> str | None:
    """One sentence why this run cannot fit on this machine by far, or None: also where nothing is
    known of it.
    """
    if "model" not in notebook.parameters:
        return None
    try:
        plan = of(notebook, given, calibrate=False)
    except GaussMarkError:  # what is wrong with the parameters or the model, the run itself says
        return None
    over = [(plan.peak, plan.device.memory, plan.device.name)] + (
        [] if plan.device.is_cpu else [(plan.host, plan.device.host, "the machine")]
    )
    for needed, there, where in over:
        if needed > CLEARLY * there:
            change = ", ".join(plan.changes) or "a smaller model, or a device with more memory"
            needs = (
                f"{notebook.name} would need about {needed / 2**30:,.0f} GiB, and {where} has"
                f" {there / 2**30:,.0f}"
            )
            return (
                f"{needs}; what would help: {change}. --plan shows its parts, --anyway runs it"
                " nevertheless"
            )
    return None


def _setting(values: Mapping[str, Any], there: Device, folder: Path) -> Setting | None:
    """The model of a run; None for a notebook without."""
    if "blocks" in values and "vocab" in values:  # 20 trains one of its own
        own = {
            "hidden_size": values["hidden"],
            "num_hidden_layers": values["blocks"],
            "num_attention_heads": 4,
            "vocab_size": values["vocab"],
        }
        shape = shapes.read(
            own | {"intermediate_size": 3 * values["hidden"], "tie_word_embeddings": True},
            "the model in training",
        )
        return Setting(shape, shape.weight(None))
    if "model" not in values:
        return None
    name = values["model"]
    local = folder / Path(name).expanduser()
    shape = shapes.of(str(local) if local.is_dir() else name)
    held = values.get("model_dtype", "float32")
    held = shape.dtype if held == "auto" else held
    scoring = values.get("dtype") or held
    if scoring == "bfloat16" and not there.bfloat16:
        scoring = "float32"
    if held not in BYTES:
        raise InvalidModelError(
            f"{name}: expected weights in one of {', '.join(BYTES)}, got {held}"
        )
    return Setting(
        shape,
        shape.weight(values.get("weight")),
        held,
        scoring,
        values.get("top_p", 1.0),
        not there.is_cpu,
    )


def _at_home(step: Step, setting: Setting) -> float:
    """Bytes that a step takes of the machine beside a GPU."""
    return step.noises(setting) + FLOAT * step.size(setting) * step.at_home


def _row(step: Step, setting: Setting, rates: Rates | None) -> Row:
    return Row(
        step,
        step.flops(setting),
        step.bytes(setting),
        None if rates is None else device.seconds(step, setting, rates),
    )


def _downloads(values: Mapping[str, Any], setting: Setting) -> tuple[tuple[str, float], ...]:
    """What is fetched from a hub, unless it is on this disk already: name and about how
    many bytes.
    """
    name, found = values.get("model", "doclm"), []
    if (
        name != "doclm"
        and not Path(setting.shape.name).is_dir()
        and not any(shapes.cached(name).glob("snapshots/*/*.safetensors"))
    ):
        found.append((name, setting.shape.parameters * BYTES.get(setting.shape.dtype, 4)))
    found += [
        known[values[parameter]]
        for parameter, known in DOWNLOADS.items()
        if values.get(parameter) in list(known)
    ]
    if values.get("harness_tasks"):
        found.append((f"data of {len(values['harness_tasks'])} tasks of the harness", 50e6))
    return tuple(found)


def _note(values: Mapping[str, Any]) -> str:
    """What is not counted."""
    if "synthid_depth" in values or any(
        name.startswith(OTHERS) for name in values.get("others", [])
    ):
        return (
            "Not counted: the time that other schemes take to change the logits while they write"
            " (SynthID most of all)."
        )
    return (
        "Not counted: the judge's answers, which come from elsewhere."
        if values.get("judge") == "endpoint"
        else ""
    )


def _changes(notebook: "Notebook", values: Mapping[str, Any], there: Device) -> Iterator[str]:
    """What to change so that a run fits, all of it together: a parameter of the step that needs
    most at a time, as far as it must be or can be.
    """
    values, changed = dict(values), {}
    for _ in range(MOST_CHANGES):
        plan = _plan(notebook, values, there)
        if plan.fits or (smaller := _smaller(plan, notebook, values)) is None:
            break
        values |= smaller
        changed |= smaller
    if plan.fits:
        yield from (f"-p {name} {value}" for name, value in changed.items())
        return
    alone = plan.weights + plan.worst.bytes.copies + PROGRAM * there.is_cpu
    if alone > there.memory:
        yield (
            f"a device with more than {math.floor(alone / 2**30):,} GiB, which the weights take"
            " alone, or a smaller model"
        )
    else:
        yield (
            f"a device with {math.ceil(plan.peak / 2**30):,} GiB, with"
            f" {', '.join(f'-p {name} {value}' for name, value in changed.items())}"
        )


def _smaller(plan: Plan, notebook: "Notebook", values: Mapping[str, Any]) -> dict[str, Any] | None:
    """A parameter with the value that lets its step fit, or half of it where that is too small."""
    setting, there, row = plan.setting, plan.device, plan.worst
    excess = plan.peak - there.memory
    if excess <= 0:  # then it is the machine beside the GPU
        row, excess = (
            max(plan.rows, key=lambda one: _at_home(one.step, setting)),
            plan.host - there.host,
        )
    step, tensor = row.step, FLOAT * row.step.size(setting)
    wider = BYTES[setting.scoring] > BYTES[setting.held]
    if (
        wider
        and row.bytes.copies > setting.shape.parameters * BYTES[setting.held]
        and "model_dtype" in notebook.parameters
    ):
        return {"model_dtype": setting.scoring}  # one copy of the weights in place of two
    if (
        not wider
        and plan.weights / 2 > excess
        and setting.held == "float32"
        and there.bfloat16
        and "model_dtype" in notebook.parameters
    ):
        return {"model_dtype": "bfloat16", "dtype": "bfloat16"}
    if plan.weights + PROGRAM * there.is_cpu > there.memory:
        return None
    options = {
        name: (excess / (n * tensor), n * values[name])
        for name, n in step.by.items()
        if name in values
    }
    by_row = (row.bytes.cache + row.bytes.activations + row.bytes.logits) / step.rows
    if by_row and step.batch == values.get(step.batch_by):
        options[step.batch_by] = (excess / by_row, by_row * step.rows / tensor)
    by_token = by_row * step.rows / max(1, step.length)
    if by_token and isinstance(values.get("n_tokens"), int):
        options.setdefault("n_tokens", (excess / by_token, 0))
    for name in sorted(options, key=lambda name: -options[name][1]):
        enough, half = values[name] - math.ceil(options[name][0]), values[name] // 2
        for value in (enough, half):
            if value < values[name] and notebook.parameters[name].fits(value):
                return {name: value}
    return None
