"""``gaussmark verify``: checkpoints of a tiny model."""

import math

import pytest
import tiny_lm
from command_lines import answer, refusal, rows

from gaussmark_lib import perturb
from gaussmark_lib.beyond.release import attacks
from gaussmark_lib.perturb import Key, Watermark


@pytest.fixture
def released(lm, tmp_path):
    """The marked model as a folder, and its key's file."""
    wm, key = Watermark(tiny_lm.WEIGHT, 0.2), Key.from_seed(1)
    return str(perturb.export(lm.model, wm, key, tmp_path / "released", lm.tokenizer))


def test_a_released_checkpoint_is_known_by_its_key(released, keys, capsys):
    code, out, _ = answer(capsys, "verify", released, "--key", keys[0])
    assert code == 0
    assert f"{released} carries the key: p = " in out
    assert "1.03 times the length of the watermark: a version of doclm." in out
    assert "It does not prove who was first" in out
    code, found, _ = rows(capsys, "verify", released, "--key", keys[1], "--key", keys[0])
    assert code == 0
    assert [row["verdict"] for row in found] == ["does not carry the key", "carries the key"]
    least = min(found[1]["log10_p"], found[1]["log10_p_rows"])
    assert found[1]["log10_p_all"] == pytest.approx(least + math.log10(4))


def test_another_models_weights_are_called_that(lm, keys, tmp_path, capsys):
    other = attacks.fine_tuned(lm.model, [[*range(3, 20)]], 0)
    for parameter in other.parameters():
        parameter.data = parameter.data.flip(0)
    other.save_pretrained(tmp_path / "other")
    code, out, _ = answer(capsys, "verify", str(tmp_path / "other"), "--key", keys[0])
    assert code == 0
    assert "does not carry the key" in out
    assert "another model's weights" in out


def test_what_cannot_be_verified_is_refused(lm, keys, tmp_path, capsys):
    other = perturb.bind(lm.model, Watermark(tiny_lm.WEIGHT, 0.3), Key.from_seed(3))
    other_file = str(other.save(tmp_path / "other.key"))
    for words, why in (
        ([str(tmp_path / "none"), "--key", keys[0]], "cannot read the suspect"),
        ([str(tmp_path), "--key", keys[0], "--key", other_file], "does not fit this use"),
    ):
        assert why in refusal(capsys, "verify", *words)


def test_the_unmarked_base_is_an_answer(lm, keys, tmp_path, capsys):
    base = str(tmp_path / "base")
    lm.model.save_pretrained(base)
    for option in ("--model", "--base"):  # two names of one option
        code, out, _ = answer(capsys, "verify", base, "--key", keys[0], option, "doclm")
        assert code == 0
        assert out == (
            f"{base} does not carry the key: its matrix equals that of doclm in every number, so it"
            " has no watermark.\n"
        )
    code, found, _ = rows(capsys, "verify", base, "--key", keys[0], "--key", keys[1])
    assert code == 0
    assert [row["verdict"] for row in found] == ["does not carry the key"] * 2
    assert [row["key_id"] for row in found] == [Key.load(path).key_id for path in keys[:2]]
    assert {row["log10_p_all"] for row in found} == {0.0}
