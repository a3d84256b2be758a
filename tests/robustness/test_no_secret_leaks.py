"""A day's work with a random key; then everything written or printed is searched for its secret, in
every form that code is likely to give it.
"""

import base64
import json
import os
import shlex
import tempfile
from pathlib import Path

import jaxtyping
import pytest
import tiny_lm
from secrecy import leaks
from small_notebooks import code, parameters, without_kernels, write

from gaussmark_lib import generate, perturb
from gaussmark_lib.beyond import schemes
from gaussmark_lib.keys import Key
from gaussmark_lib.workbench import cli, sweeps

DECLARED = 'key: str = ""\nmodel: str = ""\nseed: int = 0  # [0, 9] of the text'
WORK = """
from gaussmark_lib import generate, models, perturb, score
from gaussmark_lib.workbench import record
k, lm = perturb.Key.load(key), models.load(model)
with perturb.watermarked(lm.model, k.watermark, k):
    texts = generate.sample(lm.model, [lm.prompt("Return")], 20, seed=seed)
scores = score.score(lm.model, [lm.prompt("Return")], texts, k.watermark, [k])
print(k, [k], {"key": k}, k.key_id, k.fingerprint, k.binding, vars(k.watermark))
record.save_table(scores, "scores")
record.record({"psi": scores["psi"][0], "key": k.key_id})
"""
FAILS = Path(__file__).with_name("failing_cell.txt").read_text(encoding="utf-8")


def found_in(folder: Path, secret: bytes) -> dict[str, list[str]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    leaked = {str(path.relative_to(folder)): leaks(path.read_bytes(), secret) for path in files}
    return {name: forms for name, forms in leaked.items() if forms}


def test_the_search_finds_what_it_is_for(tmp_path):
    secret = os.urandom(16)
    planted = {
        "bytes": b"before" + secret + b"after",
        "hex": f"key: {secret.hex()}".encode(),
        "integer": json.dumps({"seed": int.from_bytes(secret, "big")}).encode(),
        "base64": base64.b64encode(b"xyz" + secret + b"more"),
        "repr": json.dumps({"outputs": [f"{{'secret': {secret!r}}}"]}).encode(),
    }
    for form, content in planted.items():
        (tmp_path / form).write_bytes(content)
    for shift in range(3):
        shifted = base64.urlsafe_b64encode(bytes(shift) + secret + b"more")
        assert leaks(shifted, secret) == ["base64"]
    assert found_in(tmp_path, secret) == {form: [form] for form in planted}
    assert found_in(tmp_path, os.urandom(16)) == {}


@pytest.fixture
def place(tmp_path, tmp_path_factory, monkeypatch) -> Path:
    """A folder where everything is written: temporary files too, under a name short enough for a
    socket.
    """
    short = tmp_path_factory.getbasetemp() / "t"
    short.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    monkeypatch.setenv("TMPDIR", str(short))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path


TYPED = Path(__file__).with_name("days_work.txt").read_text(encoding="utf-8")


def test_a_days_work_leaves_no_secret(place, monkeypatch, capfd):
    lm, model, file = tiny_lm.build(), str(place / "model"), place / "keys" / "my.key"
    lm.model.save_pretrained(model)
    lm.tokenizer.save_pretrained(model)
    file.parent.mkdir()
    stands_for = {
        "WEIGHT": f"--weight {tiny_lm.WEIGHT} --sigma 0.2",
        "SIZES": "--texts 4 --tokens 12 --keys 4",
        "FOLDER": str(place),
        "MODEL": model,
        "KEY": str(file),
    }
    printed = []

    def command(line: str) -> None:
        for name, words in stands_for.items():
            line = line.replace(name, words)
        code, *words = shlex.split(line)
        assert cli.main(words) == int(code), (line, capfd.readouterr())
        printed.extend(capfd.readouterr())

    command("0 key new KEY WEIGHT --model MODEL")
    assert "never commit it" in printed[0]
    key = Key.load(file)
    printed += [repr(key), str([key]), f"{key.binding}"]
    prompts = [lm.prompt("Return")]
    with perturb.watermarked(lm.model, key.watermark, key):
        [text] = generate.sample(lm.model, prompts, 30, seed=1)
    (place / "text.txt").write_text(lm.decode(text))
    human = [f"{i} is a number that one can count to, and {i + 1} follows it." for i in range(6)]
    (place / "human.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in human))
    perturb.export(lm.model, key.watermark, key, place / "exported", lm.tokenizer)
    works = str(write(place / "works.ipynb", parameters(DECLARED), code(WORK)))
    write(place / "fails.ipynb", parameters(DECLARED), code(WORK), code(FAILS))
    for line in TYPED.strip().splitlines():
        command(line)
    without_kernels(monkeypatch)
    settings = {"root": place / "records", "workers": 1, "progress": False}
    params = {"key": str(file), "model": model}
    done = sweeps.sweep(works, {"seed": [1, 2]}, params, **settings)
    assert len(done.runs) == 2
    assert not done.failed
    printed += capfd.readouterr()

    assert leaks(file.read_bytes(), key.secret) == ["hex"], "the key file itself has it"
    file.unlink()
    (file.parent / "damaged.key").unlink()
    (place / "printed").write_text("\n".join(printed))
    assert key.key_id in (place / "printed").read_text()
    [kept] = (place / "records").glob("fails/*.failed")
    assert "KeyFileError" in (kept / "notebook.ipynb").read_text()
    assert "KeyMismatchError" in (place / "printed").read_text()
    assert len([path for path in place.rglob("*") if path.is_file()]) > 20
    assert found_in(place, key.secret) == {}
    assert found_in(Path(tempfile.gettempdir()), key.secret) == {}


def test_the_checker_of_types_does_not_print_it(wm):
    """Its error shows a call's arguments by a printer that takes a dataclass apart, whatever its
    ``__repr__`` says.
    """
    key = Key.new()
    with pytest.raises(jaxtyping.TypeCheckError, match="noise") as caught:
        perturb.noise("model", wm, key)
    shown = f"{caught.value} {[key]} {key} {schemes.KGW(2.0, key)!r} {schemes.GaussMark(wm, key)!r}"
    assert leaks(shown.encode(), key.secret) == []
    assert shown.count(key.key_id) >= 4
