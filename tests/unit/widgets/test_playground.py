"""The playground's session: what it computes is what the library computes, and the model is the
base model after whatever happens.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import tiny_lm
import torch
from scipy.stats import norm

from gaussmark_experiments.widgets import playground, render
from gaussmark_experiments.widgets.playground import PLAIN, WATERMARKED, Edit, Question, Session
from gaussmark_lib import corrupt, generate, perturb, score, stats, weights
from gaussmark_lib.beyond import channel, promise
from gaussmark_lib.engine import packages
from gaussmark_lib.errors import InvalidTextError, InvalidWatermarkError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import rewrite

WEIGHT = tiny_lm.WEIGHT
ASKED = Question("The function", WEIGHT, psi=2.0, n_tokens=12, n_samples=2, seed=5)
KEY = Key.from_seed(1)
LENGTHS = [1, 2, 4, 5, 7, 8, 10, 12]  # of a text of ASKED after each piece


@pytest.fixture
def session() -> Session:
    return Session(tiny_lm.build(), tiny_lm.PROMPTS, Key.from_seed(2), n_reference=3)


def test_sigma_is_solved_once_from_texts_without_watermark(session, monkeypatch):
    model = session.lm.model
    prompts = [session.lm.prompt(prompt) for prompt in tiny_lm.PROMPTS[:3]]
    plain = generate.sample(model, prompts, 12)
    norms = [G.norm for G in score.gradients(model, prompts, plain, Watermark(WEIGHT, 1.0))]
    assert not session.knows(ASKED)
    steps: set[str] = set()
    first = session.sigma(ASKED, lambda step, _: steps.add(step))
    assert ["choose σ, once per model" in step for step in steps] == [True, True]
    assert first == pytest.approx(stats.sigma_for_psi(norms, 2.0), rel=1e-6)
    monkeypatch.setattr(generate, "sample", lambda *_, **__: pytest.fail("measured again"))
    assert session.sigma(replace(ASKED, psi=6.0)) == pytest.approx(3 * first)
    assert not session.knows(replace(ASKED, n_tokens=13))
    assert not session.knows(replace(ASKED, temperature=0.5))


def written_in_pieces(session: Session, sample: int) -> list[int]:
    """A text of ASKED, piece by piece: each piece has random numbers of its own."""
    ids: list[int] = []
    model, prompt = session.lm.model, session.lm.prompt(ASKED.prompt)
    for end in LENGTHS:
        rows = [10_000 * sample + len(ids)]
        ids += generate.sample(model, [prompt + ids], end - len(ids), seed=5, rows=rows)[0]
    return ids


def test_compare_is_the_library_in_a_row(session):
    result, model = session.compare(ASKED, KEY), session.lm.model
    prompts = [session.lm.prompt(ASKED.prompt)] * 2
    wm = Watermark(WEIGHT, session.sigma(ASKED))
    plain = [written_in_pieces(session, sample) for sample in (0, 1)]
    with perturb.watermarked(model, wm, KEY):
        marked = [written_in_pieces(session, sample) for sample in (0, 1)]
    assert plain != marked
    keys = [KEY, session.wrong_key]
    wanted = score.score(model, 2 * prompts, plain + marked, wm, keys)
    assert (result.wm, result.key_id) == (wm, KEY.key_id)
    np.testing.assert_allclose(result.scores["psi"], wanted["psi"], rtol=0, atol=2e-5)
    assert result.scores["kind"].tolist() == [PLAIN] * 4 + [WATERMARKED] * 4
    assert result.scores["key"].tolist() == [playground.THIS_KEY, playground.WRONG_KEY] * 4
    assert result.scores["sample"].tolist() == [0, 0, 1, 1] * 2
    assert result.text(WATERMARKED, 1) == session.lm.decode(marked[1])
    information = promise.table(model, prompts, marked, wm)["information"]
    mean = wm.sigma * information / wanted["grad_norm"].iloc[[4, 6]].to_numpy()
    assert result.power == pytest.approx(norm.cdf(mean - norm.isf(0.05)).mean(), rel=1e-4)
    for kind, text in ((PLAIN, plain[0]), (WATERMARKED, marked[0])):
        curve = result.curve[result.curve["kind"] == kind]
        of_text = score.score(model, prompts[:1], [text], wm, keys, lengths=LENGTHS)
        np.testing.assert_allclose(curve["psi"], of_text["psi"], rtol=0, atol=2e-5)
        assert curve["n_tokens"].tolist() == of_text["n_tokens"].tolist()
    for (kind, sample), pieces in result.pieces.groupby(["kind", "sample"]):
        row = result.tested[kind][sample].row
        assert pieces["evidence"].sum() == pytest.approx(row["psi"], abs=1e-4)
        assert "".join(pieces["text"]) == result.text(kind, sample)
        i = 4 * (kind == WATERMARKED) + 2 * sample + 1
        assert row["control_p_value"] == pytest.approx(wanted["p_value"][i], rel=1e-3)


@pytest.mark.parametrize("before", ["The function", ""])
def test_any_text_is_tested_with_and_without_its_prompt(session, before):
    """And its verdict knows the power at the question's σ: Φ(E ψ − τ) by hand."""
    text, lm = " returns a value.", session.lm
    wm = Watermark(WEIGHT, 0.37)
    asked = lm.model, [lm.prompt(before) if before else []], [lm.encode(text)], wm
    wanted = score.score(*asked, [KEY, session.wrong_key])
    result = session.test(text, ASKED, KEY, before)
    assert result.row["psi"] == pytest.approx(wanted["psi"][0], abs=2e-5), "σ cancels"
    assert result.row["control_p_value"] == pytest.approx(wanted["p_value"][1], rel=1e-3)
    [information] = promise.table(*asked, unknown_prompt=[])["information"]
    mean = session.sigma(ASKED) * information / wanted["grad_norm"][0]
    assert result.row["power"] == pytest.approx(norm.cdf(mean - norm.isf(0.05)), rel=1e-4)
    assert "".join(result.pieces["text"]) == text
    assert result.pieces["evidence"].sum() == pytest.approx(result.row["psi"], abs=1e-4)


@pytest.mark.parametrize("how", playground.EDITS)
def test_an_edited_text_is_corrupted_and_tested_by_the_library(session, how):
    lm, text, before = session.lm, " returns a value and a list.", "The function"
    result = session.test(text, ASKED, KEY, before, Edit(how, 0.3, 0.1))
    _, [ids] = corrupt.named(lm)[how]([[]], [lm.encode(text)], 0.3, playground.EDIT_SEED)
    assert result.text == lm.decode(ids) != text
    prompts, responses = [lm.prompt(before)], [lm.encode(result.text)]
    weigh, wm = channel.weights(lm.model, 0.1), Watermark(WEIGHT, 1.0)
    wanted = score.score(lm.model, prompts, responses, wm, [KEY], token_weights=weigh)
    assert result.row["psi"] == pytest.approx(wanted["psi"][0], abs=1e-5)
    unedited = session.test(text, ASKED, KEY, before)
    assert (unedited.before, result.before.text) == (None, text)
    assert result.before.row["psi"] == pytest.approx(unedited.row["psi"], abs=1e-5)
    paper = session.test(text, ASKED, KEY, before, Edit(how, 0.3))
    assert (paper.text, paper.row["psi"] != result.row["psi"]) == (result.text, True)


def test_a_long_text_is_tested_in_windows_as_one(session):
    """The same as adding up the windows' gradients one by one, by hand."""
    text, lm = "".join(chr(33 + 7 * i % 90) for i in range(140)), session.lm
    steps: list[tuple[str, float]] = []
    result = session.test(text, ASKED, KEY, "The function", report=lambda *of: steps.append(of))
    sixths = [("looking at each token", i / 6) for i in range(6)]
    assert steps[-9:] == [("testing", 0), ("testing", 1 / 3), ("testing", 2 / 3), *sixths]
    ids, before = lm.encode(text), lm.prompt("The function")
    cuts = [0, 64 - len(before), 2 * 64 - len(before) - 16, 140]
    tokens, total = before + ids, 0
    for start, end in pairwise(cuts):
        context = tokens[: start + len(before)][-16:] if start else before
        [G] = score.gradients(lm.model, [context], [ids[start:end]], Watermark(WEIGHT, 1.0))
        total = total + G.G.double()
    xi = perturb.noise(lm.model, Watermark(WEIGHT, 1.0), KEY).double()
    assert (result.row["windows"], result.row["n_tokens"]) == (3, 140)
    assert result.row["psi"] == pytest.approx(((xi * total).sum() / total.norm()).item(), abs=1e-4)
    assert result.pieces["evidence"].sum() == pytest.approx(result.row["psi"], abs=1e-3)
    assert "".join(result.pieces["text"]) == text


@pytest.mark.parametrize("at", [0, 20, 30, 50, 65, 90])
def test_stopped_anywhere_the_model_is_the_base_model(session, at):
    theta = weights.Weight(session.lm.model, WEIGHT).value().clone()
    left = [at]

    def stop(*report: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise playground.StoppedError

    try:
        session.compare(replace(ASKED, n_tokens=20), KEY, stop)
    except playground.StoppedError:
        assert at < 2 * 20 + 20
    assert torch.equal(weights.Weight(session.lm.model, WEIGHT).value(), theta)
    perturb.refuse_perturbed(session.lm.model)
    is_measured = at >= 20 + session.n_reference
    assert session.knows(replace(ASKED, n_tokens=20)) == is_measured, "or it was stopped"


def test_texts_and_psi_are_reported_while_they_grow(session):
    drafts = []

    def keep(step: str, share: float, draft: playground.Draft | None = None) -> None:
        if draft:
            psis = {kind: list(values) for kind, values in draft.psis.items()}
            drafts.append((share, dict(draft.texts), psis))

    result = session.compare(ASKED, KEY, keep)
    assert [share for share, _, _ in drafts] == pytest.approx(np.arange(12) / 12)
    for kind in (PLAIN, WATERMARKED):
        whole = result.text(kind)
        assert [texts[kind] for _, texts, _ in drafts] == [whole[:i] for i in range(12)]
        curve = result.curve.query("kind == @kind and key == 'this key'")["psi"].tolist()
        n_pieces = [sum(i >= n for n in LENGTHS) for i in range(12)]
        assert [len(psis[kind]) for _, _, psis in drafts] == n_pieces
        assert drafts[-1][2][kind] == curve[:-1]


def test_an_answer_of_a_chat_model_ends_at_its_end_token(session, monkeypatch):
    lm = session.lm
    whole = lm.encode(session.compare(ASKED, KEY).text(PLAIN))
    end = whole[5]
    monkeypatch.setattr(generate, "end_tokens", lambda _: {end})
    monkeypatch.setattr(type(lm), "is_chat", property(lambda _: True))
    monkeypatch.setattr(type(lm), "prompt", lambda lm, text: lm.tokenizer.encode(text))
    answer = session.compare(replace(ASKED, n_samples=1), KEY)
    n_before_end = whole.index(end, 1)  # the first token does not end a text
    assert answer.curve.query("kind == 'plain'")["n_tokens"].max() == n_before_end < 12
    for [text] in answer.tested.values():
        assert end not in lm.encode(text.text)[1:]


def test_the_examples_fit_the_model(session, monkeypatch):
    monkeypatch.setattr(packages, "is_installed", lambda _: False)
    assert playground.installed_models() == ["doclm"]
    beginnings = playground.example_prompts(replace(session.lm, name="doclm"), 2)
    assert (len(beginnings), max(map(len, beginnings)) <= 160) == (2, True)
    monkeypatch.setattr(type(session.lm), "is_chat", property(lambda _: True))
    assert playground.example_prompts(session.lm) == list(playground.INSTRUCTIONS)
    with pytest.raises(InvalidTextError, match="expected an instruction, got an empty text"):
        session.compare(replace(ASKED, prompt=" "), KEY)


def test_a_round_trip_is_an_edit(session, monkeypatch):
    changes = {playground.ROUND_TRIP: lambda x, ys, *_: (x, [ids[::-1] for ids in ys])}
    monkeypatch.setattr(rewrite, "round_trips", lambda _: changes)
    result = session.test("abc", ASKED, KEY, edit=Edit(playground.ROUND_TRIP, 1.0))
    assert (result.text, result.before.text) == ("cba", "abc")
    assert f"{playground.ROUND_TRIP}:" in render.of_test(result)


def test_several_weights_are_refused(session):
    question = replace(ASKED)  # changed past the type check, which only the tests have
    object.__setattr__(question, "weight", weights.names(session.lm.model)[:2])
    with pytest.raises(InvalidWatermarkError, match="expected one matrix, got 2"):
        session.compare(question, KEY)
