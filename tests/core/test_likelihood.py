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
SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CHANGED = {  # models that do something to their logits after the head
    "a soft cap": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=0.5)
    ),
    "a scale": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=8.0)),
}
PROMPTS = tiny_models.random_ids(RNG, 4, 11, 1, 7)
RESPONSES = tiny_models.random_ids(RNG, 20, 6, 33, 12)


@pytest.mark.parametrize("name", [*tiny_models.ARCHITECTURES, *CHANGED])
def test_log_p_and_its_gradient_are_those_of_one_text_at_a_time(
    name, monkeypatch: pytest.MonkeyPatch
):
    """Whatever becomes of its logits: nothing, a soft cap, a scale. The gradient is that of the
    plain pass, for every parameter.
    """
    torch.manual_seed(0)
    model = (
        CHANGED[name]().double().eval()
        if name in CHANGED
        else tiny_models.build(name, torch.float64)
    )
    if name in CHANGED:  # norms, and Gemma-2's softmax, round to float32 whatever comes in
        tiny_models._norms_in_float64(model)
        monkeypatch.setattr(
            torch.nn.functional, "softmax", lambda x, dim, dtype=None: x.softmax(dim)
        )
    pairs = list(zip(PROMPTS, RESPONSES, strict=True))
    model.requires_grad_(True)
    others = list(model.parameters())
    found, number = likelihood.token_log_p(model, pairs)
    gradients = torch.autograd.grad(found.sum(), others, allow_unused=True)
    expected = []
    for (x, y), row, of_row in zip(pairs, found, number, strict=True):
        log_p = model(torch.tensor([x + y])).logits[0, len(x) - 1 : -1].log_softmax(-1)
        expected.append(log_p.gather(-1, torch.tensor(y)[:, None])[:, 0])
        torch.testing.assert_close(row[of_row > 0], expected[-1])
        assert of_row[of_row > 0].tolist() == list(range(1, len(y) + 1))
        assert row[of_row == 0].eq(0).all()
    for one, other in zip(
        gradients,
        torch.autograd.grad(torch.cat(expected).sum(), others, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_a_token_that_cannot_come_adds_nothing_to_the_entropy():
    model = tiny_models.build("llama", torch.float64)

    def masked(_, __, output):
        output.logits = output.logits.index_fill(-1, torch.arange(6), -torch.inf)

    model.register_forward_hook(masked)
    found = likelihood.entropies(model, PROMPTS, RESPONSES)
    for x, y, entropy in zip(PROMPTS, RESPONSES, found, strict=True):
        log_p = model(torch.tensor([x + y])).logits[0, len(x) - 1 : -1, 6:].log_softmax(-1)
        np.testing.assert_allclose(
            entropy, -(log_p.exp() * log_p).sum(-1).detach().numpy(), rtol=1e-10
        )


def test_what_the_model_keeps_in_float32_is_not_rounded():
    """As the router of many a mixture of experts; nor is a weight of 8 bits, which means nothing
    without its scale, widened.
    """
    model = tiny_models.build("llama", torch.bfloat16)
    norm, mlp = model.model.norm, model.model.layers[0].mlp
    norm.weight.data = norm.weight.data.float() + 1e-4
    mlp.extra = torch.nn.Parameter(torch.ones(2, 2).to(torch.float8_e4m3fn), requires_grad=False)
    for dtype, others in (
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        with arithmetic.computing_in(model, dtype):
            assert mlp.down_proj.weight.dtype == others
            assert norm.weight.dtype == torch.promote_types(others, torch.float32)
            assert mlp.extra.dtype == torch.float8_e4m3fn
    assert {p.dtype for p in model.parameters()} == {
        torch.bfloat16,
        torch.float32,
        torch.float8_e4m3fn,
    }


@pytest.mark.usefixtures("wrong_types")
def test_a_layer_that_sees_more_positions_than_the_text_has_is_refused():
    """As under prompt tuning, whose virtual tokens stand before the text."""
    with pytest.raises(InvalidModelError, match=r"2 texts × 5 positions, got a shape \(2, 8, 3\)"):
        hooks.by_text(torch.zeros(2, 8, 3), (2, 5), "a layer")


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_cross_entropy_is_transformers_own_loss(architecture):
    model = tiny_models.build(architecture, torch.float64)
    start = model.config.bos_token_id
    expected = []
    for passage in RESPONSES:
        ids = torch.tensor([[start, *passage]])
        expected.append(model(input_ids=ids, labels=ids).loss.item())
    for batch_size in (1, 3, 10):
        np.testing.assert_allclose(
            likelihood.cross_entropy(model, RESPONSES, batch_size=batch_size),
            expected,  # a loss that is computed in float32
            rtol=closeness.of_sum(torch.float32, tiny_models.VOCAB),
        )


def test_what_stands_before_a_passage_does_not_count_but_is_seen():
    model = tiny_models.build("llama", torch.float64)
    found = likelihood.cross_entropy(model, RESPONSES, prompts=PROMPTS, batch_size=3)
    for x, y, nats in zip(PROMPTS, RESPONSES, found, strict=True):
        log_p = model(torch.tensor([x + y])).logits[0, len(x) - 1 : -1].log_softmax(-1)
        assert nats == pytest.approx(-log_p[range(len(y)), y].mean().item(), rel=1e-6)
    assert not np.allclose(found, likelihood.cross_entropy(model, RESPONSES))


def test_entropy_at_each_position():
    model = tiny_models.build("llama", torch.float64)
    found = likelihood.entropies(model, PROMPTS, RESPONSES, batch_size=3)
    for x, y, values in zip(PROMPTS, RESPONSES, found, strict=True):
        p = model(torch.tensor([x + y])).logits[0, len(x) - 1 : -1].softmax(-1)
        expected = torch.distributions.Categorical(p).entropy()
        np.testing.assert_allclose(values, expected.detach(), rtol=1e-9)


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
