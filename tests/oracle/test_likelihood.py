"""Likelihoods, cross-entropy and entropy against one text at a time, and the closed-form gradient
against autograd.
"""

import closeness
import numpy as np
import pytest
import tiny_models
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from gaussmark_lib import likelihood, models, perturb, score, tokens
from gaussmark_lib.errors import InvalidModelError, InvalidTextError
from gaussmark_lib.perturb import Watermark

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


@pytest.mark.parametrize(
    "head", [likelihood._same, torch.nn.Linear(7, 11, dtype=torch.float64).requires_grad_(False)]
)
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
    logits = (
        (4 * torch.randn(10, 50, generator=torch.Generator().manual_seed(1)))
        .to(dtype)
        .requires_grad_()
    )
    targets = torch.arange(10)
    likelihood._LogLikelihood.apply(logits, targets, likelihood._same).sum().backward()
    wide = logits.detach().double().requires_grad_()
    wide.log_softmax(-1).gather(-1, targets[:, None]).sum().backward()
    assert logits.grad.dtype == dtype
    torch.testing.assert_close(
        logits.grad.double(), wide.grad, rtol=1e-2, atol=torch.finfo(dtype).eps
    )


@pytest.mark.parametrize("name", [*tiny_models.ARCHITECTURES, *CHANGED])
def test_the_head_is_applied_a_few_positions_at_a_time(name, monkeypatch: pytest.MonkeyPatch):
    """Whatever becomes of its logits: nothing, a soft cap, a scale. The gradient is that of the
    plain pass, for every parameter but the head's.
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
    assert likelihood.ends_in_its_head(model) == (name not in CHANGED)
    pairs, head = (
        list(zip(PROMPTS, RESPONSES, strict=True)),
        {id(p) for p in model.get_output_embeddings().parameters()},
    )
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
    for one, other in zip(
        gradients,
        torch.autograd.grad(torch.cat(expected).sum(), others, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def of_plain_pass(model) -> list[float]:
    rows = [
        model(torch.tensor([x + y])).logits[0, len(x) - 1 : -1].log_softmax(-1)
        for x, y in zip(PROMPTS, RESPONSES, strict=True)
    ]
    return [
        -row.gather(-1, torch.tensor(y)[:, None]).mean().item()
        for row, y in zip(rows, RESPONSES, strict=True)
    ]


def halved(_, __, output):
    output.logits.mul_(0.5)


def in_place(model) -> None:
    model.register_forward_hook(halved)


def before_the_head(model) -> None:
    model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: (inputs[0] * 0.5,))


@pytest.mark.parametrize("change", [in_place, before_the_head])
def test_a_model_whose_logits_are_changed_is_read_as_it_is(change):
    model = tiny_models.build("llama", torch.float64)
    change(model)
    np.testing.assert_allclose(
        likelihood.cross_entropy(model, RESPONSES, prompts=PROMPTS),
        of_plain_pass(model),
        rtol=1e-10,
    )


def test_a_model_that_was_changed_after_it_was_tried_is_noticed():
    model = tiny_models.build("llama", torch.float64)
    likelihood.cross_entropy(model, RESPONSES)
    in_place(model)
    with pytest.raises(InvalidModelError, match="no longer those of its head"):
        likelihood.cross_entropy(model, RESPONSES)
    np.testing.assert_allclose(
        likelihood.cross_entropy(model, RESPONSES, prompts=PROMPTS),
        of_plain_pass(model),
        rtol=1e-10,
    )


def test_a_head_without_a_derivative_is_refused():
    model = tiny_models.build("llama")
    model.get_output_embeddings().forward = lambda h: (
        h.detach() @ model.get_input_embeddings().weight.detach().T
    ).detach()
    with pytest.raises(InvalidModelError, match="derivative"):
        list(
            score.gradients(
                model, PROMPTS, RESPONSES, Watermark("model.layers.2.mlp.down_proj.weight", 0.1)
            )
        )


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
        with models.computing_in(model, dtype):
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
        tokens.by_text(torch.zeros(2, 8, 3), (2, 5), "a layer")


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
    ("passages", "match"),
    [
        ([], "no"),
        ([[1], []], "passage 1"),
        ([[1] * 64], "at most 64"),
        ([[97]], "from 0 to 96"),
        (["text"], "got text"),
    ],
)
def test_passages_that_cannot_be_read(model, passages, match):
    with pytest.raises(InvalidTextError, match=match):
        likelihood.cross_entropy(model, passages)
