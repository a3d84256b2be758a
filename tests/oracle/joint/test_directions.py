"""Directions kept by the terms of G, against the same directions as whole vectors in float64, alone
and in a stream.
"""

import closeness
import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import gradients, joint, score
from gaussmark_lib.errors import DegenerateScoreError
from gaussmark_lib.joint import directions, law
from gaussmark_lib.joint.memory import Memory
from gaussmark_lib.keys import Key
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.rank_reduce import Factors

SHAPE = 12, 20
KEYS = [Key.from_seed(i) for i in range(3)]
NO_RUNS = np.zeros(0, np.uint64)
MIXED = [Factors, torch.Tensor, Factors, Factors, torch.Tensor, Factors]


@pytest.fixture
def by_terms(monkeypatch):
    """Terms wherever they take less room than the matrix, which is formed from them in pieces."""
    monkeypatch.setattr(directions, "SMALL", 0)
    monkeypatch.setattr(directions, "SAVING", 1)
    monkeypatch.setattr(directions, "FORMED", 300)


def some(kinds: list[type] = MIXED, seed: int = 0) -> tuple[list[directions.Direction], np.ndarray]:
    """A direction of each kind, with a part in common, and all of them as rows in float64."""
    generator, units, rows = torch.Generator().manual_seed(seed), [], []
    common = (
        torch.randn(1, SHAPE[0], generator=generator),
        torch.randn(1, SHAPE[1], generator=generator),
    )
    for i, kind in enumerate(kinds):
        parts = [torch.randn(3 + i, width, generator=generator) for width in SHAPE]
        terms = Factors(
            *(torch.cat([part, 2 * shared]) for part, shared in zip(parts, common, strict=True))
        )
        terms = Factors(terms.g / terms.norm(), terms.a)
        units.append(terms if kind is Factors else terms.matrix().flatten())
        rows.append(
            (terms.g.double().T @ terms.a.double()).flatten()
            if kind is Factors
            else units[-1].double()
        )
    return units, torch.stack(rows).numpy()


def stored(units: list[directions.Direction], rows: int = 2) -> directions.Directions:
    found = directions.Directions(SHAPE[0] * SHAPE[1], rows)
    for u in units:
        found.add(u)
    return found


def test_inner_products_are_those_of_the_vectors_in_float64(by_terms):
    (units, rows), z = (
        some(),
        torch.randn(5, SHAPE[0] * SHAPE[1], generator=torch.Generator().manual_seed(1)),
    )
    them = stored(units)
    close = {"rtol": 0, "atol": 1e-10}
    np.testing.assert_allclose(them.gram(), rows @ rows.T, **close)
    np.testing.assert_allclose(them.along(z), rows @ z.double().numpy().T, **close)
    for u, row in zip(units, rows, strict=True):
        np.testing.assert_allclose(them.inner(u), rows @ row, **close)
        np.testing.assert_allclose(directions.inner_with(u, z), z.double().numpy() @ row, **close)
        assert directions.square(u) == pytest.approx(row @ row, abs=1e-10)
        total = torch.zeros(len(row))
        directions.add(total, u, 0.5)
        np.testing.assert_allclose(total, 0.5 * row, atol=1e-7)
    assert [type(u) for u in them] == MIXED
    assert them.n_bytes == sum(map(directions.n_bytes, units))
    assert directions.n_bytes(units[0]) == 4 * 4 * sum(SHAPE)
    them.clear()
    them.add(units[1])
    np.testing.assert_allclose(them.inner(units[0]), [rows[0] @ rows[1]], **close)


@pytest.mark.parametrize("n", [0, 3, 4, 40])
def test_terms_are_kept_where_they_are_a_quarter_of_the_matrix(monkeypatch, n):
    """3 · (12 + 20) ≤ 12 · 20 / 2 < 4 · (12 + 20); rows of zeros are no terms."""
    monkeypatch.setattr(directions, "SAVING", 2)
    terms = Factors(torch.randn(n + 2, SHAPE[0]), torch.randn(n + 2, SHAPE[1]))
    terms.g[:2] = 0
    assert isinstance(directions.smaller(terms), torch.Tensor), "a small one is whole"
    monkeypatch.setattr(directions, "SMALL", 0)
    found = directions.smaller(terms)
    assert isinstance(found, Factors) == (n <= 3)
    assert not isinstance(found, Factors) or len(found.g) == n
    torch.testing.assert_close(
        found.matrix() if isinstance(found, Factors) else found, terms.matrix()
    )


def texts(n: int = 16) -> tuple[list, list]:
    rng = np.random.default_rng(3)
    return tiny_models.random_ids(rng, *[4] * n), tiny_models.random_ids(
        rng, *rng.integers(8, 30, size=n)
    )


CASES = [
    ("llama", 0, "left", 0),
    ("gpt2", 3, "both", score.HELD),
    ("qwen2_moe", 3, "left", 0),
    ("llama", 3, "right", score.HELD),
]  # or noises in parts


@pytest.mark.parametrize(("architecture", "dropped", "side", "held"), CASES)
def test_a_stream_by_terms_is_the_stream(monkeypatch, by_terms, architecture, dropped, side, held):
    model, wm = (
        tiny_models.build(architecture, torch.float64),
        Watermark(tiny_models.ONE_WEIGHT[architecture], 0.05, dropped, side),
    )
    monkeypatch.setattr(score, "HELD", held)
    monkeypatch.setattr(score, "FEW_KEYS", 2)
    state = joint.State()
    table = joint.sequence(model, *texts(), wm, KEYS, state=state, batch_size=3)
    K = joint.gram(model, *texts(), wm)
    assert 0 < len(state.memory.directions.terms) < 16, "both kinds"
    monkeypatch.undo()
    whole = joint.sequence(model, *texts(), wm, KEYS, batch_size=3)
    for name in ("psi", "innovation", "residual", "log_e", "grad_norm"):
        np.testing.assert_allclose(
            table[name],
            whole[name],
            rtol=1e-6,
            atol=closeness.of_sum(torch.float32, wm.on(model).linear.value().numel()),
            err_msg=name,
        )
    np.testing.assert_allclose(K, joint.gram(model, *texts(), wm), atol=1e-6)
    assert not state.memory.directions.terms.keys() - range(16)


def test_psi_and_k_are_of_the_same_vectors(by_terms):
    """To float64's last digits, in a float32 model: ψ of the stored terms, and not of a rounded
    matrix.
    """
    model, wm, state = (
        tiny_models.build(),
        Watermark("model.layers.2.mlp.down_proj.weight", 0.05),
        joint.State(),
    )
    table = joint.sequence(model, *texts(), wm, KEYS, state=state)
    rows = [
        (u.g.double().T @ u.a.double()).flatten() if isinstance(u, Factors) else u.double()
        for u in state.memory.directions
    ]
    z = score.Noises(wm.on(model), KEYS).held.flatten(1).double() / wm.sigma
    np.testing.assert_allclose(
        table["psi"].to_numpy().reshape(16, 3), torch.stack(rows) @ z.T, rtol=0, atol=1e-12
    )
    L = np.linalg.cholesky((torch.stack(rows) @ torch.stack(rows).T).numpy())
    np.testing.assert_allclose(
        table["innovation"].to_numpy().reshape(16, 3),
        np.linalg.solve(L, torch.stack(rows) @ z.T),
        rtol=0,
        atol=1e-10,
    )


def test_beyond_the_room_of_both_kinds_the_correlation_is_known():
    units, rows = some(MIXED * 4)
    z = np.random.default_rng(0).standard_normal((rows.shape[1], 50))
    memory = Memory(rows.shape[1], 50, sum(map(directions.n_bytes, units[:6])))
    answers = [
        memory.ask(u, row @ z, NO_RUNS, i)
        for i, (u, row) in enumerate(zip(units, rows, strict=True))
    ]
    assert [answer.kept for answer in answers] == [True] * 6 + [False] * 18
    basis = np.linalg.qr(rows[:6].T).Q
    rest = rows[6:] - rows[6:] @ basis @ basis.T
    rest /= np.linalg.norm(rest, axis=1, keepdims=True)
    np.testing.assert_allclose([answer.innovation for answer in answers[6:]], rest @ z, atol=1e-10)
    cosines = rest @ rest.T
    expected = [0.0, *(cosines[i, :i].mean() for i in range(1, 18))]
    np.testing.assert_allclose([answer.correlation for answer in answers[6:]], expected, atol=1e-6)
    assert memory.correlation == pytest.approx(cosines[np.triu_indices(18, 1)].mean(), abs=1e-6)


@pytest.mark.parametrize(
    ("dropped", "fault"), [(1, "all in the directions left out"), (0, "no gradient")]
)
def test_what_is_no_gradient_has_no_direction_by_terms_either(by_terms, model, dropped, fault):
    above, below = (
        model.model.layers[1].mlp.down_proj.weight.data,
        model.model.layers[1].mlp.up_proj.weight.data,
    )
    if dropped:  # as in tests/unit/test_score.py
        above[:, 1:] = 0
        below[0] = 10 * below[0]
        below[1:] -= (below[1:] @ below[0])[:, None] * below[0] / below[0].square().sum()
    else:
        model.model.layers[1].mlp.gate_proj.weight.data.zero_()
    wm = Watermark("model.layers.1.mlp.up_proj.weight", 0.05, rank_dropped=dropped)
    with pytest.raises(
        DegenerateScoreError, match=r"text 0: expected a finite, non-zero gradient, got ‖G‖ = 0\.0"
    ):
        joint.sequence(model, [[1, 2]], [[3, 4]], wm, KEYS)
    table = joint.sequence(model, [[1, 2]], [[3, 4]], wm, KEYS, on_error="record")
    assert table["error"].str.contains("non-zero gradient").all()
    model.lm_head.weight.data[0, 0] = torch.nan
    with pytest.raises(DegenerateScoreError, match="‖G‖ = nan"):
        joint.gram(model, [[1, 2]], [[3, 4]], Watermark(wm.weight, 0.05))


def test_a_gradient_by_its_terms_is_the_gradient(by_terms):
    model, wm = (
        tiny_models.build(dtype=torch.float64),
        Watermark("model.layers.2.mlp.down_proj.weight", 0.05, 3, "both"),
    )
    each = gradients.gradients(model, [[1, 2]], [[3, 4, 5]], wm)
    [whole], [found] = (
        each,
        gradients.gradients(model, [[1, 2]], [[3, 4, 5]], wm, form=directions.smaller),
    )
    assert isinstance(found.given, Factors)
    assert len(found.given.g) == 3, (
        "the first position and the last predict no token of the response"
    )
    torch.testing.assert_close(found.G, whole.G, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.unit(), whole.unit(), rtol=1e-10, atol=1e-12)
    assert found.norm == pytest.approx(whole.norm, rel=1e-10)
    assert law.unit(found).dtype == torch.float32
