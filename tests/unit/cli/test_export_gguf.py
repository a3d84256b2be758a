"""``gaussmark export`` and ``verify`` with GGUF files."""

import os

import gguf
import pytest
import tiny_gguf
from command_lines import answer, refusal, rows

from gaussmark_lib.beyond.release import requantised

pytestmark = pytest.mark.filterwarnings("ignore:.*plain English paragraph:UserWarning")
WEIGHT = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    _, tokenizer = tiny_gguf.model_and_tokenizer()
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    model = tiny_gguf.grouped(tokenizer)
    return str(tiny_gguf.write(path, model, tokenizer, tensor_type="Q8_0"))


@pytest.fixture
def key(base, tmp_path, capsys) -> str:
    path = str(tmp_path / "my.key")
    words = ["key", "new", path, "--model", base, "--weight", WEIGHT, "--sigma", "0.02"]
    assert answer(capsys, *words)[0] == 0
    return path


@pytest.mark.parametrize("kind", ["F16", "F32", "Q8_0"])
def test_a_marked_file_is_verified(base, key, tmp_path, capsys, kind):
    marked = str(tmp_path / "marked.gguf")
    words = ["export", marked, "--model", base, "--key", key, "--type", kind.lower()]
    code, out, _ = answer(capsys, *words)
    assert code == 0
    assert f"on {WEIGHT}: {marked}" in out
    assert f"Test its texts against {base}, not against this checkpoint." in out
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(marked).tensors}
    assert tensors["blk.1.ffn_down.weight"].tensor_type.name == kind
    code, [row], _ = rows(capsys, "verify", marked, "--base", base, "--key", key)
    assert code == 0
    assert row["verdict"] == "carries the key"
    assert row["psi"] > 170  # √d is 181
    assert row["distance"] == pytest.approx(1, abs=0.03)


def test_the_suspect_and_the_base_may_have_different_types(base, key, tmp_path, capsys):
    marked = str(tmp_path / "marked.gguf")
    coarse = str(tmp_path / "coarse.gguf")
    answer(capsys, "export", marked, "--model", base, "--key", key)
    requantised.write(marked, coarse, "Q4_0")
    code, [row], _ = rows(capsys, "verify", coarse, "--base", base, "--key", key)
    assert (code, row["verdict"]) == (0, "carries the key")
    plain = str(tmp_path / "plain.gguf")
    requantised.write(base, plain, "Q4_0")
    code, [row], _ = rows(capsys, "verify", plain, "--base", base, "--key", key)
    assert (code, row["verdict"]) == (0, "does not carry the key")


def test_what_is_refused_says_why(base, key, tmp_path, capsys):
    marked = str(tmp_path / "marked.gguf")
    answer(capsys, "export", marked, "--model", base, "--key", key)
    requantised.write(base, tmp_path / "plain.gguf", "Q4_0")
    new = str(tmp_path / "new.gguf")
    for words, why in (
        (["export", marked, "--model", base], "expected a new file to export to"),
        (["export", new, "--model", "doclm"], "expected a model in a .gguf file"),
        (["export", new[:-5], "--model", base, "--type", "f16"], "ends in .gguf"),
        (["export", new, "--model", str(tmp_path / "plain.gguf")], "does not fit this use"),
        (["export", new, "--model", str(tmp_path / "none.gguf")], "no model at"),
        (["export", new, "--model", base, "--type", "q4_k"], "'q4_k' is not one of"),
        (["verify", marked, "--base", marked], "a checkpoint with the watermark"),
    ):
        assert why in refusal(capsys, *words, "--key", key)
    assert sorted(os.listdir(tmp_path)) == ["marked.gguf", "my.key", "plain.gguf"]


def test_a_folder_of_a_gguf_model_is_safetensors_as_before(base, key, tmp_path, capsys):
    folder = tmp_path / "marked"
    code, *_ = answer(capsys, "export", str(folder), "--model", base, "--key", key)
    assert code == 0
    assert {"config.json", "model.safetensors"} <= set(os.listdir(folder))
    code, [row], _ = rows(capsys, "verify", str(folder), "--base", base, "--key", key)
    assert (code, row["verdict"]) == (0, "carries the key")
