"""A memory of whole directions and of terms: its budget, when it is full, and its file."""

import numpy as np
import pytest
import tiny_models
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gaussmark_lib import joint
from gaussmark_lib.errors import StateError
from gaussmark_lib.joint import directions
from gaussmark_lib.joint import state as state_module
from gaussmark_lib.joint.memory import GIVEN, Memory
from gaussmark_lib.keys import Key
from gaussmark_lib.rank_reduce import Factors

KEYS = [Key.from_seed(i) for i in range(2)]
RNG = np.random.default_rng(5)
X = tiny_models.random_ids(RNG, *[3] * 10)
Y = tiny_models.random_ids(
    RNG, 5, 30, 6, 7, 30, 12, 5, 4, 6, 9
)  # terms are 80 numbers a token, and a matrix 1,536
NO_RUNS = np.zeros(0, np.uint64)
WIDTHS = 32, 48


@pytest.fixture(autouse=True)
def by_terms(monkeypatch):
    monkeypatch.setattr(directions, "SMALL", 0)
    monkeypatch.setattr(directions, "SAVING", 1)


def direction(n: int | None, seed: int) -> directions.Direction:
    """By n terms, or whole."""
    generator = torch.Generator().manual_seed(seed)
    terms = Factors(*(torch.randn(n or 5, width, generator=generator) for width in WIDTHS))
    terms = Factors(terms.g / terms.norm(), terms.a)
    return terms if n else terms.matrix().flatten()


def ask(memory: Memory, n: int | None, seed: int, place: int = 0) -> bool:
    return memory.ask(direction(n, seed), np.zeros(1), NO_RUNS, place).kept


def test_the_budget_is_bytes_of_either_kind_and_full_is_for_good():
    memory = Memory(1536, 1, 4 * (1536 + 10 * 80 + 20 * 80 + 80))
    assert [ask(memory, None, 0), ask(memory, 10, 1), memory.full] == [True, True, False]
    assert [ask(memory, 20, 2), memory.full] == [True, False]
    assert [ask(memory, 1, 3), memory.full, memory.n_beyond] == [True, True, 0], "nothing is left"
    roomy = Memory(1536, 1, 4 * (1536 + 1535))
    assert [ask(roomy, None, 0), roomy.full] == [True, False]
    assert [ask(roomy, None, 1), roomy.full] == [False, True]
    assert not ask(roomy, 2, 2), "shorter, but after one that found no room"
    assert (roomy.n, roomy.n_beyond) == (1, 2)


def test_a_reference_text_without_room_is_left_out():
    memory = Memory(1536, 1, 4 * 1535)
    assert [ask(memory, None, 0, GIVEN), memory.full, ask(memory, 3, 1), memory.full] == [
        False,
        False,
        True,
        False,
    ]


def test_small_weights_are_full_as_soon_as_no_vector_fits(monkeypatch):
    monkeypatch.setattr(directions, "SMALL", 1536)
    memory = Memory(1536, 1, 4 * (2 * 1536 - 1))
    assert [memory.full, ask(memory, None, 0), memory.full] == [False, True, True]


@pytest.mark.parametrize(
    "budget", [1 << 30, 4 * (1536 + 1400)], ids=["room for all", "room for three"]
)
def test_resumed_from_a_file_is_one_go_bit_for_bit(model, wm, tmp_path, budget):
    whole, file = joint.State(budget), tmp_path / "state"
    table = joint.sequence(model, X, Y, wm, KEYS, state=whole)
    joint.State(budget).save(file)
    parts = []
    for start, end in ((0, 3), (3, 4), (4, 10)):
        state = joint.State.load(file)
        parts.append(joint.sequence(model, X[start:end], Y[start:end], wm, KEYS, state=state))
        state.save(file)
    again = np.concatenate(
        [part.drop(columns=["key_id", "text"]).to_numpy(float) for part in parts]
    )
    np.testing.assert_array_equal(again, table.drop(columns=["key_id", "text"]).to_numpy(float))
    assert (state.log_e, state.correlation, state.frozen) == (
        whole.log_e,
        whole.correlation,
        budget < 1 << 20,
    )
    assert state.n_kept == (10 if budget > 1 << 20 else 3)


@pytest.fixture
def saved(model, wm, tmp_path):
    state = joint.State()
    joint.sequence(model, X[:3], Y[:3], wm, KEYS, state=state)
    state.save(tmp_path / "state")
    return tmp_path / "state"


def rewritten(file, tensors: dict, *dropped: str, **metadata) -> None:
    with safe_open(file, "pt") as found:
        kept = dict(found.metadata())
    tensors = {
        name: tensor for name, tensor in (load_file(file) | tensors).items() if name not in dropped
    }
    save_file(
        tensors, file, kept | {"sha256": state_module._sha256(kept["head"], tensors)} | metadata
    )
    file.chmod(0o600)


def test_what_a_file_holds(saved):
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(saved).items() if " " in name}
    assert shapes == {
        "g 0": (5, 32),
        "a 0": (5, 48),
        "directions 0": (1, 1536),
        "g 2": (6, 32),
        "a 2": (6, 48),
    }
    rewritten(saved, {})
    assert joint.State.load(saved).n_kept == 3


ONES = torch.ones(5, 48)
EDITS = [
    ({}, ["g 0"]),
    ({}, ["a 2"]),
    ({}, ["g 0", "a 0"]),
    ({}, ["directions 0"]),
    ({}, ["along"]),
    ({}, ["g 2", "a 2", "directions 0"]),
]
EDITS += [
    ({"a 0": ONES[:4].clone()}, []),
    ({"a 0": ONES[:, :47].clone()}, []),
    ({"a 0": ONES.double()}, []),
    ({"a 0": ONES * torch.nan}, []),
]
EDITS += [
    ({"g 0": torch.ones(0, 32), "a 0": torch.ones(0, 48)}, []),
    ({"g 0": ONES, "a 0": torch.ones(5, 32)}, []),
    ({"a 0": ONES[0].clone()}, []),
]
EDITS += [
    ({"g 3": torch.ones(5, 32), "a 3": ONES}, []),
    ({"g 1": torch.ones(5, 32), "a 1": ONES}, []),
    ({"a 1": ONES}, []),
    ({"more": ONES}, []),
]
EDITS += [
    ({"directions 1": torch.ones(1, 1536)}, []),
    ({"directions 0": torch.ones(1, 1)}, []),
    ({"directions 0": torch.ones(2, 1536)}, []),
]
EDITS += [
    (
        {
            "n_beyond": torch.tensor([1]),
            "beyond": torch.ones(1536),
            "along": torch.ones(2, dtype=torch.float64),
        },
        [],
    )
]


@pytest.mark.parametrize(
    "edit",
    EDITS,
    ids=[
        f"{', '.join(dropped)} {', '.join(tensors)} {i}"
        for i, (tensors, dropped) in enumerate(EDITS)
    ],
)
def test_parts_that_no_text_left_are_refused(saved, edit):
    tensors, dropped = edit
    rewritten(saved, tensors, *dropped)
    with pytest.raises(StateError, match="expected a whole state file"):
        joint.State.load(saved)


def test_more_than_the_budget_is_refused(saved):
    with safe_open(saved, "pt") as found:
        head = found.metadata()["head"].replace(str(joint.State().budget), "6000")
    tensors = load_file(saved)
    rewritten(saved, {}, head=head, sha256=state_module._sha256(head, tensors))
    with pytest.raises(StateError, match="expected a whole state file"):
        joint.State.load(saved)


@pytest.mark.parametrize("budget", [1 << 30, 4 * 1536 * 3], ids=["room for all", "room for three"])
def test_a_state_of_the_format_before_goes_on(model, wm, tmp_path, monkeypatch, budget):
    """Whole directions alone, and beyond the room the sum of what each text adds to their span."""
    monkeypatch.setattr(directions, "SMALL", 1 << 20)
    file, state = tmp_path / "state", joint.State(budget)
    joint.sequence(model, X[:6], Y[:6], wm, KEYS, state=state)
    state.save(file)
    expected = joint.sequence(model, X[6:], Y[6:], wm, KEYS, state=state)
    before, tensors = joint.State.load(file).memory, {}
    if before.n_beyond:
        inside = (
            torch.from_numpy(np.linalg.solve(before.factor.rows.T, before.along))
            @ torch.stack(list(before.directions)).double()
        )
        tensors["beyond"] = (before.beyond.double() - inside).float()
    rewritten(file, tensors, "along", format="gaussmark joint state 1", sha256="")
    resumed = joint.State.load(file)
    found = joint.sequence(model, X[6:], Y[6:], wm, KEYS, state=resumed)
    np.testing.assert_allclose(
        found.drop(columns="key_id").to_numpy(float),
        expected.drop(columns="key_id").to_numpy(float),
        atol=1e-6,
    )
    assert resumed.correlation == pytest.approx(state.correlation, abs=1e-6)
    assert (resumed.correlation != 0) == (budget < 1 << 20)


def test_a_format_to_come_is_refused_by_name(saved):
    rewritten(saved, {}, format="gaussmark joint state 3")
    with pytest.raises(
        StateError, match="expected format 'gaussmark joint state 2', got 'gaussmark joint state 3'"
    ):
        joint.State.load(saved)
