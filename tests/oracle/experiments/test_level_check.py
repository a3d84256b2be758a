"""The level experiments against the slow obvious way, on a tiny random model whose level must be
exact as any model's.
"""

import numpy as np
import pytest
import tiny_lm
import tiny_models
import torch
from datasets import Dataset
from scipy import stats as scipy_stats
from transformers import PreTrainedTokenizerBase

from gaussmark_lib import models, perturb, stats, texts
from gaussmark_lib.errors import CorpusError
from gaussmark_lib.experiments import level_check
from gaussmark_lib.perturb import Key, Watermark, noise
from gaussmark_lib.score import score

WM = Watermark("model.layers.2.mlp.down_proj.weight", sigma=0.4)


class Words:
    """A stand-in tokenizer: a character's code point, folded into the vocabulary. For the check of
    signatures it is one of transformers'.
    """

    __class__ = PreTrainedTokenizerBase

    @staticmethod
    def encode(
        text: str, add_special_tokens: bool = False, split_special_tokens: bool = False
    ) -> list[int]:
        return [ord(c) % tiny_models.VOCAB for c in text]


@pytest.fixture
def lm(monkeypatch):
    rng = np.random.default_rng(0)
    rows = [
        {"text": "".join(chr(i) for i in rng.integers(40, 120, size=50)), "source": "made up"}
        for _ in range(20)
    ]
    monkeypatch.setattr(texts, "load", lambda *_, **__: Dataset.from_list(rows))
    return models.LM(tiny_models.build(), Words(), "tiny")


@pytest.fixture
def pairs():
    rng = np.random.default_rng(1)
    return rng.integers(97, size=(12, 5)).tolist(), rng.integers(97, size=(12, 20)).tolist()


def test_human_text_is_cut_into_prompt_and_response(lm):
    prompts, responses = level_check.null_texts(lm, "docs", 3, n_prompt=8, n_tokens=30)
    whole = [lm.encode(text)[:38] for text in texts.load()["text"][:3]]
    assert [p + r for p, r in zip(prompts, responses, strict=True)] == whole
    assert {len(p) for p in prompts} == {8}


@pytest.mark.parametrize("kind", ["model samples", "random tokens"])
def test_other_kinds_have_the_length_and_depend_on_the_seed(lm, kind):
    one, again, other = (
        level_check.null_texts(lm, kind, 4, n_prompt=8, n_tokens=20, seed=seed)
        for seed in (0, 0, 1)
    )
    assert one == again
    assert one[1] != other[1]
    assert {len(r) for r in one[1]} == {20}


def test_too_few_texts_and_unknown_kinds_say_so(lm):
    with pytest.raises(CorpusError, match="expected 40 texts of at least 38 tokens, found 20"):
        level_check.null_texts(lm, "docs", 40, n_prompt=8, n_tokens=30)


def test_an_unknown_kind_says_so():
    with pytest.raises(CorpusError, match="expected one of docs"):
        level_check.null_texts(tiny_lm.build(), "poems", 4)


def test_the_kinds_begin_with_the_readers_text_and_name_none_twice():
    assert next(iter(level_check.kinds("docs"))) == "docs"
    assert level_check.kinds("a/b.jsonl")["b.jsonl"] == "a/b.jsonl"
    assert list(level_check.kinds("source")) == [
        "source",
        "licences",
        "model samples",
        "random tokens",
    ]


def test_fresh_keys_are_all_different_and_score_as_score_does(lm, pairs):
    table = level_check.fresh_keys(lm, pairs, WM, keys_per_text=3, first_seed=7)
    assert table["key_id"].nunique() == len(table) == 36
    for text in (0, 5, 11):
        keys = [Key.from_seed(7 + 3 * text + i) for i in range(3)]
        one = score(lm.model, [pairs[0][text]], [pairs[1][text]], WM, keys)
        np.testing.assert_allclose(
            table.loc[table["text"] == text, "psi"], one["psi"], rtol=0, atol=2e-5
        )


def test_a_few_noises_at_a_time_are_the_same_noises(lm, pairs, monkeypatch):
    held = []
    draw = perturb.noises
    monkeypatch.setattr(
        perturb, "noises", lambda model, wm, keys: held.append(len(keys)) or draw(model, wm, keys)
    )
    at_once = level_check.fresh_keys(lm, pairs, WM, keys_per_text=5)
    assert set(held) == {5}
    monkeypatch.setattr(level_check, "NOISE_AT_ONCE", 2 * WM.on(lm.model).linear.parameter.numel())
    held.clear()
    few = level_check.fresh_keys(lm, pairs, WM, keys_per_text=5)
    assert max(held) == 2
    np.testing.assert_allclose(few["psi"], at_once["psi"], rtol=0, atol=2e-5)


def test_over_fresh_keys_p_is_uniform_and_a_wrong_sigma_would_be_seen(lm, pairs):
    table = level_check.fresh_keys(lm, pairs, WM, keys_per_text=150)
    assert stats.uniformity(table["p_value"])["p_value"] > 0.001
    assert stats.levels(table["psi"], confidence=0.999)["holds"].all()
    assert (
        stats.uniformity(scipy_stats.norm.sf(1.1 * table["psi"]))["p_value"] < 0.05
    )  # the test has power: 10% too wide


def test_fixed_keys_count_what_score_counts(lm, pairs):
    keys = [Key.from_seed(i) for i in range(6)]
    psi, _ = level_check.fixed_keys(lm, pairs, WM, keys)
    rates = level_check.rates(psi, keys, 0.2)
    table = score(lm.model, *pairs, WM, keys)
    slow = {
        key_id: float((psi >= scipy_stats.norm.isf(0.2)).mean())
        for key_id, psi in table.groupby("key_id")["psi"]
    }
    assert dict(zip(rates["key_id"], rates["value"], strict=True)) == pytest.approx(slow)
    assert rates["value"].is_monotonic_increasing
    np.testing.assert_allclose(psi.T.ravel(), table["psi"], rtol=1e-4, atol=1e-5)


def test_gradients_held_a_part_at_a_time_give_the_same(lm, pairs, monkeypatch):
    keys = [Key.from_seed(i) for i in range(3)]
    psi, cosine = level_check.fixed_keys(lm, pairs, WM, keys)
    monkeypatch.setattr(
        level_check, "GRADIENTS_AT_ONCE", 5 * WM.on(lm.model).linear.parameter.numel()
    )
    parts, again = level_check.fixed_keys(lm, pairs, WM, keys)
    np.testing.assert_allclose(parts, psi, rtol=0, atol=2e-5)
    assert again == pytest.approx(cosine, abs=1e-6)


def test_the_spread_over_keys_and_its_interval():
    """Rates of 400 keys over texts of one cosine: the formula is their standard deviation, and the
    bootstrap's interval holds the truth.
    """
    rng = np.random.default_rng(0)
    for cosine in (0.0, 0.3, 0.9):
        common, own = rng.standard_normal((400, 1)), rng.standard_normal((400, 30))
        rates = (
            np.sqrt(cosine) * common + np.sqrt(1 - cosine) * own >= stats.threshold(0.05)
        ).mean(axis=1)
        found = level_check.spread(
            rates, level_check.predicted_spread(cosine, 30, 0.05), n_resamples=300
        )
        assert found.low < 1 < found.high
        assert found.value == pytest.approx(
            rates.std() / level_check.predicted_spread(cosine, 30, 0.05)
        )
        assert found.n == 400
    assert level_check.predicted_spread(0.9, 30, 0.05) > 3 * level_check.predicted_spread(
        0.0, 30, 0.05
    )
    assert level_check.predicted_spread(-0.001, 30, 0.05) == pytest.approx(
        np.sqrt(0.05 * 0.95 / 30)
    ), "rounding below zero is zero"


def test_mean_cosine_is_the_mean_over_all_pairs():
    units = torch.nn.functional.normalize(
        torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1
    )
    slow = np.mean([float(units[i] @ units[j]) for i in range(7) for j in range(7) if i != j])
    assert level_check.mean_cosine(units.sum(0), 7) == pytest.approx(slow, rel=1e-12)


def test_trap_is_right_at_theta_wrong_at_theta_plus_xi_and_leaves_the_model_alone(lm, pairs):
    keys = [Key.from_seed(i) for i in range(4)]
    before = {name: p.clone() for name, p in lm.model.state_dict().items()}
    table = level_check.trap(lm, pairs, WM, keys)
    assert all(torch.equal(p, before[name]) for name, p in lm.model.state_dict().items())

    right = table[table["at"] == "θ"].reset_index(drop=True)
    np.testing.assert_allclose(right["psi"], score(lm.model, *pairs, WM, keys)["psi"])

    moved = tiny_models.build()
    weight = moved.get_parameter(WM.weight)
    xi = noise(lm.model, WM, keys[1])
    weight.data += xi
    ids = torch.tensor([pairs[0][3] + pairs[1][3]])
    log_p = moved(ids[:, :-1]).logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[0, 4:, 0].sum()
    gradient = torch.autograd.grad(log_p, weight)[0]
    slow = float((xi * gradient).sum() / (WM.sigma * gradient.norm()))
    row = table[
        (table["at"] == "θ + ξ") & (table["text"] == 3) & (table["key_id"] == keys[1].key_id)
    ]
    assert row["psi"].item() == pytest.approx(slow, rel=1e-4)


def test_trap_pulls_psi_of_the_models_own_plain_text_below_zero(lm):
    """E ψ at θ + ξ is about −σ·tr F/‖G‖ for text of p_θ, F being the Fisher information: the
    gradient points back to where the text came from.
    """
    own = level_check.null_texts(lm, "model samples", 16, n_prompt=5, n_tokens=50)
    table = level_check.trap(lm, own, WM, [Key.from_seed(i) for i in range(8)])
    means = table.groupby("at")["psi"].mean()
    assert means["θ + ξ"] < means["θ"] - 1
    assert (
        abs(means["θ"]) < 4 / 8**0.5
    )  # a key's ψ over its texts is correlated at worst fully: 8 independent standard normals


def test_near_theta_the_trap_pulls_psi_down_by_as_much_as_a_watermark_lifts_it(lm):
    near, own = (
        Watermark(WM.weight, 0.08),
        level_check.null_texts(lm, "model samples", 16, n_prompt=5, n_tokens=50),
    )
    table = level_check.trap(lm, own, near, [Key.from_seed(i) for i in range(6)])
    means, norm = (
        table.groupby("at")["psi"].mean(),
        table.loc[table["at"] == "θ", "grad_norm"].mean(),
    )
    assert means["θ + ξ"] - means["θ"] == pytest.approx(-near.sigma * norm, rel=0.3)
