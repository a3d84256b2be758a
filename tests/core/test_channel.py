"""The edit channel against its formula, token by token, and the slope of its log-likelihood; and
what takes its weights.
"""

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib import errors, evidence, perturb, score
from gaussmark_lib.beyond import channel, joint, tracing
from gaussmark_lib.perturb import Key

RNG = np.random.default_rng(8)
PROMPTS, RESPONSES = tiny_models.random_ids(RNG, 4, 2, 5), tiny_models.random_ids(RNG, 9, 7, 12)
KEYS = [Key.from_seed(i) for i in range(3)]


def counting():
    """A model that goes on counting from the last token, or else from the one before it."""
    model = tiny_models.build()
    V = model.config.vocab_size

    def next_token(_, args, kwargs, output):
        last = kwargs["input_ids"]
        before = torch.cat([last[:, :1], last[:, :-1]], dim=1)
        p = torch.full((*last.shape, V), 0.001 / V)
        for ids, share in ((last, 0.8), (before, 0.199)):
            p.scatter_add_(-1, (ids + 1)[..., None] % V, torch.full((*ids.shape, 1), share))
        output.logits = p.log()[:, -output.logits.shape[1] :]
        return output

    model.register_forward_hook(next_token, with_kwargs=True)
    return model


@given(log_ratio=st.lists(st.floats(-30, 30), min_size=1, max_size=7), f=st.floats(0.001, 0.999))
def test_the_weights_are_posteriors_of_a_token_and_of_the_one_before(log_ratio, f):
    p, before, expected = np.exp(log_ratio), 1.0, []
    for p_t in p:  # in units of q
        v = (1 - f) * p_t / ((1 - f) * p_t + f)
        expected.append(v * before)
        before = v
    assert channel.kept(np.array(log_ratio), f) == pytest.approx(expected, rel=1e-9)


def test_without_edits_every_token_counts_and_far_ratios_stay_numbers():
    ratio = np.array([-1e4, 0.0, 1e4, 1e4])
    assert channel.kept(ratio, 0.0).tolist() == [1.0] * 4
    assert channel.kept(ratio, 0.1).round(9).tolist() == [0.0, 0.0, 0.9, 1.0]


def test_the_direction_is_the_slope_of_the_channels_log_likelihood():
    """Each token's part of the slope times the posterior of the token before it."""
    model, wm = tiny_models.marked(dtype=torch.float64)
    parameter = wm.on(model).linear.parameter
    f, q = 0.2, RNG.uniform(1, 2, model.config.vocab_size)
    for x, y in zip(PROMPTS, RESPONSES, strict=True):
        with torch.enable_grad():
            p = (1 - f) * tiny_models.log_p(model, x, y).exp()
            mixture = p + torch.from_numpy(f * (q / q.sum())[y])
            before = torch.cat([torch.ones(1), (p / mixture).detach()[:-1]])
            total = (before * mixture.log()).sum()
        [expected] = torch.autograd.grad(total, parameter)
        [found] = score.gradients(model, [x], [y], wm, token_weights=channel.weights(model, f, q))
        oriented = wm.on(model).linear.oriented(expected)
        torch.testing.assert_close(found.G, oriented, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_it_weighs_tokens_of_each_beginning_by_what_it_alone_says(architecture):
    model, wm = tiny_models.marked(architecture, torch.float64)
    log_q = channel.log_frequencies(model, None)
    settings = {"token_weights": channel.weights(model, 0.3), "lengths": [5, 9], "batch_size": 2}
    found = score.score(model, PROMPTS, RESPONSES, wm, KEYS, **settings)
    for (text, n), rows in found.groupby(["text", "n_tokens"]):
        x, y = PROMPTS[text], RESPONSES[text][:n]
        log_p = evidence.per_token(model, x, y, wm, KEYS[0])["log_p"].to_numpy()
        w = channel.kept(log_p - log_q[y], 0.3)
        alone = score.score(model, [x], [y], wm, KEYS, token_weights=[w.tolist()])
        assert rows["psi"].to_numpy() == pytest.approx(alone["psi"].to_numpy(), rel=1e-9)


def test_inserted_tokens_are_left_out_and_replaced_ones_are_not():
    model = counting()
    text = list(range(10, 30))
    inserted = [*text[:7], 80, *text[7:12], 3, *text[12:]]
    replaced = [*text[:7], 80, *text[8:12], 3, *text[13:]]
    prompts = [[9]] * 3
    assert channel.cleaned(model, prompts, [text, inserted, replaced]) == [text, text, replaced]
    assert channel.cleaned(model, prompts[:1], [inserted], 0.0) == [inserted], "nothing is foreign"
    assert channel.cleaned(model, [[9]], [[50]]) == [[50]], "something is left of every text"


def test_all_that_is_linear_in_the_noise_takes_it():
    model, wm = tiny_models.marked(dtype=torch.float64)
    texts = model, PROMPTS, RESPONSES, wm
    weights = channel.weights(model, 0.2)
    psi = score.score(*texts, KEYS, token_weights=weights)["psi"].to_numpy().reshape(3, 3)
    assert np.abs(psi - score.score(*texts, KEYS)["psi"].to_numpy().reshape(3, 3)).max() > 0.1
    one = PROMPTS[1], RESPONSES[1], wm, KEYS[0]
    tokens = evidence.per_token(model, *one, token_weights=weights)
    assert tokens["evidence"].sum() == pytest.approx(psi[1, 0], rel=1e-6)
    stream = joint.sequence(*texts, KEYS[:1], token_weights=weights)
    assert stream["psi"].to_numpy() == pytest.approx(psi[:, 0], rel=1e-4)
    alone = tracing.author(model, PROMPTS[:1], RESPONSES[:1], wm, KEYS, token_weights=weights)
    assert alone["psi"].to_numpy() == pytest.approx(psi[0], rel=1e-6)
    book = tracing.Codebook(Key.from_seed(1), 5, n_base=4)
    user = tracing.attribute(*texts, book, token_weights=weights)
    keys = [book.key(int(u)) for u in user["user"]]
    own = score.score(*texts, keys, paired=True, token_weights=weights)["psi"]
    assert user["psi"].to_numpy() == pytest.approx(own.to_numpy(), rel=1e-4)


@pytest.mark.parametrize(("shares", "n_backward"), [([0.1], 1), ([0.0, 0.1, 0.3], 3)])
def test_it_costs_no_forward_pass_of_its_own(monkeypatch, shares, n_backward):
    model, wm = tiny_models.marked()
    passes = tiny_models.counted_passes(model, monkeypatch)
    weights = [channel.weights(model, share) for share in shares]
    score.score(model, PROMPTS, RESPONSES, wm, KEYS, token_weights=weights)
    assert passes == ["forward", *["backward"] * n_backward]


def test_several_weighings_are_those_of_several_calls():
    """One after the other of each text and length."""
    model, wm = tiny_models.marked("llama", torch.float64)
    texts = model, PROMPTS, RESPONSES, wm, KEYS
    weighings = [None, channel.weights(model, 0.4)]
    settings = {"lengths": [5, 9], "batch_size": 2}
    both = score.score(*texts, token_weights=weighings, **settings)
    psi = both["psi"].to_numpy().reshape(-1, 2, len(KEYS))  # (text × length, weighing, key)
    for i, weigh in enumerate(weighings):
        alone = score.score(*texts, token_weights=weigh, **settings)["psi"].to_numpy()
        assert psi[:, i].flatten() == pytest.approx(alone, rel=1e-9)


def test_q_comes_with_the_model_and_else_from_zipf():
    model = tiny_models.build()
    V = model.config.vocab_size
    zipf = np.exp(channel.log_frequencies(model, None))
    assert zipf.sum() == pytest.approx(1)
    assert zipf[0] / zipf[50] == pytest.approx(1.5)
    model.config.unigrams = [2] * (V - 1) + [0]
    counts = np.exp(channel.log_frequencies(model, None))
    assert counts[0] / counts[-1] == pytest.approx(5)


def test_a_key_names_the_share_that_its_texts_are_tested_with(tmp_path):
    model, wm = tiny_models.marked()
    bound = perturb.bind(model, wm, KEYS[0])
    assert bound.binding.edited == 0.0
    allowing = channel.allowing(bound, 0.1)
    assert Key.load(allowing.save(tmp_path / "my.key")).binding.edited == 0.1
    assert bound.binding.edited == 0.0, "the key that was given is unchanged"


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("share", [1, 1.0, -0.1, np.nan, "0.1", None, [], (0.1, 0.2), True])
def test_refuses_what_is_no_share(share):
    model, wm = tiny_models.marked()
    with pytest.raises(errors.InvalidTextError, match="exchanged: expected a share"):
        channel.weights(model, share)
    with pytest.raises(errors.InvalidTextError, match="exchanged: expected a share"):
        channel.allowing(perturb.bind(model, wm, KEYS[0]), share)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("call", [joint.sequence, tracing.author])
def test_where_texts_meet_there_is_one_direction(call):
    model, wm = tiny_models.marked()
    weights = channel.weights(model)
    for several in ([weights, weights], [[1.0] * len(y) for y in RESPONSES]):
        with pytest.raises(errors.InvalidTextError, match="token_weights: expected one function"):
            call(model, PROMPTS, RESPONSES, wm, KEYS, token_weights=several)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("q", [[0.5, 0.5], 0.1, [], np.nan, "frequent"])
def test_refuses_frequencies_of_another_vocabulary(q):
    model = tiny_models.build()
    with pytest.raises(errors.InvalidTextError, match="q: expected 97 positive numbers"):
        channel.weights(model, 0.1, q)
    for wrong in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(errors.InvalidTextError, match="q: expected 97 positive numbers"):
            channel.weights(model, 0.0, [wrong] + [1.0] * 96)
