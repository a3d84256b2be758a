"""The rule that answers strangers: its levels by arithmetic; askers who frame, wash, bridge and
climb, over many keys; and its state as a file.

A toy text is a list of tokens, and its gradient the sum of their vectors, so that texts with common
tokens lean the same way, as copies of one text do.
"""

import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import norm

from gaussmark_lib import stats
from gaussmark_lib.beyond.joint import Public, public
from gaussmark_lib.errors import GaussMarkError, KeyFileError, KeyMismatchError

LEVEL, N = 0.05, 40  # N: tokens of a text
VECTORS = np.random.default_rng(0).standard_normal((6 * N, 150))
KEYS = np.random.default_rng(1).standard_normal((4_000, 150))
HUMAN, MARKED = list(range(N)), list(range(N, 2 * N))
OF_ANOTHER = list(range(2 * N, 3 * N))


def unit(ids: list[int]) -> np.ndarray:
    total = VECTORS[ids].sum(0)
    return total / np.linalg.norm(total)


def exchanged(ids: list[int], rng: np.random.Generator, share: float = 0.11) -> list[int]:
    """A copy with so many tokens of its own."""
    fresh = rng.integers(3 * N, 6 * N, size=len(ids))
    return np.where(rng.random(len(ids)) < share, fresh, ids).tolist()


def washed(ids: list[int], i: int) -> list[int]:
    """Every eighth token exchanged, from another phase each time."""
    return [3 * N + (token + i) % N if (k + i) % 8 == 0 else token for k, token in enumerate(ids)]


ASKERS = {
    "variants": lambda i, rng: exchanged(HUMAN, rng),
    "other text appended": lambda i, rng: HUMAN + exchanged(OF_ANOTHER, rng),
    "pieces": lambda i, rng: HUMAN[i : i + N // 2],
    "one run repeated": lambda i, rng: exchanged(HUMAN, rng) + HUMAN[:3] * (3 * i),
    "two texts bridged": lambda i, rng: (OF_ANOTHER, HUMAN, HUMAN[i:] + OF_ANOTHER[i:])[min(i, 2)],
}


def asked(state: Public, ids: list[int], p: float) -> bool:
    return state.answer(str(ids), public.runs(ids), p)


def below(hits: np.ndarray, level: float) -> bool:
    """Whether the exact 99% interval of their share begins at or below a level."""
    return stats.interval(hits, confidence=0.99).low <= level


@pytest.mark.parametrize("asker", ASKERS)
def test_nobody_is_framed_and_the_first_yes_keeps_its_level(asker):
    """The asker stops at the first yes, and then asks for the human text itself."""
    rng = np.random.default_rng(3)
    texts = [ASKERS[asker](i, rng) for i in range(16)]
    p = norm.sf(KEYS @ np.stack([unit(ids) for ids in texts]).T)
    yes = p <= public.levels(texts, LEVEL)
    assert below(yes.any(1), LEVEL * (1 + (asker == "two texts bridged")))
    accused = np.flatnonzero(yes.any(1))
    assert len(accused) > 50, "otherwise this tests nothing"
    for key in accused[:12]:
        state, first = Public(None, LEVEL, {}), yes[key].argmax()
        found = [asked(state, ids, p[key, i]) for i, ids in enumerate(texts[: first + 1])]
        assert found == [False] * first + [True]
        alone = float(norm.sf(unit(HUMAN) @ KEYS[key]))
        assert not asked(state, HUMAN, alone) or alone <= public.level_of(1, LEVEL)


def test_who_holds_marked_texts_frames_nobody():
    """A marked text with the human one in it is detected; the human one by itself is not."""
    framed = []
    for z in KEYS[:60] + 8 * unit(MARKED):
        state = Public(None, LEVEL, {})
        frames = [HUMAN[: 10 * i] + MARKED for i in (1, 2, 3)]
        found = [asked(state, ids, float(norm.sf(unit(ids) @ z))) for ids in frames]
        assert any(found)
        framed.append(asked(state, HUMAN, float(norm.sf(unit(HUMAN) @ z))))
    assert below(np.array(framed), public.level_of(1, LEVEL))


def test_a_marked_text_is_not_washed_by_its_copies():
    """Of mean ψ 5: found after 20 copies with every eighth token exchanged nearly as often."""
    levels = public.levels([*(washed(MARKED, i) for i in range(20)), MARKED], LEVEL)
    psi = 5 + KEYS @ unit(MARKED)
    assert levels[-1] == public.level_of(21, LEVEL)
    assert (norm.sf(psi) <= levels[-1]).mean() >= 0.8 * (norm.sf(psi) <= levels[0]).mean()


@pytest.mark.parametrize(("level", "psi"), [(0.05, 5.0), (0.05, 4.5), (0.01, 5.0)])
def test_the_21st_question_keeps_its_power_and_all_levels_add_up(level, psi):
    first, last = (norm.sf(norm.isf(public.level_of(j, level)) - psi) for j in (1, 21))
    assert last >= 0.8 * first
    levels = np.array([public.level_of(j, level) for j in range(1, 5_001)])
    assert levels.sum() == pytest.approx(level * (1 - 5_001**-0.5), rel=1e-12)
    assert (np.diff(levels) < 0).all()


def asked_at(state: Public, ids: list[int], level: float) -> bool:
    """Whether its question is tested at so much or more."""
    return asked(state, ids, level * (1 - 1e-9))


def test_a_bridge_counts_in_both_neighbourhoods_at_the_smallest_level():
    state, at = Public(None, LEVEL, {}), [0, *(public.level_of(j, LEVEL) for j in range(1, 9))]
    for i in range(1, 4):
        assert asked_at(state, washed(HUMAN, i), at[i])
    assert asked_at(state, MARKED, at[1])
    assert asked_at(state, washed(MARKED, 1), at[2]), "HUMAN's questions are not MARKED's"
    assert asked_at(state, HUMAN + MARKED, at[4]), "of both"
    assert not asked_at(state, MARKED[9:] + HUMAN, at[4])
    assert not asked_at(state, washed(HUMAN, 4), at[5])
    assert asked_at(state, OF_ANOTHER, at[1])


@pytest.mark.parametrize(("n_shared", "near"), [(10, True), (9, False)])
def test_neighbours_share_a_fifth_of_the_shorter_ones_different_runs(n_shared, near):
    state, of_first = Public(None, LEVEL, {}), list(range(42))  # 40 runs
    asked_at(state, of_first, 0)
    other = of_first[:n_shared] + list(range(100, 142 - n_shared))
    for text in (other, other + other[-3:] * 30):
        second = not asked_at(state, text, public.level_of(1, LEVEL))
        assert second == near or text != other
    longer = list(range(200, 300)) + of_first[:n_shared] + list(range(300, 400))
    state = Public(None, LEVEL, {})
    asked_at(state, longer, 0)
    assert asked_at(state, of_first, public.level_of(1, LEVEL)) != near


@pytest.mark.parametrize("text", [[], [5], [5, 6]])
def test_a_text_without_a_run_of_three_is_a_run(text):
    state = Public(None, LEVEL, {})
    assert asked_at(state, [*range(9)], public.level_of(1, LEVEL))
    assert asked_at(state, text, public.level_of(1, LEVEL))
    assert len(public.runs(text)) == 1


def test_the_same_text_gets_the_same_answer_also_from_a_file(tmp_path):
    file, rng = tmp_path / "state", np.random.default_rng(1)
    texts = [exchanged(HUMAN, rng) for _ in range(5)]
    p_values = [0.5, 0.001, 0.5, public.level_of(3, LEVEL), 0.5]
    for _ in range(3):
        state = Public(file, LEVEL, {"key": "a"})
        found = [asked(state, ids, p) for ids, p in zip(texts, p_values, strict=True)]
        assert found == [False, True, False, False, False]
        p_values = p_values[::-1]
        state.close()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_state_of_something_else_is_refused(tmp_path):
    file = tmp_path / "state"
    Public(file, LEVEL, {"key": "a"}).close()
    before = file.read_bytes()
    with pytest.raises(KeyMismatchError, match=r"level: the state has 0\.05"):
        Public(file, 0.01, {"key": "a"})
    with pytest.raises(KeyMismatchError, match="key"):
        Public(file, LEVEL, {"key": "b"})
    assert file.read_bytes() == before
    for level in (0, 1, float("nan")):
        with pytest.raises(GaussMarkError, match="level: expected a number"):
            Public(None, level, {})
    file.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        Public(file, LEVEL, {"key": "a"})


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("PRAGMA user_version = 2", "expected .* format 1, got format 2"),
        ("PRAGMA application_id = 5", "got another file"),
        ("UPDATE about SET json = replace(json, 'sqrt', 'log')", "rule: the state has"),
    ],
)
def test_another_rule_and_a_newer_format_are_refused(tmp_path, words, why):
    file = tmp_path / "state"
    Public(file, LEVEL, {}).close()
    with sqlite3.connect(file) as connection:
        connection.execute(words)
    connection.close()
    with pytest.raises((KeyFileError, KeyMismatchError), match=why):
        Public(file, LEVEL, {})


def test_other_files_and_places_are_refused(tmp_path):
    (tmp_path / "thesis").write_text("years of work\n" * 300)
    (tmp_path / "thesis").chmod(0o600)
    for name in ("thesis", ".", "no/such"):
        with pytest.raises(KeyFileError, match="expected"):
            Public(tmp_path / name, LEVEL, {})
    assert (tmp_path / "thesis").read_text().startswith("years of work\n")


def test_two_processes_do_not_have_one_state(tmp_path):
    file = tmp_path / "state"
    Public(file, LEVEL, {}).close()
    state = Public(file, LEVEL, {})
    words = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0)"
    words += ".execute('SELECT * FROM about')"
    other = [sys.executable, "-c", words, str(file)]
    for _ in range(2):
        with pytest.raises(KeyFileError, match="no other process"):
            Public(file, LEVEL, {})
        assert "database is locked" in subprocess.run(other, capture_output=True, text=True).stderr
        asked(state, HUMAN, 1)
    state.close()
    assert subprocess.run(other).returncode == 0


def letters(n: int, n_shared: int = 12) -> list[list[int]]:
    """Texts that share their first tokens with HUMAN, and nothing else."""
    rest = np.arange(10 * N, 10 * N + n * (N - n_shared)).reshape(n, -1)
    return [HUMAN[:n_shared] + of_letter for of_letter in rest.tolist()]


def test_letters_of_one_template_are_first_queries_once_it_is_registered():
    texts = letters(60)
    at = [public.level_of(j, LEVEL) for j in range(1, 61)]
    assert public.levels(texts, LEVEL).tolist() == at, "one neighbourhood"
    assert (public.levels(texts, LEVEL, [HUMAN[:12]]) == at[0]).all()
    copies = [washed(texts[0], i) for i in range(4)]
    after = public.levels([*texts, *copies], LEVEL, [HUMAN[:12]])
    assert after[-4:].tolist() == at[1:5], "copies of one letter are still neighbours"


def test_a_text_that_is_mostly_boilerplate_counts_with_all_its_runs():
    texts = [HUMAN, *(washed(HUMAN, i) for i in range(4))]
    at = [public.level_of(j, LEVEL) for j in range(1, 6)]
    assert public.levels(texts, LEVEL, [HUMAN]).tolist() == at
    # of 38 runs, 19 or 18 are not registered
    for n_shared, is_first in ((21, True), (22, False)):
        second = public.levels(letters(2, n_shared), LEVEL, [HUMAN[:n_shared]])[1]
        assert (second == at[0]) == is_first


@pytest.mark.parametrize("asker", ASKERS)
def test_with_boilerplate_the_first_yes_of_a_neighbourhood_keeps_its_level(asker):
    """Also if a part of the framed text was registered, and after honest letters."""
    rng = np.random.default_rng(3)
    texts = [ASKERS[asker](i, rng) for i in range(16)]
    p = norm.sf(KEYS @ np.stack([unit(ids) for ids in texts]).T)
    levels = public.levels(texts, LEVEL, [HUMAN[:12]])
    n_first = (levels == public.level_of(1, LEVEL)).sum()  # at least one per neighbourhood
    assert below((p <= levels).any(1), LEVEL * n_first)
    assert (levels <= public.level_of(1, LEVEL)).all()
    assert below(p[:, -1] <= levels[-1], public.level_of(1, LEVEL))


def test_boilerplate_is_kept_in_the_file_and_closed_with_the_first_query(tmp_path):
    file = tmp_path / "state"
    state = Public(file, LEVEL, {})
    state.register(public.runs(HUMAN[:12]))
    state.register(public.runs(HUMAN[:12]))
    state.close()
    state = Public(file, LEVEL, {})
    for ids in letters(2):
        assert asked_at(state, ids, public.level_of(1, LEVEL))
    with pytest.raises(GaussMarkError, match="before the first query, got it after 2 queries"):
        state.register(public.runs(MARKED))
    state.close()
