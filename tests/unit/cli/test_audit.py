"""``gaussmark audit``: the card of a key on a tiny model."""

import errno
import json
from pathlib import Path

import pytest
import tiny_lm

from gaussmark_lib import cli, models, perturb
from gaussmark_lib.perturb import Key, Watermark


@pytest.fixture
def words(tmp_path, monkeypatch) -> list[str]:
    lm = tiny_lm.build()
    monkeypatch.setattr(models, "load", lambda name: lm)
    key = perturb.bind(lm.model, Watermark(tiny_lm.WEIGHT, 0.2), Key.from_seed(1)).save(
        tmp_path / "key.json"
    )
    texts = tmp_path / "texts.jsonl"
    texts.write_text(
        "".join(
            json.dumps({"text": f"{i} is a number that one can count to, and {i + 1} follows it."})
            + "\n"
            for i in range(8)
        )
    )
    sizes = ["--texts", "6", "--tokens", "12", "--keys", "5"]
    return ["audit", str(tmp_path / "card"), "--key", str(key), "--text", str(texts), *sizes]


def test_the_card_is_written_and_holds_no_secret(tmp_path, words, capsys):
    assert cli.main(words) == 0
    card = json.loads((tmp_path / "card.json").read_text())
    key = Key.from_seed(1)
    assert card["key_id"] == key.key_id
    [row] = card["kinds"].values()
    assert 0 <= row["this key, ψ"] <= 1
    assert {"q95 ψ", "q95 r", "mean cosine"} <= row.keys()
    assert sorted(map(int, card["power by tokens"])) == [3, 6, 12]
    assert row["keys"] == 5
    page = (tmp_path / "card.html").read_text()
    assert card["columns"].keys() == row.keys()
    assert card["columns"]["this key, ψ"] in page
    assert key.key_id in page
    assert key.secret.hex() not in page + json.dumps(card) + capsys.readouterr().out
    assert cli.main(words) == cli.REFUSED
    assert "exists" in capsys.readouterr().err


def test_a_full_disk_leaves_no_half_of_a_card(tmp_path, words, capsys, monkeypatch):
    whole = Path.write_text

    def write(self, *content, **options):
        if self.suffix == ".html":
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return whole(self, *content, **options)

    monkeypatch.setattr(Path, "write_text", write)
    assert cli.main(words) == cli.FAILED
    assert (
        capsys.readouterr().err == f"gaussmark: {tmp_path / 'card.html'}: No space left on device\n"
    )
    assert not list(tmp_path.glob("card*"))


def test_too_little_is_refused(words, capsys):
    assert cli.main([*words[:-1], "2"]) == cli.REFUSED
    assert "--keys: expected a whole number from 4 to" in capsys.readouterr().err
