"""``gaussmark audit``: the card of a key on a tiny model."""

import errno
import functools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import torch
from command_lines import answer, lines, refusal, rows
from scipy import special
from scipy.stats import norm

from gaussmark_lib import divergence, errors, files, generate, perturb, score, stats, texts
from gaussmark_lib.beyond import promise, schemes
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import cli, pairs
from gaussmark_lib.workbench.cli import audit, power

WM, KEY = Watermark(tiny_lm.WEIGHT, 0.2), Key.from_seed(1)


def test_the_card_is_that_of_the_key_and_holds_no_secret(tmp_path, lm, capsys, monkeypatch):
    content = [f"{i} is a number to count to, and {i + 1} follows it." for i in range(16)]
    file, card = lines(tmp_path / "texts.jsonl", content), tmp_path / "card.json"
    key = Key.from_seed(9)
    key_file = perturb.bind(lm.model, WM, key).save(tmp_path / "key")
    words = ["audit", str(tmp_path / "card"), "--key", str(key_file), "--text", file]
    words += ["--texts", "10", "--tokens", "12", "--keys", "5"]

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", str(card))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_json", full)
        assert answer(capsys, *words)[0] == cli.FAILED
    assert not list(tmp_path.glob("card*"))
    code, out, _ = answer(capsys, *words)
    found = json.loads(card.read_text())
    [(kind, row)] = found["kinds"].items()
    assert (code, found["key_id"]) == (0, key.key_id)
    assert found["columns"].keys() == row.keys()

    human = texts.human(lm, kind, 10, 32 + 12)
    pairs = [ids[:32] for ids in human], [ids[32:] for ids in human]
    several = [key, *map(Key.from_seed, range(5))]
    psi = score.score(lm.model, *pairs, WM, several)["psi"].to_numpy().reshape(10, 6)
    gradients = sorted(score.gradients(lm.model, *pairs, WM), key=lambda G: G.text)
    units = np.stack([(G.G / G.norm).flatten().double() for G in gradients])
    r = np.linalg.solve(np.linalg.cholesky(units @ units.T), psi)
    assert row["this key"] == stats.interval((psi >= norm.isf(0.05))[:, 0]).row()
    assert row["this key, stream"] == stats.interval(r[:, 0] >= norm.isf(0.05)).row()
    assert row["threshold"] == 0, "too few texts to say"
    assert "flagged" in out
    assert key.secret.hex() not in card.read_text() + out
    assert "expected a new name" in refusal(capsys, *words), "it is never overwritten"


@pytest.mark.parametrize("scheme", ["KGW-2", "Gumbel-max", "SynthID"])
def test_the_card_of_a_key_of_any_scheme(tmp_path, lm, scheme):
    key = perturb.bind(lm.model, WM, Key.from_seed(9))
    card = audit.card(key.save(tmp_path / "key"), "tiny", ["licences"], 24, 12, 0, scheme)
    human = texts.human(lm, "licences", 24, 32 + 12)
    [one] = schemes.named(WM, key, [scheme]).values()
    p = one.score(lm.model, [[]] * 24, [ids[32:] for ids in human])["p_value"]
    row = card["kinds"]["licences"]
    assert row["this key"] == stats.interval(p.to_numpy() <= 0.05).row()
    assert row["threshold"] == min(0.05, p.min())
    assert scheme in audit.headline(card)
    assert "kinds" not in audit.headline(card), "of one kind there is no worst"


def test_a_threshold_holds_the_level_on_further_texts_of_a_kind():
    rng, kept = np.random.default_rng(0), []
    for _ in range(400):
        row = audit.of_key(pd.Series(norm.sf(rng.normal(1, 1, 100))))  # ψ of mean 1: a bad key
        kept.append(norm.sf(norm.isf(row["threshold"]) - 1))  # P(p < threshold), a further text's
    there = row["level there"]
    assert there["low"] < 0.05 < there["high"]
    assert np.mean(kept) == pytest.approx(there["value"], abs=0.005)
    assert np.mean([there["low"] < share < there["high"] for share in kept]) > 0.85


def test_where_the_level_itself_is_the_threshold_its_false_alarms_are_the_measured_ones():
    row = audit.of_key(pd.Series(np.linspace(0.03, 1, 100)))  # two are below 0.05
    assert (row["threshold"], row["level there"]) == (0.05, row["this key"])


def test_the_tokens_that_are_needed():
    reached = functools.partial(power.by_gradient, n_tokens=100, exponent=0.5)
    tokens = power.needed(reached, np.full(8, 3.0), level=0.01, power=0.9)
    assert tokens == pytest.approx(100 * ((norm.isf(0.01) + norm.isf(0.1)) / 3) ** 2, rel=1e-3)


@pytest.mark.parametrize("shape", [(1.0, 1.0), (1.0, 0.5), (0.8, 1.0)])
def test_means_after_marked_text_are_those_of_its_sampler(lm, shape):
    """(top_p, temperature): each mean is σF/(τ‖G‖) of a text that a fresh key wrote."""
    drawn, n = pairs.draw(lm, "docs", 6, 8), 32
    means, exponent = power.by_keys(lm, drawn, WM, n, shape)
    top_p, temperature = shape
    marks = [(WM, key) for key in drawn.keys]
    texts = generate.sample(
        lm.model, drawn.prompts, n, marks=marks, top_p=top_p, temperature=temperature
    )
    sampled = promise.Sampled(temperature, top_p)
    found = promise.table(lm.model, drawn.prompts, texts, WM, sampled=sampled)
    norms = score.score(lm.model, drawn.prompts, texts, WM, [KEY])["grad_norm"]
    np.testing.assert_allclose(means, WM.sigma * found["information"] / norms, rtol=1e-4)
    assert 0 < exponent < 1


def test_a_cold_sampler_leaves_a_scheme_less_to_choose(lm):
    drawn = pairs.draw(lm, "docs", 20, 8)
    scheme = schemes.named(WM, drawn.keys[0], ["Gumbel-max"])["Gumbel-max"]
    shapes = [(1.0, 1.0), (1.0, 0.3), (0.2, 1.0)]
    means = [power.by_draws(lm, drawn, 40, scheme, shape)[:, 0].mean() for shape in shapes]
    assert means[0] > means[1] + 0.02
    assert means[0] > means[2] + 0.02
    with pytest.raises(errors.GaussMarkError, match="--temperature: expected more than 0, got 0"):
        power.table(Path("absent.key"), "doclm", [], 4, 8, "GaussMark", temperature=0.0)


def test_the_first_length_counts_where_power_goes_up_and_down():
    numbers, reached = np.array([[0.62, 0.236]]), functools.partial(power.by_sum, scheme="KGW-2")
    powers = [reached(numbers, n, 0.05).item() for n in range(30)]
    first = next(n for n in range(30) if powers[n] >= 0.5)
    assert powers[first + 1] < 0.5
    assert first - 1 < power.needed(reached, numbers, 0.05, 0.5) <= first


def of_gumbel_max(p, rng):
    """E −ln(1 − r) of the chosen token: r of a token that is chosen with probability p is
    Beta(1/p, 1).
    """
    return (p * (special.digamma(1 + 1 / p) + np.euler_gamma)).sum(-1)


def of_kgw(p, rng):
    green = rng.permuted(np.arange(p.shape[1]) < p.shape[1] // 4 * np.ones((len(p), 1)), axis=1)
    raised = np.exp(2) * (p * green).sum(-1)
    return raised / (raised + (p * ~green).sum(-1))


@pytest.mark.parametrize(("name", "law"), [("Gumbel-max", of_gumbel_max), ("KGW-2", of_kgw)])
def test_draws_after_plain_text_say_what_a_token_adds(lm, name, law):
    drawn, n = pairs.draw(lm, "docs", 40, 8), 40
    numbers = power.by_draws(lm, drawn, n, schemes.named(WM, drawn.keys[0], [name])[name])
    plain = generate.sample(lm.model, drawn.prompts, n)
    inputs, _ = divergence.laid_out(lm.model, list(zip(drawn.prompts, plain, strict=True)))
    with torch.no_grad():
        p = divergence.logits(lm.model, inputs, n).double().softmax(-1).flatten(0, 1).numpy()
    by_text = law(p, np.random.default_rng(0)).reshape(40, n).mean(1)
    mean, variance = numbers.T
    noise = variance.mean() / n  # of one text's mean: one draw per token
    assert abs(mean.mean() - by_text.mean()) < 4 * np.sqrt(noise / 40)
    assert mean.var() < by_text.var() + noise / 2, "the texts' spread, without that of the draws"


@pytest.mark.parametrize("name", power.SAMPLERS)
def test_it_calls_detected_what_the_scheme_does(lm, name):
    context, column, least = power.SAMPLERS[name]
    ids = np.random.default_rng(0).integers(1, lm.model.config.vocab_size, (60, 40)).tolist()
    drawn = schemes.named(WM, Key.from_seed(0), [name])[name]
    tested = drawn.score(lm.model, [[]] * 60, ids, [Key.from_seed(i) for i in range(60)])
    one = drawn.score(lm.model, [[]], [ids[0][: context + 1]])
    scored = {"SynthID": "n_bits"}.get(name, "n_scored")
    assert one[scored].item() == (drawn.depth if name == "SynthID" else 1)
    level, n = 0.2, tested[scored] / (drawn.depth if name == "SynthID" else 1)
    expected = [total > least(level, k) for total, k in zip(tested[column], n, strict=True)]
    assert ((tested["p_value"] <= level) == expected).mean() > 0.95
    assert 0 < np.mean(expected) < 0.5


@pytest.mark.parametrize("name", power.SAMPLERS)
def test_tokens_without_a_mark_reach_the_level_as_often_as_it_says(name):
    context, _, least = power.SAMPLERS[name]
    rng, n, level = np.random.default_rng(0), 50, 0.05
    sums = {"SynthID": rng.binomial(30 * n, 0.5, 10**5), "Gumbel-max": rng.gamma(n, 1, 10**5)}
    share = (sums.get(name, rng.binomial(n, 0.25, 10**5)) > least(level, n)).mean()
    assert 0.02 < share < 0.052
    certain = np.array([[1.0, 1e-9]]) * {"SynthID": 30, "Gumbel-max": 9}.get(name, 1)
    assert power.by_sum(certain, n + context, level, scheme=name) == pytest.approx(1)


def test_power_is_predicted_by_kind(tmp_path, keys, capsys):
    words = ["power", "--key", keys[0], "--text", "docs", "--texts", "10", "--tokens", "12"]
    for scheme in ("GaussMark", "output biases"):  # the second only writes and scores
        code, found, _ = rows(capsys, *words, "--scheme", scheme)
        assert (code, len(found), {row["kind"] for row in found}) == (0, 9, {"docs"})
        needed = [row["value"] for row in found[:3]]
        assert needed == sorted(needed)
    assert all(row["low"] < row["value"] < row["high"] for row in found[:3])
    assert "power 0.99" in answer(capsys, *words, "--scheme", "SynthID")[1]
    refusal(capsys, *words, "--scheme", "KGW-3")
    refusal(capsys, *words[:-1], "4", "--scheme", "SynthID")
    code, out, _ = answer(capsys, *words)
    assert code == 0
    assert "." not in out.splitlines()[3].partition("  1e-06")[2], "tokens are whole"
    code, out, _ = answer(capsys, *words, "--temperature", "0.5", "--top-p", "0.9")
    assert "at temperature 0.5 and top-p 0.9" in " ".join(out.split())
    assert "expected more than 0" in refusal(capsys, *words, "--temperature", "0")


def test_its_power_at_the_length_of_its_texts_is_the_share_that_is_detected(lm):
    drawn, fresh = (pairs.draw(lm, "docs", 200, 8, seed=seed) for seed in (0, 1))
    n, level = 40, 0.05
    [scheme] = schemes.named(WM, drawn.keys[0], ["output biases"]).values()
    z = power.by_texts(lm, drawn, n, scheme, (1.0, 1.0))
    promised = power.by_score(z, n, level, n_tokens=n).mean()
    marked = scheme.generate(lm.model, fresh.prompts, n, keys=fresh.keys)
    p = scheme.score(lm.model, fresh.prompts, marked, fresh.keys)["p_value"]
    assert 0.1 < promised < 0.9, "so that the next line can fail"
    assert abs((p <= level).mean() - promised) < 0.1


def test_p_values_of_0_and_1_have_finite_scores(lm):
    """Binomial tests give 1; a long text can have a p-value below the smallest number."""

    class Never(schemes.Scheme):
        def generate(self, model, prompts, n_tokens, **_):
            return prompts

        def score(self, *_):
            return pd.DataFrame({"log10_p": [0.0, 0.0, -320.0]})

    z = power.by_texts(lm, pairs.draw(lm, "docs", 3, 8), 12, Never(), (1.0, 1.0))
    assert np.isfinite(z).all()
    assert z[2] > 30
