"""Training: the same question gives the same weights, stopped and resumed or not, and every window
is seen once an epoch.
"""

import dataclasses
import math
import os

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib.doclm import train
from gaussmark_lib.doclm.train import Recipe
from gaussmark_lib.errors import CorpusError, ParameterError

RECIPE = Recipe(
    vocab=64,
    hidden=16,
    blocks=1,
    heads=2,
    intermediate=24,
    context=32,
    short_context=16,
    batch_tokens=64,
    steps=20,
    warmup=3,
)
STREAM = (torch.arange(3000) * 7 % 60 + torch.arange(3000) // 11 % 3).to(
    torch.int32
)  # regular, so that it can be learnt in 20 steps


def run(recipe=RECIPE, stream=STREAM, **kwargs) -> tuple[dict, pd.DataFrame]:
    model, curve = train.train(recipe, stream, **{"every": 5, "progress": False} | kwargs)
    return model.state_dict(), curve


def same(one: dict, other: dict) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def undisturbed() -> tuple[dict, pd.DataFrame]:
    return run(held_out=STREAM[-500:])


def test_the_same_recipe_and_stream_give_the_same_weights_whatever_torchs_seed(undisturbed):
    torch.manual_seed(123)
    weights, curve = run(held_out=STREAM[-500:])
    assert same(weights, undisturbed[0])
    pd.testing.assert_frame_equal(
        curve.drop(columns="seconds"), undisturbed[1].drop(columns="seconds")
    )


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"lr_matrices": 5e-3}, {"lr_others": 2e-3}, {"weight_decay": 0.2}, {"steps": 21}],
)
def test_another_recipe_gives_others(undisturbed, change):
    assert not same(run(dataclasses.replace(RECIPE, **change))[0], undisturbed[0])


def test_another_stream_gives_others(undisturbed):
    assert not same(run(stream=STREAM.flip(0))[0], undisturbed[0])


@pytest.mark.parametrize("interrupted_at", [3, 5, 13, 19])
def test_stopped_and_resumed_it_ends_bit_for_bit_where_an_undisturbed_run_does(
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
            run(checkpoint=checkpoint, held_out=STREAM[-500:])
    assert checkpoint.exists() == (interrupted_at >= 5)
    weights, curve = run(checkpoint=checkpoint, held_out=STREAM[-500:])
    assert same(weights, undisturbed[0])
    pd.testing.assert_frame_equal(
        curve.drop(columns="seconds"), undisturbed[1].drop(columns="seconds")
    )
    assert curve["seconds"].is_monotonic_increasing
    assert os.listdir(checkpoint.parent) == ["run.pt"]


def test_a_finished_run_is_answered_from_its_checkpoint(undisturbed, tmp_path, monkeypatch):
    run(checkpoint=tmp_path / "run.pt", held_out=STREAM[-500:])
    monkeypatch.setattr(train, "batch_at", lambda *args: pytest.fail("trained again"))
    assert same(run(checkpoint=tmp_path / "run.pt")[0], undisturbed[0])


def test_out_of_time_it_returns_and_goes_on_later(undisturbed, tmp_path):
    _, curve = run(checkpoint=tmp_path / "run.pt", stop_after=0)
    assert len(curve) == 0
    assert same(run(checkpoint=tmp_path / "run.pt", held_out=STREAM[-500:])[0], undisturbed[0])


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    run(checkpoint=tmp_path / "run.pt")
    with pytest.raises(
        ParameterError,
        match=(
            r"run\.pt holds a run of another recipe: expected .*'seed': 1.*remove it or name"
            r" another file"
        ),
    ):
        run(dataclasses.replace(RECIPE, seed=1), checkpoint=tmp_path / "run.pt")


def test_a_failure_while_saving_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    run(checkpoint=tmp_path / "run.pt")
    before = (tmp_path / "run.pt").read_bytes()

    def fail(state, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(train.torch, "save", fail)
    with pytest.raises(OSError, match="No space"):
        train._save(tmp_path / "run.pt", RECIPE, train.new_model(RECIPE), [], 0, [])
    assert (tmp_path / "run.pt").read_bytes() == before


def test_the_curve_has_a_row_every_so_many_steps(undisturbed):
    curve = undisturbed[1]
    assert curve["step"].tolist() == [5, 10, 15, 20]
    assert curve["tokens"].tolist() == [320, 640, 960, 1280]
    assert curve[["loss", "held_out"]].notna().all(axis=None)
    assert run()[1]["held_out"].isna().all()


def test_the_loss_falls_and_does_not_without_a_learning_rate():
    longer = dataclasses.replace(RECIPE, steps=60, lr_matrices=2e-2, lr_others=1e-2)
    loss = run(longer, every=10)[1]["loss"]
    assert loss.iloc[-1] < 0.75 * loss.iloc[0]
    still = run(dataclasses.replace(longer, lr_matrices=0.0, lr_others=0.0), every=10)[1]["loss"]
    assert abs(still.iloc[-1] - still.iloc[0]) < 0.05 * still.iloc[0]
    assert loss.iloc[0] < 1.05 * math.log(64)  # it starts from chance, not from worse


def test_every_kind_of_weight_moves(undisturbed):
    fresh = train.new_model(RECIPE).state_dict()
    assert all(not torch.equal(value, fresh[name]) for name, value in undisturbed[0].items())


def test_new_models_do_not_touch_torchs_random_state():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    train.new_model(RECIPE)
    assert torch.equal(torch.get_rng_state(), state)


class TestRecipe:
    @given(st.integers(0, RECIPE.steps - 1))
    def test_the_context_is_short_until_the_last_share_of_the_steps(self, step):
        assert RECIPE.context_at(step) == (32 if step >= 20 * (1 - RECIPE.long_share) else 16)

    def test_of_the_real_recipe_the_last_tenth_at_least_is_at_full_context(self):
        recipe = Recipe()
        long = [step for step in range(recipe.steps) if recipe.context_at(step) == recipe.context]
        assert recipe.context >= 1024
        assert len(long) >= 0.1 * recipe.steps
        assert long == list(range(long[0], recipe.steps))

    def test_the_learning_rate_warms_up_stays_and_falls_to_nearly_zero(self):
        recipe = Recipe(steps=1000, warmup=100, decay_share=0.5)
        factors = [recipe.lr_factor_at(step) for step in range(1000)]
        assert factors[0] == pytest.approx(0.01)
        assert factors[99] == factors[300] == factors[500] == 1
        assert factors[750] == pytest.approx(0.5)
        assert factors[-1] == pytest.approx(1 / 500)
        assert factors[:100] == sorted(factors[:100])
        assert factors[500:] == sorted(factors[500:], reverse=True)

    def test_what_comes_before_the_decay_does_not_depend_on_the_number_of_steps(self):
        one, other = Recipe(steps=1000), Recipe(steps=4000)
        assert [one.lr_factor_at(step) for step in range(500)] == [
            other.lr_factor_at(step) for step in range(500)
        ]


class TestBatches:
    """On a stream of consecutive numbers, a window's first number is its place."""

    stream = torch.arange(2000)
    recipe = dataclasses.replace(RECIPE, steps=1000, long_share=0.0)
    per_epoch = (2000 - 1 - 16) // 16 // 4

    def starts(self, steps) -> list[int]:
        return [
            int(row[0]) for step in steps for row in train.batch_at(self.stream, self.recipe, step)
        ]

    @given(st.integers(0, 999))
    def test_rows_are_windows_of_context_plus_one(self, step):
        batch = train.batch_at(self.stream, self.recipe, step)
        assert batch.shape == (4, 17)
        assert torch.equal(batch, batch[:, :1] + torch.arange(17))

    @pytest.mark.parametrize("epoch", [0, 1, 5])
    def test_within_an_epoch_no_window_comes_twice_and_none_is_left_out(self, epoch):
        starts = sorted(self.starts(range(epoch * self.per_epoch, (epoch + 1) * self.per_epoch)))
        assert len(starts) == 4 * self.per_epoch
        assert starts == list(range(starts[0], starts[0] + 16 * len(starts), 16))

    def test_epochs_differ_in_order_and_in_where_they_cut(self):
        epochs = [
            self.starts(range(epoch * self.per_epoch, (epoch + 1) * self.per_epoch))
            for epoch in range(5)
        ]
        assert len({starts[0] % 16 for starts in epochs}) > 1
        assert (
            len({tuple((start - min(starts)) // 16 for start in starts) for starts in epochs}) == 5
        )

    def test_another_seed_is_another_order(self):
        assert self.starts([0]) != [
            int(row[0])
            for row in train.batch_at(self.stream, dataclasses.replace(self.recipe, seed=1), 0)
        ]

    def test_long_windows_come_in_fewer_rows(self):
        batch = train.batch_at(self.stream, dataclasses.replace(self.recipe, long_share=1.0), 0)
        assert batch.shape == (2, 33)

    @pytest.mark.parametrize("length", [0, 50, 80])
    def test_a_stream_too_short_for_one_batch_says_what_it_needs(self, length):
        with pytest.raises(
            CorpusError,
            match=rf"the corpus has {length} tokens, a batch of 4 windows of 16 needs 81",
        ):
            train.batch_at(torch.arange(length), self.recipe, 0)
        assert train.batch_at(torch.arange(81), self.recipe, 0).shape == (4, 17)


class TestTokenizer:
    tokenizer = train.train_tokenizer(["The quick brown fox jumps over the lazy dog. " * 20], 300)

    @given(st.text(max_size=100))
    def test_any_text_round_trips(self, text):
        assert self.tokenizer.decode(self.tokenizer.encode(text)) == text

    def test_its_size_and_its_one_special_token(self):
        assert 257 <= len(self.tokenizer) <= 300
        assert (
            self.tokenizer.eos_token_id
            == self.tokenizer.bos_token_id
            == self.tokenizer.pad_token_id
        )
        assert self.tokenizer.all_special_tokens == [train.END]

    def test_the_same_texts_give_the_same_tokenizer(self):
        again = train.train_tokenizer(["The quick brown fox jumps over the lazy dog. " * 20], 300)
        assert again.get_vocab() == self.tokenizer.get_vocab()

    def test_a_stream_is_all_texts_each_after_an_end_token(self):
        end, texts = self.tokenizer.eos_token_id, ["The fox.", "", "A dog jumps."]
        expected = [token for text in texts for token in [end, *self.tokenizer.encode(text)]]
        assert train.token_stream(self.tokenizer, texts).tolist() == expected


def test_pages_are_the_paragraphs_of_a_split_file_by_file():
    corpus = pd.DataFrame(
        [
            ("b.py", "B1", "train"),
            ("a.py", "A1", "train"),
            ("a.py", "A2", "heldout"),
            ("a.py", "A3", "train"),
        ],
        columns=["source", "text", "split"],
    )
    assert train.pages(corpus, "train") == ["A1\n\nA3", "B1"]
    assert train.pages(corpus, "heldout") == ["A2"]


def test_a_short_run_reads_every_kth_page_and_a_long_one_all():
    pages = [f"{i:04d}" * 2_500 for i in range(1_000)]  # ten million characters
    assert train.enough(pages, 10) == pages[::5]
    assert train.enough(pages, 100_000) == pages[::2]
    assert train.enough(pages, 200_000) == train.enough(pages, 10**7) == pages
    assert train.enough(pages[:1], 10) == pages[:1]
