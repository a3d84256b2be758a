"""A GGUF file is a model like any other; a broken one is refused with the reason."""

import re

import gguf
import psutil
import pytest
import tiny_gguf
import torch

from gaussmark_lib import models
from gaussmark_lib.engine import checkpoints, gguf_files, packages
from gaussmark_lib.errors import GaussMarkWarning, InvalidModelError

pytestmark = pytest.mark.filterwarnings("ignore:.*plain English paragraph:UserWarning")
WEIGHT = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def tiny():
    return tiny_gguf.model_and_tokenizer()


@pytest.fixture(scope="module")
def file(tiny, tmp_path_factory):
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", *tiny)


def refused(path, *message: str) -> None:
    with pytest.raises(InvalidModelError, match=".*".join(map(re.escape, message))):
        models.load(path)


def test_its_weights_are_those_of_the_model_that_it_was_made_from(tiny, file):
    lm = models.load(file)
    theirs = dict(lm.model.named_parameters())
    assert theirs.keys() == dict(tiny[0].named_parameters()).keys()
    for name, parameter in tiny[0].named_parameters():
        assert torch.equal(parameter, theirs[name]), name
    assert checkpoints.digest(lm.model) == checkpoints.digest(tiny[0])
    assert lm.file_sha256 == packages.sha256(file)
    assert lm.title == f"{file} (GGUF file, dequantised)"


@pytest.mark.parametrize("tensor_type", ["F16", "Q8_0", "Q4_0"])
def test_quantised_tensors_are_dequantised(tiny, tmp_path, tensor_type):
    lm = models.load(tiny_gguf.write(tmp_path / "q.gguf", *tiny, tensor_type=tensor_type))
    theta = dict(lm.model.named_parameters())[WEIGHT]
    assert theta.dtype == torch.float32
    known = dict(tiny[0].named_parameters())[WEIGHT]
    apart = float((theta - known).detach().norm() / known.detach().norm())
    assert 0 < apart < {"F16": 1e-3, "Q8_0": 0.01, "Q4_0": 0.15}[tensor_type]


def test_any_capitals_and_dtypes(tiny, tmp_path):
    path = tiny_gguf.write(tmp_path / "TINY.GGUF", *tiny)
    assert models.load(path, dtype="auto").model.dtype == torch.float32
    assert models.load(path, dtype="bfloat16").model.dtype == torch.bfloat16


def test_a_truncated_file(file, tmp_path):
    content = file.read_bytes()
    for share in (0.3, 0.99):
        path = tmp_path / f"{share}.gguf"
        path.write_bytes(content[: int(len(content) * share)])
        refused(path, "expected a whole GGUF file")


LISTS = {"strings": ["", "a", "naïve café", "x" * 300], "integers": [*range(1000)]}
LISTS |= {"numbers": [0.5, -1.25], "truths": [True, False], "lists": [[1, 2], [3]]}


def header(path, lists, **settings):
    writer = gguf.GGUFWriter(path, "llama", **settings)
    for name, values in lists.items():
        writer.add_array(name, values)
    writer.add_uint32("last", 7)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("endianess", gguf.GGUFEndian)
def test_the_fast_reader_reads_what_ggufs_own_reads(tmp_path, endianess):
    path = header(tmp_path / "lists.gguf", LISTS, endianess=endianess)
    own, fast = gguf.GGUFReader(path), gguf_files.Reader(path)
    for name, field in own.fields.items():
        assert fast.fields[name]._replace(parts=[], data=[]) == field._replace(parts=[], data=[])
        assert fast.fields[name].contents() == field.contents(), name


@pytest.mark.parametrize("values", [["long " * 9] * 5, [*range(50)]])
def test_a_list_that_leads_behind_the_end_of_the_file(tmp_path, values):
    path = header(tmp_path / "cut.gguf", {"list": values})
    path.write_bytes(path.read_bytes()[:-100])
    refused(path, "expected a whole GGUF file, got one that ends too early")


def test_something_else_than_a_gguf_file(tmp_path):
    (tmp_path / "text.gguf").write_text("hello")
    refused(tmp_path / "text.gguf", "expected a GGUF file, which begins with b'GGUF', got b'hell'")
    (tmp_path / "empty.gguf").write_bytes(b"")
    refused(tmp_path / "empty.gguf", "expected a GGUF file")
    refused(tmp_path / "none.gguf", "no model at", ".gguf file")
    refused("no-such-file.gguf", "no model at")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architecture": "hyena9"},
            ["got 'hyena9'", "it reads", "gemma3", "llama", "safetensors"],
        ),
        ({"n_parts": 3}, ["got a part of 3", "--merge"]),
        ({"has_tokenizer": False}, ["with a tokenizer, found no tokenizer.ggml.model"]),
    ],
    ids=["unknown architecture", "one part of three", "no tokenizer"],
)
def test_a_file_that_is_no_whole_model(tiny, tmp_path, change, message):
    refused(tiny_gguf.write(tmp_path / "other.gguf", *tiny, **change), *message)


def test_a_model_larger_than_the_memory(file, monkeypatch):
    memory = psutil.virtual_memory()._replace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    refused(file, "GiB of free memory on the CPU")


class TestAWrongConversion:
    """It gives fluent rubbish, so that only a text tells."""

    def test_of_the_weights_is_warned_of(self, file):
        with pytest.warns(GaussMarkWarning, match="a plain English paragraph costs"):
            models.load(file)  # whose weights are random

    def test_of_the_tokenizer_is_warned_of(self, monkeypatch):
        lm = models.load()
        monkeypatch.setattr(
            type(lm), "decode", lambda self, ids: self.tokenizer.decode(ids).strip()
        )
        first, *_ = models.conversion_faults(lm)
        assert "the tokenizer changes" in first

    def test_the_embedded_model_keeps_every_string(self):
        lm = models.load()
        assert [text for text in gguf_files.AWKWARD if lm.decode(lm.encode(text)) != text] == []
