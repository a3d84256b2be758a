"""Writing that is watched: the text is the one written unwatched, the curve is the library's ψ of
its beginnings, and θ is back after anything.
"""

from dataclasses import replace

import numpy as np
import pytest
import tiny_lm
import torch

from gaussmark_lib import errors, generate, models, perturb, score
from gaussmark_lib.experiments import drafts
from gaussmark_lib.experiments.playground import (
    PLAIN,
    THIS_KEY,
    WATERMARKED,
    WRONG_KEY,
    Question,
    Session,
    StoppedError,
)
from gaussmark_lib.perturb import Key

STATISTIC, TABLE = score.statistic, score.table
KEY = Key.from_seed(1)
ASKED = Question("The", tiny_lm.WEIGHT, psi=4.0, n_tokens=40, n_samples=2, seed=5)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(drafts, "SCORED_EVERY", 16)  # of a small context
    return Session(tiny_lm.build(), tiny_lm.PROMPTS, Key.from_seed(2), n_reference=2)


def test_the_text_is_the_one_written_unwatched(session: Session):
    watched = session.compare(ASKED, KEY, watch=lambda draft: None)
    unwatched = session.compare(ASKED, KEY)
    for kind in (PLAIN, WATERMARKED):
        assert [watched.text(kind, i) for i in range(2)] == [
            unwatched.text(kind, i) for i in range(2)
        ]
    np.testing.assert_array_equal(watched.scores["psi"], unwatched.scores["psi"])
    assert unwatched.curve.empty, "and it costs nothing"


def test_the_curve_is_the_score_of_each_beginning(session: Session):
    """As the library has it, from the finished text."""
    result, drawn = (
        session.compare(ASKED, KEY, watch=lambda draft: None),
        [session.lm.prompt(ASKED.prompt)],
    )
    plain = generate.sample(session.lm.model, 2 * drawn, 40, seed=5)
    with perturb.watermarked(session.lm.model, result.wm, KEY):
        marked = generate.sample(session.lm.model, 2 * drawn, 40, seed=5)
    for kind, texts in ((PLAIN, plain), (WATERMARKED, marked)):
        wanted = score.score(
            session.lm.model,
            drawn,
            texts[:1],
            result.wm,
            [KEY, session.wrong_key],
            lengths=[16, 32, 40],
        )
        for i, name in enumerate((THIS_KEY, WRONG_KEY)):
            found = result.curve.query(f"kind == '{kind}' and key == '{name}'")
            assert found["n_tokens"].tolist() == [16, 32, 40]
            for column in ("psi", "p_value", "grad_norm", "log_lik"):
                np.testing.assert_allclose(
                    found[column], wanted[column][i::2], rtol=1e-4, atol=2e-5, err_msg=column
                )
            assert set(found["key_id"]) == {(KEY, session.wrong_key)[i].key_id}


def test_texts_and_curve_grow_and_say_what_they_are_of(session: Session):
    seen = []
    result = session.compare(ASKED, KEY, watch=seen.append)
    assert {(draft.question, draft.wm, draft.key_id) for draft in seen} == {
        (ASKED, result.wm, KEY.key_id)
    }
    points = [len(draft.curve) for draft in seen]
    assert points == sorted(points)
    assert set(points) == {0, 2, 4, 6, 8}, "two beginnings of two kinds, under two keys"
    for kind in (PLAIN, WATERMARKED):
        texts = [draft.texts[kind] for draft in seen if kind in draft.texts]
        assert len(texts[0]) == 2
        for before, after in zip(
            texts, [*texts[1:], [result.text(kind, i) for i in range(2)]], strict=True
        ):
            assert all(long.startswith(short) for short, long in zip(before, after, strict=True))
        assert len({text[0] for text in texts}) >= 5
    assert list(seen[-1].texts) == [PLAIN, WATERMARKED]


def test_the_curve_s_control_is_the_verdict_s(session: Session):
    """Also where the key is the wrong key, whose control is drawn anew."""
    result = session.compare(
        replace(ASKED, n_tokens=30), session.wrong_key, watch=lambda draft: None
    )
    assert result.curve.groupby("key")["key_id"].nunique().tolist() == [1, 1]
    assert result.curve["key_id"].nunique() == 2


@pytest.mark.parametrize("kind", [PLAIN, WATERMARKED])
@pytest.mark.parametrize("where", ["watching", "scoring", "stepping"])
def test_whatever_ends_it_the_model_is_the_base_model(
    session: Session, monkeypatch: pytest.MonkeyPatch, kind: str, where: str
):
    theta = models.linear(session.lm.model, tiny_lm.WEIGHT).value().clone()

    def stop(now: bool) -> None:
        if now:
            raise StoppedError

    def table(*given):
        stop(hasattr(session, "begun"))
        return TABLE(*given)

    def watch(draft) -> None:
        if kind in draft.texts:
            session.begun = True
            stop(where == "watching")

    def report(what: str, share: float) -> None:
        stop(where == "stepping" and hasattr(session, "begun"))

    session.sigma(tiny_lm.WEIGHT, 40, 4.0)
    if where == "scoring":
        monkeypatch.setattr(score, "table", table)
    with pytest.raises(StoppedError):
        session.compare(ASKED, KEY, report, watch)
    monkeypatch.undo()
    assert torch.equal(models.linear(session.lm.model, tiny_lm.WEIGHT).value(), theta)
    perturb.refuse_perturbed(session.lm.model)


def test_a_beginning_without_evidence_is_left_out(
    session: Session, monkeypatch: pytest.MonkeyPatch
):
    def statistic(found, *given):
        if found.n_tokens < 40:
            raise errors.DegenerateScoreError("no gradient")
        return STATISTIC(found, *given)

    monkeypatch.setattr(score, "statistic", statistic)
    assert (
        session.compare(ASKED, KEY, watch=lambda draft: None).curve["n_tokens"].tolist() == [40] * 4
    )


def test_beginnings_are_few():
    for n in (1, 24, 25, 26, 100, 200, 400, 4000):
        lengths = drafts.beginnings(n)
        assert len(lengths) <= drafts.MOST_SCORES
        assert all(25 <= length < n for length in lengths)
    assert drafts.beginnings(80) == [25, 50, 75]
