"""Scoring borrows the model: modes, flags, hooks and gradients are as before, also after an
exception and in the middle of a run.
"""

import pytest
import tiny_models
import torch

from gaussmark_lib import generate, score
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.perturb import Watermark

TEXTS = ([[1, 2], [3]], [[4, 5, 6], [7, 8]])


def state(model) -> dict:
    return {
        "training": {name: module.training for name, module in model.named_modules()},
        "requires_grad": {name: p.requires_grad for name, p in model.named_parameters()},
        "hooks": sum(
            len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
            for m in model.modules()
        ),
        "grad": [name for name, p in model.named_parameters() if p.grad is not None],
        "values": {
            name: p.detach().clone().view(torch.int32).flatten().tolist()
            for name, p in model.named_parameters()
        },
        "grad mode": torch.is_grad_enabled(),
    }


@pytest.fixture(params=["evaluating", "training", "mixed"])
def borrowed(request):
    model = tiny_models.build("llama")
    model.train(request.param == "training")
    if request.param == "mixed":
        model.model.layers[1].train()
        model.model.layers[1].mlp.up_proj.weight.requires_grad_(False)
        model.lm_head.requires_grad_(False)
    return model


def test_after_scoring(borrowed, wm, key):
    before = state(borrowed)
    score.score(borrowed, *TEXTS, wm, [key])
    assert state(borrowed) == before


def test_after_an_exception_in_the_model(borrowed, wm, key, monkeypatch):
    before = state(borrowed)
    monkeypatch.setattr(borrowed.lm_head, "forward", lambda x: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        score.score(borrowed, *TEXTS, wm, [key])
    assert state(borrowed) == before


def test_after_a_degenerate_text(borrowed, wm, key):
    borrowed.model.layers[2].mlp.gate_proj.weight.data.zero_()
    before = state(borrowed)
    with pytest.raises(DegenerateScoreError):
        score.score(borrowed, *TEXTS, Watermark("model.layers.2.mlp.up_proj.weight", 0.05), [key])
    assert state(borrowed) == before


def test_between_two_texts_and_when_the_run_is_abandoned(borrowed, wm):
    before = state(borrowed)
    run = score.gradients(borrowed, *TEXTS, wm, batch_size=1)
    next(run)
    assert state(borrowed) == before
    run.close()
    assert state(borrowed) == before


def test_no_parameter_asks_for_a_gradient_while_the_model_runs(model, wm, key, monkeypatch):
    """So the graph begins at the hooked layer, and nothing below it is differentiated."""
    asked, graphs = [], {}
    forward = type(model).forward

    def watch(self, *args, **kwargs):
        asked.extend(p.requires_grad for p in self.parameters())
        for i, layer in enumerate(self.model.layers):
            layer.register_forward_hook(
                lambda _, __, output, i=i: graphs.update(
                    {i: (output if torch.is_tensor(output) else output[0]).requires_grad}
                )
            )
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", watch)
    wm = Watermark("model.layers.1.mlp.up_proj.weight", 0.05)
    score.score(model, *TEXTS, wm, [key])
    assert asked
    assert not any(asked)
    assert graphs == {0: False, 1: True, 2: True}


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_whatever_the_callers_gradient_mode(model, wm, key, context):
    expected = score.score(model, *TEXTS, wm, [key])["psi"].tolist()
    with context():
        assert score.score(model, *TEXTS, wm, [key])["psi"].tolist() == expected
    model.train()
    model.requires_grad_(False)
    assert score.score(model, *TEXTS, wm, [key])["psi"].tolist() == expected


def test_dropout_is_off_while_scoring_and_sampling(key):
    """GPT-2 drops out in training mode; a model left in it must give the same ψ and the
    same text.
    """
    model, wm = tiny_models.build("gpt2"), Watermark(tiny_models.ONE_WEIGHT["gpt2"], 0.05)
    expected = (
        score.score(model, *TEXTS, wm, [key])["psi"].tolist(),
        generate.sample(model, TEXTS[0], 10),
    )
    model.train()
    assert (
        score.score(model, *TEXTS, wm, [key])["psi"].tolist(),
        generate.sample(model, TEXTS[0], 10),
    ) == expected
    assert all(module.training for module in model.modules())


def test_sampling_leaves_no_trace_either(borrowed, monkeypatch):
    before = state(borrowed)
    generate.sample(borrowed, TEXTS[0], 3)
    assert state(borrowed) == before
    monkeypatch.setattr(borrowed.lm_head, "forward", lambda x: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        generate.sample(borrowed, TEXTS[0], 3)
    assert state(borrowed) == before
