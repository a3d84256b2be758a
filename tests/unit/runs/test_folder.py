"""The folder of a run: whole or hidden, and its numbers as a reader wants them."""

import errno
import json
import logging
import os
import shutil
from pathlib import Path

import pytest

from gaussmark_lib.errors import RecordError
from gaussmark_lib.runs import folder as records

STATUS = {
    "status": "complete",
    "started": "2026-01-01T00:00:00+00:00",
    "finished": "2026-01-01T00:00:01+00:00",
    "seconds": 1.0,
}


def _run(results: dict) -> records.Run:
    return records.Run(Path("somewhere"), "id", {}, results, {})


def test_numbers_for_a_reader():
    values = {
        "p_value": 3.21987e-5,
        "n": 12345,
        "few": 999,
        "ok": True,
        "none": None,
        "by": {"α": 0.5, "β": [1, 2.5]},
        "many": list(range(20)),
    }
    values["found"] = {"level": 0.05, "value": 0.93751, "low": 0.69771, "high": 1.0, "n": 16}
    assert _run(values).numbers == {
        "p_value": "3.22e-05",
        "n": "12,345",
        "few": "999",
        "ok": "yes",
        "none": "–",
        "by · α": "0.5",
        "by · β": "1, 2.5",
        "many": "20 values",
        "found": "0.9375 (0.6977 to 1), level = 0.05, n = 16",
    }


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("", "0.9375 (0.85 to 0.98), n = 60"),
        ("nats per token", "0.9375 nats per token (0.85 to 0.98), n = 60"),
    ],
)
def test_the_headline_is_a_sentence_and_a_number_with_its_interval(unit, expected):
    found = {
        "sentence": "texts detected",
        "value": 0.93751,
        "low": 0.85,
        "high": 0.98,
        "n": 60,
        "unit": unit,
    }
    run = _run({"headline": found, "n": 3})
    assert run.headline == ("texts detected", expected)
    assert run.numbers == {"n": "3"}, "it is not said twice"
    assert _run({"n": 3}).headline is None
    for other in ("words", 3, [], {"value": 1}):
        assert _run({"headline": other}).headline is None, "a notebook's own result of that name"


def _complete(folder: Path, who: str) -> Path:
    for name, content in {"status": STATUS, "params": {"who": who}, "results": {}}.items():
        records.write_json(folder / f"{name}.json", content)
    (folder / "notebook.ipynb").touch()
    return folder


def test_a_record_is_replaced_only_if_it_is_to_be(tmp_path):
    target = tmp_path / "demo" / "id"
    for who, replace, kept in [
        ("first", False, "first"),
        ("second", False, "first"),
        ("third", True, "third"),
    ]:
        records.finish(_complete(records.begin(target), who), target, replace=replace)
        assert records.load(target).params == {"who": kept}
        assert [path.name for path in target.parent.iterdir()] == ["id"]


def test_what_a_dead_process_left_is_removed_and_what_a_living_one_writes_is_not(
    tmp_path, monkeypatch
):
    target = tmp_path / "demo" / "id"
    mine = records.begin(target)
    dead = mine.with_name(
        mine.name.replace(f"-{os.getpid()}-", "-4194305-")
    )  # above Linux's largest process number
    other_machine = mine.with_name(dead.name.replace(records._machine(), "00000000"))
    dead.mkdir()
    other_machine.mkdir()
    second = records.begin(target)
    assert set(target.parent.iterdir()) == {mine, other_machine, second}


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        *[
            (name, text, "should be an object, and is")
            for name in ("status", "params", "results")
            for text in ("[]", "null", '"complete"', "3")
        ],
        *[(name, None, "cannot be read: No such file") for name in ("status", "params", "results")],
        *[
            (name, text, "is not whole JSON")
            for name in ("status", "results")
            for text in ("", '{"a": 1', "[" * 100_000, "1" * 5000, "\xff")
        ],
        *[
            ("status", json.dumps({**STATUS, field: None}), f"lacks {field}")
            for field in records.FIELDS
        ],
        ("status", '{"status": "complete"}', "lacks started, finished, seconds"),
        ("status", json.dumps({**STATUS, "status": "nearly"}), "lacks the status"),
    ],
)
def test_a_damaged_record_is_none_and_that_is_said(tmp_path, caplog, name, content, complaint):
    folder = _complete(tmp_path, "me")
    assert records.load(folder)
    assert not caplog.records
    file = folder / f"{name}.json"
    file.unlink() if content is None else file.write_bytes(content.encode("latin-1"))
    assert records.load(folder) is None
    [line] = caplog.messages
    assert line.startswith(f"the record {folder} is damaged: its {name}.json")
    assert complaint in line
    assert "\n" not in line


def test_a_record_without_its_notebook_or_with_half_a_table(tmp_path, caplog):
    run = records.load(_complete(tmp_path, "me"))
    (tmp_path / "scores.parquet").write_bytes(b"PAR1 and no more")
    for name in ("scores", "none"):
        with pytest.raises(RecordError, match=f"has no whole table '{name}'.*remove the folder"):
            run.table(name)
    (tmp_path / "notebook.ipynb").unlink()
    assert records.load(tmp_path) is None
    assert "it has no notebook.ipynb" in caplog.text


def test_what_never_was_a_record_is_none_in_silence(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    assert records.load(tmp_path / "none") is None
    for status in ("failed", "interrupted"):
        records.write_json(tmp_path / "status.json", {"status": status})
        assert records.load(tmp_path) is None
    assert caplog.messages == []


def _full(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", ["mkdir", "write_text"])
def test_a_full_disk_or_a_read_only_folder_is_noticed_at_once_and_nothing_is_left(
    tmp_path, monkeypatch, what
):
    with monkeypatch.context() as patch:
        patch.setattr(Path, what, _full)
        with pytest.raises(
            RecordError,
            match=(
                r"no record can be kept in .*demo: No space left on device; make room there, or"
                r" name another"
            ),
        ) as error:
            records.begin(tmp_path / "new" / "demo" / "id", {"params.json": "{}"})
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_almost_full_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(2**40, 2**40, 2**20)
    )
    with pytest.raises(RecordError, match=r"expected 16 MiB of free space, found 1\.0"):
        records.check(tmp_path / "demo" / "id")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 0)
    )  # as some network file systems say
    records.check(tmp_path / "demo" / "id")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["id", "id.failed", ""])
def test_a_file_where_a_record_would_lie_is_refused_first(tmp_path, place):
    target = tmp_path / "demo" / "id"
    target.parent.mkdir()
    file = target.parent / place if place else target.parent
    if not place:
        target.parent.rmdir()
    file.write_text("mine")
    with pytest.raises(
        RecordError, match="found a file; move it away" if place else "no record can be kept in"
    ):
        records.begin(target)
    assert file.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path not in (file, target.parent)] == []


def test_json_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    records.write_json(path, {"a": 1})
    monkeypatch.setattr(Path, "replace", _full)
    with pytest.raises(OSError, match="No space"):
        records.write_json(path, {"b": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_folder_that_could_not_be_written_is_gone(tmp_path, error):
    with (
        pytest.raises(RecordError if isinstance(error, OSError) else KeyboardInterrupt),
        records.written(tmp_path / "id", replace=True),
    ):
        raise error
    assert list(tmp_path.iterdir()) == []
    with records.written(tmp_path / "id", replace=True) as partial:
        (partial / "page").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["id", "page"]


def test_a_record_that_cannot_be_put_in_its_place(tmp_path, monkeypatch):
    partial = records.begin(tmp_path / "id")
    monkeypatch.setattr(Path, "rename", _full)
    with pytest.raises(RecordError, match="cannot be put in its place: No space"):
        records.finish(partial, tmp_path / "id", replace=True)
    assert list(tmp_path.iterdir()) == []
