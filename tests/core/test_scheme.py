"""The registered schemes: each has all that ``Scheme`` asks for, says nothing of its secret, and is
found by its name.
"""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import tiny_models
from secrecy import leaks

from gaussmark_lib import generate
from gaussmark_lib import scheme as scheme_module
from gaussmark_lib.beyond import schemes
from gaussmark_lib.beyond.schemes import COLUMNS, GaussMark
from gaussmark_lib.errors import InvalidWatermarkError, PerturbedModelError
from gaussmark_lib.perturb import Key, Watermark, watermarked
from gaussmark_lib.scheme import SamplerScheme

pytestmark = pytest.mark.usefixtures("no_table_of_selfhash")
KEY, KEYS = Key.from_seed(0), [Key.from_seed(8), Key.from_seed(9), Key.from_seed(9)]
WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.2, rank_dropped=4)
SCHEMES = schemes.named(WM, KEY)
MODEL = tiny_models.build()
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 5, 3, 6)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), *[15] * 3)

of_each = pytest.mark.parametrize("name", SCHEMES)


@of_each
def test_writes_scores_and_measures_its_divergence(name):
    scheme = SCHEMES[name]
    responses = scheme.generate(MODEL, PROMPTS, 12, seed=3)
    assert [len(response) for response in responses] == [12] * 3
    assert scheme.generate(MODEL, PROMPTS, 12, seed=3) == responses
    table = scheme.score(MODEL, PROMPTS, responses)
    assert set(COLUMNS) <= set(table)
    assert table["text"].tolist() == [0, 1, 2]
    assert table["n_tokens"].tolist() == [12] * 3
    np.testing.assert_allclose(10 ** table["log10_p"], table["p_value"], rtol=1e-9)
    nats = scheme.divergences(MODEL, PROMPTS, responses)
    assert nats.shape == (3,)
    assert (nats > 0).all()
    with watermarked(MODEL, WM, KEY), pytest.raises(PerturbedModelError):
        scheme.divergences(MODEL, PROMPTS, RESPONSES)


@of_each
def test_a_row_under_its_own_key_is_that_key_alone(name):
    """Row i of a batch with a key per row is row i of a batch under keys[i]."""
    scheme = SCHEMES[name]
    in_batches = {"batch_size": 2} if isinstance(scheme, SamplerScheme) else {}
    texts = scheme.generate(MODEL, PROMPTS, 12, seed=3, keys=KEYS, **in_batches)
    table = scheme.score(MODEL, PROMPTS, RESPONSES, KEYS)
    nats = scheme.divergences(MODEL, PROMPTS, RESPONSES, KEYS)
    for i, key in enumerate(KEYS):
        one = replace(scheme, key=key)
        assert texts[i] == one.generate(MODEL, PROMPTS, 12, seed=3)[i]
        alone = one.score(MODEL, PROMPTS, RESPONSES)
        np.testing.assert_allclose(table[COLUMNS].loc[i], alone[COLUMNS].loc[i], rtol=1e-4)
        assert nats[i] == pytest.approx(one.divergences(MODEL, PROMPTS, RESPONSES)[i], rel=1e-4)
    assert texts != scheme.generate(MODEL, PROMPTS, 12, seed=3)


@of_each
def test_a_frozen_dataclass_whose_repr_names_the_key_and_not_the_secret(name):
    scheme, other = SCHEMES[name], SCHEMES[name].rekeyed(5)
    with pytest.raises(FrozenInstanceError):
        scheme.key = Key.from_seed(1)
    assert {scheme, replace(other, key=KEY)} == {scheme}
    assert (other.key, other.name, other.exact) == (Key.from_seed(5), scheme.name, scheme.exact)
    assert KEY.key_id in repr(scheme)
    assert leaks(repr(scheme).encode(), KEY.secret) == []


@of_each
def test_at_temperature_0_a_scheme_among_likely_tokens_changes_nothing(name):
    scheme = SCHEMES[name]
    plain = generate.sample(MODEL, PROMPTS, 12, temperature=0)
    greedy = scheme.generate(MODEL, PROMPTS, 12, temperature=0)
    chooses = isinstance(scheme, SamplerScheme) and not scheme.marks_greedy
    assert (greedy == plain) == chooses


def test_names_choose_and_order():
    assert list(schemes.named(WM, KEY, ["SynthID", "GaussMark"])) == ["SynthID", "GaussMark"]
    assert schemes.named(WM, KEY, []) == {}
    vanilla = schemes.named(WM, KEY, ["GaussMark"])["GaussMark"]
    assert vanilla == GaussMark(replace(WM, rank_dropped=0), KEY)


@pytest.mark.parametrize("names", [["GaussMark", "KGW-3"], "KGW"])
def test_an_unknown_name_lists_the_known_ones(names):
    known = r"(no scheme is called 'KGW-3'|names): expected some of KGW-1, KGW-2, .*GaussMark"
    with pytest.raises(InvalidWatermarkError, match=known):
        schemes.named(WM, KEY, names)


def test_rank_reduction_needs_a_rank():
    with pytest.raises(InvalidWatermarkError, match="rank_dropped ≥ 1"):
        schemes.named(replace(WM, rank_dropped=0), KEY, ["rank-reduced"])


def test_adding_one_takes_a_class_and_a_name_of_its_own():
    schemes.register("toy")(GaussMark)
    try:
        assert schemes.named(WM, KEY, ["toy"])["toy"] == GaussMark(WM, KEY)
        assert list(schemes.named(WM, KEY)) == [*SCHEMES, "toy"]
    finally:
        del scheme_module.makers["toy"]
    with pytest.raises(InvalidWatermarkError, match="'SynthID' is the name of another scheme"):
        schemes.register("SynthID")(GaussMark)
