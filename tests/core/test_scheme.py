"""The registered schemes: each has all that ``Scheme`` asks for, says nothing of its secret, and is
found by its name.
"""

from dataclasses import FrozenInstanceError, dataclass, replace

import numpy as np
import pandas as pd
import pytest
import tiny_models

from gaussmark_lib import scheme as scheme_module
from gaussmark_lib import schemes
from gaussmark_lib.errors import InvalidWatermarkError, PerturbedModelError
from gaussmark_lib.perturb import Key, Watermark, watermarked
from gaussmark_lib.schemes import COLUMNS, GaussMark, Scheme

KEY = Key.from_seed(0)
WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.2, rank_dropped=4)
SCHEMES = schemes.named(WM, KEY)
MODEL = tiny_models.build()
PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 5, 3, 6)
RESPONSES = tiny_models.random_ids(np.random.default_rng(1), *[15] * 3)

of_each = pytest.mark.parametrize("name", SCHEMES)


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(scheme_module, "_makers", dict(scheme_module._makers))


@dataclass(frozen=True)
class Toy(Scheme):
    """A scheme that marks nothing and finds nothing."""

    key: Key
    name: str = "toy"

    def generate(self, model, prompts, n_tokens, *, seed=0):
        return [[5] * n_tokens for _ in prompts]

    def score(self, model, prompts, responses):
        table = pd.DataFrame({"text": range(len(responses)), "n_tokens": list(map(len, responses))})
        return table.assign(statistic=0.0, p_value=1.0, log10_p=0.0)

    def divergences(self, model, prompts, responses):
        return np.zeros(len(responses))


@of_each
def test_is_a_scheme_and_a_frozen_dataclass_with_the_key(name):
    scheme = SCHEMES[name]
    assert isinstance(scheme, Scheme)
    assert scheme.key == KEY
    assert type(scheme.exact) is bool
    assert isinstance(scheme.name, str)
    with pytest.raises(FrozenInstanceError):
        scheme.key = Key.from_seed(1)
    assert {scheme, replace(scheme)} == {scheme}


@of_each
def test_its_repr_names_the_key_and_not_the_secret(name):
    text = repr(SCHEMES[name])
    assert KEY.key_id in text
    assert KEY.secret.hex() not in text
    assert str(KEY.seed) not in text
    assert repr(KEY.secret) not in text


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


@of_each
def test_rekeyed_is_the_same_scheme_under_another_key(name):
    scheme, other = SCHEMES[name], SCHEMES[name].rekeyed(5)
    assert other.key == Key.from_seed(5)
    assert replace(other, key=KEY) == scheme
    assert (other.name, other.exact) == (scheme.name, scheme.exact)
    assert (
        other.score(MODEL, PROMPTS, RESPONSES)["statistic"].tolist()
        != scheme.score(MODEL, PROMPTS, RESPONSES)["statistic"].tolist()
    )


@of_each
def test_several_keys_at_once_are_one_at_a_time(name):
    keys = [KEY, Key.from_seed(8)]
    together = SCHEMES[name].score_keys(MODEL, PROMPTS, RESPONSES, keys)
    for key, table in zip(keys, together, strict=True):
        alone = replace(SCHEMES[name], key=key).score(MODEL, PROMPTS, RESPONSES)
        np.testing.assert_allclose(table[COLUMNS], alone[COLUMNS], rtol=1e-4, atol=1e-6)


@of_each
def test_a_perturbed_model_has_no_divergence(name):
    with watermarked(MODEL, WM, KEY), pytest.raises(PerturbedModelError):
        SCHEMES[name].divergences(MODEL, PROMPTS, RESPONSES)


def test_scores_of_many_schemes_are_each_ones_own_in_order():
    several = [SCHEMES[name] for name in ("KGW-2", "GaussMark", "rank-reduced")] + [
        SCHEMES["GaussMark"].rekeyed(9),
        SCHEMES["token keys"],
    ]
    for scheme, table in zip(
        several, schemes.scores(MODEL, PROMPTS, RESPONSES, several), strict=True
    ):
        alone = scheme.score(MODEL, PROMPTS, RESPONSES)
        np.testing.assert_allclose(table[COLUMNS], alone[COLUMNS], rtol=1e-4, atol=1e-6)


def test_names_choose_and_order():
    assert list(schemes.named(WM, KEY, ["SynthID", "GaussMark"])) == ["SynthID", "GaussMark"]
    assert schemes.named(WM, KEY, []) == {}
    assert schemes.named(WM, KEY, ["GaussMark"])["GaussMark"] == GaussMark(
        replace(WM, rank_dropped=0), KEY
    )


@pytest.mark.parametrize("names", [["GaussMark", "KGW-3"], "KGW"])
def test_an_unknown_name_lists_the_known_ones(names):
    with pytest.raises(
        InvalidWatermarkError,
        match=(
            r"(no scheme is called 'KGW-3'|names): expected some of KGW-1, KGW-2,"
            r" .*GaussMark.*SynthID"
        ),
    ):
        schemes.named(WM, KEY, names)


def test_rank_reduction_needs_a_rank():
    with pytest.raises(InvalidWatermarkError, match="rank_dropped ≥ 1"):
        schemes.named(replace(WM, rank_dropped=0), KEY, ["rank-reduced"])


def test_adding_one_takes_a_class_and_a_name(own_registry):
    schemes.register("toy")(lambda wm, key: Toy(key))
    assert schemes.named(WM, KEY, ["toy"])["toy"] == Toy(KEY)
    assert list(schemes.named(WM, KEY)) == [*SCHEMES, "toy"]
    assert (
        schemes.scores(MODEL, PROMPTS, RESPONSES, [Toy(KEY).rekeyed(3)])[0]["p_value"].tolist()
        == [1.0] * 3
    )
    assert Toy(KEY).exact


def test_two_of_one_name_are_refused(own_registry):
    with pytest.raises(
        InvalidWatermarkError,
        match="two schemes are called 'SynthID'; give one of them another name",
    ):
        schemes.register("SynthID")(lambda wm, key: Toy(key))


class Duck:
    """Has every member, and is no dataclass."""

    name, exact = "duck", True
    generate = score = divergences = rekeyed = score_keys = lambda self, *_: None

    def __init__(self, key):
        self.key = key


@pytest.mark.parametrize(
    "maker",
    [lambda wm, key: None, lambda wm, key: Toy(Key.from_seed(1)), lambda wm, key: Duck(key)],
)
def test_a_maker_that_makes_no_scheme_with_the_key_is_named(own_registry, maker):
    schemes.register("broken")(maker)
    with pytest.raises(
        InvalidWatermarkError,
        match=(
            r"'broken': expected a frozen dataclass that is a Scheme and holds the key, got"
            r" (NoneType|Toy|Duck)"
        ),
    ):
        schemes.named(WM, KEY, ["broken"])


def test_what_lacks_a_member_is_no_scheme():
    assert isinstance(Duck(KEY), Scheme)
    for member in ("name", "exact", "generate", "score", "divergences", "rekeyed", "score_keys"):
        lacking = type(
            "Lacking",
            (),
            {
                name: value
                for name, value in vars(Duck).items()
                if name != member and not name.startswith("__")
            },
        )()
        lacking.key = KEY
        assert not isinstance(lacking, Scheme), member
    incomplete = type("Incomplete", (Scheme,), {"generate": Toy.generate, "score": Toy.score})
    with pytest.raises(TypeError, match=r"abstract method.* divergences"):
        incomplete()
