"""The projector against its definition P = I − UUᵀ, formed in full; left, right and both."""

import closeness
import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib import perturb, rank_reduce, score
from gaussmark_lib.engine.terms import Factors
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.rank_reduce import projector, singular_vectors

SHAPES = st.tuples(st.integers(2, 12), st.integers(2, 12))
SEEDS, SIDES = st.integers(0, 1000), st.sampled_from(rank_reduce.SIDES)


def explicit(theta: torch.Tensor, k: int) -> torch.Tensor:
    """P in float64, from the eigenvectors of θθᵀ rather than the SVD of θ."""
    theta = theta.double()
    _, vectors = torch.linalg.eigh(theta @ theta.T)  # ascending
    u = vectors[:, len(theta) - k :]
    return torch.eye(len(theta), dtype=torch.float64) - u @ u.T


@pytest.mark.parametrize(("architecture", "weight"), tiny_models.EVERY_WEIGHT)
def test_noise_is_the_explicit_projection_of_the_vanilla_noise(architecture, weight):
    model, key, k = tiny_models.build(architecture), Key.from_seed(0), 3
    vanilla = perturb.noise(model, Watermark(weight, 0.05), key)
    reduced = perturb.noise(model, Watermark(weight, 0.05, k), key)
    stored = tiny_models.parameter(model, weight).detach()
    theta = stored.T if architecture == "gpt2" else stored
    u, s, _ = torch.linalg.svd(theta.double(), full_matrices=False)
    # Wedin: by how much a float32 SVD may turn U
    angle = 8 * torch.finfo(torch.float32).eps * s[0] / (s[k - 1] - s[k])
    atol = float(2 * angle * vanilla.norm(dim=0).max())
    vanilla, reduced = vanilla.double(), reduced.double()
    torch.testing.assert_close(reduced, explicit(theta, k) @ vanilla, rtol=1e-4, atol=atol)
    assert (u[:, :k].T @ reduced).norm() < 1e-4 * (u[:, :k].T @ vanilla).norm()


@pytest.mark.parametrize("side", rank_reduce.SIDES)
@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_each_side_is_what_it_says(architecture, side, key):
    """ξ and G are PξQ and PGQ, with P and Q in full."""
    model, wm = tiny_models.marked(architecture, torch.float32, 3, side)
    unreduced = Watermark(wm.weight, wm.sigma)
    theta = wm.on(model).linear.value()
    p, q = (
        explicit(theta, 0 if side == "right" else 3),
        explicit(theta.T, 0 if side == "left" else 3),
    )
    vanilla = perturb.noise(model, unreduced, key).double()
    rounding = wm.sigma * closeness.of_sum(torch.float32, theta.numel())
    xi = perturb.noise(model, wm, key).double()
    torch.testing.assert_close(xi, p @ vanilla @ q, rtol=1e-4, atol=rounding)
    texts = [[1, 2, 3]], [[5, 6, 7, 8]]
    [plain] = score.gradients(model, *texts, unreduced)
    [projected] = score.gradients(model, *texts, wm)
    torch.testing.assert_close(projected.G.double(), p @ plain.G.double() @ q, rtol=1e-4, atol=1e-5)
    assert projected.norm == pytest.approx(projected.G.norm().item(), rel=1e-5)
    [psi] = score.score(model, *texts, wm, [key])["psi"]
    inner = (p @ vanilla @ q * projected.G).sum() / projected.G.norm()
    assert psi == pytest.approx(inner.item() / wm.sigma, abs=1e-3)


@given(shape=SHAPES, seed=SEEDS, data=st.data(), side=SIDES)
def test_every_projector_is_idempotent_and_symmetric(shape, seed, data, side):
    """⟨Π(x), y⟩ = ⟨x, Π(y)⟩ and Π(Π(x)) = Π(x), relative to the size of x and y."""
    k = data.draw(st.integers(0, min(shape) - 1))
    rng = torch.Generator().manual_seed(seed)
    theta, x, y = (torch.randn(shape, generator=rng, dtype=torch.float64) for _ in range(3))
    project = projector(theta, k, side)
    assert (project(project(x)) - project(x)).norm() <= 1e-6 * x.norm()
    difference = (project(x) * y).sum() - (x * project(y)).sum()
    assert abs(difference) <= 1e-6 * x.norm() * y.norm()


def test_one_decomposition_serves_every_rank_and_call(monkeypatch):
    calls = []
    svd = torch.linalg.svd
    monkeypatch.setattr(
        torch.linalg, "svd", lambda *args, **kwargs: calls.append(1) or svd(*args, **kwargs)
    )
    rank_reduce._cache.clear()
    theta = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    whole = svd(theta, full_matrices=False)
    for k in (1, 4, 2):
        torch.testing.assert_close(singular_vectors(theta, k), whole.U[:, :k], rtol=0, atol=0)
    assert len(calls) == 1
    torch.testing.assert_close(singular_vectors(theta, 3, "right"), whole.Vh[:3].T, rtol=0, atol=0)
    changed = theta.clone()
    changed[0, 0] = torch.nextafter(changed[0, 0], torch.tensor(9.0))  # one bit: another weight
    singular_vectors(changed, 1)
    singular_vectors(theta.bfloat16().float(), 1)
    assert len(calls) == 4
    singular_vectors(theta, 0)
    assert len(calls) == 4


def test_what_comes_out_of_the_cache_can_be_changed_without_harm():
    theta = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    first = singular_vectors(theta, 4).clone()
    singular_vectors(theta, 4).zero_()
    torch.testing.assert_close(singular_vectors(theta, 4), first, rtol=0, atol=0)


@given(shape=SHAPES, n=st.integers(0, 5), seed=SEEDS, data=st.data(), side=SIDES)
def test_a_matrix_by_its_terms_is_projected_term_by_term(shape, n, seed, data, side):
    k = data.draw(st.integers(0, min(shape) - 1))
    rng = torch.Generator().manual_seed(seed)
    sizes = (shape, (n, shape[0]), (n, shape[1]))
    theta, g, a = (torch.randn(*size, generator=rng, dtype=torch.float64) for size in sizes)
    project, terms = projector(theta, k, side), Factors(g, a)
    found = terms.projected(project).matrix()
    torch.testing.assert_close(found, project(terms.matrix()), rtol=0, atol=1e-10)
