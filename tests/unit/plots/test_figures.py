"""Each figure from a tiny made-up table: error bars for all rows, and axes that say what they show
and in which unit.
"""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer

from gaussmark_lib.experiments.kgw_baseline import PARTS
from gaussmark_lib.experiments.robustness import OWN, PLAIN
from gaussmark_lib.plots import (
    kgw_baseline,
    low_rank,
    style,
)

N = np.random.default_rng(0)
ESTIMATE = {"value": 0.5, "low": 0.3, "high": 0.6, "n": 40}
LENGTHS = (25, 50, 100)


def cross(**columns):
    """A row for each combination."""
    return pd.MultiIndex.from_product(columns.values(), names=list(columns)).to_frame(index=False)


def named(table, *names):
    return table.assign(
        **{
            f"{name}{part}": value
            for name in names
            for part, value in (("", 0.5), ("_low", 0.3), ("_high", 0.6))
        }
    )


def by_length():
    return cross(
        n_tokens=LENGTHS, figure=["median p", "TPR at 0.05", "false positives at 0.05", "AUC"]
    ).assign(**ESTIMATE)


def curves(keys):
    return {key: (N.normal(size=20), N.normal(2, size=20)) for key in keys}


def after_edits(schemes):
    return cross(
        scheme=schemes,
        corruption=["nothing", "delete"],
        figure=["median p", "TPR at 0.05", "TPR at 0.01", "AUC"],
        fraction=[0.3],
    ).assign(**ESTIMATE)


def by_rank():
    return named(cross(rank_dropped=[0, 4], n_tokens=LENGTHS), "psi", "tpr").assign(
        predicted_psi=1.0, predicted_power=0.5
    )


def shares(schemes):
    found = cross(
        scheme=schemes, kind=[OWN, PLAIN], corruption=["delete at random", "no prompt"]
    ).assign(**ESTIMATE)
    return found.assign(
        fraction=np.where(found["corruption"] == "no prompt", 0.0, 0.3), label=found["corruption"]
    )


def scores():
    return cross(
        kind=["watermarked", "plain"], key=["this key", "wrong key"], text=range(3)
    ).assign(psi=1.0, n_tokens=50)


SIX = dict.fromkeys(
    (
        "bound",
        "exact",
        "simulated",
        "simulated_low",
        "simulated_high",
        "measured",
        "measured_low",
        "measured_high",
    ),
    0.05,
)
ONE, TWO = ["GaussMark"], ["GaussMark", "KGW-2"]
FIGURES = {  # name → (figure, error bars in all of its panels)
    "after_edits": lambda: (kgw_baseline.after_edits(after_edits(TWO), "TPR at 0.01", "n"), 4),
    "against_tokens": lambda: (
        kgw_baseline.against_tokens(cross(scheme=TWO, n_tokens=LENGTHS).assign(**ESTIMATE), "n"),
        6,
    ),
    "tokens_needed": lambda: (
        kgw_baseline.tokens_needed(
            cross(scheme=TWO, level=[0.01, 1e-4]).assign(
                value=[30.0, np.inf] * 2, low=[20.0, 60.0] * 2, high=[40.0, np.inf] * 2
            ),
            LENGTHS,
            "n",
        ),
        4,
    ),
    "in_parts": lambda: (
        kgw_baseline.in_parts(cross(scheme=TWO, part=list(PARTS)).assign(**ESTIMATE), "n"),
        6,
    ),
    "pareto": lambda: (
        kgw_baseline.pareto(named(pd.DataFrame({"scheme": TWO}), "evidence", "nats"), "n"),
        4,
    ),
    "tails": lambda: (
        kgw_baseline.tails(
            cross(test=["exact", "z"], level=[0.05, 0.01]).assign(
                expected=[0.05, 0.01] * 2, **ESTIMATE | {"n": 100}
            ),
            "n",
        ),
        2,
    ),
    "seconds": lambda: (
        kgw_baseline.seconds(
            cross(of=["generation", "detection"], task=TWO, repeat=range(3)).assign(seconds=1.0),
            "n",
        ),
        0,
    ),
    "spectrum": lambda: (
        low_rank.spectrum(
            np.arange(5, 0, -1.0),
            {
                "left": (
                    cross(rank_dropped=range(6), text=[0, 1]).assign(
                        share=lambda t: t["rank_dropped"] / 5
                    )
                )
            },
            (5, 9),
            "n",
        ),
        0,
    ),
    "misuses": lambda: (
        low_rank.misuses(
            cross(statistic=list("abc"), text=range(9)).assign(psi=1.0),
            cross(kind=["human", "own"], statistic=list("abc")).assign(**ESTIMATE),
            0.05,
            "n",
        ),
        6,
    ),
    "power by rank": lambda: (low_rank.power(by_rank(), "n"), 2),
    "TPR by length": lambda: (
        low_rank.by_length(pd.concat(by_rank().assign(level=level) for level in (0.05, 0.01)), "n"),
        12,
    ),
    "over σ": lambda: (
        low_rank.against_sigma(
            cross(scheme=["GaussMark", "k = 4"], sigma=[0.1, 0.2]).assign(
                rank_dropped=lambda t: (t["scheme"] == "k = 4") * 4, **ESTIMATE
            ),
            cross(metric=["last_word"], scheme=["GaussMark", "k = 4"], sigma=[0.1, 0.2]).assign(
                difference=0.0, low=-0.1, high=0.1
            ),
            0.05,
            "n",
        ),
        8,
    ),
    "cost": lambda: (
        low_rank.cost(
            named(cross(scheme=TWO, sigma=[0.1, 0.2]), "delta").assign(
                law=[0.1, 0.2] * 2, rank_dropped=[0, 0, 4, 4]
            ),
            "n",
        ),
        8,
    ),
    "equal_price": lambda: (
        low_rank.equal_price(
            {name: cross(scheme=TWO).assign(**ESTIMATE) for name in ("price", "mean ψ")}, "n"
        ),
        4,
    ),
    "robustness by rank": lambda: (
        low_rank.robustness(
            shares(TWO),
            cross(
                figure=["statistic"], scheme=TWO[1:], label=["delete at random", "no prompt"]
            ).assign(**ESTIMATE),
            0.05,
            "n",
        ),
        10,
    ),
    "sides": lambda: (
        low_rank.sides(named(pd.DataFrame({"scheme": TWO}), "psi").assign(predicted_psi=0.4), "n"),
        2,
    ),
}


def drawn_bars(figure):
    """How many error bars the panels hold, both directions counted."""
    containers = [
        one for axes in figure.axes for one in axes.containers if isinstance(one, ErrorbarContainer)
    ]
    return sum(len(bars.get_segments()) for container in containers for bars in container.lines[2])


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_draws_every_interval_and_names_its_axes(name):
    style.use()
    figure, n_bars = FIGURES[name]()
    assert drawn_bars(figure) == n_bars
    assert all(
        axes.get_xlabel() or axes.get_ylabel() for axes in figure.axes if axes.axison
    )  # not of a schematic
    assert [
        text.get_text() for text in figure.texts if text.get_text().startswith("n")
    ] or "Framed" in figure.texts[-1].get_text()
    plt.close("all")


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("cost", "nats a token"),
        ("seconds", "seconds"),
    ],
)
def test_an_axis_with_a_unit_names_it(name, unit):
    figure, _ = FIGURES[name]()
    assert any(
        unit in label for axes in figure.axes for label in (axes.get_xlabel(), axes.get_ylabel())
    )
    plt.close("all")


def test_every_public_figure_is_drawn_here():
    """A figure function that is missing above would be tested by nothing."""
    files = (
        kgw_baseline,
        low_rank,
    )
    count = sum(
        1
        for file in files
        for name, function in vars(file).items()
        if not name.startswith("_")
        and callable(function)
        and getattr(function, "__annotations__", {}).get("return") is plt.Figure
    )
    assert count == len(FIGURES)


def test_what_is_no_scheme_never_has_a_schemes_colour():
    schemes = {to_hex(colour) for colour, _ in style.SCHEMES.values()} | {to_hex(style.PLAIN)}
    assert not schemes & set(map(to_hex, style.OTHERS))
    assert len(set(style.OTHERS)) == len(style.OTHERS)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.02, 0.6, [0.02, 0.05, 0.1, 0.2, 0.5]), (1e-3, 1.0, [0.001, 0.01, 0.1, 1.0])],
)
def test_a_narrow_logarithmic_axis_has_ticks_between_the_powers_of_ten(low, high, ticks):
    _, axes = plt.subplots()
    axes.set(xscale="log", xlim=(low, high))
    style.few_log_ticks(axes.xaxis)
    assert np.allclose(
        [tick for tick in axes.get_xticks() if low * 0.999 <= tick <= high * 1.001], ticks
    )
    plt.close("all")


def test_each_sides_directions_are_drawn_against_their_own_number():
    """The weight has five of the nine right directions: k = 5 is 5/9 of them, and all of the left
    ones.
    """
    tables = {
        side: (
            cross(rank_dropped=range(6), text=[0, 1]).assign(share=lambda t: t["rank_dropped"] / 5)
        )
        for side in ("left", "right")
    }
    right = low_rank.spectrum(np.arange(5, 0, -1.0), tables, (5, 9), "n").axes[1]
    ends = {line.get_label(): line.get_xdata()[-1] for line in right.lines}
    assert ends["of ‖G‖², 5 left directions"] == 1
    assert ends["of ‖G‖², 9 right directions"] == pytest.approx(5 / 9)
    plt.close("all")


@pytest.mark.parametrize(("low", "scale"), [(0.01, "log"), (-0.03, "linear"), (np.nan, "log")])
def test_a_cost_that_is_not_told_from_zero_keeps_its_lower_end(low, scale):
    curve = cross(scheme=TWO, sigma=[0.1, 0.2]).assign(
        law=0.1, rank_dropped=0, delta=0.02, delta_low=low, delta_high=0.04
    )
    figure = low_rank.cost(curve, "n")
    assert {axes.get_yscale() for axes in figure.axes} == {scale}
    assert not any(
        "own text" in words
        for axes in figure.axes
        for words in (axes.get_xlabel(), axes.get_title("left"))
    )
    plt.close("all")


def test_a_quantity_without_a_ratio_leaves_no_empty_row():
    known = pd.DataFrame({"scheme": ["k = 4"]}).assign(**ESTIMATE)
    unknown = pd.DataFrame({"scheme": ["k = 4", "k = 9"]}).assign(
        value=np.nan, low=np.nan, high=np.nan
    )
    [axes] = low_rank.equal_price({"price": known, "cost": unknown}, "n").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["k = 4"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["price"]
    plt.close("all")


def test_tokens_needed_with_an_unknown_end_is_a_point_without_an_arrow():
    known = {"low": 20.0, "high": 40.0}
    rows = pd.DataFrame(
        {"scheme": TWO, "level": 0.01, "value": 30.0, "low": [np.nan, 20.0], "high": [np.nan, 40.0]}
    )
    never = (
        pd.DataFrame({"scheme": TWO, "level": 0.01, "value": [np.inf, 30.0]})
        .assign(**known)
        .replace({40.0: np.nan, 20.0: np.nan})
    )
    for table, arrows in ((rows, 0), (never, 1)):
        [axes] = kgw_baseline.tokens_needed(table, LENGTHS, "n").axes
        assert len([text for text in axes.texts if getattr(text, "arrow_patch", None)]) == arrows
    plt.close("all")


def test_the_line_of_equal_parts_is_drawn_though_an_end_is_unknown():
    table = named(pd.DataFrame({"scheme": TWO}), "evidence", "nats").assign(
        evidence_low=[np.nan, 0.3], evidence_high=[np.nan, 0.6]
    )
    [axes] = kgw_baseline.pareto(table, "n").axes
    [line] = [line for line in axes.lines if line.get_label().startswith("a nat")]
    assert np.isfinite(line.get_xydata()).all()
    plt.close("all")


def test_an_edit_that_is_all_or_nothing_has_no_share_of_tokens():
    table = cross(
        scheme=TWO,
        corruption=["no prompt", "delete at random"],
        figure=["TPR at 0.01"],
        fraction=[0.0, 0.4],
    ).assign(**ESTIMATE)
    labels = {
        axes.get_title("left"): axes.get_xlabel()
        for axes in kgw_baseline.after_edits(table, "TPR at 0.01", "n").axes
        if axes.axison
    }
    assert "share of tokens" in labels["delete at random"]
    assert "share of tokens" not in labels["no prompt (all or nothing)"]
    plt.close("all")
