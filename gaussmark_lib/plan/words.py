"""A plan in words."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gaussmark_lib.plan.estimate import Plan

GIB = 2**30


def said(plan: "Plan") -> str:
    """Some lines: the model and the device, a line a step, the peak by its parts, downloads, and
    whether it fits.
    """
    lines = [plan.notebook, *_model(plan)]
    if plan.rows:
        lines += ["", *_table(plan), "", *_peak(plan)]
    if plan.downloads:
        lines.append(
            "downloads, about: "
            + "; ".join(f"{what} {size(number)}" for what, number in plan.downloads)
        )
    if plan.setting:
        lines.append(_verdict(plan))
        lines += [f"  {change}" for change in plan.changes]
        if plan.seconds is not None:
            lines.append(
                "The time is the model's; to start, to read texts and to draw figures takes a"
                " notebook some half a minute more."
            )
    return "\n".join([*lines, *([plan.note] if plan.note else [])])


def _model(plan: "Plan") -> list[str]:
    free = f"{size(plan.device.memory)}, of which {size(plan.device.free)} are free"
    there = f"device: {plan.device.name}, {free}"
    if plan.setting is None:
        return [there]
    shape, weight = plan.setting.shape, plan.setting.weight
    widths = f"{weight.matrix.d_out} × {weight.matrix.d_in}"
    named = "" if shape.named else " (Llama's name of it: the plan does not know this model's own)"
    about = (
        f"{amount(shape.parameters)} parameters in {plan.setting.held}, scored in"
        f" {plan.setting.scoring}"
    )
    return [f"model: {shape.name}, {about}; noise on {weight.name}, {widths}{named}", there]


def _table(plan: "Plan") -> list[str]:
    heads = ["", "texts", "tokens", "noises", "operations", "memory", "time"]
    rows = [
        [
            row.step.what,
            f"{row.step.texts:,}",
            amount(row.step.n_tokens),
            f"{row.step.drawn:,}",
            amount(row.flops),
            size(row.bytes.total),
            spell(row.seconds),
        ]
        for row in plan.rows
    ]
    steps = [row.step for row in plan.rows]
    totals = [
        amount(sum(step.n_tokens for step in steps)),
        f"{sum(step.drawn for step in steps):,}",
        amount(sum(row.flops for row in plan.rows)),
    ]
    rows.append(["all", "", *totals, "", spell(plan.seconds)])
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in [heads, *rows]
    ]


def _peak(plan: "Plan") -> list[str]:
    parts = {"weights": plan.weights} | plan.worst.bytes.parts()
    told = ", ".join(f"{name} {size(number)}" for name, number in parts.items() if number)
    lines = [f"peak memory: {size(plan.peak)} in {plan.worst.step.what!r}: {told}"]
    return (
        lines if plan.device.is_cpu else [*lines, f"and {size(plan.host)} on the machine beside it"]
    )


def _verdict(plan: "Plan") -> str:
    if not plan.fits:
        return "It does not fit. What would help:"
    return (
        "It fits."
        if plan.peak <= plan.device.free
        else f"It fits once other programs have let go of {size(plan.peak - plan.device.free)}."
    )


def size(n: float) -> str:
    """Bytes as people say them.

    >>> size(0), size(3 * 2**20), size(1.5 * 2**30)
    ('0', '3.0 MiB', '1.5 GiB')
    """
    if n >= GIB:
        return f"{n / GIB:,.1f} GiB"
    return f"{n / 2**20:.1f} MiB" if n else "0"


def amount(n: float) -> str:
    """A large number with three digits.

    >>> amount(950), amount(8.03e9), amount(4.2e18)
    ('950', '8.03 G', '4.2 E')
    """
    for factor, sign in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= factor:
            return f"{n / factor:.3g} {sign}"
    return f"{n:.0f}"


def spell(seconds: float | None) -> str:
    """Seconds as people say them.

    >>> spell(None), spell(0.41), spell(75), spell(9000), spell(2e8)
    ('', '0.4 s', '75 s', '2.5 h', '2,315 days')
    """
    if seconds is None:
        return ""
    for unit, factor in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * factor:
            return f"{_short(seconds / factor)} {unit}"
    return f"{_short(seconds)} s"


def _short(n: float) -> str:
    return f"{n:,.0f}" if n >= 10 else f"{n:.1f}"
