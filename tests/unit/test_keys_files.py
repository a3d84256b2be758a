"""Key files: whole or not at all, the owner's only, never overwritten, and any damage is an error
that does not leak the secret.
"""

import hmac
import json
import multiprocessing
import os
import re
import signal
import stat
import subprocess

import pytest
from secrecy import assert_not_shown

from gaussmark_lib import keys, perturb
from gaussmark_lib.errors import KeyFileError, KeyFileWarning
from gaussmark_lib.perturb import Key


@pytest.fixture
def bound(model, wm, key) -> Key:
    return perturb.bind(model, wm, key)


def test_bound_and_unbound_keys_come_back_equal(tmp_path, key, bound):
    for name, one in (("plain.json", key), ("bound.json", bound)):
        assert one.save(tmp_path / name) == tmp_path / name
        assert Key.load(tmp_path / name) == one
        assert Key.load(str(tmp_path / name)).binding == one.binding


def test_only_the_owner_can_read_the_file_whatever_the_umask(tmp_path, key):
    before = os.umask(0)
    try:
        path = key.save(tmp_path / "key.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_is_never_overwritten(tmp_path, key):
    path = key.save(tmp_path / "key.json")
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match=r"key\.json exists.*never overwritten"):
        Key.from_seed(1).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["key.json"]


def test_nor_when_another_process_writes_it_at_the_same_moment(tmp_path, key, monkeypatch):
    path = tmp_path / "key.json"
    dump = json.dump
    monkeypatch.setattr(
        keys.json,
        "dump",
        lambda *args, **kwargs: (path.write_text("the other's"), dump(*args, **kwargs)),
    )
    with pytest.raises(KeyFileError, match="exists"):
        key.save(path)
    assert path.read_text() == "the other's"
    assert os.listdir(tmp_path) == ["key.json"]


@pytest.mark.parametrize("step", ["dump", "link"])
def test_a_failure_while_writing_leaves_nothing_behind(tmp_path, key, monkeypatch, step):
    def fail(*args, **kwargs):
        if step == "dump":
            args[1].write('{"format": "gauss')
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys.json if step == "dump" else keys.os, step, fail)
    with pytest.raises(
        KeyFileError,
        match=(
            r"cannot write a key file in .*: No space left on device; .*make room in it, or name"
            r" another"
        ),
    ) as error:
        key.save(tmp_path / "key.json")
    assert os.listdir(tmp_path) == []
    assert_not_shown(error.value, key)


def test_a_folder_that_does_not_exist_is_named(tmp_path, key):
    with pytest.raises(
        KeyFileError, match=r"cannot write a key file in .*nowhere.*make the folder"
    ):
        key.save(tmp_path / "nowhere" / "key.json")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.95, 0.999])
def test_a_truncated_file_is_refused(tmp_path, bound, share):
    path = bound.save(tmp_path / "key.json")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert_refused(path, bound, "not a whole key file.*restore it from a copy")


FIELDS = [
    "format",
    "key_id",
    "secret",
    "binding",
    "seal",
    *(f"binding.{name}" for name in keys.Binding.model_fields),
]
OPTIONAL = [
    "binding.side",
    "binding.sigma_carried",
    "binding.model_sha256",
    "binding.weights",
]  # files of earlier versions lack them
OTHER = {
    "format": "gaussmark key 3",
    "key_id": "00000000",
    "secret": "00" * 16,
    "binding": None,
    "seal": "0" * 64,
    "binding.weight": "model.layers.0.mlp.down_proj.weight",
    "binding.shape": [48, 32],
    "binding.sigma": 0.06,
    "binding.rank_dropped": 1,
    "binding.side": "right",
    "binding.base_sha256": "0" * 64,
    "binding.noise_sha256": "0" * 64,
    "binding.sigma_carried": 0.04,
    "binding.model_sha256": "0" * 64,
    "binding.weights": [["lm_head.weight", "0" * 16]],
}


@pytest.mark.parametrize("field", FIELDS)
def test_an_edit_of_any_field_is_refused(tmp_path, bound, field):
    path, content = saved(tmp_path, bound)
    edit(content, field, OTHER[field])
    path.write_text(json.dumps(content))
    assert_refused(
        path,
        bound,
        (
            "expected format 'gaussmark key 2', got 'gaussmark key 3'"
            if field == "format"
            else "edited or damaged"
        ),
    )


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", ["missing", 17.5, {"a": "b"}])
def test_a_missing_or_malformed_field_is_named(tmp_path, bound, field, value):
    path, content = saved(tmp_path, bound)
    edit(content, field, value)
    path.write_text(json.dumps(content))
    well_formed = [
        ("binding.sigma", 17.5),
        ("binding.sigma_carried", 17.5),
        *((name, "missing") for name in OPTIONAL),
    ]
    assert_refused(
        path,
        bound,
        (
            "edited or damaged"
            if (field, value) in well_formed
            else f"missing or malformed: .*{field}"
        ),
    )


def test_a_file_of_the_first_format_is_read(tmp_path, model, wm, bound):
    path, content = of_the_first_format(tmp_path, bound, OPTIONAL)
    old = Key.load(path)
    assert old.secret == bound.secret
    assert old.watermark == bound.watermark
    perturb.noise(model, wm, old)
    content["binding"]["rank_dropped"] = 1
    path.write_text(json.dumps(content))
    assert_refused(path, bound, "edited or damaged: its seal does not fit")


def test_a_file_of_the_first_format_has_no_newer_fields(tmp_path, bound):
    """Nobody takes a seal for a checksum by writing another number into the format."""
    path, _ = of_the_first_format(tmp_path, bound, [])
    assert_refused(path, bound, "edited or damaged")


@pytest.mark.parametrize("how", ["seal", "checksum"])
def test_nobody_can_seal_an_edit_without_the_secret(tmp_path, bound, how):
    path, content = saved(tmp_path, bound)
    content["binding"]["rank_dropped"] = 1
    del content["seal"]
    path.write_text(json.dumps(content | {how: keys._checksum(content)}))
    assert_refused(path, bound, "edited or damaged: its seal does not fit its content")


def test_the_seal_is_an_hmac_under_the_secret(tmp_path, bound):
    """So whoever writes a file without the secret, such as one with the binding of another key,
    cannot seal it.
    """
    content = json.loads(bound.save(tmp_path / "key.json").read_text())
    seal = content.pop("seal")
    under = hmac.new(bound.secret, b"gaussmark key file seal", "sha256").digest()
    assert (
        seal == hmac.new(under, json.dumps(content, sort_keys=True).encode(), "sha256").hexdigest()
    )


def test_a_field_that_does_not_belong_is_named(tmp_path, bound):
    path, content = saved(tmp_path, bound)
    path.write_text(json.dumps(content | {"note": "mine"}))
    assert_refused(path, bound, "malformed: note")


@pytest.mark.parametrize(
    ("field", "value"),
    [("secret", "zz" * 16), ("secret", "0" * 31), ("secret", "AB" * 16), ("key_id", "00000000")],
)
def test_an_edit_with_its_seal_made_anew_is_refused_too_where_it_contradicts_itself(
    tmp_path, bound, field, value
):
    path, content = saved(tmp_path, bound)
    edit(content, field, value)
    path.write_text(json.dumps(content | {"seal": keys._seal(bound, content)}))
    assert_refused(path, bound, "malformed: secret|edited or damaged")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        bytes(range(256)),
        b"\xff\xfe\x00",
        b"PK\x03\x04",
        b"hello",
        b"[" * 100_000,
        b"9" * 5000,
    ],
    ids=["empty", "blank", "binary", "not UTF-8", "zip", "text", "nested too deep", "5,000 digits"],
)
def test_a_file_that_is_no_json_is_refused(tmp_path, key, content):
    path = tmp_path / "key.json"
    path.write_bytes(content)
    assert_refused(path, key, "not a whole key file")


@pytest.mark.parametrize("content", ["null", "[]", "{}", "3", '"x"', '{"seed": 3}'])
def test_json_of_another_kind_is_refused(tmp_path, key, content):
    path = tmp_path / "key.json"
    path.write_text(content)
    assert_refused(path, key, "not a key file: missing or malformed")


def test_a_missing_file_and_a_folder_are_refused(tmp_path, key):
    assert_refused(
        tmp_path / "none.json", key, r"cannot read the key file .*none\.json: No such file"
    )
    assert_refused(tmp_path, key, "cannot read the key file .*: expected a file, found a folder")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o777])
def test_a_file_that_others_can_read_or_change_is_refused_with_the_command_that_mends_it(
    tmp_path, key, mode
):
    path = key.save(tmp_path / "my key.json")
    path.chmod(mode)
    mends = (
        rf"open to others \(mode {mode:o}\).* `chmod 600 '{re.escape(str(path))}'` mends it\."
        r" .*then make a new key"
    )
    assert_refused(path, key, mends)
    subprocess.run(re.search("`(.*?)`", refusal(path))[1], shell=True, check=True)
    assert Key.load(path) == key


def test_the_owner_may_make_it_read_only(tmp_path, key):
    path = key.save(tmp_path / "key.json")
    path.chmod(0o400)
    assert Key.load(path) == key


def _killed_while_saving(path) -> None:
    keys.os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    Key.from_seed(0).save(path)


@pytest.mark.parametrize("then", ["save", "load"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_what_a_killed_process_left_is_removed_and_reported(tmp_path, key, then):
    other = Key.from_seed(1).save(tmp_path / "other.json")
    killed = multiprocessing.get_context("fork").Process(
        target=_killed_while_saving, args=[tmp_path / "key.json"]
    )
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    [left] = set(os.listdir(tmp_path)) - {"other.json"}
    assert key.secret.hex() in (tmp_path / left).read_text(), (
        "the process was killed too early to test anything"
    )
    with pytest.warns(
        KeyFileWarning,
        match=rf"removed .*{re.escape(left)}, a half-written key file with its secret",
    ):
        key.save(tmp_path / "key.json") if then == "save" else Key.load(other)
    assert left not in os.listdir(tmp_path)


def test_what_a_living_process_writes_is_left_alone(tmp_path, key, monkeypatch):
    other, link = Key.from_seed(1).save(tmp_path / "other.json"), os.link
    monkeypatch.setattr(keys.os, "link", lambda *names: (Key.load(other), link(*names)))
    key.save(tmp_path / "key.json")
    assert sorted(os.listdir(tmp_path)) == ["key.json", "other.json"]


def saved(tmp_path, key) -> tuple:
    path = key.save(tmp_path / "key.json")
    return path, json.loads(path.read_text())


def of_the_first_format(tmp_path, key, without: list[str]) -> tuple:
    """A file as versions before the seal wrote it."""
    path, content = saved(tmp_path, key)
    for name in without:
        del content["binding"][name.removeprefix("binding.")]
    del content["seal"]
    content["format"] = "gaussmark key 1"
    content["checksum"] = keys._checksum(content)
    path.write_text(json.dumps(content))
    return path, content


def edit(content: dict, field: str, value) -> None:
    *outer, name = field.split(".")
    for part in outer:
        content = content[part]
    assert content[name] != value
    if value == "missing":
        del content[name]
    else:
        content[name] = value


def assert_refused(path, key: Key, message: str) -> None:
    with pytest.raises(KeyFileError) as error:
        Key.load(path)
    assert str(path) in str(error.value)
    assert re.search(message, str(error.value))
    assert_not_shown(error.value, key)


def refusal(path) -> str:
    with pytest.raises(KeyFileError) as error:
        Key.load(path)
    return str(error.value)
