"""An exported checkpoint: θ + ξ for any engine, recognised and refused where the base model is
needed, whole or not there.
"""

import json
import os

import pytest
import tiny_models
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from gaussmark_lib import generate, perturb, score
from gaussmark_lib.doclm import train
from gaussmark_lib.errors import InvalidModelError, PerturbedModelError, RoundingWarning
from gaussmark_lib.perturb import Watermark


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_its_weights_are_theta_plus_xi(architecture, key, tmp_path):
    model = tiny_models.build(architecture)
    wm = Watermark(tiny_models.ONE_WEIGHT[architecture], 0.05)
    exported = reload(perturb.export(model, wm, key, tmp_path / "out"))
    with perturb.watermarked(model, wm, key):
        expected = {name: p.clone() for name, p in model.state_dict().items()}
    assert exported.state_dict().keys() == expected.keys()
    for name, p in exported.state_dict().items():
        assert torch.equal(p, expected[name])


def test_in_bfloat16_it_is_the_sum_rounded_once(wm, key, tmp_path):
    model = tiny_models.build("llama", torch.bfloat16)
    exported = reload(perturb.export(model, wm, key, tmp_path / "out"))
    expected = (wm.on(model).linear.value().float() + perturb.noise(model, wm, key)).bfloat16()
    assert torch.equal(exported.state_dict()[wm.weight], expected)


def test_its_text_is_the_watermarked_models(model, wm, key, tmp_path):
    exported = reload(perturb.export(model, wm, key, tmp_path / "out"))
    with perturb.watermarked(model, wm, key):
        assert generate.sample(exported, [[1, 2, 3]], 20) == generate.sample(model, [[1, 2, 3]], 20)


def test_scoring_and_watermarking_it_is_refused_by_name(model, wm, key, tmp_path):
    exported = reload(perturb.export(model, wm, key, tmp_path / "out"))
    message = (
        f"expected the base model, got a checkpoint with the watermark of key {key.key_id}; load"
        " the model it was made from"
    )
    with pytest.raises(PerturbedModelError, match=message):
        score.score(exported, [[1]], [[2, 3]], wm, [key])
    with pytest.raises(PerturbedModelError, match=message), perturb.watermarked(exported, wm, key):
        pytest.fail("watermarked")
    with pytest.raises(PerturbedModelError, match=message):
        perturb.export(exported, wm, key, tmp_path / "again")


def test_a_checkpoint_saved_inside_watermarked_is_marked_like_an_exported_one(
    model, wm, key, tmp_path
):
    with perturb.watermarked(model, wm, key):
        model.save_pretrained(tmp_path / "saved")
    model.save_pretrained(tmp_path / "base")
    message = f"a checkpoint with the watermark of key {key.key_id}"
    for use in (
        lambda m: score.score(m, [[1]], [[2, 3]], wm, [key]),
        lambda m: perturb.bind(m, wm, key),
    ):
        with pytest.raises(PerturbedModelError, match=message):
            use(reload(tmp_path / "saved"))
        use(reload(tmp_path / "base"))


def test_a_failure_inside_watermarked_leaves_no_mark_in_the_config(model, wm, key, tmp_path):
    with pytest.raises(ZeroDivisionError), perturb.watermarked(model, wm, key):
        1 / 0  # noqa: B018
    assert not hasattr(model.config, "gaussmark")


@pytest.mark.parametrize("mark", ["someone's", {}, None, ["a"]])
def test_a_strangers_mark_of_any_form_is_refused_too(model, wm, key, mark):
    model.config.gaussmark = mark
    with pytest.raises(
        PerturbedModelError, match="expected the base model, got a checkpoint with the watermark"
    ):
        score.score(model, [[1]], [[2, 3]], wm, [key])


def test_the_sigma_that_the_rounded_weights_carry_is_stated(key, tmp_path):
    model, wm = (
        tiny_models.build("llama", torch.bfloat16),
        Watermark("model.layers.2.mlp.down_proj.weight", 1e-3),
    )
    with pytest.warns(RoundingWarning):
        out = perturb.export(model, wm, key, tmp_path / "out")
    carried = json.loads((out / "config.json").read_text())["gaussmark"]["sigma_carried"]
    assert carried == pytest.approx(0.000992, abs=1e-6)


def test_its_files_name_the_weight_and_never_the_secret(model, wm, key, tmp_path):
    out = perturb.export(model, wm, key, tmp_path / "out", train.train_tokenizer(["a b"], 257))
    assert json.loads((out / "config.json").read_text())["gaussmark"] == {
        "key_id": key.key_id,
        "weight": wm.weight,
        "sigma_carried": 0.05,
    }
    for file in out.iterdir():
        content = file.read_bytes()
        assert key.secret not in content
        assert key.secret.hex().encode() not in content
        assert str(key.seed).encode() not in content
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        file.name for file in out.iterdir()
    }


def test_the_base_model_is_as_before(model, wm, key, tmp_path):
    before = wm.on(model).linear.value().clone()
    perturb.export(model, wm, key, tmp_path / "out")
    assert torch.equal(wm.on(model).linear.value(), before)
    perturb.refuse_perturbed(model)
    assert "gaussmark" not in model.config.to_dict()


def test_an_existing_folder_is_never_touched(model, wm, key, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(
        InvalidModelError, match=r"expected a new folder to export to, but .*out exists"
    ):
        perturb.export(model, wm, key, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["mine.txt"]


@pytest.mark.parametrize("who", ["model", "tokenizer"])
def test_a_failure_leaves_nothing_half_written_and_the_model_clean(
    model, wm, key, tmp_path, monkeypatch, who
):
    before = wm.on(model).linear.value().clone()
    tokenizer = train.train_tokenizer(["a b"], 257)

    def fail(folder, *args, **kwargs):
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "half"), "w") as file:
            file.write("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        PreTrainedModel if who == "model" else type(tokenizer),
        "save_pretrained",
        lambda _, folder, *a, **k: fail(folder),
    )
    with pytest.raises(InvalidModelError, match="No space"):
        perturb.export(model, wm, key, tmp_path / "out", tokenizer)
    assert os.listdir(tmp_path) == []
    assert torch.equal(wm.on(model).linear.value(), before)
    perturb.refuse_perturbed(model)
    assert not hasattr(model.config, "gaussmark")


def test_the_folders_above_are_made(model, wm, key, tmp_path):
    assert (perturb.export(model, wm, key, tmp_path / "a" / "b") / "config.json").is_file()
    assert os.listdir(tmp_path / "a") == ["b"]


def reload(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
