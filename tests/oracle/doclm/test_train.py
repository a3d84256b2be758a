"""Bits per character against a loop over single tokens, and Muon against the singular value
decomposition.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gaussmark_lib.doclm import train
from gaussmark_lib.doclm.muon import Muon, orthogonalise

WORDS = [
    "The",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "and",
    "does",
    "not",
    "look",
    "back",
]
TOKENIZER = train.train_tokenizer([" ".join(WORDS) * 20], 280)
RECIPE = train.Recipe(
    vocab=len(TOKENIZER), hidden=16, blocks=2, heads=2, intermediate=24, context=16
)
MODEL = train.new_model(RECIPE, TOKENIZER.eos_token_id).double().eval()
with torch.no_grad():
    for parameter in MODEL.parameters():
        parameter.mul_(8)  # far from uniform


def sentence(seed: int, n: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, n))


def nats_by_hand(texts: list[str]) -> list[float]:
    """−log p of every token of the stream but the first, each in a pass of its own, with the
    context its window gives it.
    """
    stream = [
        token for text in texts for token in [TOKENIZER.eos_token_id, *TOKENIZER.encode(text)]
    ]
    nats = []
    for t in range(1, len(stream)):
        start = 0 if t <= 16 else 8 * math.ceil((t - 16) / 8)
        assert 8 < t - start <= 16 or start == 0  # half a context at least
        with torch.no_grad():
            log_p = (
                MODEL(input_ids=torch.tensor([stream[start:t]]))
                .logits[0, -1]
                .float()
                .log_softmax(-1)
            )
        nats.append(-log_p[stream[t]].item())
    return nats


@pytest.mark.parametrize(
    "lengths", [(1,), (3, 2), (5,), (20, 1, 60), (9, 9, 9, 9), (120,)], ids=str
)
@pytest.mark.parametrize("rows", [1, 4])
def test_bits_per_character_counts_every_token_once(lengths, rows):
    texts = [sentence(i, n) for i, n in enumerate(lengths)]
    found = train.bits_per_character(MODEL, TOKENIZER, texts, rows=rows)
    nats = nats_by_hand(texts)
    assert (
        found["tokens"]
        == len(nats)
        == sum(len(TOKENIZER.encode(text)) for text in texts) + len(texts) - 1
    )
    assert found["characters"] == sum(map(len, texts))
    assert found["nats_per_token"] == pytest.approx(np.mean(nats), rel=1e-5)
    assert found["bits_per_char"] == pytest.approx(
        sum(nats) / math.log(2) / sum(map(len, texts)), rel=1e-5
    )


@settings(max_examples=8)
@given(n=st.integers(1, 50))
def test_for_texts_of_any_length(n):
    text = sentence(n, n)
    assert train.bits_per_character(MODEL, TOKENIZER, [text])["nats_per_token"] == pytest.approx(
        np.mean(nats_by_hand([text])), rel=1e-5
    )


def test_a_uniform_model_pays_the_logarithm_of_its_vocabulary():
    model = train.new_model(RECIPE, TOKENIZER.eos_token_id)
    torch.nn.init.zeros_(model.model.embed_tokens.weight)
    assert train.bits_per_character(model, TOKENIZER, [sentence(0, 50)])[
        "nats_per_token"
    ] == pytest.approx(math.log(len(TOKENIZER)), rel=1e-5)


@pytest.mark.parametrize("context", [2, 3, 9, 15, 16])
def test_every_token_counts_once_whatever_the_context(context):
    model = train.new_model(replace(RECIPE, context=context), TOKENIZER.eos_token_id)
    torch.nn.init.zeros_(model.model.embed_tokens.weight)
    found = train.bits_per_character(model, TOKENIZER, [sentence(0, 50)])
    assert found["nats_per_token"] == pytest.approx(math.log(len(TOKENIZER)), rel=1e-5)


@pytest.mark.parametrize("shape", [(4, 8, 8), (3, 6, 20), (2, 20, 6), (1, 1, 5)])
def test_orthogonalise_keeps_the_singular_vectors_and_levels_the_values(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    s = 1 + s / s.max()  # well conditioned: five steps are meant for that
    y = orthogonalise(u * s[:, None] @ v)
    inner = u.mT @ y @ v.mT
    values = inner.diagonal(dim1=1, dim2=2)
    assert ((values > 0.65) & (values < 1.25)).all()
    torch.testing.assert_close(
        inner, torch.diag_embed(values), rtol=0, atol=1e-9
    )  # in the same frame: no rotation


@given(scale=st.floats(1e-3, 1e3))
def test_orthogonalise_does_not_see_the_scale(scale):
    x = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(orthogonalise(scale * x), orthogonalise(x))


def test_orthogonalise_of_zero_is_zero():
    assert orthogonalise(torch.zeros(1, 3, 4)).abs().max() == 0


def test_muons_steps_by_hand():
    """Nesterov momentum, orthogonalised, with weight decay: three steps of two parameters of one
    shape and one of another.
    """
    rng = torch.Generator().manual_seed(0)
    params = [
        torch.nn.Parameter(torch.randn(shape, generator=rng, dtype=torch.float64))
        for shape in ((4, 6), (4, 6), (7, 3))
    ]
    expected = [p.detach().clone() for p in params]
    buffers = [torch.zeros_like(p) for p in expected]
    optimizer = Muon(params, lr=0.1, momentum=0.9, weight_decay=0.5)
    for _ in range(3):
        for p in params:
            p.grad = torch.randn(p.shape, generator=rng, dtype=torch.float64)
        optimizer.step()
        for i, p in enumerate(params):
            buffers[i] = 0.9 * buffers[i] + 0.1 * p.grad
            update = orthogonalise((0.9 * buffers[i] + 0.1 * p.grad)[None])[0]
            expected[i] = expected[i] * (1 - 0.1 * 0.5) - 0.1 * 0.2 * max(p.shape) ** 0.5 * update
    for p, wanted in zip(params, expected, strict=True):
        torch.testing.assert_close(p.detach(), wanted)


def test_the_root_mean_square_of_a_step_is_a_fifth_of_the_learning_rate():
    p = torch.nn.Parameter(torch.zeros(60, 200))
    p.grad = torch.randn(60, 200, generator=torch.Generator().manual_seed(0))
    Muon([p], lr=0.01).step()
    assert p.square().mean().sqrt().item() == pytest.approx(
        0.002, rel=0.2
    )  # as near as the singular values come to 1
