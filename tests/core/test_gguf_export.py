"""A marked GGUF file is the base file but for one tensor and three values of its header."""

import os
import struct
import tracemalloc

import gguf
import numpy as np
import pytest
import tiny_gguf
import torch
from secrecy import leaks
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from gaussmark_lib import models, perturb
from gaussmark_lib.engine import gguf_files, gguf_writing
from gaussmark_lib.errors import (
    GaussMarkWarning,
    InvalidModelError,
    InvalidWatermarkError,
    KeyMismatchError,
    PerturbedModelError,
)
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.weights import Weight

pytestmark = pytest.mark.filterwarnings("ignore:.*plain English paragraph:UserWarning")
DOWN = "model.layers.1.mlp.down_proj.weight"
GGUF_NAMES = {
    DOWN: "blk.1.ffn_down.weight",
    "model.layers.1.self_attn.q_proj.weight": "blk.1.attn_q.weight",
    "model.layers.1.self_attn.k_proj.weight": "blk.1.attn_k.weight",
    "model.layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
    "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
}
KEY = Key.from_seed(5)
F16 = gguf.GGMLQuantizationType.F16


def as_it_is(tensor):
    return tensor.data


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_gguf.model_and_tokenizer()[1]


@pytest.fixture(scope="module")
def base(tokenizer, tmp_path_factory):
    """A file of 8-bit tensors, with an empty text, and an empty list, which gguf's own writer would
    leave out.
    """
    plain = tmp_path_factory.mktemp("base") / "plain.gguf"
    tiny_gguf.write(plain, tiny_gguf.grouped(tokenizer), tokenizer, tensor_type="Q8_0")
    path = plain.with_name("base.gguf")
    reader = gguf_files.Reader(plain)
    gguf_writing.write(reader, path, {}, as_it_is, {"general.description": ""})
    return path


@pytest.fixture(scope="module")
def made(base) -> tuple[Watermark, Key]:
    """A watermark, and its key, which is bound to the file."""
    lm = models.load(base)
    wm = Watermark(DOWN, 0.02)
    return wm, perturb.bind(lm.model, wm, KEY, file_sha256=lm.file_sha256)


def refused(error, match, *args, **more) -> None:
    with pytest.raises(error, match=match):
        perturb.export_gguf(*args, **more)


def header(path) -> dict:
    reader = gguf_files.Reader(path)
    values = {name: (field.types, field.contents()) for name, field in reader.fields.items()}
    del values["GGUF.kv_count"]
    return values


# ---- what is written


def test_exactly_one_tensor_and_our_values_differ(base, made, tmp_path):
    wm, key = made
    path = perturb.export_gguf(base, wm, key, tmp_path / "marked.gguf")
    before, after = gguf.GGUFReader(base), gguf.GGUFReader(path)
    assert [tensor.name for tensor in after.tensors] == [tensor.name for tensor in before.tensors]
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert new.data_offset % after.alignment == 0
        assert list(new.shape) == list(old.shape)
        is_marked = old.name == "blk.1.ffn_down.weight"
        assert new.tensor_type == (F16 if is_marked else old.tensor_type)
        assert is_marked or new.data.tobytes() == old.data.tobytes(), old.name
    values = header(path)
    ours = {name: values.pop(name)[1] for name in [*values] if name.startswith("gaussmark.")}
    assert values == header(base)
    assert values["general.description"][1] == ""
    assert ours == {
        "gaussmark.key_id": key.key_id,
        "gaussmark.tensor": "blk.1.ffn_down.weight",
        "gaussmark.sigma": pytest.approx(0.02, rel=1e-3),
    }
    assert leaks(path.read_bytes(), key.secret) == []
    assert os.listdir(tmp_path) == ["marked.gguf"]


@pytest.mark.parametrize("name", GGUF_NAMES)
@pytest.mark.parametrize("tensor_type", perturb.GGUF_TYPES)
def test_transformers_loads_theta_plus_xi(base, tmp_path, name, tensor_type):
    """In its own order of the rows of q and k, whichever heads are shared; also of a noise that
    avoids directions.
    """
    wm = Watermark(name, 0.02, rank_dropped=3 if name == DOWN else 0)
    path = perturb.export_gguf(base, wm, KEY, tmp_path / "marked.gguf", tensor_type)
    lm = models.load(base)
    expected = Weight(lm.model, name).value() + perturb.noise(lm.model, wm, KEY)
    found = dict(models.load(path).model.named_parameters())
    apart = float((found[name] - expected).detach().norm() / expected.norm())
    assert apart <= {"f32": 0, "f16": 1e-3, "q8_0": 0.01}[tensor_type]
    assert gguf.GGUFReader(path).get_field("gaussmark.tensor").contents() == GGUF_NAMES[name]
    for other, parameter in lm.model.named_parameters():
        assert other == name or torch.equal(found[other], parameter)


def test_sigma_is_that_which_is_carried_after_rounding(base, made, tmp_path):
    """σ⟨ξ, Δ⟩/‖ξ‖², computed here from the two files."""
    wm, key = made
    xi = perturb.noise(models.load(base).model, wm, key).double()
    theta = gguf_files.matrix(gguf.GGUFReader(base), DOWN)
    for tensor_type in perturb.GGUF_TYPES:
        path = tmp_path / f"{tensor_type}.gguf"
        reader = gguf_files.Reader(perturb.export_gguf(base, wm, key, path, tensor_type))
        delta = (gguf_files.matrix(reader, DOWN) - theta).double()
        sigma = 0.02 * (delta * xi).sum() / xi.square().sum()
        assert gguf_files.mark(reader)["sigma_carried"] == pytest.approx(float(sigma), rel=1e-3)


def test_the_marked_file_is_no_base_model(base, made, tmp_path):
    wm, key = made
    marked = models.load(perturb.export_gguf(base, wm, key, tmp_path / "marked.gguf"))
    with pytest.raises(PerturbedModelError, match=f"the watermark of key {key.key_id}"):
        perturb.bind(marked.model, wm, key)


def test_a_large_file_needs_no_more_memory_than_the_marked_tensor(tmp_path):
    """The file has 96 MB, its marked tensor 1 MB."""
    writer = gguf.GGUFWriter(tmp_path / "large.gguf", "qwen2")
    writer.add_block_count(2)
    for name in ("token_embd.weight", "output.weight"):
        writer.add_tensor(name, np.zeros((12_000, 1_000), np.float32))
    writer.add_tensor("blk.1.ffn_down.weight", np.ones((512, 512), np.float32))
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    del writer
    reader = gguf_files.Reader(tmp_path / "large.gguf")
    half = np.full((512, 512), 0.5, np.float16)
    tracemalloc.start()
    kinds = {"blk.1.ffn_down.weight": F16}
    gguf_writing.write(reader, tmp_path / "copy.gguf", kinds, lambda _: half)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6
    copied = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "copy.gguf").tensors}
    assert np.all(copied["blk.1.ffn_down.weight"].data == 0.5)


@pytest.mark.parametrize("architecture", sorted(gguf_files.PLAIN))
def test_matrices_called_plain_are_plain_to_transformers(architecture):
    """Transformers' own loader leaves them as they are, or transposes them for a ``Conv1D``."""
    assert architecture in gguf_files.architectures()
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config={})
    theta = np.arange(12.0).reshape(4, 3)
    for layer in ("attn_q", "attn_k", "attn_qkv", "attn_output", "ffn_up", "ffn_down"):
        found = processor.process(theta, f"blk.0.{layer}.weight").weights
        is_conv1d = architecture == "gpt2" and layer not in ("attn_q", "attn_k")
        assert np.array_equal(found.T if is_conv1d else found, theta)


# ---- what is refused


def test_a_key_of_another_file(base, made, tokenizer, tmp_path):
    wm, key = made
    other = tiny_gguf.grouped(tokenizer)
    other.model.layers[1].mlp.down_proj.weight.data *= 2
    path = tiny_gguf.write(tmp_path / "other.gguf", other, tokenizer)
    refused(KeyMismatchError, "does not fit this use", path, wm, key, tmp_path / "marked.gguf")
    wrong = Watermark(DOWN, 0.03)
    refused(KeyMismatchError, "sigma", base, wrong, key, tmp_path / "marked.gguf")
    assert os.listdir(tmp_path) == ["other.gguf"]


def test_a_base_file_that_changed_since_the_key_was_made(base, made, tmp_path):
    """Its marked matrix is the same, and another tensor differs in one bit."""
    wm, key = made
    changed = tmp_path / "changed.gguf"
    content = bytearray(base.read_bytes())
    content[gguf.GGUFReader(base).tensors[0].data_offset + 3] ^= 1
    changed.write_bytes(content)
    refused(KeyMismatchError, "it was changed since", changed, wm, key, tmp_path / "marked.gguf")
    assert os.listdir(tmp_path) == ["changed.gguf"]
    perturb.export_gguf(changed, wm, KEY, tmp_path / "marked.gguf")  # an unbound key is for any


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.layers.7.mlp.down_proj.weight", "found none"),
        ("model.layers.1.mlp.sideways.weight", "found none"),
        ("lm_head.weight", "shared with the embedding"),
        ("model.embed_tokens.weight", "shared with the embedding"),
        ("model.norm.weight", "1 dimensions"),
    ],
)
def test_a_tensor_that_cannot_be_marked(base, tmp_path, name, message):
    refused(InvalidModelError, message, base, Watermark(name, 0.1), KEY, tmp_path / "m.gguf")
    assert os.listdir(tmp_path) == []


def test_a_tensor_of_a_type_that_cannot_be_read(tokenizer, tmp_path):
    model = tiny_gguf.grouped(tokenizer)
    path = tmp_path / "base.gguf"
    tiny_gguf.write(path, model, tokenizer, unreadable="blk.1.ffn_down.weight")
    target = tmp_path / "m.gguf"
    refused(InvalidModelError, "is Q8_K; quantise", path, Watermark(DOWN, 0.1), KEY, target)
    perturb.export_gguf(path, Watermark(DOWN.replace("1", "0"), 0.1), KEY, target)
    content = bytearray(path.read_bytes())  # a type that this version of gguf does not know
    tensor = gguf.GGUFReader(path).tensors[0]
    end = tensor.field.offset + sum(int(part.nbytes) for part in tensor.field.parts)
    content[end - 12 : end - 8] = struct.pack("<I", 999)
    path.write_bytes(content)
    refused(InvalidModelError, "999.* is not", path, Watermark(DOWN, 0.1), KEY, tmp_path / "n.gguf")


def test_an_architecture_whose_layout_is_not_known(tokenizer, tmp_path):
    model = tiny_gguf.grouped(tokenizer)
    path = tiny_gguf.write(tmp_path / "base.gguf", model, tokenizer, architecture="falcon")
    target = tmp_path / "m.gguf"
    refused(InvalidModelError, "layout .* is known", path, Watermark(DOWN, 0.1), KEY, target)


def test_a_file_of_the_other_order_of_bytes(base, tmp_path, monkeypatch):
    reader = gguf_files.Reader(base)
    reader.byte_order = "S"
    with pytest.raises(InvalidModelError, match="order of bytes"):
        gguf_writing.write(reader, tmp_path / "m.gguf", {}, as_it_is)


def test_a_marked_file_is_marked_once(base, made, tmp_path):
    """With the same key it is copied; with another key, or as another type, it is refused."""
    wm, key = made
    marked = perturb.export_gguf(base, wm, key, tmp_path / "marked.gguf")
    again = perturb.export_gguf(marked, wm, key, tmp_path / "again.gguf")
    assert again.read_bytes() == marked.read_bytes()
    target = tmp_path / "m.gguf"
    refused(PerturbedModelError, key.key_id, marked, wm, Key.from_seed(6), target)
    refused(PerturbedModelError, "already, on .* as F16", marked, wm, key, target, "f32")
    other = Watermark(DOWN.replace("1", "0"), 0.02)
    refused(PerturbedModelError, "already, on blk.1", marked, other, KEY, target)
    assert not target.exists()


def test_names_and_values_out_of_range(base, made, tmp_path):
    wm, key = made
    (tmp_path / "here.gguf").touch()
    refused(InvalidModelError, "here.gguf exists", base, wm, key, tmp_path / "here.gguf")
    refused(InvalidModelError, "ends in .gguf", base, wm, key, tmp_path / "folder")
    refused(InvalidModelError, "expected 'f16' or", base, wm, key, tmp_path / "m.gguf", "q4_k")
    two = Watermark([DOWN, DOWN.replace("1", "0")], 0.1)
    refused(InvalidWatermarkError, "one weight", base, two, KEY, tmp_path / "m.gguf")
    refused(InvalidWatermarkError, "none of the", base, Watermark(DOWN, 1e-12), KEY, "m.gguf")
    refused(InvalidWatermarkError, "out of their", base, Watermark(DOWN, 1e6), KEY, "m.gguf")
    refused(InvalidModelError, "cannot read", tmp_path / "none.gguf", wm, key, "m.gguf")
    assert os.listdir(tmp_path) == ["here.gguf"]


def test_rows_that_do_not_fit_the_type(tokenizer, tmp_path):
    path = tiny_gguf.write(tmp_path / "b.gguf", *tiny_gguf.model_and_tokenizer())
    wide = Watermark(DOWN, 0.1)
    perturb.export_gguf(path, wide, KEY, tmp_path / "fits.gguf", "q8_0")  # rows of 96
    reader = gguf_files.Reader(path)
    [tensor] = [t for t in reader.tensors if t.name == "blk.1.ffn_down.weight"]
    with pytest.raises(InvalidModelError, match="rows of a multiple of 256 numbers for Q6_K"):
        gguf_writing.n_bytes(tensor, gguf.GGMLQuantizationType.Q6_K)


def test_a_coarse_type_that_takes_a_part_of_the_noise_is_warned_of(base, tmp_path):
    with pytest.warns(GaussMarkWarning, match="changes only"):
        perturb.export_gguf(base, Watermark(DOWN, 1e-5), KEY, tmp_path / "m.gguf", "f16")


@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        (KeyboardInterrupt("stopped"), KeyboardInterrupt, "stopped"),
        (OSError(28, "No space left"), InvalidModelError, "cannot export .*No space left"),
    ],
    ids=["stopped", "a full disk"],
)
def test_what_fails_half_way_leaves_nothing(
    base, made, tmp_path, monkeypatch, failure, error, message
):
    wm, key = made
    copied = []

    def copy_some(file, tensor, out):
        out.write(b"half")
        copied.append(tensor.name)
        if len(copied) == 5:
            assert len(list(tmp_path.glob(".marked.gguf.partial-*"))) == 1
            raise failure

    monkeypatch.setattr(gguf_writing, "_copy", copy_some)
    refused(error, message, base, wm, key, tmp_path / "marked.gguf")
    assert len(copied) == 5
    assert os.listdir(tmp_path) == []
