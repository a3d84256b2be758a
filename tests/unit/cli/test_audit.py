"""``gaussmark audit``: the card of a key on a tiny model."""

import errno
import json

import numpy as np
import tiny_lm
from command_lines import answer
from scipy.stats import norm

from gaussmark_lib import cli, files, perturb, score, texts
from gaussmark_lib.perturb import Key, Watermark

WM = Watermark(tiny_lm.WEIGHT, 0.2)


def test_the_card_is_that_of_the_key_and_holds_no_secret(tmp_path, lm, capsys, monkeypatch):
    content = [{"text": f"{i} is a number to count to, and {i + 1} follows it."} for i in range(16)]
    file, card = tmp_path / "texts.jsonl", tmp_path / "card.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in content))
    key = Key.from_seed(9)
    key_file = perturb.bind(lm.model, WM, key).save(tmp_path / "key")
    words = ["audit", str(tmp_path / "card"), "--key", str(key_file), "--text", str(file)]
    words += ["--texts", "6", "--tokens", "12", "--keys", "5"]

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", str(card))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_json", full)
        assert answer(capsys, *words)[0] == cli.FAILED
    assert not list(tmp_path.glob("card*"))
    code, out, _ = answer(capsys, *words)
    found = json.loads(card.read_text())
    [(kind, row)] = found["kinds"].items()
    assert (code, found["key_id"]) == (0, key.key_id)
    assert sorted(map(int, found["power by tokens"])) == [3, 6, 12]
    assert found["columns"].keys() == row.keys()

    human = texts.human(lm, kind, 6, 32 + 12)
    pairs = [ids[:32] for ids in human], [ids[32:] for ids in human]
    several = [key, *map(Key.from_seed, range(5))]
    psi = score.score(lm.model, *pairs, WM, several)["psi"].to_numpy().reshape(6, 6)
    gradients = sorted(score.gradients(lm.model, *pairs, WM), key=lambda G: G.text)
    units = np.stack([(G.G / G.norm).flatten().double() for G in gradients])
    r = np.linalg.solve(np.linalg.cholesky(units @ units.T), psi)
    for name, values in (("ψ", psi), ("r", r)):
        shares = (values >= norm.isf(0.05)).mean(0)
        assert row[f"this key, {name}"] == shares[0]
        assert row[f"max {name}"] == shares[1:].max()
    assert key.secret.hex() not in card.read_text() + out
    assert answer(capsys, *words)[0] == cli.REFUSED, "it is never overwritten"
