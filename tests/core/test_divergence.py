"""What a watermark costs a language model: token-by-token divergences against the slow way, and
against the mean log-likelihood ratio; of schemes that change logits, also by closed forms.
"""

import numpy as np
import pytest
import torch
from tiny_models import ONE_WEIGHT, build, random_ids
from tiny_models import log_p as log_p_of

from gaussmark_lib import divergence, likelihood, perturb
from gaussmark_lib.beyond.schemes import GumbelMax, SynthID
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.kgw import KGW

SHORT_PROMPTS = random_ids(np.random.default_rng(0), 3, 9, 5)
KEY, OTHER = perturb.Key.from_seed(1), perturb.Key.from_seed(2)


@pytest.fixture(scope="module")
def model():
    return build("llama", torch.float64)


@pytest.fixture(scope="module")
def wm():
    return perturb.Watermark(ONE_WEIGHT["llama"], 0.1)


@torch.no_grad()
def slow(model, prompt, response, wm):
    """One prefix at a time, no batch, no padding; ξ = σz, with z in float32 as sampling has it."""
    total, z = 0.0, perturb.noise(model, wm, KEY) / wm.sigma
    for t in range(len(response)):
        ids = torch.tensor([prompt + response[:t]])
        with perturb.moved(wm.on(model), [wm.sigma * z.double()]):
            p = model(ids).logits[0, -1].softmax(-1)
        q = model(ids).logits[0, -1].softmax(-1)
        total += (p * (p / q).log()).sum().item()
    return total


def test_divergences_are_the_slow_sum_in_any_batch(model, wm):
    rng = np.random.default_rng(0)
    prompts, responses = random_ids(rng, 3, 1, 9, 5), random_ids(rng, 7, 12, 1, 6)
    expected = [slow(model, x, y, wm) for x, y in zip(prompts, responses, strict=True)]
    for batch_size in (1, 3, 16):
        how = {"marks": [(wm, KEY)] * 4, "batch_size": batch_size}
        found = divergence.per_text(model, prompts, responses, **how)
        assert found == pytest.approx(np.array(expected), rel=1e-10)


def test_dropout_has_no_part_in_it():
    model, texts = build("gpt2"), ([[1, 2]], [[3, 4, 5]])  # whose dropout is .1
    marks = [(perturb.Watermark(ONE_WEIGHT["gpt2"], 0.01), KEY)]
    found = []
    for mode in (False, True):
        model.train(mode)
        nats = divergence.per_text(model, *texts, marks=marks)
        found.append([*nats, *divergence.surprisal(model, *texts).value[0]])
        assert model.training == mode
    assert found[0] == found[1]


@torch.no_grad()
@pytest.mark.parametrize("bias", [1.0, 2.0])
def test_of_kgw_it_is_given_by_the_mass_of_the_green_list(model, bias):
    """q ∝ p·exp(δ·green): with green mass m and Z = 1 + m(e^δ − 1), KL(q ‖ p) = δ·m·e^δ/Z − log Z.
    Each prefix by itself, unpadded.
    """
    scheme = KGW(bias, KEY)
    responses = scheme.generate(model, SHORT_PROMPTS, 12, seed=2)
    expected = []
    for x, y in zip(SHORT_PROMPTS, responses, strict=True):
        total = 0.0
        for t in range(len(y)):
            ids = torch.tensor([x + y[:t]])
            logits = model(ids).logits[:, -1]
            green = scheme.processor(model)(ids, torch.zeros_like(logits))[0] > 0
            mass = logits.double().softmax(-1)[0, green].sum().item()
            z = 1 + mass * np.expm1(bias)
            total += bias * mass * np.exp(bias) / z - np.log(z)
        expected.append(total)
    for batch_size in (2, 16):
        how = scheme.writing(model, 3) | {"batch_size": batch_size}
        found = divergence.per_text(model, SHORT_PROMPTS, responses, **how)
        np.testing.assert_allclose(found, expected, rtol=1e-4)


@torch.no_grad()
def test_of_gumbel_max_it_is_the_surprisal_of_what_the_key_chooses(model):
    """Of its own text, that of the text itself, where no context comes twice; and a scheme that is
    certain has no 0·∞.
    """
    scheme = GumbelMax(KEY, context=2)
    responses = scheme.generate(model, SHORT_PROMPTS, 12, seed=2)
    expected = []
    for x, y in zip(SHORT_PROMPTS, responses, strict=True):
        contexts = [tuple((x + y)[len(x) + t - 2 : len(x) + t]) for t in range(len(y))]
        log_p = log_p_of(model, x, y).tolist()
        new = [nats for t, nats in enumerate(log_p) if contexts[t] not in contexts[:t]]
        expected.append(-sum(new))
    found = scheme.divergences(model, SHORT_PROMPTS, responses)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("scheme", [KGW(2.0, KEY), GumbelMax(KEY), SynthID(KEY, depth=3)])
def test_a_shorter_text_beside_a_longer_one_has_its_own(model, scheme):
    texts = scheme.generate(model, SHORT_PROMPTS, 12, seed=2)
    responses = [y[:n] for y, n in zip(texts, (12, 5, 9), strict=True)]
    pairs = zip(SHORT_PROMPTS, responses, strict=True)
    alone = [scheme.divergences(model, [x], [y])[0] for x, y in pairs]
    together = scheme.divergences(model, SHORT_PROMPTS, responses)
    np.testing.assert_allclose(together, alone, rtol=1e-4)


@pytest.fixture(scope="module")
def every_text(model):
    """After one prompt, all texts of two tokens: their surprisal, and their log p at τ."""
    prompt, vocabulary = [5, 8, 13], range(model.config.vocab_size)
    with torch.no_grad():
        first = model(torch.tensor([prompt])).logits[0, -1]
        second = model(torch.tensor([[*prompt, token] for token in vocabulary])).logits[:, -1]
    texts = [[a, b] for a in vocabulary for b in vocabulary]
    found = divergence.surprisal(model, [prompt] * len(texts), texts, batch_size=500)

    def log_p(temperature):
        firsts = (first / temperature).log_softmax(-1)
        seconds = (second / temperature).log_softmax(-1)
        return (firsts[:, None] + seconds).flatten().numpy()

    return found, log_p


def test_the_slope_is_that_of_the_exact_mean_surprisal(every_text):
    """All texts are enumerated, so the mean over them is the expectation."""
    found, log_p = every_text

    def mean_surprisal(temperature):
        return np.exp(log_p(temperature)) @ -log_p(1.0) / 2

    exact = (mean_surprisal(1 + 1e-4) - mean_surprisal(1 - 1e-4)) / 2e-4
    weights = np.exp(log_p(1.0))
    slope = weights @ divergence.temperature_slopes(found)
    # n/(n − 1) of the leave-one-out mean is 1 + 1e-4 for all texts
    assert slope == pytest.approx(exact, rel=1e-4)
    of_steps = weights @ found.variance.mean(1)
    assert abs(of_steps / exact - 1) > 2e-3, "the change of the contexts matters here"


def test_the_temperature_of_text_that_was_sampled_at_it_is_found(every_text):
    """To first order; its slopes are of plain texts at temperature 1."""
    found, log_p = every_text
    slopes = divergence.temperature_slopes(found)
    rng = np.random.default_rng(0)
    draws = (
        rng.choice(len(slopes), 20_000, p=np.exp(log_p(temperature))) for temperature in (1, 1.1)
    )
    plain, warm = (texts[:4000] for texts in draws)
    change = found.value.mean(1)[warm] - found.value.mean(1)[plain]
    estimate = divergence.equivalent_temperature(change, slopes[plain])
    assert estimate.low < 1.1 < estimate.high
    assert estimate.high - estimate.low < 0.1
    pairs = np.arange(4000) // 2  # two texts of a pair
    clustered = divergence.equivalent_temperature(change, slopes[plain], cluster=pairs)
    assert (clustered.value, clustered.n) == (estimate.value, 2000)


def test_a_slope_is_the_slow_sum_without_its_own_text(model):
    texts = random_ids(np.random.default_rng(3), 5, 5, 5)
    found = divergence.surprisal(model, SHORT_PROMPTS, texts, batch_size=2)
    log_p = likelihood.log_probabilities(model, SHORT_PROMPTS, texts)
    entropies = likelihood.entropies(model, SHORT_PROMPTS, texts)
    assert found.value == pytest.approx(-np.array(log_p))
    assert found.mean == pytest.approx(np.array(entropies))
    for i, slope in enumerate(divergence.temperature_slopes(found)):
        others = [found.mean[j] for j in range(3) if j != i]
        total, martingale = 0.0, 0.0
        for t in range(5):
            centred = found.mean[i, t] - np.mean([of_text[t] for of_text in others])
            total += found.variance[i, t] + centred * martingale
            martingale += found.value[i, t] - found.mean[i, t]
        assert slope == pytest.approx(total / 5)


def test_what_is_refused(model, wm):
    both = {"marks": [(wm, KEY)], "processor": lambda rows: None}
    with pytest.raises(InvalidTextError, match="marks or a processor, got both"):
        divergence.per_text(model, [[1]], [[2]], **both)
    with pytest.raises(InvalidTextError, match="one length"):
        divergence.surprisal(model, [[1], [1]], [[2], [3, 4]])
    with pytest.raises(InvalidTextError, match="at least two"):
        divergence.temperature_slopes(divergence.surprisal(model, [[1]], [[2, 3]]))


def test_price_is_half_the_fisher_form_for_a_short_step(model):
    """Quadrupled by a doubled σ, and zero for σ → 0."""
    rng = np.random.default_rng(2)
    prompts, responses = random_ids(rng, 4, 4), random_ids(rng, 10, 10)
    wms = [perturb.Watermark(ONE_WEIGHT["llama"], sigma) for sigma in (1e-4, 2e-4)]
    marks = [[(wm, KEY)] * 2 for wm in wms]
    one, two = (divergence.per_text(model, prompts, responses, marks=both) for both in marks)
    assert two == pytest.approx(4 * one, rel=1e-2)
    assert (one > 0).all()
    assert (one < 1e-4).all()
