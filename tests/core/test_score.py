"""The score against the slow obvious way: one text at a time, the whole model's autograd, the
weight's own gradient.
"""

import closeness
import numpy as np
import pytest
import tiny_models
import torch
from scipy.stats import norm

from gaussmark_lib import generate, likelihood, perturb, score
from gaussmark_lib.engine import blocks
from gaussmark_lib.errors import DegenerateScoreError, InvalidTextError, InvalidWatermarkError
from gaussmark_lib.perturb import Key, Watermark

KEYS = [Key.from_seed(i) for i in range(3)]
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
LENGTHS = [(1, 1), (1, 2), (5, 1), (3, 17), (12, 9), (2, 30), (30, 3), (7, 17)]
RNG = np.random.default_rng(0)
PROMPTS = tiny_models.random_ids(RNG, *(x for x, _ in LENGTHS))
RESPONSES = tiny_models.random_ids(RNG, *(y for _, y in LENGTHS))


def slow(model, prompt: list[int], response: list[int], weight: str) -> tuple[torch.Tensor, float]:
    """(∇_θ log p_θ(y | x) as (d_out, d_in), log p_θ(y | x)), both float64: one text, every
    parameter's gradient.
    """
    model.zero_grad()
    total = tiny_models.log_p(model, prompt, response).sum()
    total.backward()
    return taken(model, weight), total.item()


def slower(
    model, prompt: list[int], response: list[int], weight: str
) -> tuple[torch.Tensor, float]:
    """The same by the chain rule alone, Σ_t log p(y_t | x, y_<t): the model never sees what it has
    to predict.
    """
    model.zero_grad()
    total = 0.0
    for t, token in enumerate(response):
        logits = model(input_ids=torch.tensor([prompt + response[:t]])).logits[0, -1]
        log_p = logits.log_softmax(-1)[token]
        log_p.backward()
        total += log_p.item()
    return taken(model, weight), total


def taken(model, weight: str) -> torch.Tensor:
    """The weight's gradient as (d_out, d_in), and no gradient left behind."""
    gradient = tiny_models.parameter(model, weight).grad.double()
    model.zero_grad()
    return gradient.T if "gpt2" in type(model).__name__.lower() else gradient


def psi_by_hand(gradient: torch.Tensor, key: Key, wm: Watermark, model) -> float:
    xi = perturb.noise(model, wm, key).double()
    return ((xi * gradient).sum() / (wm.sigma * gradient.norm())).item()


@pytest.mark.parametrize(("architecture", "weight", "dtype"), tiny_models.alternating(*TOLERANCE))
def test_psi_norm_and_likelihood_agree_with_one_text_autograd(architecture, weight, dtype):
    model, wm = tiny_models.build(architecture, dtype), Watermark(weight, 0.05)
    tolerance = TOLERANCE[dtype]
    prompts, responses = PROMPTS[2:6], RESPONSES[2:6]
    table = score.score(model, prompts, responses, wm, KEYS, batch_size=3)
    assert list(table.columns) == score.COLUMNS
    assert table["text"].tolist() == np.repeat(range(4), len(KEYS)).tolist()
    assert table["key_id"].tolist() == [key.key_id for key in KEYS] * 4
    for i, rows in table.groupby("text"):
        gradient, log_lik = slow(model, prompts[i], responses[i], weight)
        expected = [psi_by_hand(gradient, key, wm, model) for key in KEYS]
        # ψ's unit is its own standard deviation
        np.testing.assert_allclose(rows["psi"], expected, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(rows["grad_norm"], gradient.norm().item(), rtol=tolerance)
        np.testing.assert_allclose(rows["log_lik"], log_lik, rtol=tolerance)
        assert (rows["n_tokens"] == len(responses[i])).all()


@pytest.mark.parametrize("length", range(len(LENGTHS)), ids=[f"{x}+{y}" for x, y in LENGTHS])
def test_every_length_of_prompt_and_response(length):
    """Among them one token after one, where an off-by-one has nowhere to hide."""
    model, wm = tiny_models.marked("llama", torch.float64)
    [found] = score.gradients(model, [PROMPTS[length]], [RESPONSES[length]], wm)
    gradient, log_lik = slower(model, PROMPTS[length], RESPONSES[length], wm.weight)
    torch.testing.assert_close(found.G, gradient, rtol=1e-9, atol=1e-12)
    assert found.log_lik == pytest.approx(log_lik, rel=1e-12)
    assert found.n_tokens == len(RESPONSES[length])


def test_an_empty_prompt_is_the_start_token():
    model, wm = tiny_models.marked()
    table = score.score(model, [[], [1]], [[5, 6, 7]] * 2, wm, KEYS[:1])
    assert model.config.bos_token_id == 1
    assert table["psi"][0] == pytest.approx(table["psi"][1], rel=1e-5)
    assert table["log_lik"][0] == pytest.approx(table["log_lik"][1], rel=1e-6)


@pytest.mark.parametrize("rank_dropped", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keys_that_stream_past_are_the_keys_one_at_a_time(monkeypatch, dtype, rank_dropped):
    """Blocks of 8 texts and parts of 4 keys, neither of which divides what there is."""
    model, wm = tiny_models.marked("llama", dtype, rank_dropped)
    tolerance = closeness.of_sum(dtype, 32 * 48)
    keys = [Key.from_seed(i) for i in range(21)]
    keys[2:15:6] = [perturb.bind(model, wm, key) for key in keys[2:15:6]]
    settings = {"lengths": (2, 9, 17), "batch_size": 3}
    held = score.score(model, PROMPTS, RESPONSES, wm, keys, **settings)
    monkeypatch.setattr(blocks, "HELD", 4 * 4 * 1536 + 5000)
    streamed = score.score(model, PROMPTS, RESPONSES, wm, keys, **settings)
    assert streamed.groupby(["text", "n_tokens"]).ngroups > 8
    exact = ["text", "key_id", "n_tokens", "grad_norm", "log_lik"]
    assert streamed[exact].equals(held[exact])
    np.testing.assert_allclose(streamed["psi"], held["psi"], rtol=tolerance, atol=tolerance)
    for i, key in enumerate(keys):
        alone = score.score(model, PROMPTS, RESPONSES, wm, [key], **settings)
        of_key = streamed.iloc[i :: len(keys)]
        np.testing.assert_allclose(of_key["psi"], alone["psi"], rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(
            of_key["log10_p"], alone["log10_p"], rtol=tolerance * 100, atol=tolerance
        )


def test_p_values_are_the_normal_tail_of_psi_in_float64_and_do_not_underflow():
    text = score.TextGradient(0, [torch.ones(1, 1)], [1.0], 1.0, -1.0, 1)
    psi = np.array([-40.0, -3.0, 0.0, 1.6448536269514722, 5.5, 10.0, 40.0])
    table = score.table([(text, psi)], [["k"] * len(psi)])
    np.testing.assert_allclose(table["p_value"], norm.sf(psi), rtol=1e-12)
    assert table["p_value"][3] == pytest.approx(0.05, rel=1e-12)
    assert table["p_value"].is_monotonic_decreasing
    np.testing.assert_allclose(table["log10_p"][1:6], np.log10(norm.sf(psi[1:6])), rtol=1e-10)
    assert table["log10_p"][6] == pytest.approx(-349.4371, abs=1e-3)  # log₁₀ of φ(40)/40·(1 − …)
    assert table["p_value"][4] > 0  # float32 has 0 here


def test_noise_in_several_weights():
    """ψ = Σ_s ⟨ξ_s, G_s⟩ / √Σ_s σ_s²‖G_s‖², each G_s by autograd."""
    model = tiny_models.build("llama", torch.float64)
    wm = Watermark(tiny_models.WEIGHTS["llama"][:4], [0.05, 0.2, 0.1, 0.3])
    prompts, responses = PROMPTS[3:6], RESPONSES[3:6]
    table = score.score(model, prompts, responses, wm, KEYS)
    for i, rows in table.groupby("text"):
        gs = [slow(model, prompts[i], responses[i], weight)[0] for weight in wm.weights]
        scale = sum((s * g.norm()) ** 2 for s, g in zip(wm.sigmas, gs, strict=True)).sqrt()
        for psi, key in zip(rows["psi"], KEYS, strict=True):
            xis = perturb.noise(model, wm, key)
            inner = sum((xi.double() * g).sum() for xi, g in zip(xis, gs, strict=True))
            assert psi == pytest.approx((inner / scale).item(), rel=1e-6)
        assert wm.sigmas[0] * rows["grad_norm"].iloc[0] == pytest.approx(scale.item(), rel=1e-9)
    one, other, _ = score.gradients(model, prompts, responses, wm)
    assert one.cosine(other) == pytest.approx((one.unit() @ other.unit()).item(), rel=1e-5)


def test_token_weights_weigh_each_tokens_log_probability():
    """Against one gradient per token: G = Σ_t w_t G_t; 1 for all is no weight at all."""
    model, wm = tiny_models.marked("llama", torch.float64)
    prompts, responses = [[3, 14], [5]], [[35, 8, 9], [1, 2]]
    weights = [[0.5, 0.0, 2.0], [0.25, 1.0]]
    for found in score.gradients(model, prompts, responses, wm, token_weights=weights):
        x, y, w = prompts[found.text], responses[found.text], weights[found.text]
        each = [slow(model, x + y[:t], [token], wm.weight)[0] for t, token in enumerate(y)]
        expected = sum(w_t * g for w_t, g in zip(w, each, strict=True))
        torch.testing.assert_close(found.G, expected, rtol=1e-9, atol=1e-12)
        assert found.log_lik == pytest.approx(slow(model, x, y, wm.weight)[1], rel=1e-12)
    plain, ones = (
        score.score(model, prompts, responses, wm, KEYS, token_weights=w)["psi"]
        for w in (None, [[1, 1, 1], [1, 1]])
    )
    np.testing.assert_allclose(plain, ones, rtol=1e-9)
    with pytest.raises(InvalidTextError, match="2 numbers for response 1, got 1"):
        score.score(model, prompts, responses, wm, KEYS, token_weights=[[1, 1, 1], [1]])
    with pytest.raises(InvalidTextError, match="token_weights: expected"):
        score.score(model, prompts, responses, wm, KEYS, token_weights=[[1, 1, 1]])
    with pytest.raises(InvalidTextError, match="2 numbers for response 1"):
        list(score.gradients(model, prompts, responses, wm, token_weights=lambda *_: np.ones(4)))


def test_a_function_weighs_tokens_by_their_ids_and_log_p():
    """As the numbers do that it gives, also where texts of one batch differ in length."""
    model, wm = tiny_models.marked("llama", torch.float64)
    log_p = likelihood.log_probabilities(model, PROMPTS, RESPONSES)

    def weigh(ids, log_p):
        return np.exp(log_p) + np.array(ids) % 3

    fixed = [weigh(ids, of_text).tolist() for ids, of_text in zip(RESPONSES, log_p, strict=True)]
    by_function, by_numbers = (
        score.score(model, PROMPTS, RESPONSES, wm, KEYS, token_weights=w) for w in (weigh, fixed)
    )
    np.testing.assert_allclose(by_function["psi"], by_numbers["psi"], rtol=1e-9)
    plain = score.score(model, PROMPTS, RESPONSES, wm, KEYS)
    assert np.abs(by_function["psi"] - plain["psi"]).max() > 0.1


def test_paired_is_the_diagonal(monkeypatch):
    model, wm = tiny_models.marked()
    keys = [Key.from_seed(i) for i in range(len(PROMPTS))]
    expected = score.score(model, PROMPTS, RESPONSES, wm, keys)["psi"].to_numpy()
    for held in (1 << 30, 0):  # all at once, and in blocks
        monkeypatch.setattr(blocks, "HELD", held)
        table = score.score(model, PROMPTS, RESPONSES, wm, keys, paired=True)
        assert table["key_id"].tolist() == [key.key_id for key in keys]
        diagonal = expected.reshape(len(keys), -1).diagonal()
        np.testing.assert_allclose(table["psi"], diagonal, rtol=1e-4, atol=1e-4)
    with pytest.raises(InvalidTextError, match="paired: expected one key per text, got 3 for 8"):
        score.score(model, PROMPTS, RESPONSES, wm, KEYS, paired=True)


def test_noises_that_the_caller_holds(model, wm):
    xis = perturb.noises(model, wm, KEYS)
    drawn, given = (score.score(model, PROMPTS, RESPONSES, wm, KEYS, xis=x) for x in (None, xis))
    np.testing.assert_array_equal(drawn["psi"], given["psi"])
    for wrong in (xis[:2], xis * float("nan")):
        with pytest.raises(InvalidWatermarkError, match="xis: expected the finite noises"):
            score.score(model, PROMPTS, RESPONSES, wm, KEYS, xis=wrong)


# ---- refusals, and on_error="record"

GOOD = {0: ([1, 2], [3, 4, 5]), 4: ([], [6]), 7: ([7], [8] * 20), 10: ([1], [2])}
BAD = {
    1: ([1], [], "response 1: expected at least one token to score, got none"),
    2: ([1], [97], "token 0: expected a whole number from 0 to 96, got 97"),
    3: ([-1], [2], "prompt 3, token 0: .*0 to 96, got -1"),
    5: ([1] * 60, [2] * 5, "at most 64 tokens"),
    6: ([1], "text", "got text; encode it first"),
    8: ([1], None, "response 8: expected token ids from 0 to 96, got None"),
    9: ([1], [1, 1.5], "response 9, token 1: expected a whole number from 0 to 96, got 1.5"),
}
ROWS = GOOD | BAD
ALL = [ROWS[i][0] for i in sorted(ROWS)], [ROWS[i][1] for i in sorted(ROWS)]


@pytest.mark.usefixtures("wrong_types")
def test_a_bad_text_keeps_its_rows_with_its_reason_and_harms_no_other(model, wm):
    table = score.score(model, *ALL, wm, KEYS, on_error="record", batch_size=2)
    assert table["text"].tolist() == [i for i in range(len(ROWS)) for _ in KEYS]
    assert table["key_id"].tolist() == [key.key_id for key in KEYS] * len(ROWS)
    assert list(table.columns) == [*score.COLUMNS, "error"]
    for text, (_, _, reason) in BAD.items():
        rows = table[table["text"] == text]
        assert rows[["psi", "p_value", "log10_p", "grad_norm", "log_lik"]].isna().all(axis=None)
        assert rows["error"].str.contains(reason).all()
    assert table.groupby("text")["n_tokens"].first()[[1, 2, 5, 6, 8]].tolist() == [0, 1, 5, 0, 0]
    x, y = zip(*GOOD.values(), strict=True)
    alone = score.score(model, x, y, wm, KEYS)
    good = table[table["text"].isin(GOOD)]
    assert good["error"].isna().all()
    np.testing.assert_allclose(good["psi"], alone["psi"], rtol=1e-4, atol=2e-5)
    assert table[score.COLUMNS].dtypes.equals(alone.dtypes)


@pytest.mark.parametrize("text", BAD)
@pytest.mark.usefixtures("wrong_types")
def test_or_it_is_refused(model, wm, key, text):
    x, y, reason = BAD[text]
    with pytest.raises(InvalidTextError, match=reason.replace(f" {text}", " 0", 1)):
        score.score(model, [x], [y], wm, [key])


@pytest.mark.parametrize(
    ("x", "y", "settings", "message"),
    [
        ([], [], {}, "expected one prompt per response, each a list of token ids, got 0 prompts"),
        ([[1]], [[1], [2]], {}, "got 1 prompts and 2 responses"),
        ([[1]], [[1]], {"lengths": [0]}, "lengths: expected a whole number ≥ 1"),
    ],
)
@pytest.mark.usefixtures("wrong_types")
def test_calls_that_are_refused(model, wm, x, y, settings, message):
    with pytest.raises(InvalidTextError, match=message):
        score.score(model, x, y, **{"wm": wm, "keys": KEYS} | settings)


def test_everything_may_fail_and_nothing_reads_as_not_watermarked(wm):
    model = tiny_models.build("llama")
    table = score.score(model, [[1], [1]], [[], [99]], wm, KEYS, on_error="record")
    assert table["psi"].isna().all()
    model.model.embed_tokens.weight.data[5] = float("nan")
    table = score.score(model, [[1], [1]], [[5, 3], [2, 3]], wm, KEYS, on_error="record")
    assert table["p_value"].isna().tolist() == [True] * 3 + [False] * 3
    assert table["error"][0].startswith("text 0: expected a finite, non-zero gradient")


def test_a_text_that_fails_at_one_length_has_one_row_per_key_and_others_keep_theirs(model, wm):
    """Its first two tokens have no weight, so that G is 0 at length 2 only."""

    def weigh(ids, log_p):
        return [0.0 if token == 9 else 1.0 for token in ids]

    x, y = [[1], [1]], [[9, 9, 5], [5, 3, 2]]
    how = {"token_weights": weigh, "lengths": [2, 3]}
    table = score.score(model, x, y, wm, KEYS[:1], on_error="record", **how)
    assert table["text"].tolist() == [0, 1, 1]
    assert table["n_tokens"].tolist() == [3, 2, 3]
    assert table["psi"].isna().tolist() == [True, False, False]
    assert table["error"].notna().tolist() == [True, False, False]


def test_a_weight_without_influence_has_no_psi(model, key):
    model.model.layers[2].mlp.gate_proj.weight.data.zero_()
    dead = Watermark("model.layers.2.mlp.up_proj.weight", 0.05)
    with pytest.raises(DegenerateScoreError, match=r"text 0: .* ‖G‖ = 0\.0"):
        score.score(model, [[1, 2]], [[3, 4]], dead, [key])
    model.spare = torch.nn.Linear(32, 48)
    with pytest.raises(DegenerateScoreError, match=r"depend on spare\.weight, which was not used"):
        score.score(model, [[1, 2]], [[3, 4]], Watermark("spare.weight", 0.05), [key])


def test_nothing_is_left_of_a_gradient_within_the_dropped_directions(model, key):
    """All of G lies in one direction of the output, since the layer above reads no other one."""
    mlp = model.model.layers[1].mlp
    above, below = mlp.down_proj.weight.data, mlp.up_proj.weight.data
    above[:, 1:] = 0
    below[0] = 10 * below[0]
    below[1:] -= (below[1:] @ below[0])[:, None] * below[0] / below[0].square().sum()
    weight = "model.layers.1.mlp.up_proj.weight"
    score.score(model, [[1, 2]], [[3, 4]], Watermark(weight, 0.05), [key])
    with pytest.raises(DegenerateScoreError):
        score.score(model, [[1, 2]], [[3, 4]], Watermark(weight, 0.05, 1), [key])


# ---- scoring and sampling borrow the model

TEXTS = ([[1, 2], [3]], [[4, 5, 6], [7, 8]])


def state(model) -> dict:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return {
        "training": [module.training for module in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "hooks": sum(len(getattr(m, name)) for m in model.modules() for name in hooks),
        "grad": [p.grad is None for p in model.parameters()],
        "values": [p.detach().clone().flatten().tolist() for p in model.parameters()],
        "grad mode": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("mode", ["evaluating", "training", "mixed"])
def test_the_model_is_as_before_also_after_an_exception(mode, wm, key, monkeypatch):
    model = tiny_models.build("llama")
    model.train(mode == "training")
    if mode == "mixed":
        model.model.layers[1].train()
        model.lm_head.requires_grad_(False)
    before = state(model)
    run = score.gradients(model, *TEXTS, wm, batch_size=1)
    next(run)
    assert state(model) == before, "between two texts"
    run.close()
    score.score(model, *TEXTS, wm, [key])
    generate.sample(model, TEXTS[0], 3)
    assert state(model) == before
    monkeypatch.setattr(model.lm_head, "forward", lambda x: 1 / 0)
    for call in (
        lambda: score.score(model, *TEXTS, wm, [key]),
        lambda: generate.sample(model, TEXTS[0], 3),
    ):
        with pytest.raises(ZeroDivisionError):
            call()
        assert state(model) == before


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_in_any_mode_of_the_caller_and_of_the_model(key, context):
    """GPT-2 drops out in training mode."""
    model, wm = tiny_models.marked("gpt2")
    expected = score.score(model, *TEXTS, wm, [key])["psi"].tolist()
    text = generate.sample(model, TEXTS[0], 10)
    model.train()
    model.requires_grad_(False)
    with context():
        assert score.score(model, *TEXTS, wm, [key])["psi"].tolist() == expected
        assert generate.sample(model, TEXTS[0], 10) == text


def test_nothing_below_the_weight_is_differentiated(model, key):
    has_graph = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda *call: has_graph.append(call[-1].requires_grad))
    score.score(model, *TEXTS, Watermark("model.layers.1.mlp.up_proj.weight", 0.05), [key])
    assert has_graph == [False, True, True]
