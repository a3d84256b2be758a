"""Notebook 07 on a tiny model: norms of all ranks at once against projecting for each, the linear
law at one σ and at an equal ψ, prices against a slow loop, and what a misplaced P does.
"""

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
from matplotlib import pyplot as plt
from scipy.stats import kstest, norm

from gaussmark_experiments import low_rank, quality
from gaussmark_experiments.low_rank import DIVIDED, FORGOTTEN, HUMAN, OWN, RIGHT, VANILLA
from gaussmark_lib import divergence, gradients, perturb, rank_reduce
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.pairs import Pairs

WEIGHTS = [
    ("llama", "model.layers.1.mlp.down_proj.weight"),
    ("llama", "model.layers.0.mlp.gate_proj.weight"),
    ("gpt2", tiny_models.WEIGHTS["gpt2"][1]),
]
LM, WEIGHT = tiny_lm.build(), WEIGHTS[0][1]
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 4, 2, 7)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), 12, 9, 10)
PAIRS = Pairs(PROMPTS, [Key.from_seed(i) for i in range(3)])
MANY = tiny_models.random_ids(np.random.default_rng(2), *[4] * 24)


@pytest.mark.parametrize(("architecture", "weight"), WEIGHTS)
def test_the_norms_of_all_ranks_are_those_of_projecting_for_each(architecture, weight):
    model = tiny_models.build(architecture)
    norms = low_rank.gradient_norms(model, PROMPTS, RESPONSES, weight)
    d = min(perturb.Watermark(weight, 1.0).on(model).linear.shape)
    assert {side: table.shape for side, table in norms.items()} == dict.fromkeys(
        rank_reduce.SIDES, (3, d + 1)
    )
    for side, table in norms.items():
        for k in (0, 3, d - 1):
            wm = Watermark(weight, 0.1, k, side)
            for gradient in gradients.gradients(model, PROMPTS, RESPONSES, wm):
                expected = pytest.approx(gradient.norm, rel=1e-3, abs=1e-4 * table[0, 0])
                assert table[gradient.text, k] == expected
        gone = low_rank.shares(table)
        assert (np.diff(gone, axis=1) >= -1e-9).all(), "more directions hold more"
        assert gone[:, [0]] == pytest.approx(0), "and none hold nothing"
    smaller = "left" if np.argmin(Watermark(weight, 1.0).on(model).linear.shape) == 0 else "right"
    assert low_rank.shares(norms[smaller])[:, d] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("d", "n_directions"), [(96, 96), (96, 256), (16, 256), (4, 4)])
def test_a_gradient_that_is_spread_evenly_favours_no_direction(d, n_directions):
    """Each of the n directions of a side holds 1/n of it, also where the weight has fewer."""
    even = np.sqrt(1 - np.arange(d + 1) / n_directions) * [[1.0], [7.0]]
    assert low_rank.favoured(even, n_directions).value == pytest.approx(1)


def test_sigma_of_an_equal_psi_is_the_ratio_of_the_mean_norms():
    norms = {"both": np.array([[6.0, 5.0, 3.0], [8.0, 5.0, 4.0]])}
    vanilla = Watermark("w", 0.1, side="both")
    found = low_rank.at_equal_psi(vanilla, norms, 2)
    assert (found.sigma, found.rank_dropped, found.side) == (pytest.approx(0.2), 2, "both")
    assert low_rank.predicted(norms, found) == pytest.approx([0.6, 0.8])
    assert low_rank.at_equal_psi(vanilla, norms, 0).sigma == pytest.approx(0.1)
    schemes = low_rank.named([vanilla, Watermark("w", 0.1, 2), found], PAIRS.keys[0], "float64")
    assert list(schemes) == [VANILLA, "k = 2", "k = 2, both"]
    assert schemes["k = 2, both"].wm == found


def test_prices_are_those_of_each_pairs_own_key():
    wms = [Watermark(WEIGHT, 0.1), Watermark(WEIGHT, 0.2, 4)]
    schemes = low_rank.named(wms, PAIRS.keys[0])
    texts = low_rank.texts_by_scheme(LM, schemes, PAIRS, 8, seed=5)
    for name, scheme in schemes.items():
        alone = scheme.generate(LM.model, PROMPTS, 8, keys=PAIRS.keys, seed=5)
        assert texts[name] == alone, "the same random numbers in each scheme"
    # of other beginnings than the pairs' prompts
    passages = list(zip(MANY[:3], RESPONSES, strict=True))
    table = low_rank.prices(LM, schemes, PAIRS, texts, passages)
    assert len(table) == 2 * 2 * 3
    value = table.set_index(["scheme", "quantity", "pair"])["value"]
    for name, wm in zip(schemes, wms, strict=True):
        for i, (x, key) in enumerate(zip(*PAIRS, strict=True)):
            [nats] = divergence.per_text(LM.model, [x], [texts[name][i]], marks=[(wm, key)])
            assert value[name, OWN, i] == pytest.approx(nats / 8, rel=1e-4)
            pair, human = Pairs([MANY[i]], [key]), {HUMAN: [RESPONSES[i]]}
            [nats] = quality.even_changes(LM, pair, human, wm)[HUMAN]
            assert value[name, HUMAN, i] == pytest.approx(nats, abs=1e-5)


def by_pair(values: dict[str, list[float]], column: str) -> pd.DataFrame:
    """A row for each scheme and pair, from the values of each scheme's pairs."""
    table = pd.DataFrame(values).rename_axis("pair").reset_index()
    return table.melt("pair", var_name="scheme", value_name=column)


def test_tables_over_pairs_are_means_and_their_ratios():
    prices = {VANILLA: [2.0, 4.0, 3.0], "k = 4": [1.0, 5.0, 3.0], "k = 9": [2.0, 2.0, 2.0]}
    table = by_pair(prices, "value").assign(quantity="price")
    over = low_rank.over_vanilla(table).set_index("scheme")
    assert over["value"].to_dict() == pytest.approx({"k = 4": 1.0, "k = 9": 2 / 3})
    # without the first, the second or the third pair the ratio is 8/7, 4/5 or 1
    half = 4.302653 * np.std([8 / 7, 4 / 5, 1]) * 2**0.5  # of Student's with two degrees
    assert over.loc["k = 4", ["low", "high"]].tolist() == pytest.approx([1 - half, 1 + half])


def test_schemes_are_named_by_the_share_that_they_drop_whatever_the_size_of_the_weight():
    small, large = (
        pd.DataFrame({"scheme": [VANILLA, *(f"k = {k}" for k in ks), f"k = {ks[1]}, both"]})
        for ks in ([32, 128], [72, 288])
    )
    names = [VANILLA, "12.5% dropped", "50% dropped", "50% dropped, both"]
    assert list(low_rank.by_share(small, [0.5, 0.125])["scheme"]) == names
    assert list(low_rank.by_share(large, [0.125, 0.5])["scheme"]) == names
    merged = low_rank.by_share(small, [0.125, 0.126, 0.5])  # two shares gave the same k
    assert list(merged["scheme"]) == list(small["scheme"])


def test_the_share_of_psi_that_is_left_is_compared_with_the_share_of_directions():
    psi = {VANILLA: [4.0, 6.0], "k = 5": [3.0, 3.0], "k = 9": [1.0, 3.0], "k = 9, both": [0.0, 0.0]}
    left = low_rank.more_than_directions(by_pair(psi, "psi"), [0.5, 0.9])
    assert left.value == pytest.approx((4 / 10) / 0.1)
    assert left.n == 2


def test_each_record_says_how_much_of_psi_is_left_and_what_it_costs():
    records = runs.references("07_low_rank")
    assert len(records) == 2
    for run in records:
        assert low_rank.recorded_left(run).low > 1  # a length, not its square
    here = pd.DataFrame({"scheme": ["k = 4"], "quantity": [HUMAN], "value": [1.0], "n": [12]})
    table = low_rank.over_by_run(here, [0.5], "07_low_rank")
    assert table["run"].unique().tolist() == ["SmolLM2", "doclm", "this run"]
    assert set(table["quantity"]) == {HUMAN}
    half = table[table["scheme"] == "50% dropped"].set_index("run")["value"]
    [smollm2] = [run for run in records if run.params["model"] == "smollm2"]
    [recorded] = [
        row["value"]
        for row in smollm2.results["divided by vanilla's"]
        if row["scheme"] == "k = 288" and row["quantity"] == HUMAN
    ]
    assert half["SmolLM2"] == pytest.approx(recorded)
    assert half["this run"] == 1


def test_what_is_kept_after_edits_is_a_ratio_of_ratios_of_means():
    versions = [
        ("unedited", {"k = 4": [4.0, 6.0], VANILLA: [2.0, 6.0]}),
        ("delete", {"k = 4": [2.0, 2.0], VANILLA: [1.0, 3.0]}),
        ("insert", {"k = 4": [0.0, 2.0], VANILLA: [1.0, 1.0]}),
    ]
    table = pd.concat(by_pair(psi, "psi").assign(edit=edit) for edit, psi in versions)
    kept = low_rank.left_over_vanilla(table, "k = 4")
    assert kept.value == pytest.approx(((1 + 2) / 10) / ((1 + 2) / 8))  # over the mean of edits
    assert (kept.n, np.isnan(kept.low)) == (2, True), "two pairs have no interval"


def test_a_misplaced_projection_is_what_the_docstring_says():
    k, keys = 16, [Key.from_seed(i) for i in range(200)]
    wm = Watermark(WEIGHT, 0.15, k)
    psi = low_rank.misuses(LM.model, PROMPTS, RESPONSES, wm, keys)
    norms = low_rank.gradient_norms(LM.model, PROMPTS, RESPONSES, WEIGHT)["left"]
    left = np.repeat(norms[:, k] / norms[:, 0], len(keys))
    assert psi[DIVIDED] == pytest.approx(psi[RIGHT] * left, rel=1e-3, abs=1e-5)
    for exact in (RIGHT, FORGOTTEN):
        assert kstest(psi[exact][:200], "norm").pvalue > 1e-3
    shares = low_rank.detected(psi, 0.05).set_index("statistic")["value"]
    assert shares[DIVIDED] == (psi[DIVIDED] >= norm.isf(0.05)).mean()
    # ⟨ξ, PG⟩ and ⟨ξ, G⟩ by hand, of one text and key
    [text] = gradients.gradients(LM.model, PROMPTS[:1], RESPONSES[:1], Watermark(WEIGHT, 1))
    G = text.G
    xi = perturb.noise(LM.model, Watermark(WEIGHT, 0.15), keys[0])
    PG = rank_reduce.projector(wm.on(LM.model).linear.value(), k)(G)
    assert psi[RIGHT][0] == pytest.approx(float((xi * PG).sum() / PG.norm()) / 0.15, abs=1e-4)
    assert psi[FORGOTTEN][0] == pytest.approx(float((xi * G).sum() / G.norm()) / 0.15, abs=1e-4)
    paired = low_rank.misuses(LM.model, PROMPTS, RESPONSES, wm, keys[:3], paired=True)
    assert paired[RIGHT] == pytest.approx(psi[RIGHT].reshape(3, 200)[range(3), range(3)], abs=1e-4)


def test_each_sides_directions_are_drawn_against_their_own_number():
    """The weight has five of the nine right directions: k = 5 is 5/9 of them, and all left ones."""
    norms = dict.fromkeys(("left", "right"), np.sqrt(1 - np.arange(6) / 6) * [[1.0], [2.0]])
    right = low_rank.draw_spectrum(np.arange(5, 0, -1.0), norms, (5, 9), "n = 2").axes[1]
    ends = {line.get_label(): line.get_xydata()[-1].tolist() for line in right.lines}
    assert ends["of ‖G‖², 5 left directions"] == pytest.approx([1, 5 / 6])
    assert ends["of ‖G‖², 9 right directions"] == pytest.approx([5 / 9, 5 / 6])
    assert ends["of the weight's ‖θ‖², right"] == pytest.approx([5 / 9, 1])
    plt.close("all")


def test_the_projection_that_drops_most_is_found_among_the_left_ones():
    means = {VANILLA: 4.0, "k = 9": 2.0, "k = 10": 1.0, "k = 12, right": 3.0}
    psi = {scheme: [mean * (1 + pair) for pair in range(8)] for scheme, mean in means.items()}
    over = low_rank.share_of_psi(by_pair(psi, "psi"))
    assert low_rank.of_strongest(over, low_rank.PSI).value == pytest.approx(0.25)
