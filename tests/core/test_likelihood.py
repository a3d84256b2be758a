"""Likelihoods, cross-entropy and entropy against one text at a time."""

import closeness
import numpy as np
import pytest
import tiny_models
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from gaussmark_lib import likelihood
from gaussmark_lib.engine import arithmetic, blocks, hooks
from gaussmark_lib.errors import InvalidModelError, InvalidTextError

RNG = np.random.default_rng(8)
SIZES = tiny_models.SIZES | {"vocab_size": tiny_models.VOCAB}
CHANGED = {  # models that do something to their logits after the head
    "a soft cap": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=0.5)
    ),
    "a scale": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=8.0)),
}
PROMPTS = tiny_models.random_ids(RNG, 4, 11, 1, 7)
RESPONSES = tiny_models.random_ids(RNG, 20, 6, 33, 12)


@pytest.mark.parametrize("name", [*tiny_models.ARCHITECTURES, *CHANGED])
def test_log_p_and_its_gradient_are_those_of_one_text_at_a_time(name, monkeypatch):
    """Whatever becomes of its logits: nothing, a soft cap, a scale. The gradient is that of the
    plain pass, for every parameter.
    """
    torch.manual_seed(0)
    if name in CHANGED:  # norms, and Gemma-2's softmax, round to float32 whatever comes in
        model = CHANGED[name]().double().eval()
        tiny_models._norms_in_float64(model)
        monkeypatch.setattr(
            torch.nn.functional, "softmax", lambda x, dim, dtype=None: x.softmax(dim)
        )
    else:
        model = tiny_models.build(name, torch.float64)
    pairs = list(zip(PROMPTS, RESPONSES, strict=True))
    model.requires_grad_(True)
    parameters = list(model.parameters())
    found, number = likelihood.token_log_p(model, pairs)
    gradients = torch.autograd.grad(found.sum(), parameters, allow_unused=True)
    expected = [tiny_models.log_p(model, x, y) for x, y in pairs]
    for log_p, row, of_row in zip(expected, found, number, strict=True):
        torch.testing.assert_close(row[of_row > 0], log_p)
        assert of_row[of_row > 0].tolist() == list(range(1, len(log_p) + 1))
        assert row[of_row == 0].eq(0).all()
    total = torch.cat(expected).sum()
    plain = torch.autograd.grad(total, parameters, allow_unused=True)
    for of_batch, of_texts in zip(gradients, plain, strict=True):
        torch.testing.assert_close(of_batch, of_texts)


def test_what_the_model_keeps_in_float32_is_not_rounded():
    """As the router of many a mixture of experts; nor is a weight of 8 bits, which means nothing
    without its scale, widened.
    """
    model = tiny_models.build("llama", torch.bfloat16)
    norm, mlp = model.model.norm, model.model.layers[0].mlp
    norm.weight.data = norm.weight.data.float() + 1e-4
    mlp.extra = torch.nn.Parameter(torch.ones(2, 2).to(torch.float8_e4m3fn), requires_grad=False)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        with arithmetic.computing_in(model, dtype):
            assert mlp.down_proj.weight.dtype == dtype
            assert norm.weight.dtype == torch.promote_types(dtype, torch.float32)
            assert mlp.extra.dtype == torch.float8_e4m3fn
    before = {torch.bfloat16, torch.float32, torch.float8_e4m3fn}
    assert {p.dtype for p in model.parameters()} == before


@pytest.mark.usefixtures("wrong_types")
def test_a_layer_that_sees_more_positions_than_the_text_has_is_refused():
    """As under prompt tuning, whose virtual tokens stand before the text."""
    with pytest.raises(InvalidModelError, match=r"2 texts × 5 positions, got a shape \(2, 8, 3\)"):
        hooks.by_text(torch.zeros(2, 8, 3), (2, 5), "a layer")


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_cross_entropy_is_transformers_own_loss(architecture):
    model = tiny_models.build(architecture, torch.float64)
    start = model.config.bos_token_id
    rows = [torch.tensor([[start, *passage]]) for passage in RESPONSES]
    expected = [model(input_ids=ids, labels=ids).loss.item() for ids in rows]
    rounding = closeness.of_sum(torch.float32, tiny_models.VOCAB)  # of transformers' loss
    for batch_size in (1, 3, 10):
        found = likelihood.cross_entropy(model, RESPONSES, batch_size=batch_size)
        np.testing.assert_allclose(found, expected, rtol=rounding)


def test_what_stands_before_a_passage_does_not_count_but_is_seen():
    model = tiny_models.build("llama", torch.float64)
    found = likelihood.cross_entropy(model, RESPONSES, prompts=PROMPTS, batch_size=3)
    for x, y, nats in zip(PROMPTS, RESPONSES, found, strict=True):
        mean = tiny_models.log_p(model, x, y).mean().item()
        assert nats == pytest.approx(-mean, rel=1e-6)
    assert not np.allclose(found, likelihood.cross_entropy(model, RESPONSES))


@pytest.mark.parametrize("n_masked", [0, 6])
def test_entropy_at_each_position(n_masked):
    """Tokens that cannot come add nothing to it."""
    model = tiny_models.build("llama", torch.float64)

    def mask(_, __, output):
        output.logits = output.logits.index_fill(-1, torch.arange(n_masked), -torch.inf)

    model.register_forward_hook(mask)
    found = likelihood.entropies(model, PROMPTS, RESPONSES, batch_size=3)
    for x, y, values in zip(PROMPTS, RESPONSES, found, strict=True):
        p = tiny_models.next_logits(model, x, y)[:, n_masked:].softmax(-1)
        expected = torch.distributions.Categorical(p).entropy()
        np.testing.assert_allclose(values, expected.detach(), rtol=1e-10)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("passages", "match"),
    [
        ([], "at least one passage"),
        ([[1], []], "response 1"),
        ([[1] * 64], "at most 64"),
        ([[97]], "from 0 to 96"),
        (["text"], "got text"),
    ],
)
def test_passages_that_cannot_be_read(model, passages, match):
    with pytest.raises(InvalidTextError, match=match):
        likelihood.cross_entropy(model, passages)


def test_batches_are_bounded_by_texts_and_by_logits(monkeypatch):
    lengths = dict(enumerate([5, 1, 4, 2, 3, 30]))
    assert list(blocks.batches(97, lengths, 4)) == [[1, 3, 4, 2], [0, 5]]
    monkeypatch.setattr(blocks, "LOGITS", 97 * 8)  # numbers: eight positions
    assert list(blocks.batches(97, lengths, 4)) == [[1, 3], [4, 2], [0], [5]]
