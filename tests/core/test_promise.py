"""The promise of a text: its three numbers against autograd and closed forms, and the mean of ψ
over keys against simulation, at temperatures at which ‖G‖ says something else.
"""

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import errors, generate, perturb, score, tokens
from gaussmark_lib.beyond import channel, promise
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import verdict

RNG = np.random.default_rng(4)
PROMPTS, RESPONSES = tiny_models.random_ids(RNG, 4, 7), tiny_models.random_ids(RNG, 21, 18)


def fisher(model, weight, x, y, tau, top_p=1.0, kept=None):
    """F/τ by its formula: the Jacobian of every logit, one backward pass each."""
    parameter = tiny_models.parameter(model, weight).requires_grad_()
    total = 0.0
    for t, row in enumerate(tiny_models.next_logits(model, x, y)):
        J = torch.stack(
            [torch.autograd.grad(one, parameter, retain_graph=True)[0].flatten() for one in row]
        )
        q = generate.probabilities(row[None].detach(), top_p, tau)[0]
        q = q / q.sum()
        C = torch.diag(q) - torch.outer(q, q)
        w = 1.0 if kept is None else kept[t]
        total += w * torch.einsum("vd,vw,wd->", J, C, J).item()
    parameter.requires_grad_(False)
    return total / tau


@pytest.mark.parametrize(
    ("tau", "top_p", "edited"), [(1.0, 1.0, 0.0), (0.6, 1.0, 0.3), (1.0, 0.2, 0.0)]
)
def test_information_is_the_fisher_information_at_the_temperature(monkeypatch, tau, top_p, edited):
    """Its mean over the random numbers, each text by autograd in float64."""
    model, wm = tiny_models.marked(dtype=torch.float64)
    x, y = PROMPTS[0], RESPONSES[0][:3]
    kept = None
    if edited:
        log_q = channel.log_frequencies(model, None)
        own = tiny_models.log_p(model, x, y).detach().numpy()
        kept = channel.kept(own - log_q[y], edited)
    wanted = fisher(model, wm.weight, x, y, tau, top_p, kept)
    sampled = promise.Sampled(tau, top_p)
    fresh, draws = np.random.default_rng(0), []
    monkeypatch.setattr(promise.np.random, "default_rng", lambda *_: fresh)
    settings = {"token_weights": channel.weights(model, edited), "sampled": sampled}
    for _ in range(600):
        found = promise.table(model, [x], [y], wm, **settings)
        draws.append(found["information"].item())
    error = np.std(draws) / np.sqrt(len(draws))
    assert abs(np.mean(draws) - wanted) < 3.3 * error
    assert error < 0.05 * wanted


@pytest.mark.parametrize("tau", [0.3, 0.7, 1.0, 2.0])
def test_the_temperature_is_the_one_that_wrote_the_text(tau):
    rng = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(4000, 50, generator=rng)
    y = torch.multinomial((z / tau).softmax(-1), 1, generator=rng)[:, 0]
    found = promise.temperature(z, y)
    assert found == pytest.approx(tau, rel=0.04)
    q = (z.double() / found).softmax(-1)
    drawn, expected = z.double().gather(-1, y[:, None]).sum(), (q * z).sum()
    assert drawn.item() == pytest.approx(expected.item(), rel=1e-3), "the likelihood's slope is 0"


def test_greedy_text_is_as_cold_as_it_goes_and_noise_as_hot():
    z = torch.randn(100, 30, generator=torch.Generator().manual_seed(1))
    assert promise.temperature(z, z.argmax(-1)) == pytest.approx(promise.COLDEST)
    assert promise.temperature(z, z.argmin(-1)) == pytest.approx(promise.HOTTEST)
    z[:, 3] = -torch.inf
    assert promise.COLDEST < promise.temperature(z, torch.full((100,), 4)) <= promise.HOTTEST


@pytest.mark.parametrize(("tau", "top_p"), [(0.5, 1.0), (1.0, 1.0), (1.0, 0.8)])
def test_the_promised_mean_is_that_over_keys(tau, top_p):
    """A text under each of 400 keys, on a model on which σ‖G‖ is wrong at τ = .5."""
    model, n = tiny_models.build("llama", seed=3), 400
    wm = Watermark(tiny_models.ONE_WEIGHT["llama"], 0.02)
    prompts = tiny_models.random_ids(np.random.default_rng(7), *[5] * n)
    keys = [Key.from_seed(50_000 + i) for i in range(n)]
    marks = [(wm, key) for key in keys]
    texts = generate.sample(model, prompts, 50, temperature=tau, top_p=top_p, marks=marks, seed=2)
    scores = score.score(model, prompts, texts, wm, keys, paired=True)
    found = promise.table(model, prompts, texts, wm)
    mean = promise.mean_psi(found["information"], scores["grad_norm"], wm.sigma)
    gap = mean - scores["psi"].to_numpy()
    assert abs(gap.mean()) < 3.3 * gap.std() / n**0.5 + 0.08
    naive = (wm.sigma * scores["grad_norm"] - scores["psi"]).mean()
    if tau < 1:
        assert abs(naive) > 3 * abs(gap.mean()), "the promise of temperature 1"


def test_batches_windows_and_several_weights():
    model, wm = tiny_models.marked()
    found = promise.table(model, PROMPTS, RESPONSES, wm)
    assert found.columns.tolist() == promise.COLUMNS
    for i in range(2):
        alone = promise.table(model, [PROMPTS[i]], [RESPONSES[i]], wm).iloc[0, 1:].astype(float)
        np.testing.assert_allclose(alone, found.iloc[i, 1:].astype(float), rtol=1e-4)
    both = promise.together(found.assign(temperature=[0.5, 1.0]))
    assert both["information"] == pytest.approx(found["information"].sum())
    assert both["temperature"] == pytest.approx((21 * 0.5 + 18 * 1.0) / 39)
    first, second = tiny_models.WEIGHTS["llama"][1], wm.weight
    several = promise.table(model, PROMPTS, RESPONSES, Watermark([first, second], [0.05, 0.1]))
    parts = [
        promise.table(model, PROMPTS, RESPONSES, Watermark(name, 0.05))["information"]
        for name in (first, second)
    ]
    np.testing.assert_allclose(several["information"], parts[0] + 4 * parts[1], rtol=1e-3)
    less = promise.table(model, PROMPTS, RESPONSES, Watermark(wm.weight, 0.05, 6))
    assert (less["information"] < found["information"]).all()


def test_few_tokens_have_temperature_one_and_a_marked_model_is_refused():
    model, wm = tiny_models.marked()
    [tau] = promise.table(model, [[3]], [RESPONSES[0][: promise.FEW - 1]], wm)["temperature"]
    assert tau == 1
    key = Key.from_seed(1)
    with perturb.watermarked(model, wm, key), pytest.raises(errors.PerturbedModelError):
        promise.table(model, PROMPTS, RESPONSES, wm)


def test_an_unknown_prompt_promises_less_and_has_its_temperature_from_the_second_half():
    """Only of the texts after what stands in for it."""
    model, wm = tiny_models.marked()
    start = tokens.Reader(model).start
    [hot] = tiny_models.random_ids(RNG, 20)
    cold = generate.sample(model, [[*start, *hot]], 30, temperature=0.2)[0]
    text = [*hot, *cold]
    prompts, texts = [start, PROMPTS[0]], [text, text]
    known = promise.table(model, prompts, texts, wm)
    unknown = promise.table(model, prompts, texts, wm, unknown_prompt=[])
    assert known.iloc[1].equals(unknown.iloc[1])
    [tau, _] = unknown["temperature"]
    assert tau < 0.6 * known["temperature"][0]
    same = promise.table(model, prompts, texts, wm, sampled=promise.Sampled(tau))
    share = len(text) / (len(text) + promise.LOST)
    assert unknown["information"][0] == pytest.approx(share * same["information"][0])
    settings = {"sampled": promise.Sampled(tau), "unknown_prompt": start}
    chat = promise.table(model, prompts, texts, wm, **settings)
    share = len(text) / (len(text) + promise.LOST_OF_ANSWER)
    assert promise.LOST_OF_ANSWER > promise.LOST
    assert chat["information"][0] == pytest.approx(share * same["information"][0])


def test_greedy_text_and_foreign_text_get_a_caution():
    model, wm = tiny_models.marked()
    greedy = generate.sample(model, PROMPTS, 30, temperature=0)
    [row, _] = promise.table(model, PROMPTS, greedy, wm).to_dict("records")
    assert verdict.cautions(row) == [verdict.PREDICTABLE]
    foreign = []
    for _ in range(40):  # the model's least likely token
        logits = tiny_models.next_logits(model, PROMPTS[0], [*foreign, 0])[-1]
        foreign.append(logits.argmin().item())
    [row] = promise.table(model, PROMPTS[:1], [foreign], wm).to_dict("records")
    assert verdict.cautions(row) == [verdict.UNUSUAL]


@pytest.mark.parametrize("n_tokens", [16, 40, 200, 2000])
def test_few_tokens_may_be_stranger_before_a_caution(n_tokens):
    """Tokens of the model's own deviate by 1.5 nats; this is their mean and 4 standard errors."""
    own = {"n_tokens": n_tokens, "temperature": 1.0, "excess": 0.15 + 4 * 1.5 / n_tokens**0.5}
    of_edited = own | {"excess": own["excess"] + 1.5}
    assert verdict.cautions(own) == []
    assert verdict.cautions(of_edited) == [verdict.UNUSUAL]
