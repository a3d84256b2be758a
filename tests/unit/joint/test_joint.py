"""What ``joint`` refuses, what repeats a text, and how its state is kept."""

import json
import math
import os

import numpy as np
import pytest
import tiny_models
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy.stats import norm

from gaussmark_lib import joint, score
from gaussmark_lib.errors import InvalidTextError, PerturbedModelError, StateError, StatisticsError
from gaussmark_lib.joint import repeats
from gaussmark_lib.keys import Key
from gaussmark_lib.perturb import Watermark, watermarked

KEYS = [Key.from_seed(i) for i in range(2)]
RNG = np.random.default_rng(0)
X, Y = tiny_models.random_ids(RNG, *[4] * 6), tiny_models.random_ids(RNG, *[27] * 6)


def edited(ids: list[int], every: int) -> list[int]:
    return [
        (token + 1) % tiny_models.VOCAB if i % every == 0 else token for i, token in enumerate(ids)
    ]


def test_the_same_text_twice_is_one_text(model, wm):
    table = joint.sequence(model, [*X, X[2]], [*Y, Y[2]], wm, KEYS)
    once, again = (table[table["text"] == text].reset_index(drop=True) for text in (2, 6))
    assert (again["residual"] == 0).all()
    assert (again["repeats"] == 2).all()
    assert again["innovation"].tolist() == once["innovation"].tolist()
    assert again["p_given"].tolist() == np.maximum(once["p_given"], again["p_value"]).tolist()
    assert (again["e_value"] == 1).all()
    assert again["log_e"].tolist() == table[table["text"] == 5]["log_e"].tolist()


def test_a_light_edit_is_not_accused_anew_and_another_text_is_new(model, wm):
    first, light, lighter = Y[0], edited(Y[0], 20), edited(edited(Y[0], 20), 13)
    table = joint.sequence(model, [X[0]] * 4, [first, light, lighter, Y[1]], wm, KEYS[:1])
    assert table["repeats"].tolist() == [
        -1,
        0,
        0,
        -1,
    ], "what repeats a text is none that others repeat"
    p_given, p_value = table["p_given"].to_numpy(), table["p_value"].to_numpy()
    assert p_given[1:3].tolist() == np.maximum(p_given[0], p_value[1:3]).tolist()
    assert p_given[0] == pytest.approx(p_value[0])
    assert (table["residual"] > 0.01).all()
    assert table["innovation"].nunique() == 4, "what is new in them stays to be seen"


def test_what_several_texts_have_said_together_is_nothing_new(model, wm):
    """In the span of two directions, and no copy of either."""
    from gaussmark_lib.joint.memory import Memory

    memory, e = Memory(4, 1, 1 << 20), np.eye(4, dtype="float32")
    import torch

    units = [
        torch.from_numpy(each) for each in (e[0], e[1], (e[0] + e[1]) / np.float32(np.sqrt(2)))
    ]
    answers = [
        memory.ask(u, np.array([psi]), repeats.runs([i] * 5), i)
        for i, (u, psi) in enumerate(zip(units, (3.0, 1.0, 2.8), strict=True))
    ]
    assert answers[-1].residual == 0
    assert np.isnan(answers[-1].innovation).all()
    assert answers[-1].p_given.tolist() == [1.0]
    assert memory.n == 2


def test_a_reference_text_sent_in_is_nothing_new_and_has_no_verdict_to_give(model, wm):
    table = joint.sequence(model, X[:1], Y[:1], wm, KEYS[:1], given=(X[:3], Y[:3]))
    assert table[["residual", "p_given", "repeats", "log_e"]].to_numpy().tolist() == [
        [0.0, 1.0, -1.0, 0.0]
    ]


def test_a_longer_text_that_ends_in_another_one_is_a_new_text(model, wm):
    """A human draft with as much again of a machine's: and no chain of such texts gives the
    machine's own the verdict of the draft.
    """
    human, machine = Y[0][:20], Y[1]
    texts = [human, human + machine[:20], human[12:] + machine, machine]
    table = joint.sequence(model, [X[0]] * 4, texts, wm, KEYS[:1])
    assert table["repeats"].tolist()[:2] == [-1, -1]
    assert table["repeats"][3] != 0
    assert (table["p_given"] == norm.sf(table["innovation"]))[table["repeats"] == -1].all()


def test_a_key_twice_is_refused(model, wm):
    """Its evidence would be counted twice, and two keys of one id share it."""
    with pytest.raises(StateError, match="keys of different ids"):
        joint.sequence(model, X[:1], Y[:1], wm, [KEYS[0], KEYS[0]])


@pytest.mark.parametrize(
    "part",
    [
        {"notes": ["a"]},
        {"notes": {1: "x"}},
        {"notes": {"a": (1, 2)}},
        {"budget": 1e9},
        {"log_e": {"k": float("inf")}},
    ],
)
def test_what_could_not_be_read_again_is_not_written_over_what_can(model, wm, tmp_path, part):
    state = joint.State()
    joint.sequence(model, X[:1], Y[:1], wm, KEYS, state=state)
    state.save(tmp_path / "state")
    for name, value in part.items():
        setattr(state, name, value)
    with pytest.raises(StateError, match=f"^{next(iter(part))}: expected"):
        state.save(tmp_path / "state")
    assert joint.State.load(tmp_path / "state").n_texts == 1


@pytest.mark.parametrize(("every", "near"), [(30, True), (12, True), (4, False)])
def test_near_is_two_thirds_of_the_runs_of_the_longer_text(every, near):
    said, [text] = repeats.Said(), tiny_models.random_ids(np.random.default_rng(5), 120)
    said.add(7, repeats.runs(text))
    assert (said.nearest(repeats.runs(edited(text, every))) == 7) == near
    more = text + tiny_models.random_ids(np.random.default_rng(6), 480 // every)[0]
    assert (said.nearest(repeats.runs(more)) == 7) == near


def test_short_texts_have_runs_too():
    assert len(repeats.runs([5])) == len(repeats.runs([5, 6])) == 1
    assert repeats.runs([5]).tolist() != repeats.runs([6]).tolist()
    assert len(repeats.runs(list(range(10)))) == 8


def test_a_text_that_cannot_be_scored_is_recorded_and_leaves_no_trace(model, wm):
    state = joint.State()
    table = joint.sequence(model, X[:3], [Y[0], [], Y[2]], wm, KEYS, state=state, on_error="record")
    assert table["error"].notna().tolist() == [False, False, True, True, False, False]
    assert (
        table.loc[table["error"].notna(), ["innovation", "p_given", "log_e"]].isna().all(axis=None)
    )
    assert (state.n_texts, state.n_kept) == (2, 2)
    other = joint.sequence(model, [X[0], X[2]], [Y[0], Y[2]], wm, KEYS)
    assert other["log_e"].tolist() == table.loc[table["error"].isna(), "log_e"].tolist()
    with pytest.raises(InvalidTextError, match="at least one token"):
        joint.sequence(model, X[:3], [Y[0], [], Y[2]], wm, KEYS)


def test_more_keys_than_are_held_at_once(model, wm, monkeypatch):
    keys = [Key.from_seed(i) for i in range(7)]
    whole = joint.sequence(model, X, Y, wm, keys)
    monkeypatch.setattr(score, "HELD", 3 * 4 * 1536)
    monkeypatch.setattr(score, "FEW_KEYS", 1)
    monkeypatch.setattr(score, "FEW_TEXTS", 4)
    parts = joint.sequence(model, X, Y, wm, keys)
    np.testing.assert_allclose(parts["innovation"], whole["innovation"], atol=1e-9)


@pytest.fixture
def saved(model, wm, tmp_path):
    state = joint.State()
    joint.sequence(model, X[:3], Y[:3], wm, KEYS, state=state)
    state.notes["lines"] = 3
    state.save(tmp_path / "state")
    return tmp_path / "state"


def test_the_state_is_its_owners_alone(saved):
    assert saved.stat().st_mode & 0o777 == 0o600
    assert os.listdir(saved.parent) == ["state"]
    saved.chmod(0o644)
    with pytest.raises(StateError, match="chmod 600"):
        joint.State.load(saved)


def test_a_state_of_no_text_is_kept_like_any_other(model, wm, tmp_path):
    state = joint.State()
    state.use(wm.on(model), KEYS)
    state.save(tmp_path / "state")
    assert joint.State.load(tmp_path / "state").n_texts == 0
    joint.State().save(tmp_path / "unused")
    assert joint.State.load(tmp_path / "unused").purpose is None


def test_no_other_file_is_written_over(saved):
    state, other = joint.State.load(saved), saved.with_name("thesis.txt")
    for content in (b"years of work", b"", saved.read_bytes()[:40]):
        other.write_bytes(content)
        with pytest.raises(
            StateError,
            match=(
                r"thesis.txt: expected a new name or an earlier state, got another file, which was"
                r" left as it is"
            ),
        ):
            state.save(other)
        assert other.read_bytes() == content
    state.save(saved)
    assert joint.State.load(saved).n_texts == 3


def test_a_state_says_what_it_is_and_keeps_its_notes(saved):
    state = joint.State.load(saved)
    assert (
        repr(state) == f"State(3 texts, 3 directions kept, keys {KEYS[0].key_id}, {KEYS[1].key_id})"
    )
    assert state.notes == {"lines": 3}
    assert not state.frozen


def test_no_secret_in_the_state(saved):
    content = saved.read_bytes()
    assert not any(
        form in content
        for key in KEYS
        for form in (key.secret, key.secret.hex().encode(), str(key.seed).encode())
    )


def test_another_weight_model_or_set_of_keys_is_refused(saved, wm):
    def resumed(model=None, wm=wm, keys=KEYS):
        joint.sequence(
            model or tiny_models.build(), X[3:], Y[3:], wm, keys, state=joint.State.load(saved)
        )

    resumed()
    with pytest.raises(StateError, match=r"weight: .*layers.1"):
        resumed(wm=Watermark("model.layers.1.mlp.down_proj.weight", wm.sigma))
    with pytest.raises(StateError, match="sigma"):
        resumed(wm=Watermark(wm.weight, 0.06))
    with pytest.raises(StateError, match="base_sha256"):
        resumed(model=tiny_models.build(seed=1))
    elsewhere = tiny_models.build()
    elsewhere.get_parameter("model.layers.0.mlp.up_proj.weight").data *= 1.5
    with pytest.raises(StateError, match="model_sha256"):
        resumed(model=elsewhere)
    for keys in (KEYS[:1], KEYS[::-1], [KEYS[0], Key.from_seed(9)]):
        with pytest.raises(StateError, match="keys"):
            resumed(keys=keys)


@pytest.mark.parametrize("damage", ["cut", "version", "edited", "parts", "not there"])
def test_a_damaged_state_is_refused(saved, damage):
    tensors = load_file(saved)
    head = json.dumps(
        {
            "budget": 1 << 30,
            "purpose": {"shape": [32, 48], "keys": ["a", "b"]},
            "log_e": {},
            "n_texts": 3,
            "notes": {},
        }
    )
    if damage == "cut":
        saved.write_bytes(saved.read_bytes()[:-100])
    elif damage == "version":
        save_file(tensors, saved, {"format": "gaussmark joint state 99", "head": head})
    elif damage == "edited":
        save_file(tensors, saved, {"format": "gaussmark joint state 1", "head": head[:-3]})
    elif damage == "parts":
        save_file(
            tensors | {"innovations": tensors["innovations"][:1].clone()},
            saved,
            {"format": "gaussmark joint state 1", "head": head},
        )
    else:
        saved.unlink()
    if saved.exists():
        saved.chmod(0o600)
    with pytest.raises(StateError, match="expected"):
        joint.State.load(saved)


def test_a_link_to_a_state_stays_a_link(saved, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(saved)
    state = joint.State.load(link)
    saved.unlink()
    state.save(link)
    assert link.is_symlink()
    assert joint.State.load(saved).log_e == state.log_e


@pytest.mark.parametrize("place", [0.1, 0.5, 0.999])
def test_one_wrong_bit_is_noticed(saved, place):
    content = bytearray(saved.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    at = int(header + place * (len(content) - header))
    content[at] ^= 1
    saved.write_bytes(content)
    with pytest.raises(StateError, match="damaged"):
        joint.State.load(saved)


@pytest.mark.parametrize(
    "edit", [{"n_texts": 2}, {"log_e": {}}, {"notes": {}}, {"memory": None}, {"save": "x"}], ids=str
)
def test_an_edited_head_is_noticed(saved, edit):
    with safe_open(saved, "pt") as file:
        metadata = dict(file.metadata())
    save_file(
        load_file(saved),
        saved,
        metadata | {"head": json.dumps(json.loads(metadata["head"]) | edit)},
    )
    saved.chmod(0o600)
    with pytest.raises(StateError, match="damaged"):
        joint.State.load(saved)


def test_a_state_of_the_version_before_has_no_checksum(saved):
    with safe_open(saved, "pt") as file:
        metadata = dict(file.metadata())
    del metadata["sha256"]
    save_file(load_file(saved), saved, metadata)
    saved.chmod(0o600)
    assert joint.State.load(saved).n_texts == 3
    save_file(load_file(saved), saved, metadata | {"head": "{}"})
    saved.chmod(0o600)
    with pytest.raises(StateError, match="edited"):
        joint.State.load(saved)


EDITS = [
    {"budget": -1},
    {"budget": "x"},
    {"log_e": []},
    {"log_e": {"a": "x"}},
    {"log_e": {"a": math.inf}},
    {"n_texts": 1.5},
    {"n_texts": 10**30},
]
EDITS += [
    {"n_texts": 1},
    {"notes": []},
    {"purpose": {}},
    {"purpose": {"shape": [0, 0], "keys": ["a", "b"]}},
    {"purpose": {"shape": 5, "keys": ["a"]}},
]


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_an_edited_state_of_the_version_before_is_refused(saved, edit):
    with safe_open(saved, "pt") as file:
        metadata = dict(file.metadata())
    del metadata["sha256"]
    save_file(
        load_file(saved),
        saved,
        metadata | {"head": json.dumps(json.loads(metadata["head"]) | edit)},
    )
    saved.chmod(0o600)
    with pytest.raises(StateError, match="edited"):
        joint.State.load(saved)


def test_the_keys_of_the_evidence_are_those_of_the_state(saved, model, wm):
    state = joint.State.load(saved)
    state.log_e = {"a": 0.0, "b": 0.0}
    with pytest.raises(StateError, match="keys"):
        state.use(wm.on(model), KEYS)


NUMBERS = {"dtype": torch.float64}
TENSORS = [
    ("factor", torch.zeros(3, 3, **NUMBERS)),
    ("factor", torch.ones(3, 0, **NUMBERS)),
    ("factor", torch.eye(3)),
]
TENSORS += [
    ("innovations", torch.full((3, 2), math.nan, **NUMBERS)),
    ("p_given", torch.full((3, 2), 2.0, **NUMBERS)),
]
TENSORS += [
    ("places", torch.full((3,), 3)),
    ("places", torch.zeros(3)),
    ("n_runs", torch.full((3,), -1)),
    ("n_runs", torch.full((3,), 99)),
]
TENSORS += [
    ("directions 0", torch.full((3, 32 * 48), math.nan)),
    ("n_beyond", torch.tensor([2])),
    ("n_beyond", torch.tensor([-1])),
]


@pytest.mark.parametrize(
    ("name", "bad"), TENSORS, ids=[f"{name} {i}" for i, (name, _) in enumerate(TENSORS)]
)
def test_tensors_that_no_text_left_are_refused(saved, name, bad):
    with safe_open(saved, "pt") as file:
        metadata = dict(file.metadata())
    del metadata["sha256"]
    save_file(load_file(saved) | {name: bad}, saved, metadata)
    saved.chmod(0o600)
    with pytest.raises(StateError, match="expected a whole state file"):
        joint.State.load(saved)


def test_a_save_that_fails_leaves_the_state_before(saved, monkeypatch):
    before, state = saved.read_bytes(), joint.State.load(saved)
    state.notes["bad"] = object()
    with pytest.raises(StateError, match="JSON"):
        state.save(saved)
    with pytest.raises(StateError, match="cannot write"):
        joint.State().save(saved.parent / "nowhere" / "state")
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == ["state"]


def test_the_watermarked_model_is_refused(model, wm, key):
    with watermarked(model, wm, key), pytest.raises(PerturbedModelError):
        joint.sequence(model, X, Y, wm, [key])


def test_negative_covariances_are_for_e_values_alone():
    K = np.array([[1.0, -0.2], [-0.2, 1.0]])
    with pytest.raises(StatisticsError, match="1 pairs"):
        joint.discoveries([1.0, 2.0], [30.0, 30.0], 0.1, K=K)
    assert not joint.discoveries([1.0, 0.5], [30.0, 30.0], 0.1).any()


def test_a_matrix_that_is_no_covariance_is_refused():
    with pytest.raises(StatisticsError, match="eigenvalue"):
        joint.family([1.0, 2.0, 3.0], [[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
    for K in ([[1.0, 2.0], [2.0, 1.0]], [[0.01, 0.0], [0.0, 0.01]]):
        with pytest.raises(
            StatisticsError, match=r"K: expected the 2 × 2 matrix that joint\.gram gives"
        ):
            joint.family([1.0, 2.0], K)
        with pytest.raises(
            StatisticsError, match=r"K: expected the 2 × 2 matrix that joint\.gram gives"
        ):
            joint.discoveries([1.0, 2.0], [1.0, 1.0], 1.0, K=K)
    assert joint.family([9.0, -9.0], [[1.0, 1.0], [1.0, 1.0]], n=99).tolist() == [0.01, 1.0]
