"""Sampling against exact probabilities: frequencies by G-tests, joints by enumeration, greedy text
by transformers' own ``generate``; rows under marks of their own against models whose weight is
swapped, one mark at a time.
"""

from contextlib import nullcontext
from itertools import product

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gaussmark_lib import generate, perturb, score
from gaussmark_lib.engine import hooks
from gaussmark_lib.errors import (
    InvalidModelError,
    InvalidTextError,
    InvalidWatermarkError,
    KeyMismatchError,
    PerturbedModelError,
)
from gaussmark_lib.perturb import Key, Watermark

N = 4000
KEYS = [Key.from_seed(i) for i in range(3)]


def exact(model, prompt: list[int], temperature: float = 1.0) -> np.ndarray:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt])).logits[0, -1].double()
    return (logits / temperature).softmax(-1).numpy()


def nucleus_by_hand(p: np.ndarray, top_p: float) -> np.ndarray:
    """The smallest set of most likely tokens that holds top_p, one token after the other."""
    kept, held = np.zeros_like(p), 0.0
    for token in np.argsort(-p, kind="stable"):
        if held >= top_p:
            break
        kept[token] = p[token]
        held += p[token]
    return kept / kept.sum()


def g_test(drawn: np.ndarray, p: np.ndarray) -> float:
    """p-value of the counts under p; outcomes with fewer than 5 expected are put together."""
    counts = np.bincount(drawn, minlength=len(p))
    assert counts[p == 0].sum() == 0
    rare = p * len(drawn) < 5
    counts, p = (np.append(x[~rare], x[rare].sum()) for x in (counts, p))
    counts, p = counts[p > 0], p[p > 0]
    expected = p / p.sum() * counts.sum()
    return stats.power_divergence(counts, expected, lambda_="log-likelihood").pvalue


@pytest.mark.parametrize("engine", ["exact", "transformers"])
@pytest.mark.parametrize(
    ("temperature", "top_p"),
    [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.6), (0.7, 0.9), (1.0, 0.01)],
)
def test_first_tokens_come_with_their_exact_probabilities(temperature, top_p, engine):
    model, prompt = tiny_models.build("llama"), [3, 1, 4]
    sampling = {"temperature": temperature, "top_p": top_p, "engine": engine, "batch_size": 500}
    drawn = np.array(generate.sample(model, [prompt] * N, 1, seed=5, **sampling))[:, 0]
    p = nucleus_by_hand(exact(model, prompt, temperature), top_p)
    if top_p == 0.01:
        assert set(drawn) == {p.argmax()}
        return
    assert (drawn[:500] != drawn[500:1000]).any(), "batches draw anew"
    assert g_test(drawn, p) > 1e-3
    if (temperature, top_p) != (1.0, 1.0):  # the control: the plain distribution does not fit
        assert g_test(drawn, np.maximum(exact(model, prompt), 1e-12)) < 1e-6


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_temperature_0_is_transformers_greedy_text(architecture):
    """Of both engines, in batches of unequal prompts: the weights as they are now, and none of the
    model's own settings. Transformers is given one prompt at a time.
    """
    model = tiny_models.build(architecture)
    wm = Watermark(tiny_models.ONE_WEIGHT[architecture], 0.3)
    prompts = tiny_models.random_ids(np.random.default_rng(0), 1, 20, 6)

    def greedy(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        settings = {"max_new_tokens": 15, "eos_token_id": None, "pad_token_id": 0}
        out = model.generate(ids, attention_mask=ids >= 0, do_sample=False, **settings)
        return out[0, len(prompt) :].tolist()

    plain = [greedy(prompt) for prompt in prompts]
    with perturb.watermarked(model, wm, KEYS[0]):
        marked = [greedy(prompt) for prompt in prompts]
    assert plain != marked
    model.generation_config.update(
        repetition_penalty=5.0, eos_token_id=[*range(0, 97, 2)], no_repeat_ngram_size=2
    )
    for engine, batch_size in product(("exact", "transformers"), (1, 2, 3)):
        options = {"temperature": 0, "engine": engine, "batch_size": batch_size}
        assert generate.sample(model, prompts, 15, **options) == plain
        with perturb.watermarked(model, wm, KEYS[0]):
            assert generate.sample(model, prompts, 15, **options) == marked
    assert model.generation_config.repetition_penalty == 5.0


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_every_step_draws_from_the_model_itself(architecture):
    """Each token is recomputed from its uniform number and the model's own logits over the whole
    text so far: no cache, no padding, no batch.
    """
    model = tiny_models.build(architecture)
    prompts = tiny_models.random_ids(np.random.default_rng(1), 2, 17, 6)
    responses = generate.sample(model, prompts, 18, seed=3)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        luck = np.random.default_rng([3, row]).random(18)
        for t in range(18):
            cumulative = np.cumsum(exact(model, prompt + response[:t]))
            assert cumulative[response[t]] > luck[t] - 1e-5
            assert response[t] == 0 or cumulative[response[t] - 1] < luck[t] + 1e-5


def picked(p, luck: float, top_p: float, temperature: float = 1.0) -> int:
    """The token that ``pick`` takes for this number out of these probabilities."""
    logits = torch.tensor([p], dtype=torch.float64).log()
    return generate.pick(logits, torch.tensor([luck]).double(), top_p, temperature).item()


PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda p: sum(p) > 1e-3)
LUCK = st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2.0**-53]))


@given(p=PROBABILITIES, luck=LUCK, top_p=st.floats(0.01, 1), temperature=st.floats(0.1, 5))
def test_a_token_without_probability_is_never_picked(p, luck, top_p, temperature):
    token = picked(p, luck, top_p, temperature)
    assert 0 <= token < len(p)
    assert p[token] > 0


@given(
    weights=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    luck=LUCK,
    top_p=st.sampled_from([0.1, 0.35, 0.5, 0.83, 1.0]),
)
def test_pick_is_the_inverse_of_the_cumulative_distribution(weights, luck, top_p):
    """A loop over the tokens, in exact order of index, of the renormalised nucleus."""
    p = np.array(weights) / sum(weights)
    prefixes = np.cumsum(np.sort(p)[::-1])
    if np.abs(prefixes - top_p).min() < 1e-9 and top_p < 1:
        return  # the nucleus hangs on rounding
    nucleus = nucleus_by_hand(p, top_p)
    edges = np.cumsum(nucleus)
    if np.abs(edges - luck).min() < 1e-9 and 0 < luck < 1 - 1e-9:
        return  # so does the token
    expected, passed = 0, nucleus[0]
    while passed <= luck and expected < len(p) - 1:
        expected += 1
        passed += nucleus[expected]
    if luck > 1 - 1e-9:
        expected = np.flatnonzero(nucleus)[-1]
    assert picked(p.tolist(), luck, top_p) == expected


@pytest.mark.parametrize("top_p", [0.5, 0.75, 1.0])
def test_a_nucleus_holds_exactly_the_tokens_it_needs(top_p):
    """p = ½, ¼, ⅛, ⅛: the prefix that reaches top_p exactly is enough."""
    p = [0.125, 0.5, 0.125, 0.25]
    possible = {picked(p, u, top_p) for u in np.linspace(0, 1, 400, endpoint=False)}
    assert possible == {0.5: {1}, 0.75: {1, 3}, 1.0: {0, 1, 2, 3}}[top_p]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-308, 5e-324])
def test_a_temperature_near_0_is_greedy(temperature):
    logits = torch.randn(50, 97, generator=torch.Generator().manual_seed(0))
    luck = torch.rand(50, generator=torch.Generator().manual_seed(1)).double()
    assert torch.equal(generate.pick(logits, luck, 1.0, temperature), logits.argmax(-1))


def test_the_other_engine_promises_what_the_exact_one_does(model):
    """Steps are counted and can be stopped, processors work, the caller's random numbers stay,
    damaged models are refused.
    """
    steps, state = [], torch.random.get_rng_state()

    def sample(n_tokens=6, **options):
        return generate.sample(model, [[1], [2]], n_tokens, engine="transformers", **options)

    def stop(*_):
        raise KeyboardInterrupt

    def seven(ids, logits):
        return torch.full_like(logits, -torch.inf).index_fill(1, torch.tensor([7]), 0.0)

    again = [sample(seed=seed, on_step=lambda *step: steps.append(step)) for seed in (3, 3, 4)]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert again[0] == again[1] != again[2]
    assert steps == [(i, 6) for i in range(1, 7)] * 3
    with pytest.raises(KeyboardInterrupt):
        sample(on_step=stop)
    assert sample(3, processor=lambda rows: seven, top_p=0.5) == [[7] * 3] * 2
    assert model.generation_config.max_new_tokens is None
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(torch.nan)
    with pytest.raises(InvalidModelError, match="finite logits"):
        sample()


PROMPTS = tiny_models.random_ids(np.random.default_rng(0), 1, 12, 5, 0, 30, 3, 8)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_a_row_depends_on_seed_and_place_alone(architecture):
    """Not on its batch, the rows beside it, torch's random state, or how long it becomes."""
    model = tiny_models.build(architecture)
    expected = generate.sample(model, PROMPTS, 12, seed=1)
    state = torch.get_rng_state()
    for batch_size in (1, 5):
        assert generate.sample(model, PROMPTS, 12, seed=1, batch_size=batch_size) == expected
    assert torch.equal(torch.get_rng_state(), state)
    assert generate.sample(model, PROMPTS[:3], 12, seed=1) == expected[:3]
    some = generate.sample(model, [PROMPTS[6], PROMPTS[2]], 12, seed=1, rows=[6, 2])
    assert some == [expected[6], expected[2]]
    assert [row[:7] for row in expected] == generate.sample(model, PROMPTS, 7, seed=1)
    other = generate.sample(model, PROMPTS, 12, seed=2)
    assert all(a != b for a, b in zip(expected, other, strict=True))
    assert len({tuple(text) for text in generate.sample(model, [[1, 2, 3]] * 6, 20)}) == 6


def test_an_empty_prompt_is_the_start_token():
    model = tiny_models.build("llama")
    assert generate.sample(model, [[]], 12) == generate.sample(model, [[1]], 12)
    model.config.bos_token_id, model.config.eos_token_id = None, [5, 6]
    assert generate.sample(model, [[]], 8) == generate.sample(model, [[5]], 8)
    model.config.eos_token_id = None
    with pytest.raises(InvalidTextError, match="an empty prompt needs a start token"):
        generate.sample(model, [[]], 8)


def ending_with(*tokens: int, liking: float):
    """A model with these end tokens, which likes the first of them."""
    model = tiny_models.build("llama")
    model.lm_head.weight.data[tokens[0]] = liking
    model.generation_config.eos_token_id = list(tokens)
    return model


def test_a_response_stops_before_the_first_end_token_and_is_never_empty():
    ending = ending_with(2, 7, liking=0.5)
    full = generate.sample(ending, [[3, 4]] * 60, 25, seed=2)
    cut = generate.sample(ending, [[3, 4]] * 60, 25, seed=2, until_end=True)
    for text, part in zip(full, cut, strict=True):
        ends = [i for i, token in enumerate(text) if token in (2, 7) and i > 0]
        assert part == text[: ends[0] if ends else 25]
    assert {len(part) for part in cut} > {1, 25}  # some cut short, some not at all
    assert generate.cut(ending, [[2, 5, 2, 6], [2], [5, 6]]) == [[2, 5], [2], [5, 6]]
    ending.generation_config.eos_token_id = ending.config.eos_token_id = None
    assert generate.sample(ending, [[3, 4]] * 60, 25, seed=2, until_end=True) == full


def test_writing_ends_with_the_last_text():
    ending = ending_with(2, liking=3.0)
    steps = []
    options = {"seed": 2, "on_step": lambda done, total: steps.append((done, total))}
    cut = generate.sample(ending, [[3, 4]] * 3, 60, until_end=True, **options)
    longest = max(map(len, cut))
    assert longest < 30
    assert steps[-1] == (longest + 1, 60)  # the end token itself, and no step more
    assert cut == generate.cut(ending, generate.sample(ending, [[3, 4]] * 3, 60, seed=2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"top_p": 1.01}, "expected 0 < top_p ≤ 1"),
        *(({"temperature": t}, "a finite temperature") for t in (-1, float("inf"))),
        ({"rows": [1, 2]}, "rows: expected one per prompt, 1, got 2"),
        ({"prompts": []}, "a list of at least one prompt"),
        ({"prompts": [[97]]}, "prompt 0, token 0: expected a whole number from 0 to 96"),
        ({"prompts": [[1] * 60], "n_tokens": 5}, r"at most 64 .* 60 of prompt \+ 5 of response"),
    ],
)
@pytest.mark.usefixtures("wrong_types")
def test_refuses(model, wrong, message):
    with pytest.raises(InvalidTextError, match=message):
        generate.sample(model, **{"prompts": [[1]], "n_tokens": 3} | wrong)


@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_finite(model, temperature):
    model.model.norm.weight.data[3] = float("nan")
    with pytest.raises(InvalidModelError, match="expected finite logits, got NaN or infinity"):
        generate.sample(model, [[1]], 3, temperature=temperature)


# ---- a mark of its own for each row

FEW = PROMPTS[:3]


def marks_of(weight) -> list[generate.Mark]:
    """Keys, σ and ranks mixed, the base model in between, one mark twice."""
    marks = [
        (Watermark(weight, sigma, dropped), key)
        for sigma, dropped in ((0.05, 0), (0.3, 0), (0.1, 2))
        for key in KEYS[:2]
    ]
    return [*marks[:3], None, *marks[3:], marks[0]]


def one_at_a_time(model, prompts, marks, n_tokens, **settings) -> list[list[int]]:
    """Row i of the batch that mark i would write alone."""
    texts = []
    for row, mark in enumerate(marks):
        with perturb.watermarked(model, *mark) if mark else nullcontext():
            texts.append(generate.sample(model, prompts, n_tokens, **settings)[row])
    return texts


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_marked_rows_are_those_of_one_watermark_at_a_time(architecture, monkeypatch):
    model = tiny_models.build(architecture, torch.float64)
    marks = marks_of(tiny_models.ONE_WEIGHT[architecture])
    prompts = [FEW[i % 3] for i in range(len(marks))]
    sampling = {"seed": 4, "top_p": 0.9, "temperature": 1.3, "until_end": True}
    expected = one_at_a_time(model, prompts, marks, 15, **sampling)
    for batch_size in (2, 64):
        got = generate.sample(model, prompts, 15, marks=marks, batch_size=batch_size, **sampling)
        assert got == expected
    monkeypatch.setattr(generate, "NOISE_BYTES", 0)  # in blocks of as few noises as can be
    assert generate.sample(model, prompts, 15, marks=marks, **sampling) == expected
    assert expected[0] != generate.sample(model, prompts, 15, **sampling)[0]


def test_rows_of_one_batch_may_carry_marks_on_different_weights(monkeypatch):
    """Also where all noises of a layer are one product, as on a GPU."""
    model = tiny_models.build("llama", torch.float64)
    first, second, third = tiny_models.WEIGHTS["llama"][:3]
    both = Watermark([second, first, third], [0.2, 0.05, 0.1])
    weak, strong, other = Watermark(first, 0.05), Watermark(first, 0.4), Watermark(second, 0.2)
    marks = [(weak, KEYS[0]), None, (other, KEYS[1]), (strong, KEYS[0]), (both, KEYS[1])]
    marks += [(weak, KEYS[1]), (other, KEYS[0]), (strong, KEYS[1])]
    prompts = [FEW[i % 3] for i in range(len(marks))]
    expected = one_at_a_time(model, prompts, marks, 15, seed=4)
    assert generate.sample(model, prompts, 15, marks=marks, seed=4) == expected
    monkeypatch.setattr(hooks, "PRODUCT_PER_NOISE", ())
    assert generate.sample(model, prompts, 15, marks=marks, seed=4) == expected


def test_inside_the_model_counts_as_watermarked(model, wm, key):
    def look(*_):
        with pytest.raises(PerturbedModelError):
            score.score(model, [[3]], [[4]], wm, [key])

    generate.sample(model, [[3]], 2, marks=[(wm, key)], on_step=look)
    score.score(model, [[3]], [[4]], wm, [key])  # afterwards nothing is left


@pytest.mark.usefixtures("wrong_types")
def test_marks_that_are_refused(model, wm, key):
    bound = perturb.bind(model, wm, key)
    for marks, error, message in (
        ([(wm, key)], InvalidTextError, "one per prompt, got 1 for 2"),
        ([wm, key], InvalidWatermarkError, "number 0: expected a pair"),
        ([None, (Watermark(wm.weight, 2 * wm.sigma), bound)], KeyMismatchError, "sigma"),
    ):
        with pytest.raises(error, match=message):
            generate.sample(model, [[1], [2]], 3, marks=marks)
    with perturb.watermarked(model, wm, key), pytest.raises(PerturbedModelError):
        generate.sample(model, [[1]], 3, marks=[(wm, key)])


@pytest.mark.parametrize("n", [7, 1_000, 49_152])
def test_temperature_1_needs_no_shift_and_changes_no_bit(n):
    """The softmax subtracts the largest logit itself; written texts hang on every bit."""
    logits = 10 * torch.randn(5, n, generator=torch.Generator().manual_seed(n))
    logits[:, ::3] = -torch.inf
    shifted = logits.double() - logits.double().amax(-1, keepdim=True)
    assert torch.equal(generate.probabilities(logits, 1.0, 1.0), shifted.softmax(-1))
    huge = torch.tensor([[1e30, 1e30, -1e30]])
    assert generate.probabilities(huge, 1.0, 1.0).tolist() == [[0.5, 0.5, 0.0]]
