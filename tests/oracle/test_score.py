"""The score against the slow obvious way: one text at a time, the whole model's autograd, the
weight's own gradient.
"""

import closeness
import numpy as np
import pytest
import tiny_models
import torch
from scipy.stats import norm

from gaussmark_lib import perturb, score
from gaussmark_lib.perturb import Key, Watermark

KEYS = [Key.from_seed(i) for i in range(3)]
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
LENGTHS = [(1, 1), (1, 2), (5, 1), (3, 17), (12, 9), (2, 30), (30, 3), (7, 17)]


def texts(seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    rng = np.random.default_rng(seed)
    return tiny_models.random_ids(rng, *(x for x, _ in LENGTHS)), tiny_models.random_ids(
        rng, *(y for _, y in LENGTHS)
    )


def slow(model, prompt: list[int], response: list[int], weight: str) -> tuple[torch.Tensor, float]:
    """(∇_θ log p_θ(y | x) as (d_out, d_in), log p_θ(y | x)), both float64: one text, every
    parameter's gradient.
    """
    model.zero_grad()
    log_p = model(input_ids=torch.tensor([prompt + response])).logits[0].log_softmax(-1)
    total = sum(log_p[len(prompt) - 1 + t, token] for t, token in enumerate(response))
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
        log_p = (
            model(input_ids=torch.tensor([prompt + response[:t]]))
            .logits[0, -1]
            .log_softmax(-1)[token]
        )
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
    model, wm, tolerance = (
        tiny_models.build(architecture, dtype),
        Watermark(weight, 0.05),
        TOLERANCE[dtype],
    )
    prompts, responses = (rows[2:6] for rows in texts())
    table = score.score(model, prompts, responses, wm, KEYS, batch_size=3)
    assert list(table.columns) == score.COLUMNS
    assert table["text"].tolist() == np.repeat(range(4), len(KEYS)).tolist()
    assert table["key_id"].tolist() == [key.key_id for key in KEYS] * 4
    for i, rows in table.groupby("text"):
        gradient, log_lik = slow(model, prompts[i], responses[i], weight)
        expected = [psi_by_hand(gradient, key, wm, model) for key in KEYS]
        np.testing.assert_allclose(
            rows["psi"], expected, rtol=tolerance, atol=tolerance
        )  # ψ's unit is its own standard deviation
        np.testing.assert_allclose(rows["grad_norm"], gradient.norm().item(), rtol=tolerance)
        np.testing.assert_allclose(rows["log_lik"], log_lik, rtol=tolerance)
        assert (rows["n_tokens"] == len(responses[i])).all()


@pytest.mark.parametrize("length", range(len(LENGTHS)), ids=[f"{x}+{y}" for x, y in LENGTHS])
def test_every_length_of_prompt_and_response(length):
    """Among them one token after one, where an off-by-one has nowhere to hide."""
    model, wm = (
        tiny_models.build("llama", torch.float64),
        Watermark(tiny_models.ONE_WEIGHT["llama"], 0.05),
    )
    prompts, responses = texts()
    [found] = score.gradients(model, [prompts[length]], [responses[length]], wm)
    gradient, log_lik = slower(model, prompts[length], responses[length], wm.weight)
    torch.testing.assert_close(found.G, gradient, rtol=1e-9, atol=1e-12)
    assert found.log_lik == pytest.approx(log_lik, rel=1e-12)
    assert found.n_tokens == len(responses[length])


def test_the_full_matrix_of_a_conv1d_is_out_times_in():
    model, wm = (
        tiny_models.build("gpt2", torch.float64),
        Watermark("transformer.h.0.mlp.c_fc.weight", 0.05),
    )
    prompts, responses = texts()
    for found in score.gradients(model, prompts, responses, wm):
        gradient, _ = slow(model, prompts[found.text], responses[found.text], wm.weight)
        assert found.G.shape == (48, 32)
        torch.testing.assert_close(found.G, gradient, rtol=1e-9, atol=1e-12)


def test_the_log_likelihood_is_that_of_the_response_alone():
    """The prompt is not scored: its own likelihood is no part of the sum."""
    model, wm = (
        tiny_models.build("llama", torch.float64),
        Watermark(tiny_models.ONE_WEIGHT["llama"], 0.05),
    )
    prompt, response = [3, 14, 15, 92, 65], [35, 8, 9]
    [found] = score.gradients(model, [prompt], [response], wm)
    log_p = model(input_ids=torch.tensor([prompt + response])).logits[0].log_softmax(-1).detach()
    each = [log_p[i - 1, token].item() for i, token in enumerate(prompt + response) if i > 0]
    assert found.log_lik == pytest.approx(sum(each[-3:]), rel=1e-12)
    assert abs(found.log_lik - sum(each)) > 1  # the control


def test_the_first_response_token_counts():
    """log p(y | x) of one token is log p(y₁ | x); of many, the chain rule joins them."""
    model, wm = (
        tiny_models.build("llama", torch.float64),
        Watermark(tiny_models.ONE_WEIGHT["llama"], 0.05),
    )
    prompt, response = [3, 14, 15], [35, 8, 9]
    whole, first, rest = score.gradients(
        model,
        [prompt, prompt, [*prompt, response[0]]],
        [response, response[:1], response[1:]],
        wm,
        batch_size=1,
    )
    by_text = {found.text: found for found in (whole, first, rest)}
    torch.testing.assert_close(by_text[0].G, by_text[1].G + by_text[2].G, rtol=1e-9, atol=1e-12)
    assert by_text[0].log_lik == pytest.approx(by_text[1].log_lik + by_text[2].log_lik, rel=1e-12)


def test_an_empty_prompt_is_the_start_token():
    model, wm = tiny_models.build("llama"), Watermark(tiny_models.ONE_WEIGHT["llama"], 0.05)
    table = score.score(model, [[], [1]], [[5, 6, 7]] * 2, wm, KEYS[:1])
    assert model.config.bos_token_id == 1
    assert table["psi"][0] == pytest.approx(table["psi"][1], rel=1e-5)
    assert table["log_lik"][0] == pytest.approx(table["log_lik"][1], rel=1e-6)


@pytest.mark.parametrize(("architecture", "weight"), tiny_models.EVERY_WEIGHT)
def test_with_directions_dropped_noise_and_gradient_are_projected_explicitly(architecture, weight):
    model, wm = (
        tiny_models.build(architecture, torch.float64),
        Watermark(weight, 0.05, rank_dropped=5),
    )
    vanilla = Watermark(weight, 0.05)
    prompts, responses = (rows[3:5] for rows in texts())
    stored = tiny_models.parameter(model, weight).detach()
    theta = stored.T if architecture == "gpt2" else stored
    u = torch.linalg.svd(theta, full_matrices=False).U[:, :5]
    projector = torch.eye(len(theta), dtype=torch.float64) - u @ u.T
    table = score.score(model, prompts, responses, wm, KEYS)
    plain = score.score(model, prompts, responses, vanilla, KEYS)
    for i, rows in table.groupby("text"):
        gradient, _ = slow(model, prompts[i], responses[i], weight)
        projected = projector @ gradient
        expected = [
            (projector @ perturb.noise(model, vanilla, key).double() * projected).sum()
            / (wm.sigma * projected.norm())
            for key in KEYS
        ]
        np.testing.assert_allclose(
            rows["psi"], expected, rtol=1e-4, atol=1e-4
        )  # U is found in float32
        np.testing.assert_allclose(rows["grad_norm"], projected.norm(), rtol=1e-4)
        assert (
            rows["grad_norm"].to_numpy() < plain.loc[plain["text"] == i, "grad_norm"].to_numpy()
        ).all()


def test_many_keys_at_once_are_the_keys_one_at_a_time():
    model, wm = tiny_models.build("llama"), Watermark(tiny_models.ONE_WEIGHT["llama"], 0.05)
    prompts, responses = texts()
    keys = [Key.from_seed(i) for i in range(20)]
    together = score.score(model, prompts, responses, wm, keys).pivot(
        index="text", columns="key_id", values="psi"
    )
    for key in keys:
        alone = score.score(model, prompts, responses, wm, [key])
        rounding = closeness.of_sum(torch.float32, 32 * 48)
        np.testing.assert_allclose(together[key.key_id], alone["psi"], rtol=0, atol=rounding)


@pytest.mark.parametrize("rank_dropped", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keys_that_stream_past_are_the_keys_one_at_a_time(monkeypatch, dtype, rank_dropped):
    """Blocks of 8 texts and parts of 4 keys, neither of which divides what there is."""
    model, wm = (
        tiny_models.build("llama", dtype),
        Watermark(tiny_models.ONE_WEIGHT["llama"], 0.05, rank_dropped=rank_dropped),
    )
    tolerance = closeness.of_sum(dtype, 32 * 48)
    prompts, responses = texts()
    keys = [Key.from_seed(i) for i in range(21)]
    keys[2:15:6] = [perturb.bind(model, wm, key) for key in keys[2:15:6]]
    held = score.score(model, prompts, responses, wm, keys, lengths=(2, 9, 17), batch_size=3)
    monkeypatch.setattr(score, "HELD", 4 * 4 * 1536 + 5000)
    streamed = score.score(model, prompts, responses, wm, keys, lengths=(2, 9, 17), batch_size=3)
    assert streamed.groupby(["text", "n_tokens"]).ngroups > 8
    assert streamed[["text", "key_id", "n_tokens", "grad_norm", "log_lik"]].equals(
        held[["text", "key_id", "n_tokens", "grad_norm", "log_lik"]]
    )
    np.testing.assert_allclose(streamed["psi"], held["psi"], rtol=tolerance, atol=tolerance)
    for i, key in enumerate(keys):
        alone = score.score(model, prompts, responses, wm, [key], lengths=(2, 9, 17), batch_size=3)
        np.testing.assert_allclose(
            streamed["psi"].iloc[i :: len(keys)], alone["psi"], rtol=tolerance, atol=tolerance
        )
        np.testing.assert_allclose(
            streamed["log10_p"].iloc[i :: len(keys)],
            alone["log10_p"],
            rtol=tolerance * 100,
            atol=tolerance,
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_the_model_but_not_the_statistic(dtype):
    """G, its norm and ⟨ξ, G⟩ are formed in float32: recomputed in float64 from the same G, ψ has to
    agree.
    """
    model, wm = tiny_models.build("llama", dtype), Watermark(tiny_models.ONE_WEIGHT["llama"], 0.05)
    prompts, responses = texts()
    table = score.score(model, prompts, responses, wm, KEYS).pivot(
        index="text", columns="key_id", values="psi"
    )
    for found in score.gradients(model, prompts, responses, wm):
        assert found.G.dtype == torch.float32
        expected = [psi_by_hand(found.G.double(), key, wm, model) for key in KEYS]
        np.testing.assert_allclose(
            table.loc[found.text, [key.key_id for key in KEYS]], expected, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_half_precision_is_near_full_precision(architecture):
    wm = Watermark(tiny_models.ONE_WEIGHT[architecture], 0.05)
    prompts, responses = texts()
    full, half = (
        score.score(tiny_models.build(architecture, dtype), prompts, responses, wm, KEYS)["psi"]
        for dtype in (torch.float32, torch.bfloat16)
    )
    np.testing.assert_allclose(half, full, atol=0.25)
    assert np.corrcoef(half, full)[0, 1] > 0.995


def test_p_values_are_the_normal_tail_of_psi_in_float64_and_do_not_underflow():
    found = score.TextGradient(0, torch.eye(2), -1.0, 1)
    psi = np.array([-40.0, -3.0, 0.0, 1.6448536269514722, 5.5, 10.0, 40.0])
    table = score.table(found, psi, ["k"] * len(psi))
    np.testing.assert_allclose(table["p_value"], norm.sf(psi), rtol=1e-12)
    assert table["p_value"][3] == pytest.approx(0.05, rel=1e-12)
    assert (np.diff(table["p_value"]) < 0).all() or (
        table["p_value"][:2] == 1
    ).all()  # higher ψ, smaller p
    np.testing.assert_allclose(table["log10_p"][1:6], np.log10(norm.sf(psi[1:6])), rtol=1e-10)
    assert table["log10_p"][6] == pytest.approx(
        -349.4371, abs=1e-3
    )  # log₁₀ of φ(40)/40·(1 − 1/40²)
    assert table["p_value"].dtype == table["log10_p"].dtype == table["psi"].dtype == np.float64
    assert table["p_value"][4] > 0  # float32 has 0 here
