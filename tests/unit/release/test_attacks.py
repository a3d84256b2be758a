from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import tiny_models
import torch

from gaussmark_lib import likelihood, perturb
from gaussmark_lib.beyond.release import attacks
from gaussmark_lib.errors import InvalidModelError, InvalidTextError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.weights import Weight

NAME = "model.layers.1.mlp.down_proj.weight"
QWEN = tiny_models.build("qwen2")
TEXTS = [list(range(3, 30)), list(range(40, 70)), [7, 8] * 12]


@pytest.fixture(scope="module")
def model():
    return tiny_models.build("llama")


@pytest.fixture(autouse=True)
def given_model_stays(model):
    before = {name: p.clone() for name, p in model.named_parameters()}
    yield
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def theta(model, name=NAME):
    return Weight(model, name).value()


def assert_nearest(before: torch.Tensor, after: torch.Tensor, n: int, levels: torch.Tensor):
    """Each group of n numbers is rounded to levels of its largest size."""
    for old, new in zip(before.reshape(-1, n), after.reshape(-1, n), strict=True):
        scaled = old.abs().max() * levels
        nearest = scaled[(old[:, None] - scaled).abs().argmin(1)]
        assert torch.allclose(new, nearest, atol=1e-5)


@pytest.mark.parametrize("group", [None, 16])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounding_is_to_the_nearest_of_few_numbers(model, bits, group):
    most = 2 ** (bits - 1) - 1
    after = theta(attacks.rounded(model, bits, group=group))
    levels = torch.arange(-most, most + 1) / most
    assert_nearest(theta(model), after, group or theta(model).shape[1], levels)


def test_nf4_is_to_the_nearest_of_its_published_numbers(model):
    half = [0, 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1]
    other = [-1, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004]
    assert_nearest(
        theta(model), theta(attacks.nf4(model, group=16)), 16, torch.tensor(other + half)
    )


def test_pruning_takes_the_share_with_the_least(model):
    rows = theta(model).abs()
    after = theta(attacks.pruned(model, 0.25))
    assert ((after == 0).sum(1) == 12).all()  # of 48
    for row, kept in zip(rows, after != 0, strict=True):
        assert row[kept].min() >= row[~kept].max()
    one, two = (theta(attacks.pruned(model, 0.25, "random", seed=seed)) for seed in (1, 2))
    assert ((one == 0).sum(1) == 12).all()
    assert not torch.equal(one, two)
    assert torch.equal(theta(attacks.pruned(model, 0)), theta(model))
    assert not theta(attacks.pruned(model, 1)).any()


def test_wanda_weighs_numbers_by_their_inputs(model):
    seen = []
    layer = model.model.layers[1].mlp.down_proj
    hook = layer.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0][0]))
    for ids in TEXTS:
        model(input_ids=torch.tensor([ids]))
    hook.remove()
    score = theta(model).abs() * torch.cat(seen).detach().norm(dim=0)
    after = theta(attacks.pruned(model, 0.5, "wanda", texts=TEXTS))
    for row, kept in zip(score, after != 0, strict=True):
        assert row[kept].min() >= row[~kept].max() - 1e-5


def test_merging_is_its_formula(model):
    other, base = (tiny_models.build("llama", seed=seed) for seed in (1, 2))
    a, b, c = map(theta, (model, other, base))
    assert torch.allclose(theta(attacks.merged([model, other, base])), (a + b + c) / 3, atol=1e-6)
    by_tasks = theta(attacks.merged([model, other], [0.5, 0.2], "task", base=base))
    assert torch.allclose(by_tasks, c + 0.5 * (a - c) + 0.2 * (b - c), atol=1e-6)
    angle = torch.arccos((a * b).sum() / (a.norm() * b.norm()))
    between = (torch.sin(0.3 * angle) * a + torch.sin(0.7 * angle) * b) / torch.sin(angle)
    by_angle = theta(attacks.merged([model, other], [0.3, 0.7], "slerp"))
    assert torch.allclose(by_angle, between, atol=1e-5)
    assert torch.allclose(theta(attacks.merged([model, model], how="slerp")), a, atol=1e-6)


@pytest.mark.parametrize("rank", [None, 2])
def test_fine_tuning_learns_its_texts(model, rank):
    def loss(some):
        return likelihood.cross_entropy(some, TEXTS).sum()

    settings = {"lr": 3e-3, "lora_rank": rank, "seed": 4}
    tuned, again = (attacks.fine_tuned(model, TEXTS, 12, **settings) for _ in range(2))
    assert loss(tuned) < 0.9 * loss(model)
    assert torch.equal(theta(tuned), theta(again))  # a function of the seed
    if rank:
        assert torch.linalg.matrix_rank(theta(tuned) - theta(model), rtol=1e-3) == rank
        assert [*dict(tuned.named_parameters())] == [*dict(model.named_parameters())]
    assert torch.equal(theta(attacks.fine_tuned(model, TEXTS, 0)), theta(model))


def test_a_training_yields_the_models_of_shorter_trainings(model):
    alike = {"lr": 3e-3, "batch_size": 2, "seed": 4}
    for rank in (None, 2):
        steps = []
        for n_steps, tuned in attacks.fine_tuning(model, TEXTS, [3, 1], lora_rank=rank, **alike):
            alone = attacks.fine_tuned(model, TEXTS, n_steps, lora_rank=rank, **alike)
            torch.testing.assert_close(theta(tuned), theta(alone))
            steps.append(n_steps)
        assert steps == [1, 3]


def test_merging_by_tasks_keeps_a_part_of_each_change(model):
    other, base = (tiny_models.build("llama", seed=seed) for seed in (1, 2))
    a, b, c = map(theta, (model, other, base))
    merge = partial(attacks.merged, [model, other], [1.0, 0.5], base=base)
    dare = theta(merge("dare", density=0.25, seed=3)) - c
    parts = [0 * a, 4 * (a - c), 2 * (b - c), 4 * (a - c) + 2 * (b - c)]
    nearest = torch.stack([(dare - part).abs() for part in parts]).min(0)
    assert nearest.values.max() < 1e-5
    shares = nearest.indices.flatten().bincount(minlength=4) / a.numel()
    assert torch.allclose(shares, torch.tensor([0.5625, 0.1875, 0.1875, 0.0625]), atol=0.05)

    ties = theta(merge("ties", density=0.2)) - c
    kept = []
    for change in (a - c, b - c):
        largest = change.abs().flatten().sort(descending=True).values
        kept.append(change * (change.abs() >= largest[round(0.2 * a.numel()) - 1]))
    for at, merged in enumerate(ties.flatten()):
        x, y = (change.flatten()[at].item() for change in kept)
        sign = np.sign(x + 0.5 * y)
        agreeing = [(s, v) for s, v in ((1.0, x), (0.5, y)) if v and np.sign(v) == sign]
        weight = sum(s for s, _ in agreeing)
        expected = sum(s * v for s, v in agreeing) / weight if agreeing else 0.0
        assert merged.item() == pytest.approx(expected, abs=1e-5)


def test_one_more_noise_and_one_matrix_of_another(model):
    wm, key, other = Watermark(NAME, 0.1), Key.from_seed(1), tiny_models.build("llama", seed=1)
    noisy = theta(attacks.renoised(model, wm, key)) - theta(model)
    assert torch.allclose(noisy, perturb.noise(model, wm, key), atol=1e-6)
    mixed = attacks.swapped(model, other, NAME)
    assert torch.equal(theta(mixed), theta(other))
    assert torch.equal(mixed.lm_head.weight, model.lm_head.weight)


def test_shrinking_finds_a_matrix_of_low_rank_again(model):
    rng = np.random.default_rng(0)
    n, m = theta(model).shape
    low_rank = torch.from_numpy(rng.standard_normal((n, 2)) @ rng.standard_normal((2, m))).float()
    noise = torch.from_numpy(rng.normal(0, 0.5, (n, m))).float()
    given = deepcopy(model)
    theta(given).copy_(low_rank + noise)
    assert (theta(attacks.shrunk(given, NAME, 0.5)) - low_rank).norm() < 0.5 * noise.norm()
    theta(given).copy_(noise)
    assert theta(attacks.shrunk(given, NAME, 0.6)).norm() < 0.1 * noise.norm()


def test_a_strong_noise_shows_in_the_smallest_singular_values(model):
    wide = deepcopy(model)
    for layer in wide.model.layers:  # as trained matrices are: far from full rank
        U, S, Vh = torch.linalg.svd(layer.mlp.down_proj.weight.data, full_matrices=False)
        layer.mlp.down_proj.weight.data = (U * S * 0.7 ** torch.arange(len(S))) @ Vh
    table = attacks.bulk(attacks.released(wide, Watermark(NAME, 0.05), Key.from_seed(0)))
    assert table["weight"][0] == NAME
    assert table["floor"][0] > 0.03
    assert table["ratio"][0] > 10
    floors = attacks.bulk(wide).set_index("weight")["floor"]
    for name in (NAME, NAME.replace("down", "up")):  # wide and tall
        S = torch.linalg.svdvals(theta(wide, name).double())
        n_rows, n_columns = theta(wide, name).shape
        gap = abs(n_rows**0.5 - n_columns**0.5)
        assert floors[name] * gap == pytest.approx(S[-1].item(), abs=1e-6)


@pytest.mark.parametrize(
    ("attack", "error", "match"),
    [
        (lambda m: attacks.rounded(m, 1), InvalidModelError, "bits"),
        (lambda m: attacks.rounded(m, 17), InvalidModelError, "from 2 to 16, got 17"),
        (lambda m: attacks.rounded(m, 4, group=31), InvalidModelError, "a divisor of"),
        (attacks.nf4, InvalidModelError, "a divisor of .* 32 columns, got 64"),
        (lambda m: attacks.pruned(m, 1.2), InvalidModelError, "from 0 to 1, got 1.2"),
        (lambda m: attacks.pruned(m, 0.5, "wanda"), InvalidTextError, "expected texts"),
        (lambda m: attacks.merged([m]), InvalidModelError, "at least two models"),
        (lambda m: attacks.merged([m, m], how="task"), InvalidModelError, "expected base="),
        (lambda m: attacks.merged([m, QWEN]), InvalidModelError, "same names and shapes"),
        (lambda m: attacks.fine_tuned(m, [[5]], 1), InvalidTextError, "at least two tokens"),
        (lambda m: attacks.fine_tuned(m, [], 1), InvalidTextError, "at least two tokens"),
    ],
)
def test_what_cannot_be_is_refused(model, attack, error, match):
    with pytest.raises(error, match=match):
        attack(model)
