"""The playground's session: what it computes is what the library computes, and the model is the
base model after whatever happens.
"""

import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import tiny_lm
import torch
from scipy.stats import norm

from gaussmark_lib import corrupt, errors, generate, joint, models, perturb, score, stats
from gaussmark_lib.experiments import asked, playground
from gaussmark_lib.experiments.played import EDIT_SEED, EDITS
from gaussmark_lib.experiments.playground import (
    PLAIN,
    THIS_KEY,
    WATERMARKED,
    WRONG_KEY,
    Question,
    Session,
    StoppedError,
)
from gaussmark_lib.perturb import Key, Watermark

WEIGHT = tiny_lm.WEIGHT
ASKED = Question("The function", WEIGHT, psi=2.0, n_tokens=12, n_samples=2, seed=5)


@pytest.fixture
def session() -> Session:
    return Session(tiny_lm.build(), tiny_lm.PROMPTS, Key.from_seed(2), n_reference=3)


def theta(session: Session) -> torch.Tensor:
    return models.linear(session.lm.model, WEIGHT).value().clone()


def test_sigma_is_solved_from_texts_without_watermark(session: Session):
    prompts = [session.lm.prompt(prompt) for prompt in tiny_lm.PROMPTS[:3]]
    responses = generate.sample(session.lm.model, prompts, 12)
    norms = [
        found.norm
        for found in score.gradients(session.lm.model, prompts, responses, Watermark(WEIGHT, 1.0))
    ]
    assert not session.knows(WEIGHT, 12)
    assert session.sigma(WEIGHT, 12, psi=2.0) == pytest.approx(
        stats.sigma_for_psi(norms, 2.0), rel=1e-6
    )
    assert session.knows(WEIGHT, 12)
    assert not session.knows(WEIGHT, 13)


def test_sigma_is_measured_once(session: Session, monkeypatch: pytest.MonkeyPatch):
    first = session.sigma(WEIGHT, 12, psi=2.0)
    monkeypatch.setattr(generate, "sample", lambda *_, **__: pytest.fail("measured again"))
    assert session.sigma(WEIGHT, 12, psi=6.0) == pytest.approx(3 * first)
    assert session.sigma(tiny_lm.WEIGHT.replace("down", "up"), 12, psi=2.0) != first, (
        "another weight, the same texts"
    )


def test_what_is_known_is_answered_while_another_thread_works(session: Session):
    session.sigma(WEIGHT, 12, psi=2.0)
    working, done = threading.Event(), threading.Event()

    def work() -> None:
        with session.alone:
            working.set()
            done.wait(60)

    other = threading.Thread(target=work)
    other.start()
    working.wait(60)
    try:
        assert session.sigma(WEIGHT, 12, psi=2.0) > 0
    finally:
        done.set()
        other.join()


def test_sessions_on_one_model_take_turns(session: Session):
    beside, elsewhere = (
        Session(session.lm, tiny_lm.PROMPTS),
        Session(tiny_lm.build(), tiny_lm.PROMPTS),
    )
    assert beside.alone is session.alone
    assert elsewhere.alone is not session.alone


def test_compare_is_the_library_in_a_row(session: Session):
    key = Key.from_seed(1)
    result = session.compare(ASKED, key)
    prompts = [session.lm.prompt(ASKED.prompt)] * 2
    wm = Watermark(WEIGHT, session.sigma(WEIGHT, 12, 2.0))
    plain = generate.sample(session.lm.model, prompts, 12, seed=5)
    with perturb.watermarked(session.lm.model, wm, key):
        marked = generate.sample(session.lm.model, prompts, 12, seed=5)
    assert plain != marked
    wanted = score.score(
        session.lm.model, 2 * prompts, plain + marked, wm, [key, session.wrong_key]
    )

    assert result.wm == wm
    assert result.key_id == key.key_id
    np.testing.assert_allclose(result.scores["psi"], wanted["psi"], rtol=0, atol=2e-5)
    assert result.scores["kind"].tolist() == [PLAIN] * 4 + [WATERMARKED] * 4
    assert result.scores["key"].tolist() == [THIS_KEY, WRONG_KEY] * 4
    assert result.scores["sample"].tolist() == [0, 0, 1, 1] * 2
    assert result.text(WATERMARKED, 1) == session.lm.decode(marked[1])
    assert result.text(PLAIN) == session.lm.decode(plain[0])
    assert result.predicted == pytest.approx(
        wm.sigma * wanted["grad_norm"].iloc[[0, 2]].median(), rel=1e-5
    )


def test_evidence_adds_up_to_each_text_s_psi(session: Session):
    result = session.compare(ASKED, Key.from_seed(1))
    for (kind, sample), pieces in result.pieces.groupby(["kind", "sample"]):
        assert pieces["evidence"].sum() == pytest.approx(
            result.score(kind, THIS_KEY, sample)["psi"], abs=1e-4
        )
        assert pieces["n_tokens"].sum() == 12


def test_same_luck(session: Session):
    """Without noise to speak of, plain and watermarked text are the same; with much of it they are
    not.
    """
    faint = session.compare(
        Question("The function", WEIGHT, psi=1e-4, n_tokens=12), Key.from_seed(1)
    )
    loud = session.compare(Question("The function", WEIGHT, psi=8.0, n_tokens=12), Key.from_seed(1))
    assert (
        faint.text(PLAIN) == faint.text(WATERMARKED) == loud.text(PLAIN) != loud.text(WATERMARKED)
    )


def test_the_wrong_key_is_never_the_right_one(session: Session):
    result = session.compare(ASKED, session.wrong_key)
    assert result.scores.groupby("key")["key_id"].nunique().tolist() == [1, 1]
    assert result.scores["key_id"].nunique() == 2


def test_any_text_is_tested_with_and_without_its_prompt(session: Session):
    key, text, before = Key.from_seed(1), " returns a value.", "The function"
    known, unknown = session.test(text, WEIGHT, key, before), session.test(text, WEIGHT, key)
    ids = session.lm.encode(text)
    for verdict, prompt in ((known, session.lm.prompt(before)), (unknown, [])):
        wanted = score.score(
            session.lm.model, [prompt], [ids], Watermark(WEIGHT, 0.37), [key, session.wrong_key]
        )
        np.testing.assert_allclose(
            verdict.scores["psi"], wanted["psi"], rtol=0, atol=2e-5, err_msg="σ cancels"
        )
        assert verdict.scores["key"].tolist() == [THIS_KEY, WRONG_KEY]
        assert "".join(verdict.pieces["text"]) == text
    assert known.scores["psi"][0] != unknown.scores["psi"][0]


def test_a_question_s_verdict_knows_the_power_at_its_sigma(session: Session):
    """Φ(σ‖G‖ − τ) by hand, and as ``gaussmark detect`` says it; p is that of the test alone."""
    key, text, shares = Key.from_seed(1), " returns a value.", []
    verdict = session.ask(
        text, ASKED, key, "The function", lambda what, share: shares.append(share)
    )
    [found] = score.gradients(
        session.lm.model,
        [session.lm.prompt("The function")],
        [session.lm.encode(text)],
        Watermark(WEIGHT, 1.0),
    )
    assert verdict.sigma == session.sigma(WEIGHT, ASKED.n_tokens, ASKED.psi)
    assert verdict.power(0.05) == pytest.approx(
        norm.cdf(verdict.sigma * found.norm - norm.isf(0.05)), rel=1e-4
    )
    assert verdict.power(0.5) > verdict.power(0.05)
    pd.testing.assert_frame_equal(
        verdict.scores, session.test(text, WEIGHT, key, "The function").scores
    )
    assert shares == sorted(shares)
    with pytest.raises(errors.InvalidWatermarkError, match="with its σ"):
        session.test(text, WEIGHT, key).power(0.05)


TEXTS = [
    (" returns a value.", "The function"),
    (" returns a list.", ""),
    (" returns a value.", "A list of"),
    (" values", "The"),
    (" returns a list.", ""),
]


def answers(session: Session, key: Key, weight: str = WEIGHT, texts=TEXTS) -> list:
    """What is given after each text, at a σ that changes from text to text."""
    return [
        session.ask(text, replace(ASKED, weight=weight, psi=1.0 + i), key, before).given
        for i, (text, before) in enumerate(texts)
    ]


def test_texts_tested_one_after_another_are_a_sequence(session: Session):
    """The same as ``joint.sequence`` by hand, another key or weight in between or not."""
    key, other = Key.from_seed(1), WEIGHT.replace("down", "up")
    found = answers(session, key, texts=TEXTS[:2])
    assert (
        answers(session, Key.from_seed(7))[0].n_before
        == answers(session, key, other)[0].n_before
        == 0
    )
    found += answers(session, key, texts=TEXTS[2:])
    lm = session.lm
    prompts, responses = (
        [lm.prompt(before) if before else [] for _, before in TEXTS],
        [lm.encode(text) for text, _ in TEXTS],
    )
    wanted = joint.sequence(lm.model, prompts, responses, Watermark(WEIGHT, 0.37), [key])
    assert [given.repeats for given in found] == wanted["repeats"].tolist() == [-1, -1, 0, -1, 1]
    np.testing.assert_allclose([given.p_value for given in found], wanted["p_given"], rtol=1e-3)
    np.testing.assert_allclose(
        [given.innovation for given in found], wanted["innovation"], atol=1e-3
    )
    assert [given.n_before for given in found] == [0, 1, 2, 3, 4]
    alone = session.test(*TEXTS[3][:1], WEIGHT, key, "The").scores["p_value"][0]
    assert found[3].p_value != pytest.approx(alone, rel=0.01), "what was known is taken off"


def test_a_stopped_test_is_not_counted(session: Session):
    def stop(what: str, share: float) -> None:
        if what == "looking at each token":
            raise StoppedError

    with pytest.raises(StoppedError):
        session.ask("some words", ASKED, Key.from_seed(1), "", stop)
    assert session.ask("some words", ASKED, Key.from_seed(1)).given.n_before == 0


def test_a_memory_is_bounded(session: Session):
    """Where there is no room for a text, what was asked before is forgotten."""
    d = theta(session).numel()
    session._asked = asked.Asked(budget=asked.MOST * 4 * d * 2)  # of two texts
    found = answers(
        session, Key.from_seed(1), texts=[("one", ""), ("other words", ""), ("a third", "")]
    )
    assert [given.n_before for given in found] == [0, 1, 0]


def test_the_key_used_longest_ago_is_forgotten(session: Session):
    def n_before(seed: int) -> int:
        [given] = answers(session, Key.from_seed(seed), texts=[("one", "")])
        return given.n_before

    assert [n_before(seed) for seed in range(asked.MOST)] == [0] * asked.MOST
    assert [n_before(0), n_before(asked.MOST)] == [1, 0]
    assert [n_before(0), n_before(1)] == [2, 0]
    assert len(session._asked._states) == asked.MOST


@pytest.mark.parametrize("how", EDITS)
def test_an_edited_text_is_corrupted_and_tested_by_the_library(session: Session, how: str):
    key, text, before = Key.from_seed(1), " returns a value and a list.", "The function"
    verdict = session.ask(text, ASKED, key, before)
    edited = session.edited(verdict, how, 0.3, key)
    prompts, responses = [session.lm.prompt(before)], [session.lm.encode(text)]
    _, changed = corrupt.named(session.lm)[how](prompts, responses, 0.3, EDIT_SEED)
    assert changed != responses
    wanted = score.score(
        session.lm.model, prompts, changed, Watermark(WEIGHT, 1.0), [key, session.wrong_key]
    )
    np.testing.assert_allclose(edited.after.scores["psi"], wanted["psi"], rtol=1e-4, atol=1e-5)
    assert edited.after.text == session.lm.decode(changed[0])
    assert (edited.before, edited.how, edited.share) == (verdict, how, 0.3)
    assert session.ask("other", ASKED, key).given.n_before == 1, (
        "an edited text is not one that was asked about"
    )


def test_no_edit_changes_nothing_and_bad_ones_are_refused(session: Session):
    key = Key.from_seed(1)
    verdict = session.test("some words " * 8, WEIGHT, key)  # in windows
    same = session.edited(verdict, EDITS[0], 0.0, key).after
    pd.testing.assert_frame_equal(same.scores, verdict.scores)
    for how, share in (("turn", 0.1), (EDITS[0], 1.5)):
        with pytest.raises(errors.CorruptionError, match="expected"):
            session.edited(verdict, how, share, key)


def test_one_token_is_tested(session: Session):
    verdict = session.test("x", WEIGHT, Key.from_seed(1))
    assert verdict.scores["n_tokens"].tolist() == [1, 1]
    assert verdict.scores["p_value"].between(0, 1).all()


def test_a_long_text_is_tested_in_windows_as_one(session: Session):
    """The same as adding up the windows' gradients one by one, by hand."""
    key, text = Key.from_seed(1), "".join(chr(33 + 7 * i % 90) for i in range(140))
    said = []
    verdict = session.test(
        text, WEIGHT, key, "The function", lambda what, share: said.append(share)
    )
    ids, before = session.lm.encode(text), session.lm.prompt("The function")
    cuts = [0, 64 - len(before), 2 * 64 - len(before) - 16, 140]
    whole = before + ids
    total = 0
    for start, end in pairwise(cuts):
        context = whole[: start + len(before)][-16:] if start else before
        [found] = score.gradients(
            session.lm.model, [context], [ids[start:end]], Watermark(WEIGHT, 1.0)
        )
        total = total + found.G.double()
    xi = perturb.noise(session.lm.model, Watermark(WEIGHT, 1.0), key).double()
    assert verdict.n_windows == 3
    assert verdict.scores["n_tokens"].tolist() == [140, 140]
    assert verdict.scores["psi"][0] == pytest.approx(
        ((xi * total).sum() / total.norm()).item(), abs=1e-4
    )
    assert verdict.pieces["evidence"].sum() == pytest.approx(verdict.scores["psi"][0], abs=1e-3)
    assert "".join(verdict.pieces["text"]) == text
    assert said == sorted(said)


def test_a_verdict_says_what_it_is_of(session: Session):
    verdict = session.test("x y", WEIGHT, Key.from_seed(1), "The")
    assert (verdict.text, verdict.prompt, verdict.weight, verdict.key_id) == (
        "x y",
        "The",
        WEIGHT,
        Key.from_seed(1).key_id,
    )
    assert verdict.n_windows == 1


def test_end_tokens_are_hidden(session: Session, monkeypatch: pytest.MonkeyPatch):
    end = session.lm.tokenizer.eos_token_id
    monkeypatch.setattr(
        generate,
        "sample",
        lambda model, prompts, n, **_: [[*session.lm.encode("value"), end]] * len(prompts),
    )
    result = session.compare(Question("The function", WEIGHT, n_tokens=6), Key.from_seed(1))
    assert result.text(WATERMARKED) == "value"
    assert result.pieces.query("kind == 'watermarked'")["evidence"].sum() == pytest.approx(
        result.score(WATERMARKED, THIS_KEY)["psi"], abs=1e-4
    )


def steps(session: Session) -> list[str]:
    """What a comparison reports, in order."""
    said = []
    session.compare(ASKED, Key.from_seed(1), lambda what, share: said.append(what))
    return said


def test_progress_goes_from_nothing_to_all(session: Session):
    said = []
    session.compare(ASKED, Key.from_seed(1), lambda what, share: said.append((what, share)))
    assert all(0 <= share <= 1 for _, share in said)
    shares = [share for _, share in said]
    assert shares == sorted(shares), "one bar for the whole action"
    assert list(dict.fromkeys(what for what, _ in said)) == [
        "writing reference texts",
        "measuring gradients",
        "writing plain text",
        "writing watermarked text",
        "testing",
        "looking at each token",
    ]
    assert shares[-1] > 0.9


@pytest.mark.parametrize("at", range(0, 50, 7))
def test_stopped_anywhere_the_model_is_the_base_model(session: Session, at: int):
    before, n = theta(session), len(steps(Session(session.lm, tiny_lm.PROMPTS, n_reference=3)))
    assert n == 3 * 12 + 3 + 1 + 4, (
        "reference, plain and watermarked steps; gradients, one test, evidence"
    )
    left = [at]

    def stop(what: str, share: float) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StoppedError

    if at < n:
        with pytest.raises(StoppedError):
            session.compare(ASKED, Key.from_seed(1), stop)
    else:
        session.compare(ASKED, Key.from_seed(1), stop)
    assert torch.equal(theta(session), before)
    perturb.refuse_perturbed(session.lm.model)
    assert session.compare(ASKED, Key.from_seed(1)).wm.sigma > 0, "and it still works"


def test_a_stopped_measurement_is_not_kept(session: Session):
    def stop(what: str, share: float) -> None:
        if what == "measuring gradients" and share > 0.5:
            raise StoppedError

    with pytest.raises(StoppedError):
        session.sigma(WEIGHT, 12, 2.0, stop)
    assert not session.knows(WEIGHT, 12)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"psi": 0.0}, errors.InvalidWatermarkError),
        ({"psi": float("nan")}, errors.InvalidWatermarkError),
        ({"n_tokens": 0}, errors.InvalidTextError),
        ({"n_samples": 0}, errors.InvalidTextError),
        ({"prompt": " \n"}, errors.InvalidTextError),
        ({"prompt": "x" * 60}, errors.InvalidTextError),
        ({"weight": "model.layers.9.mlp.down_proj.weight"}, errors.UnknownWeightError),
    ],
)
def test_bad_questions(session: Session, change: dict, error: type[Exception]):
    with pytest.raises(error, match=r"expected|no weight"):
        session.compare(
            Question(**{"prompt": "The function", "weight": WEIGHT, "n_tokens": 12} | change),
            Key.from_seed(1),
        )
    perturb.refuse_perturbed(session.lm.model)


@pytest.mark.parametrize(("text", "prompt"), [("", ""), ("  ", "The"), ("x", "y" * 64)])
def test_bad_texts(session: Session, text: str, prompt: str):
    with pytest.raises(errors.InvalidTextError, match="expected"):
        session.test(text, WEIGHT, Key.from_seed(1), prompt)


@pytest.mark.parametrize("prompts", [[], ["The", " "]])
def test_a_session_needs_prompts(prompts: list[str]):
    with pytest.raises(errors.InvalidTextError, match="at least one prompt"):
        Session(tiny_lm.build(), prompts)


def test_weights_offered():
    llama = tiny_lm.build().model
    assert playground.mlp_weights(llama)[:2] == [
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    ]
    assert len(playground.mlp_weights(llama)) == 9


def test_prompts_are_beginnings_cut_after_a_word():
    prompts = playground.heldout_prompts(5, n_chars=80)
    assert len(set(prompts)) == 5
    for prompt in prompts:
        assert 0 < len(prompt) < 80
        assert prompt == prompt.strip()


def test_on_the_embedded_model_only_the_right_key_sees_the_watermark():
    """ψ of a group's mean over 8 texts is normal with standard deviation 1/√8; each bound below is
    over four of them away from what is expected.
    """
    session = Session(models.load("doclm"), playground.heldout_prompts(8), Key.from_seed(2))
    question = Question(
        session.prompts[0], "model.layers.4.mlp.down_proj.weight", psi=5.0, n_tokens=40, n_samples=8
    )
    result = session.compare(question, Key.from_seed(1))
    psi = result.scores.groupby(["kind", "key"])["psi"].mean()
    assert psi[WATERMARKED, THIS_KEY] > 2.0
    assert psi.drop((WATERMARKED, THIS_KEY)).abs().max() < 1.5
    assert result.predicted == pytest.approx(5.0, rel=0.35), "other texts of the same model"
