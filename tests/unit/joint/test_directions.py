"""Directions kept by the terms of G, against the same directions as vectors in float64, alone and
in a stream.
"""

import closeness
import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import gradients
from gaussmark_lib.beyond import joint
from gaussmark_lib.beyond.joint import directions
from gaussmark_lib.engine.terms import Factors
from gaussmark_lib.keys import Key
from gaussmark_lib.perturb import Watermark

SHAPE = 12, 20
KEYS = [Key.from_seed(i) for i in range(3)]


@pytest.fixture
def wide(monkeypatch):
    """Every weight is a wide one."""
    monkeypatch.setattr(directions, "SMALL", 0)


def some(n: int = 5) -> list[Factors]:
    """Directions with a part in common."""
    generator = torch.Generator().manual_seed(0)
    common_g, common_a = (2 * torch.randn(1, width, generator=generator) for width in SHAPE)
    units = []
    for i in range(n):
        g, a = (torch.randn(3 + i, width, generator=generator) for width in SHAPE)
        terms = Factors(torch.cat([g, common_g]), torch.cat([a, common_a]))
        units.append(Factors(terms.g / terms.norm(), terms.a))
    return units


@pytest.mark.parametrize("by_terms", [False, True])
def test_inner_products_are_those_of_the_vectors_in_float64(monkeypatch, by_terms):
    monkeypatch.setattr(directions, "BLOCK", 2)
    units = some()
    rows = torch.stack([(u.g.double().T @ u.a.double()).flatten() for u in units])
    if not by_terms:
        units = [row.float() for row in rows]
        rows = rows.float().double()
    stored = directions.Directions()
    for n, (u, row) in enumerate(zip(units, rows, strict=True)):
        np.testing.assert_allclose(stored.inner(u), rows[:n] @ row, atol=1e-10)
        stored.add(u)
        assert directions.square(u) == pytest.approx(float(row @ row), abs=1e-10)
    assert stored.n_bytes == sum(map(directions.n_bytes, units))
    assert directions.n_bytes(units[0]) == 4 * (4 * sum(SHAPE) if by_terms else 240)
    for u, v in zip(stored, units, strict=True):
        assert all(map(torch.equal, directions.parts(u), directions.parts(v)))


def test_inner_products_of_vectors_are_summed_in_float64():
    rows = torch.full((2, 1 << 21), 1e-3) * torch.tensor([[1.0], [2.0]])
    expected = (1 << 21) * 1e-6 * np.array([[1, 2], [2, 4]])
    np.testing.assert_allclose(directions.inner(rows, rows), expected, rtol=1e-6)


def test_a_gradient_by_its_terms_is_the_gradient(wide):
    model = tiny_models.build(dtype=torch.float64)
    wm = Watermark("model.layers.2.mlp.down_proj.weight", 0.05, 3, "both")
    [whole] = gradients.of_pairs(wm.on(model), {0: ([1, 2], [3, 4, 5])})
    [found] = gradients.of_pairs(wm.on(model), {0: ([1, 2], [3, 4, 5])}, form=directions.form)
    assert len(found.parts[0].g) == 3, "the first position and the last predict no response token"
    torch.testing.assert_close(found.G, whole.G, rtol=1e-10, atol=1e-12)
    u = directions.kept(found)
    torch.testing.assert_close(u.matrix().flatten(), directions.kept(whole), rtol=1e-5, atol=1e-7)
    assert found.norm == pytest.approx(whole.norm, rel=1e-10)


CASES = [("llama", 0, "left"), ("gpt2", 3, "both"), ("qwen2_moe", 3, "left")]


@pytest.mark.parametrize(("architecture", "dropped", "side"), CASES)
def test_a_stream_by_terms_is_the_stream(monkeypatch, architecture, dropped, side):
    model = tiny_models.build(architecture, torch.float64)
    wm = Watermark(tiny_models.ONE_WEIGHT[architecture], 0.05, dropped, side)
    rng = np.random.default_rng(3)
    x = tiny_models.random_ids(rng, *[4] * 12)
    y = tiny_models.random_ids(rng, *rng.integers(8, 30, size=12))
    whole = joint.sequence(model, x, y, wm, KEYS, batch_size=3)
    monkeypatch.setattr(directions, "SMALL", 0)
    table = joint.sequence(model, x, y, wm, KEYS, batch_size=3)
    rounding = closeness.of_sum(torch.float32, wm.on(model).linear.value().numel())
    for name in ("psi", "innovation", "residual", "log_e", "grad_norm"):
        np.testing.assert_allclose(table[name], whole[name], rtol=1e-6, atol=rounding)


def test_the_direction_in_several_wide_weights_is_in_all_of_them(model, wide):
    names = tiny_models.WEIGHTS["llama"][:2]
    x, y = [[5, 6, 7, 8]], [[9, 10, 11, 12, 13]]
    [gradient] = gradients.gradients(
        model, x, y, Watermark(names, [0.1, 0.3]), form=directions.form
    )
    [first], [second] = (gradients.gradients(model, x, y, Watermark(name, 1.0)) for name in names)
    expected = torch.cat([0.1 * first.G.flatten(), 0.3 * second.G.flatten()])
    u = directions.kept(gradient)
    torch.testing.assert_close(u, expected / expected.norm(), rtol=1e-4, atol=1e-6)
