"""The experiment's tables: every scheme and corruption in them, strength 0 changes nothing, and the
level holds throughout.
"""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import tiny_models
from scipy.stats import binom

from gaussmark_lib import corrupt, schemes, score
from gaussmark_lib.errors import CorruptionError
from gaussmark_lib.experiments import robustness, written_and_scored
from gaussmark_lib.kgw import KGW
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.schemes import COLUMNS, GaussMark, TokenKeys

KEY = Key.from_seed(0)
WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.15)
SCHEMES = [
    GaussMark(WM, KEY),
    GaussMark(Watermark(WM.weight, 0.2, 4), KEY, name="rank-reduced"),
    KGW(2.0, KEY),
    TokenKeys(WM, KEY),
    TokenKeys(WM, KEY, test="sum"),
]
LM = tiny_lm.build()
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), *[5] * 6)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), *[20] * 6)
CHANGES = corrupt.named(LM)


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_changes_at_0_and_the_input_never(name):
    prompts, responses = ([list(ids) for ids in texts] for texts in (PROMPTS, RESPONSES))
    assert CHANGES[name](prompts, responses, 0.0, 1) == (PROMPTS, RESPONSES)
    changed = CHANGES[name](
        prompts, responses, 0.5 if "prompt" not in name and name != "retokenise" else 1.0, 1
    )
    assert (prompts, responses) == (PROMPTS, RESPONSES)
    assert changed != (PROMPTS, RESPONSES)


def test_each_change_is_what_its_name_says():
    x, y = CHANGES["delete at the start"](PROMPTS, RESPONSES, 0.4, 0)
    assert x == [[]] * 6
    assert y == [response[5:] for response in RESPONSES]
    x, y = CHANGES["insert at the start"](PROMPTS, RESPONSES, 0.4, 0)
    assert [prompt[10:] for prompt in x] == PROMPTS
    assert y == RESPONSES
    x, y = CHANGES["substitute own tokens"](PROMPTS, RESPONSES, 1.0, 0)
    assert all(set(new) <= set(old) for new, old in zip(y, RESPONSES, strict=True))
    assert CHANGES["no prompt"](PROMPTS, RESPONSES, 1.0, 0) == ([[]] * 6, RESPONSES)
    assert CHANGES["wrong prompt"](PROMPTS, RESPONSES, 1.0, 0)[0][0] == PROMPTS[1]
    assert CHANGES["truncate"](PROMPTS, RESPONSES, 0.25, 0) == (
        PROMPTS,
        [response[:15] for response in RESPONSES],
    )
    assert [len(ids) for ids in CHANGES["insert at random"](PROMPTS, RESPONSES, 0.25, 0)[1]] == [
        25
    ] * 6


@pytest.mark.parametrize("name", ["no prompt", "wrong prompt", "retokenise"])
def test_what_has_no_strength_is_done_at_any_but_0(name):
    assert (
        CHANGES[name](PROMPTS, RESPONSES, 0.3, 0)
        == CHANGES[name](PROMPTS, RESPONSES, 1.0, 0)
        != (PROMPTS, RESPONSES)
    )
    with pytest.raises(CorruptionError, match="from 0 to 1"):
        CHANGES[name](PROMPTS, RESPONSES, 1.5, 0)


def test_splicing_makes_up_the_fraction():
    change = corrupt.spliced([[50] * 100] * 6)
    assert change(PROMPTS, RESPONSES, 0.0, 0) == (PROMPTS, RESPONSES)
    _, y = change(PROMPTS, RESPONSES, 0.75, 0)
    assert all(len(ids) == 80 for ids in y)
    assert all(
        "".join(map(chr, old)) in "".join(map(chr, new))
        for old, new in zip(RESPONSES, y, strict=True)
    )
    with pytest.raises(
        CorruptionError, match="a host of at least 180 tokens for response 0, got 100"
    ):
        change(PROMPTS, RESPONSES, 0.9, 0)
    with pytest.raises(CorruptionError):
        change(PROMPTS, RESPONSES, 1.0, 0)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_every_scheme_has_the_same_face(scheme):
    responses = scheme.generate(LM.model, PROMPTS, 8, seed=3)
    table = scheme.score(LM.model, PROMPTS, responses)
    assert set(COLUMNS) <= set(table)
    assert table["text"].tolist() == list(range(6))
    assert table["n_tokens"].tolist() == [8] * 6
    np.testing.assert_allclose(10 ** table["log10_p"], table["p_value"], rtol=1e-9)
    assert scheme.rekeyed(5).name == scheme.name
    assert (
        scheme.rekeyed(5).score(LM.model, PROMPTS, responses)["statistic"].tolist()
        != table["statistic"].tolist()
    )


def test_scores_together_are_each_schemes_own():
    several = [SCHEMES[2], SCHEMES[0], SCHEMES[1], SCHEMES[0].rekeyed(9), SCHEMES[3]]
    found = schemes.scores(LM.model, PROMPTS, RESPONSES, several)
    assert len(found) == 5
    for scheme, table in zip(several, found, strict=True):
        alone = scheme.score(LM.model, PROMPTS, RESPONSES)
        assert table["text"].tolist() == alone["text"].tolist()
        np.testing.assert_allclose(table["statistic"], alone["statistic"], rtol=1e-5, atol=2e-5)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    keyed = written_and_scored.rekeyed([SCHEMES[0], SCHEMES[2]], n_keys=2, first_seed=40)
    texts = written_and_scored.written(LM, keyed, PROMPTS, 40, seed=1)
    chosen = {name: CHANGES[name] for name in ("substitute at random", "no prompt")}
    return robustness.measure(LM, keyed, PROMPTS, texts, RESPONSES, chosen, [0.0, 1.0], seed=2)


def test_the_table_has_every_cell_once_and_its_scores_are_the_schemes(table):
    assert len(table) == 2 * 2 * 2 * 2 * 2 * 6
    assert not table.duplicated(
        ["scheme", "key_id", "corruption", "fraction", "kind", "prompt"]
    ).any()
    rows = table[
        (table["scheme"] == "GaussMark")
        & (table["key_id"] == Key.from_seed(41).key_id)
        & (table["fraction"] == 1)
    ]
    rows = rows[rows["kind"] == written_and_scored.OWN]
    own = SCHEMES[0].rekeyed(41).generate(LM.model, PROMPTS, 40, seed=2)
    expected = score.score(LM.model, [[]] * 6, own, WM, [Key.from_seed(41)])["psi"]
    np.testing.assert_allclose(
        rows[rows["corruption"] == "no prompt"]["statistic"], expected, rtol=1e-6, atol=2e-5
    )
    assert rows["grad_norm"].gt(0).all()
    assert table.loc[table["scheme"] == "KGW-2", "grad_norm"].isna().all()
    plain = (
        SCHEMES[2]
        .rekeyed(40)
        .score(LM.model, PROMPTS, CHANGES["substitute at random"](PROMPTS, RESPONSES, 1.0, 2)[1])[
            "statistic"
        ]
    )
    of_key = table[table["key_id"] == Key.from_seed(40).key_id]
    cell = of_key.query(
        "scheme == 'KGW-2' and kind == 'plain text' and corruption == 'substitute at random' and"
        " fraction == 1"
    )
    assert cell["statistic"].tolist() == plain.tolist()
    same = table[table["fraction"] == 0].pivot(
        index=["scheme", "key_id", "kind", "prompt"], columns="corruption", values="log10_p"
    )
    assert (same["no prompt"] == same["substitute at random"]).all()


def test_the_summary_is_what_it_says(table):
    summary = robustness.by_fraction(table, n_resamples=20)
    assert len(summary) == 2 * 2 * 2 * 6
    assert (summary["low"] <= summary["high"]).all()

    def value(figure, fraction, scheme="KGW-2"):
        [found] = summary.query(
            "figure == @figure and fraction == @fraction and scheme == @scheme and corruption =="
            " 'substitute at random'"
        )["value"]
        return found

    cell = table.query(
        "scheme == 'KGW-2' and corruption == 'substitute at random' and fraction == 0"
    )
    own, plain = (
        cell[cell["kind"] == kind]["p_value"]
        for kind in (written_and_scored.OWN, written_and_scored.PLAIN)
    )
    assert value("TPR at 0.05", 0.0) == (own <= 0.05).mean()
    assert value("false positives at 0.01", 0.0) == (plain <= 0.01).mean()
    assert value("median p", 0.0) == pytest.approx(
        10 ** cell[cell["kind"] == written_and_scored.OWN]["log10_p"].median()
    )
    wins = np.mean([(a < b) + (a == b) / 2 for a in own for b in plain])
    assert value("AUC", 0.0) == pytest.approx(wins)
    assert value("AUC", 0.0) > 0.8 > value("AUC", 1.0)


@pytest.mark.usefixtures("no_table_of_selfhash")
@pytest.mark.slow
def test_the_level_holds_for_every_scheme_and_corruption():
    """n fresh keys and texts a cell; no cell's exact 99.99% interval lies above the nominal level
    (40 cells).
    """
    n = 40
    rng = np.random.default_rng(5)
    prompts, human = tiny_models.random_ids(rng, *[5] * n), tiny_models.random_ids(rng, *[20] * n)
    chosen = {
        name: CHANGES[name]
        for name in ("substitute at random", "delete at the start", "resample spans", "no prompt")
    }
    found = robustness.null_levels(
        LM, SCHEMES, prompts, human, chosen, 0.4, first_seed=7000, confidence=0.9999
    )
    assert len(found) == 5 * 4 * 2
    assert (found["n"] == n).all()
    assert not found["exceeds"].any(), found[found["exceeds"]]
    continuous = found[
        found["scheme"].isin(["GaussMark", "rank-reduced", "token keys, sum"])
        & (found["level"] == 0.05)
    ]
    assert (continuous["high"] >= 0.05).all()


@pytest.mark.usefixtures("no_table_of_selfhash")
def test_null_levels_count_the_alarms_of_fresh_keys():
    """Against scoring one by one, at a level of .05 that is hit: 12 keys a text, none shared. The
    level itself is in oracle/test_levels.
    """
    chosen = {"no prompt": CHANGES["no prompt"], "delete at random": CHANGES["delete at random"]}
    several = [SCHEMES[0], SCHEMES[2]]
    found = robustness.null_levels(
        LM, several, PROMPTS, RESPONSES, chosen, 0.3, keys_per_text=12, first_seed=50
    )
    assert len(found) == 2 * 2 * 2
    assert (found["n"] == 6 * 12).all()
    p_values = {}
    for scheme, (name, change) in product(several, chosen.items()):
        x, y = change(PROMPTS, RESPONSES, 0.3, 50)
        one_by_one = (
            scheme.rekeyed(50 + 12 * i + j).score(LM.model, [x[i]], [y[i]])
            for i in range(6)
            for j in range(12)
        )
        p_values[scheme.name, name] = np.array([table["p_value"][0] for table in one_by_one])
    for row in found.itertuples():
        p = p_values[row.scheme, row.corruption]
        assert row.value == (p <= row.level).mean()
        assert row.exceeds == (row.low > row.level)
        assert row.p_excess == pytest.approx(
            sum(binom.pmf(k, 72, row.level) for k in range((p <= row.level).sum(), 73))
        )
    assert found["value"].nunique() > 2


def test_an_unknown_corruption_is_refused_with_those_there_are():
    lm = tiny_lm.build()
    assert list(corrupt.named(lm, ["truncate", "no prompt"])) == ["truncate", "no prompt"]
    with pytest.raises(
        CorruptionError,
        match=(
            r"no corruption is called 'paraphrase': expected some of delete at random, .*retokenise"
        ),
    ):
        corrupt.named(lm, ["truncate", "paraphrase"])


def test_the_change_between_two_corruptions_is_paired(table):
    own = table[(table["scheme"] == "GaussMark") & (table["fraction"] == 1)]
    found = robustness.change(own, "no prompt", "substitute at random", n_resamples=50)
    psi = own[own["kind"] == written_and_scored.OWN].pivot(
        index=["prompt", "key_id"], columns="corruption", values="statistic"
    )
    assert found.value == pytest.approx((psi["no prompt"] - psi["substitute at random"]).mean())
    assert found.low <= found.value <= found.high
    assert found.n == len(psi)


def test_candidates_have_their_own_watermark_and_precision():
    made = robustness.candidates(
        ["GaussMark", "rank-reduced", "KGW-2"],
        WM,
        KEY,
        others={"rank-reduced": SCHEMES[1].wm},
        dtype="float64",
    )
    assert list(made) == ["GaussMark", "rank-reduced", "KGW-2"]
    assert [made[name].wm.rank_dropped for name in ("GaussMark", "rank-reduced")] == [0, 4]
    assert made["GaussMark"].dtype == made["rank-reduced"].dtype == "float64"
    assert repr(made["GaussMark"]) == repr(GaussMark(WM, KEY)), (
        "the cache of texts does not ask for the precision of scoring"
    )


def test_one_key_over_texts_is_the_direction_they_share():
    """Near-copies of one text share their gradient, so that their mean ψ varies as much as one ψ;
    the table's ψ are score's.
    """
    copies = [RESPONSES[0]] * 5 + [RESPONSES[1]]
    prompts, keys = [PROMPTS[0]] * 6, [Key.from_seed(900 + i) for i in range(40)]
    chosen = {"no prompt": CHANGES["no prompt"]}
    by_key, shared = robustness.one_key(LM, prompts, copies, chosen, 0.5, WM, keys)
    assert len(by_key) == 2 * 40
    expected = score.score(LM.model, prompts, copies, WM, keys).groupby("key_id", sort=False)["psi"]
    found = by_key[by_key["corruption"] == "unedited"].set_index("key_id")
    np.testing.assert_allclose(found["mean_psi"], expected.mean().reindex(found.index), atol=1e-4)
    assert found["alarms"].tolist() == pytest.approx(
        [(psi >= 1.6448536).mean() for _, psi in expected]
    )
    sd = shared.set_index("corruption").loc["unedited", "sd"]
    assert 5 / 6 * 0.9 < sd < 1
    assert shared.set_index("corruption").loc["unedited", "n"] == 3
    assert abs(np.std(found["mean_psi"]) / sd - 1) < 3.3 / np.sqrt(2 * 40), "over keys"
