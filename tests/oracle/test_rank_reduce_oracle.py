"""The projector against its definition P = I − UUᵀ, formed in full."""

import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib import perturb
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.rank_reduce import project_out, top_left_singular_vectors

SHAPES = st.tuples(st.integers(2, 12), st.integers(2, 12))


def explicit(theta: torch.Tensor, k: int) -> torch.Tensor:
    """P in float64, from the eigenvectors of θθᵀ rather than the SVD of θ."""
    theta = theta.double()
    _, vectors = torch.linalg.eigh(theta @ theta.T)  # ascending
    u = vectors[:, len(theta) - k :]
    return torch.eye(len(theta), dtype=torch.float64) - u @ u.T


@given(shape=SHAPES, seed=st.integers(0, 1000), data=st.data())
def test_projection_is_symmetric_idempotent_and_as_defined(shape, seed, data):
    k = data.draw(st.integers(0, min(shape) - 1))
    rng = torch.Generator().manual_seed(seed)
    theta, x, y = (torch.randn(shape, generator=rng, dtype=torch.float64) for _ in range(3))
    u = top_left_singular_vectors(theta, k)
    assert u.shape == (shape[0], k)
    assert u.dtype == torch.float32
    once = project_out(x, u)
    tolerance = {"rtol": 1e-5, "atol": 1e-5}  # U is float32
    torch.testing.assert_close(project_out(once, u), once, **tolerance)
    torch.testing.assert_close((once * y).sum(), (x * project_out(y, u)).sum(), **tolerance)
    torch.testing.assert_close(u.double().T @ once, torch.zeros(k, shape[1], dtype=torch.float64), **tolerance)
    gap = [*torch.linalg.svdvals(theta).tolist(), 0.0]
    if k == 0 or gap[k - 1] - gap[k] > 0.05:  # else U_k is not unique
        torch.testing.assert_close(once, explicit(theta, k) @ x, rtol=1e-4, atol=1e-4)


def test_the_directions_are_the_largest_ones_and_orthonormal():
    theta = torch.diag(torch.tensor([1.0, 5.0, 3.0, 0.5]))
    u = top_left_singular_vectors(theta, 2)
    assert u.abs().argmax(0).tolist() == [1, 2]
    torch.testing.assert_close(u.T @ u, torch.eye(2))


def test_no_directions_give_the_very_same_matrix():
    x = torch.randn(3, 4)
    assert project_out(x, torch.empty(3, 0)) is x


@pytest.mark.parametrize(("architecture", "weight"), tiny_models.EVERY_WEIGHT)
def test_noise_is_the_explicit_projection_of_the_vanilla_noise(architecture, weight):
    model, key, k = tiny_models.build(architecture), Key.from_seed(0), 3
    vanilla = perturb.noise(key, Watermark(weight, 0.05), model)
    reduced = perturb.noise(key, Watermark(weight, 0.05, k), model)
    stored = dict(model.named_parameters())[weight].detach()
    theta = stored.T if architecture == "gpt2" else stored
    torch.testing.assert_close(reduced.double(), explicit(theta, k) @ vanilla.double(), rtol=1e-4, atol=1e-6)
    u = torch.linalg.svd(theta.double(), full_matrices=False).U[:, :k]
    assert (u.T @ reduced.double()).norm() < 1e-4 * (u.T @ vanilla.double()).norm()


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_rank_0_is_the_vanilla_scheme_bit_for_bit(architecture):
    model, key, weight = tiny_models.build(architecture), Key.from_seed(0), tiny_models.ONE_WEIGHT[architecture]
    vanilla = perturb.noise(key, Watermark(weight, 0.05), model)
    assert torch.equal(perturb.noise(key, Watermark(weight, 0.05, 0), model), vanilla)
    assert torch.equal(vanilla, perturb._isotropic(key, 0.05, vanilla.shape))


def test_the_directions_are_those_of_the_base_weight_also_inside_watermarked():
    """ξ is made from θ before θ is replaced; made inside, it would be another."""
    model, key, wm = tiny_models.build("llama"), Key.from_seed(0), Watermark(tiny_models.ONE_WEIGHT["llama"], 0.3, 4)
    theta, xi = wm.find(model).value().clone(), perturb.noise(key, wm, model)
    with perturb.watermarked(model, wm, key):
        torch.testing.assert_close(wm.find(model).value(), theta + xi)
        assert not torch.allclose(perturb.noise(key, wm, model), xi, atol=1e-3)
