"""Likelihoods, cross-entropy and entropy against one text at a time, and the closed-form gradient against autograd."""

import numpy as np
import pytest
import tiny_models
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from gaussmark_lib import likelihood, perturb
from gaussmark_lib.errors import InvalidTextError

RNG = np.random.default_rng(8)
SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
CHANGED = {  # models that do something to their logits after the head
    "a soft cap": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=0.5)),
    "a scale": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=8.0)),
}
PROMPTS = tiny_models.random_ids(RNG, 4, 11, 1, 7)
RESPONSES = tiny_models.random_ids(RNG, 20, 6, 33, 12)


@pytest.mark.parametrize("head", [likelihood._same, torch.nn.Linear(7, 11, dtype=torch.float64).requires_grad_(False)])
def test_the_closed_form_gradient_is_autograds(head, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(likelihood, "ROWS", 4)  # of nine
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(9, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    targets = torch.randint(7, (9,), generator=generator)
    assert torch.autograd.gradcheck(lambda x: likelihood._LogLikelihood.apply(x, targets, head), h)
    found = likelihood._LogLikelihood.apply(h, targets, head)
    torch.testing.assert_close(found, head(h).log_softmax(-1).gather(-1, targets[:, None])[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_arrives_in_the_states_dtype(dtype):
    logits = (4 * torch.randn(10, 50, generator=torch.Generator().manual_seed(1))).to(dtype).requires_grad_()
    targets = torch.arange(10)
    likelihood._LogLikelihood.apply(logits, targets, likelihood._same).sum().backward()
    wide = logits.detach().double().requires_grad_()
    wide.log_softmax(-1).gather(-1, targets[:, None]).sum().backward()
    assert logits.grad.dtype == dtype
    torch.testing.assert_close(logits.grad.double(), wide.grad, rtol=1e-2, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", [*tiny_models.ARCHITECTURES, *CHANGED])
def test_the_head_is_applied_a_few_positions_at_a_time(name, monkeypatch: pytest.MonkeyPatch):
    """Whatever becomes of its logits: nothing, a soft cap, a scale. The gradient is that of the plain pass, for every parameter but the head's."""
    model = CHANGED[name]().double().eval() if name in CHANGED else tiny_models.build(name, torch.float64)
    assert likelihood.ends_in_its_head(model) == (name not in CHANGED)
    pairs, head = list(zip(PROMPTS, RESPONSES, strict=True)), {id(p) for p in model.get_output_embeddings().parameters()}
    model.requires_grad_(True)
    others = [p for p in model.parameters() if id(p) not in head]
    monkeypatch.setattr(likelihood, "ROWS", 3)
    found, number = likelihood.token_log_p(model, pairs)
    gradients = torch.autograd.grad(found.sum(), others, allow_unused=True)
    expected = []
    for (x, y), row, of_row in zip(pairs, found, number, strict=True):
        log_p = model(torch.tensor([x + y])).logits[0, len(x) - 1 : -1].log_softmax(-1)
        expected.append(log_p.gather(-1, torch.tensor(y)[:, None])[:, 0])
        torch.testing.assert_close(row[of_row > 0], expected[-1])
        assert of_row[of_row > 0].tolist() == list(range(1, len(y) + 1))
        assert row[of_row == 0].eq(0).all()
    for one, other in zip(gradients, torch.autograd.grad(torch.cat(expected).sum(), others, allow_unused=True), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_cross_entropy_is_transformers_own_loss(architecture):
    model = tiny_models.build(architecture, torch.float64)
    start = model.config.bos_token_id
    expected = []
    for passage in RESPONSES:
        ids = torch.tensor([[start, *passage]])
        expected.append(model(input_ids=ids, labels=ids).loss.item())
    for batch_size in (1, 3, 10):
        np.testing.assert_allclose(likelihood.cross_entropy(model, RESPONSES, batch_size=batch_size), expected, rtol=1e-6)


def test_what_stands_before_a_passage_does_not_count_but_is_seen():
    model = tiny_models.build("llama", torch.float64)
    found = likelihood.cross_entropy(model, RESPONSES, prompts=PROMPTS, batch_size=3)
    for x, y, nats in zip(PROMPTS, RESPONSES, found, strict=True):
        log_p = model(torch.tensor([x + y])).logits[0, len(x) - 1 : -1].log_softmax(-1)
        assert nats == pytest.approx(-log_p[range(len(y)), y].mean().item(), rel=1e-6)
    assert not np.allclose(found, likelihood.cross_entropy(model, RESPONSES))


def test_cross_entropy_of_a_watermarked_model_is_another(model, wm, key):
    base = likelihood.cross_entropy(model, RESPONSES)
    with perturb.watermarked(model, wm, key):
        assert not np.allclose(likelihood.cross_entropy(model, RESPONSES), base)
    np.testing.assert_array_equal(likelihood.cross_entropy(model, RESPONSES), base)


def test_entropy_at_each_position():
    model = tiny_models.build("llama", torch.float64)
    found = likelihood.entropies(model, PROMPTS, RESPONSES, batch_size=3)
    for x, y, values in zip(PROMPTS, RESPONSES, found, strict=True):
        p = model(torch.tensor([x + y])).logits[0, len(x) - 1 : -1].softmax(-1)
        expected = torch.distributions.Categorical(p).entropy()
        np.testing.assert_allclose(values, expected.detach(), rtol=1e-9)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("passages", "match"), [([], "no"), ([[1], []], "passage 1"), ([[1] * 64], "at most 64"), ([[97]], "from 0 to 96"), (["text"], "got text")]
)
def test_passages_that_cannot_be_read(model, passages, match):
    with pytest.raises(InvalidTextError, match=match):
        likelihood.cross_entropy(model, passages)
