"""The hashes of a model's weights: the same in every precision, read once, and read again after any
change.
"""

import pytest
import tiny_models
import torch

from gaussmark_lib import binding, perturb, score, tracing, weights
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.schemes import cache
from gaussmark_lib.token_level import keys as token_keys

OTHER = "model.layers.0.mlp.up_proj.weight"


def changed(model, before: dict[str, str]) -> list[str]:
    return [name for name, digest in binding.digests(model).items() if before[name] != digest]


def write(model, how: str) -> None:
    weight = model.get_parameter(OTHER)
    if how == "in place":
        with torch.no_grad():
            weight[0, 0] += 1
    elif how == "through .data":
        weight.data[0, 0] += 1
    elif how == "two rows exchanged":
        weight.data[:2] = weight.data[:2].flip(0)
    else:
        weight.data = weight.data + 1


@pytest.mark.parametrize(
    "how", ["in place", "through .data", "two rows exchanged", "another tensor"]
)
def test_a_change_is_seen_however_it_was_made(model, how):
    before, whole = binding.digests(model), cache.sha256(model)
    write(model, how)
    assert changed(model, before) == [OTHER]
    assert cache.sha256(model) != whole


def test_an_unchanged_model_is_read_once(model, monkeypatch):
    before = binding.digests(model)
    monkeypatch.setattr(torch.Tensor, "to", lambda *_: pytest.fail("a weight was read again"))
    assert binding.digests(model) == before


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5), (2, 3, 4), (0,), (4, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool])
def test_the_state_of_a_tensor_of_any_form_changes_with_each_number(shape, dtype):
    tensor = torch.zeros(shape, dtype=dtype)
    before = binding.state(tensor)
    assert binding.state(tensor) == before
    for place in range(tensor.numel()):
        tensor.data.view(-1)[place] = 1
        after = binding.state(tensor)
        assert after != before
        before = after


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_model_is_the_same_in_every_precision(dtype):
    assert binding.digests(tiny_models.build("llama", dtype)) == binding.digests(
        tiny_models.build("llama")
    )


def test_a_tied_weight_and_an_integer_one_are_hashed_too():
    model = tiny_models.build("gpt2")
    assert binding.digests(model).keys() == dict(model.named_parameters()).keys()
    model.lookup = torch.nn.Parameter(
        torch.arange(6, dtype=torch.uint8).view(2, 3), requires_grad=False
    )
    before = binding.digests(model)
    model.lookup.data[1, 1] += 1
    assert changed(model, before) == ["lookup"]


def test_a_model_in_inference_mode_is_hashed():
    with torch.inference_mode():
        model = tiny_models.build("llama")
        assert binding.digests(model) == binding.digests(tiny_models.build("llama"))


def test_the_digest_of_the_model_is_of_all_weights(model, wm, key):
    whole = perturb.bind(model, wm, key).binding.model_sha256
    assert perturb.bind(tiny_models.build("llama"), wm, key).binding.model_sha256 == whole
    write(model, "in place")
    assert perturb.bind(model, wm, key).binding.model_sha256 != whole


def test_bind_states_the_sigma_that_the_weights_carry(model, key):
    wm = Watermark("model.layers.2.mlp.down_proj.weight", 0.05)
    assert perturb.bind(model, wm, Key.from_seed(3)).binding.sigma_carried == pytest.approx(
        0.05, rel=1e-5
    )


X, Y = [[5, 6, 7], [8]], [[9, 10, 11, 12], [15, 16, 17, 18]]
DOORS = {
    "noises": lambda model, wm, keys: perturb.noises(model, wm, keys),
    "score": lambda model, wm, keys: score.score(model, X, Y, wm, keys),
    "score with noises": lambda model, wm, keys: score.score(
        model, X, Y, wm, keys, xis=perturb.noises(model, wm, UNBOUND)
    ),
    "author": lambda model, wm, keys: tracing.author(model, X, Y, wm, keys),
    "token keys": lambda model, wm, keys: token_keys.per_token_of_keys(model, X, Y, wm, keys),
}
UNBOUND = [Key.from_seed(seed) for seed in range(5)]


@pytest.mark.parametrize("door", DOORS)
def test_many_bound_keys_read_the_weights_once(model, wm, monkeypatch, door):
    bound = [perturb.bind(model, wm, key) for key in UNBOUND]
    read = {"the matrix": 0, "the model": 0}
    sha256, digests = weights.Linear.sha256, binding.digests

    def counted(what: str, function):
        def call(*arguments):
            read[what] += 1
            return function(*arguments)

        return call

    monkeypatch.setattr(weights.Linear, "sha256", counted("the matrix", sha256))
    monkeypatch.setattr(binding, "digests", counted("the model", digests))
    DOORS[door](model, wm, UNBOUND)
    assert read == {"the matrix": 0, "the model": 0}, "unbound keys need none of it"
    DOORS[door](model, wm, bound)
    assert read == {"the matrix": 1, "the model": 1}
