"""``gaussmark audit``: the card of a key on a tiny model."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest
import tiny_lm
from scipy.stats import norm

from gaussmark_lib import cli, models, perturb, score, texts
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.2)


@pytest.fixture
def lm(monkeypatch):
    lm = tiny_lm.build()
    monkeypatch.setattr(models, "load", lambda name: lm)
    return lm


@pytest.fixture
def words(tmp_path, lm) -> list[str]:
    key = perturb.bind(lm.model, WM, Key.from_seed(9)).save(tmp_path / "key.json")
    rows = [{"text": f"{i} is a number to count to, and {i + 1} follows it."} for i in range(16)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = ["--texts", "6", "--tokens", "12", "--keys", "5"]
    kind = ["--text", str(tmp_path / "texts.jsonl")]
    return ["audit", str(tmp_path / "card"), "--key", str(key), *kind, *sizes]


def test_the_card_is_that_of_the_key_and_holds_no_secret(tmp_path, lm, words, capsys):
    assert cli.main(words) == 0
    card = json.loads((tmp_path / "card.json").read_text())
    key = Key.from_seed(9)
    assert card["key_id"] == key.key_id
    [(kind, row)] = card["kinds"].items()
    assert sorted(map(int, card["power by tokens"])) == [3, 6, 12]

    human = texts.human(lm, kind, 6, 32 + 12)
    pairs = [ids[:32] for ids in human], [ids[32:] for ids in human]
    keys = [key, *map(Key.from_seed, range(5))]
    psi = score.score(lm.model, *pairs, WM, keys)["psi"].to_numpy().reshape(6, 6)
    gradients = score.gradients(lm.model, *pairs, WM)
    units = np.stack(
        [(G.G / G.norm).flatten().double() for G in sorted(gradients, key=lambda G: G.text)]
    )
    r = np.linalg.solve(np.linalg.cholesky(units @ units.T), psi)
    for name, values in (("ψ", psi), ("r", r)):
        shares = (values >= norm.isf(0.05)).mean(0)
        assert row[f"this key, {name}"] == shares[0]
        assert row[f"max {name}"] == shares[1:].max()

    page = (tmp_path / "card.html").read_text()
    assert card["columns"].keys() == row.keys()
    assert card["columns"]["this key, ψ"] in page
    assert key.key_id in page
    assert key.secret.hex() not in page + json.dumps(card) + capsys.readouterr().out
    assert cli.main(words) == cli.REFUSED
    assert "exists" in capsys.readouterr().err


def test_a_full_disk_leaves_no_half_of_a_card(tmp_path, words, capsys, monkeypatch):
    write_text = Path.write_text

    def write(self, *content, **options):
        if self.suffix == ".html":
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return write_text(self, *content, **options)

    monkeypatch.setattr(Path, "write_text", write)
    assert cli.main(words) == cli.FAILED
    said = f"gaussmark: {tmp_path / 'card.html'}: No space left on device\n"
    assert capsys.readouterr().err == said
    assert not list(tmp_path.glob("card*"))
