"""A codebook's keys: they work wherever a key does, are the same in every process, grow without
changing, and show or save no secret.
"""

import hashlib
import pickle

import numpy as np
import pytest
from secrecy import assert_not_shown, forms

from gaussmark_lib import evidence, generate, generate_many, perturb, schemes, score, tracing
from gaussmark_lib.errors import CodebookError, InvalidTextError, KeyFileError, KeyMismatchError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tracing import Codebook, attribution

X, Y = [[5, 6, 7], [8]], [[9, 10, 11, 12, 13, 14], [15, 16, 17, 18]]


@pytest.fixture
def book(key) -> Codebook:
    return Codebook(key, n_users=1000, n_base=4)


def test_the_same_in_every_process_and_year(book):
    """Golden: a changed stream would lose every user's texts."""
    numbers = np.concatenate(
        [book.code(0), book.code(999), book.base(3, 5), book.key(999).normals(5)]
    )
    assert hashlib.sha256(numbers.tobytes()).hexdigest()[:16] == "35c876a803798f90"
    assert book.key(999).key_id == "7e9d2e4a"


def test_more_users_change_nothing_for_those_there_are(key, book):
    larger = Codebook(key, n_users=100_000, n_base=4)
    for user in (0, 255, 256, 999):
        assert larger.code(user).tolist() == book.code(user).tolist()
        assert larger.key(user) == book.key(user)
    assert [first for first, _ in book.codes()] == [0, 256, 512, 768]
    assert np.concatenate([codes for _, codes in book.codes()]).tolist() == [
        book.code(user).tolist() for user in range(1000)
    ]


def test_users_differ_and_so_do_other_codebooks(key, book):
    ids = {book.key(user).key_id for user in range(1000)} | {
        Codebook(key, 1000, 5).key(0).key_id,
        Codebook(Key.from_seed(9), 1000, 4).key(0).key_id,
    }
    assert len(ids) == 1002
    assert book.key(1) != book.key(2)
    assert book.key(1) == book.key(1)
    assert key.key_id not in ids


def test_a_users_key_works_wherever_a_key_does(model, wm, book):
    user = book.key(17)
    with perturb.watermarked(model, wm, user):
        marked = generate.sample(model, X, 6, seed=1)
    assert generate_many.sample(model, X, [(wm, user)], 6, seed=1) == [marked]
    alone = score.score(model, X, marked, wm, [user, book.key(18)])
    assert alone["key_id"].tolist() == [user.key_id, book.key(18).key_id] * 2
    assert evidence.per_token(model, X[0], marked[0], wm, user)["evidence"].sum() == pytest.approx(
        alone["psi"][0], rel=1e-3
    )
    for scheme in schemes.named(Watermark(wm.weight, wm.sigma, rank_dropped=2), user).values():
        assert scheme.key.key_id == user.key_id
    assert pickle.loads(pickle.dumps(user)).normals(3).tolist() == user.normals(3).tolist()


def test_of_a_bound_master_key_the_users_are_bound_too(model, wm, key):
    book = Codebook(perturb.bind(model, wm, key), 10, 4)
    assert book.key(3).watermark == wm
    perturb.noise(model, wm, book.key(3))
    tracing.attribute(model, X, Y, wm, book)
    wrong = Watermark(wm.weight, 2 * wm.sigma)
    for use in (
        lambda: perturb.noise(model, wrong, book.key(3)),
        lambda: tracing.attribute(model, X, Y, wrong, book),
    ):
        with pytest.raises(KeyMismatchError, match="sigma"):
            use()


def test_a_users_key_is_not_saved(tmp_path, book):
    with pytest.raises(KeyFileError, match="contains the master secret") as error:
        book.key(5).save(tmp_path / "key.json")
    assert_not_shown(error.value, book.master)
    assert list(tmp_path.iterdir()) == []


def test_a_saved_codebook_holds_no_secret_and_is_the_same_again(tmp_path, key, book):
    path = book.save(tmp_path / "book.json")
    assert not any(form in path.read_text() for form in forms(key))
    again = Codebook.load(path, key)
    assert (again.n_users, again.n_base, again.key(7)) == (1000, 4, book.key(7))
    with pytest.raises(CodebookError, match="cannot write"):
        book.save(path)
    with pytest.raises(CodebookError, match=f"of key {Key.from_seed(8).key_id}"):
        Codebook.load(path, Key.from_seed(8))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": "gaussmark codebook 1"}',
        '{"n_users": 0, "n_base": 4, "format": "", "key_id": ""}',
    ],
)
def test_a_file_that_is_no_codebook(tmp_path, key, content):
    (tmp_path / "book.json").write_text(content)
    with pytest.raises(CodebookError, match="expected"):
        Codebook.load(tmp_path / "book.json", key)
    with pytest.raises(CodebookError, match="cannot read"):
        Codebook.load(tmp_path / "none.json", key)


def test_no_printed_form_shows_the_secret(model, wm, key, book):
    shown = f"{book} {book!r} {[book.key(3)]} {book.key(3)} {perturb.bind(model, wm, book.key(3))}"
    assert not any(form in shown for form in (*forms(key), *forms(book.key(3))))
    assert book.key(3).key_id in shown
    with pytest.raises(CodebookError) as error:
        book.key(1000)
    assert_not_shown(error.value, key)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("user", [-1, 1000, 1.5, "3"])
def test_a_user_outside_the_codebook(book, user):
    with pytest.raises(CodebookError, match="expected a whole number from 0 to 999"):
        book.key(user)


@pytest.mark.usefixtures("wrong_types")
def test_what_is_no_codebook_is_refused(model, wm, key, book):
    for arguments in (
        (key, 0, 4),
        (key, 10, 1),
        (key, 1.5, 4),
        (key, 10, None),
        ("key", 10, 4),
        (book.key(0), 10, 4),
    ):
        with pytest.raises(CodebookError, match="expected"):
            Codebook(*arguments)
    with pytest.raises(CodebookError, match="expected a Codebook"):
        tracing.attribute(model, X, Y, wm, key)


def test_memory_does_not_decide_the_answer(model, wm, book, monkeypatch):
    """Texts are held in batches, base noises pass a few at a time: the same table for every size of
    both.
    """
    whole = tracing.attribute(model, X * 3, Y * 3, wm, book)
    monkeypatch.setattr(attribution, "HELD", 1)
    monkeypatch.setattr(attribution, "AT_ONCE", 3)
    single = tracing.attribute(model, X * 3, Y * 3, wm, book)
    assert single[["text", "user", "n_tokens"]].equals(whole[["text", "user", "n_tokens"]])
    assert single["psi"].tolist() == pytest.approx(whole["psi"].tolist(), rel=1e-5)


def test_lengths_and_a_single_user(model, wm, key):
    table = tracing.attribute(model, X, Y, wm, Codebook(key, 1, 4), lengths=[2, 4, 6])
    assert table["n_tokens"].tolist() == [2, 4, 6, 2, 4]
    assert table["runner_up"].isna().all()
    assert table["user"].tolist() == [0] * 5
    with pytest.raises(InvalidTextError, match="together=True"):
        tracing.attribute(model, X, Y, wm, Codebook(key, 1, 4), together=True, lengths=[2])
