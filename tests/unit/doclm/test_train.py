"""Training gives the same weights for the same question, stopped and resumed or not; Muon against
the singular value decomposition; bits per character against a loop over single tokens.
"""

import dataclasses
import math
import os

import numpy as np
import pandas as pd
import pytest
import torch

from gaussmark_experiments.doclm import train
from gaussmark_experiments.doclm.train import Muon, Recipe, orthogonalise
from gaussmark_lib.errors import ParameterError

SHAPE = {"vocab": 64, "hidden": 16, "blocks": 1, "heads": 2, "intermediate": 24}
RECIPE = Recipe(**SHAPE, context=32, short_context=16, batch_tokens=64, steps=20, warmup=3)
# regular, so that it can be learnt in 20 steps
STREAM = (torch.arange(3000) * 7 % 60 + torch.arange(3000) // 11 % 3).to(torch.int32)
FOX = "The quick brown fox jumps over the lazy dog. "


def run(recipe=RECIPE, stream=STREAM, **kwargs) -> tuple[dict, pd.DataFrame]:
    settings = {"every": 5, "progress": False, "held_out": STREAM[-500:]} | kwargs
    model, curve = train.train(recipe, stream, **settings)
    return model.state_dict(), curve


def same(one: dict, other: dict) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def undisturbed() -> tuple[dict, pd.DataFrame]:
    return run()


def test_the_same_question_gives_the_same_weights_whatever_torchs_seed(undisturbed):
    torch.manual_seed(123)
    weights, curve = run()
    assert same(weights, undisturbed[0])
    columns = ["step", "tokens", "loss", "held_out"]
    pd.testing.assert_frame_equal(curve[columns], undisturbed[1][columns])
    assert curve["step"].tolist() == [5, 10, 15, 20]
    assert curve["tokens"].tolist() == [320, 640, 960, 1280]
    assert curve[["loss", "held_out"]].notna().all(axis=None)


@pytest.mark.parametrize("change", ["seed", "lr_matrices", "lr_others", "weight_decay", "steps"])
def test_another_recipe_gives_other_weights(undisturbed, change):
    other = dataclasses.replace(RECIPE, **{change: 1 + getattr(RECIPE, change)})
    assert not same(run(other)[0], undisturbed[0])


def test_another_stream_gives_other_weights(undisturbed):
    assert not same(run(stream=STREAM.flip(0))[0], undisturbed[0])


@pytest.mark.parametrize("interrupted_at", [3, 5, 19])
def test_a_resumed_run_ends_bit_for_bit_where_an_undisturbed_one_does(
    undisturbed, tmp_path, monkeypatch, interrupted_at
):
    """Also across the change of context, which comes at step 17."""
    checkpoint, batch_at = tmp_path / "folder" / "run.pt", train.batch_at

    def interrupted(stream, recipe, step):
        if step == interrupted_at:
            raise KeyboardInterrupt
        return batch_at(stream, recipe, step)

    with monkeypatch.context() as patch:
        patch.setattr(train, "batch_at", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint=checkpoint)
    assert checkpoint.exists() == (interrupted_at >= 5)
    weights, curve = run(checkpoint=checkpoint)
    assert same(weights, undisturbed[0])
    assert curve["loss"].tolist() == undisturbed[1]["loss"].tolist()
    assert curve["seconds"].is_monotonic_increasing
    assert os.listdir(checkpoint.parent) == ["run.pt"]
    monkeypatch.setattr(train, "batch_at", lambda *args: pytest.fail("trained again"))
    assert same(run(checkpoint=checkpoint)[0], undisturbed[0])  # a finished run is only read


def test_checkpoints_of_another_recipe_are_refused_and_a_failed_save_leaves_the_last(
    tmp_path, monkeypatch
):
    path = tmp_path / "run.pt"
    run(checkpoint=path)
    complaint = r"run\.pt holds a run of another recipe.*remove the file"
    with pytest.raises(ParameterError, match=complaint):
        run(dataclasses.replace(RECIPE, seed=1), checkpoint=path)
    before = path.read_bytes()

    def fail(state, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(train.torch, "save", fail)
    with pytest.raises(OSError, match="No space"):
        train._save(path, {})
    assert path.read_bytes() == before


def test_an_epoch_has_every_window_once_and_epochs_differ():
    """On a stream of consecutive numbers, a window's first number is its position."""
    stream = torch.arange(2000)
    recipe = dataclasses.replace(RECIPE, steps=1000, long_share=0.0)
    n_steps = (2000 - 1 - 16) // 16 // 4
    batches = [train.batch_at(stream, recipe, step) for step in range(5 * n_steps)]
    for batch in batches:
        assert torch.equal(batch, batch[:, :1] + torch.arange(17))
    epochs = torch.stack(batches)[:, :, 0].reshape(5, -1).tolist()
    for starts in epochs:
        assert sorted(starts) == list(range(min(starts), min(starts) + 64 * n_steps, 16))
    assert len({starts[0] % 16 for starts in epochs}) > 1
    orders = {tuple((start - min(starts)) // 16 for start in starts) for starts in epochs}
    assert len(orders) == 5


def test_a_stream_is_all_texts_each_after_an_end_token():
    tokenizer, texts = train.train_tokenizer([FOX * 20], 300), ["The fox.", "", "A dog jumps."]
    end = tokenizer.eos_token_id
    expected = [token for text in texts for token in [end, *tokenizer.encode(text)]]
    assert train.token_stream(tokenizer, texts).tolist() == expected


def test_pages_are_joined_file_by_file_and_a_short_run_reads_every_kth():
    rows = [("b.py", "B1", "train"), ("a.py", "A1", "train"), ("a.py", "A2", "heldout")]
    rows.append(("a.py", "A3", "train"))
    corpus = pd.DataFrame(rows, columns=["source", "text", "split"])
    assert train.pages(corpus, "train") == ["A1\n\nA3", "B1"]
    assert train.pages(corpus, "heldout") == ["A2"]
    pages = [f"{i:04d}" * 2_500 for i in range(1_000)]  # ten million characters
    assert train.enough(pages, 10) == pages[::5]
    assert train.enough(pages, 100_000) == pages[::2]
    assert train.enough(pages, 200_000) == pages


@pytest.mark.parametrize("lengths", [(1,), (3, 2), (20, 1, 60), (120,)], ids=str)
def test_every_token_counts_once(lengths):
    """−log p of every token but the first, each in a pass with the context of its window."""
    tokenizer = train.train_tokenizer([FOX * 20], 280)
    recipe = dataclasses.replace(RECIPE, vocab=len(tokenizer), context=16)
    model = train.new_model(recipe).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)  # far from uniform
    words = FOX.split()
    texts = [" ".join(np.random.default_rng(i).choice(words, n)) for i, n in enumerate(lengths)]
    measured = train.bits_per_character(model, tokenizer, texts)
    stream = train.token_stream(tokenizer, texts).tolist()
    nats = []
    for t in range(1, len(stream)):
        start = 0 if t <= 16 else 8 * math.ceil((t - 16) / 8)
        assert 8 < t - start <= 16 or start == 0  # half a context at least
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([stream[start:t]])).logits[0, -1]
        nats.append(-logits.float().log_softmax(-1)[stream[t]].item())
    n_characters = sum(map(len, texts))
    assert (measured["tokens"], measured["characters"]) == (len(nats), n_characters)
    assert measured["nats_per_token"] == pytest.approx(np.mean(nats), rel=1e-5)
    bits = sum(nats) / math.log(2) / n_characters
    assert measured["bits_per_char"] == pytest.approx(bits, rel=1e-5)


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (20, 6), (1, 5)])
def test_orthogonalise_keeps_the_singular_vectors_and_levels_the_values(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    x = u * (1 + s / s.max()) @ v  # well conditioned: five steps are meant for that
    inner = u.T @ orthogonalise(x) @ v.T
    values = inner.diagonal()
    assert ((values > 0.65) & (values < 1.25)).all()
    torch.testing.assert_close(inner, torch.diag(values), rtol=0, atol=1e-9)  # no rotation
    torch.testing.assert_close(orthogonalise(1000 * x), orthogonalise(x))
    assert orthogonalise(0 * x).abs().max() == 0


def test_muons_steps_by_hand():
    """Nesterov momentum, orthogonalised, with weight decay."""
    rng = torch.Generator().manual_seed(0)

    def drawn(shape):
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    params = [torch.nn.Parameter(drawn(shape)) for shape in ((4, 6), (7, 3))]
    expected = [p.detach().clone() for p in params]
    buffers = [torch.zeros_like(p) for p in expected]
    optimizer = Muon(params, lr=0.1, momentum=0.9, weight_decay=0.5)
    for _ in range(3):
        for p in params:
            p.grad = drawn(p.shape)
        optimizer.step()
        for i, p in enumerate(params):
            buffers[i] = 0.9 * buffers[i] + 0.1 * p.grad
            update = orthogonalise(0.9 * buffers[i] + 0.1 * p.grad)
            expected[i] = expected[i] * (1 - 0.1 * 0.5) - 0.1 * 0.2 * max(p.shape) ** 0.5 * update
    for p, wanted in zip(params, expected, strict=True):
        torch.testing.assert_close(p.detach(), wanted)


def test_the_loss_falls_and_does_not_without_a_learning_rate(undisturbed):
    longer = dataclasses.replace(RECIPE, steps=60, lr_matrices=2e-2, lr_others=1e-2)
    loss = run(longer, every=10)[1]["loss"]
    assert loss.iloc[-1] < 0.75 * loss.iloc[0]
    assert loss.iloc[0] < 1.05 * math.log(64)  # it starts from chance, not from worse
    still = run(dataclasses.replace(longer, lr_matrices=0.0, lr_others=0.0), every=10)[1]["loss"]
    assert abs(still.iloc[-1] - still.iloc[0]) < 0.05 * still.iloc[0]
    fresh = train.new_model(RECIPE).state_dict()
    assert all(not torch.equal(value, fresh[name]) for name, value in undisturbed[0].items())


def test_contexts_and_learning_rates_follow_the_recipe():
    recipe = Recipe(steps=1000, warmup=100, decay_share=0.5, long_share=0.12)
    contexts = [recipe.context_at(step) for step in range(1000)]
    assert contexts == [recipe.short_context] * 880 + [recipe.context] * 120
    factors = [recipe.lr_factor_at(step) for step in range(1000)]
    assert factors[0] == pytest.approx(0.01)
    assert factors[99] == factors[300] == factors[500] == 1
    assert factors[750] == pytest.approx(0.5)
    assert factors[-1] == pytest.approx(1 / 500)
