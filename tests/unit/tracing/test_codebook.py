"""A codebook's keys against base noises added up one by one: they work wherever a key does, are the
same in every process, grow without changing, and show or save no secret.
"""

import math
import pickle

import numpy as np
import pytest
from scipy import stats
from secrecy import assert_not_shown, leaks

from gaussmark_lib import evidence, generate, perturb, score
from gaussmark_lib.beyond import schemes
from gaussmark_lib.beyond.tracing import Codebook, attribution
from gaussmark_lib.errors import GaussMarkError, KeyFileError
from gaussmark_lib.perturb import Key, Watermark

X = [[5, 6, 7], [8]]


@pytest.fixture
def book(key) -> Codebook:
    return Codebook(key, n_users=1000, n_base=4)


def test_the_same_in_every_process_and_year(book):
    """Golden: a changed stream would lose every user's texts."""
    golden = [-0.21899518252318, 0.28272214901166, 0.27009469349072, 0.89395646037042]
    assert book.code(0).tolist() == pytest.approx(golden, rel=1e-12)
    golden = [2.77322621404866, 0.57933862568196, -0.66190611829871]
    assert book.base(3, 3).tolist() == pytest.approx(golden, rel=1e-12)
    golden = [0.82151553372333, 1.10043219500362, -1.11729608643152]
    assert book.key(999).normals(3).tolist() == pytest.approx(golden, rel=1e-12)
    assert book.key(999).key_id == "7e9d2e4a"


def test_more_users_change_nothing_for_those_there_are(key, book):
    larger = Codebook(key, n_users=100_000, n_base=4)
    for user in (0, 255, 256, 999):
        assert larger.code(user).tolist() == book.code(user).tolist()
        assert larger.key(user) == book.key(user)
    starts, codes = zip(*book.codes(), strict=True)
    assert starts == (0, 256, 512, 768)
    assert np.array_equal(np.concatenate(codes), [book.code(user) for user in range(1000)])


def test_a_users_noise_is_the_coded_sum_of_the_base_noises(model, wm, book):
    d = wm.on(model).linear.parameter.numel()
    for user in (0, 7, 39):
        code = book.code(user)
        assert math.isclose(math.fsum(c * c for c in code), 1, rel_tol=1e-14)
        by_hand = sum(c * book.base(j, d) for j, c in enumerate(code)) * wm.sigma
        noise = perturb.noise(model, wm, book.key(user)).flatten()
        np.testing.assert_allclose(noise, by_hand, rtol=1e-6, atol=1e-8)


def test_base_noises_and_codes_are_independent_normal_numbers(key):
    book = Codebook(key, 4000, 5)
    bases = np.stack([book.base(j, 20_000) for j in range(book.n_base)])
    assert stats.kstest(bases.ravel(), "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(bases) - np.eye(5)).max() < 5 / math.sqrt(20_000)
    codes = np.concatenate([codes for _, codes in book.codes()])
    assert np.abs(5 * codes.T @ codes / 4000 - np.eye(5)).max() < 5 * math.sqrt(2 / 4000)
    # uniform on the sphere: so is the tail of a coordinate
    assert stats.kstest(attribution.cosine_tail(codes[:, 0], 5), "uniform").pvalue > 1e-3


def test_a_users_key_works_wherever_a_key_does(model, wm, book):
    user = book.key(17)
    with perturb.watermarked(model, wm, user):
        marked = generate.sample(model, X, 6, seed=1)
    assert generate.sample(model, X, 6, seed=1, marks=[(wm, user)] * 2) == marked
    alone = score.score(model, X, marked, wm, [user, book.key(18)])
    assert alone["key_id"].tolist() == [user.key_id, book.key(18).key_id] * 2
    of_tokens = evidence.per_token(model, X[0], marked[0], wm, user)["evidence"]
    assert of_tokens.sum() == pytest.approx(alone["psi"][0], rel=1e-3)
    for scheme in schemes.named(Watermark(wm.weight, wm.sigma, rank_dropped=2), user).values():
        assert scheme.key.key_id == user.key_id
    assert pickle.loads(pickle.dumps(user)).normals(3).tolist() == user.normals(3).tolist()


def test_a_users_key_is_not_saved(tmp_path, book):
    with pytest.raises(KeyFileError, match="contains the master secret") as error:
        book.key(5).save(tmp_path / "key.json")
    assert_not_shown(error.value, book.master)
    assert list(tmp_path.iterdir()) == []


def test_a_saved_codebook_holds_no_secret_and_is_the_same_again(tmp_path, key, book):
    path = book.save(tmp_path / "book.json")
    assert leaks(path.read_text(), key.secret) == []
    again = Codebook.load(path, key)
    assert (again.n_users, again.n_base, again.key(7)) == (1000, 4, book.key(7))
    with pytest.raises(KeyFileError, match="cannot write"):
        book.save(path)
    with pytest.raises(KeyFileError, match=f"of key {Key.from_seed(8).key_id}"):
        Codebook.load(path, Key.from_seed(8))


def test_no_printed_form_shows_the_secret(model, wm, key, book):
    shown = f"{book} {book!r} {[book.key(3)]} {book.key(3)} {perturb.bind(model, wm, book.key(3))}"
    assert leaks(shown, key.secret) == leaks(shown, book.key(3).secret) == []
    assert book.key(3).key_id in shown
    with pytest.raises(GaussMarkError) as error:
        book.key(1000)
    assert_not_shown(error.value, key)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("user", [-1, 1000, 1.5, "3"])
def test_a_user_outside_the_codebook(book, user):
    expected = "user: expected a whole number from 0 to 999, got "
    with pytest.raises(GaussMarkError, match=expected + (str(user) if type(user) is int else "a")):
        book.key(user)
