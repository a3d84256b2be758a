"""The folder of a run: complete or hidden, and its numbers as a reader wants them."""

import errno
import json
import logging
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gaussmark_lib import files, paths
from gaussmark_lib.errors import RecordError
from gaussmark_lib.runs import folder as records

STATUS = {
    "status": "complete",
    "started": "2026-01-01T00:00:00+00:00",
    "finished": "2026-01-01T00:00:01+00:00",
    "seconds": 1.0,
}


def _complete(folder: Path, who: str) -> Path:
    for name, content in {"status": STATUS, "params": {"who": who}, "results": {}}.items():
        files.write_json(folder / f"{name}.json", content)
    (folder / "notebook.ipynb").touch()
    return folder


def test_numbers_for_a_reader():
    estimate = {"level": 0.05, "value": 0.93751, "low": 0.69771, "high": 1.0, "n": 16}
    results = {"headline": estimate, "n": 12345, "by": {"α": 0.5}, "power": estimate}
    expected = {
        "n": "12,345",
        "by · α": "0.5",
        "power": "0.9375 (0.6977 to 1), level = 0.05, n = 16",
    }
    assert records.Run(Path("somewhere"), "id", {}, results, {}).numbers == expected


def test_a_record_is_replaced_only_if_it_is_to_be(tmp_path):
    target = tmp_path / "demo" / "id"
    for who, replace, kept in [
        ("first", False, "first"),
        ("second", False, "first"),
        ("third", True, "third"),
    ]:
        with records.written(target, replace=replace) as partial:
            _complete(partial, who)
            assert [path.name[0] for path in target.parent.iterdir() if path != target] == ["."]
        assert records.load(target).params == {"who": kept}
        assert os.listdir(target.parent) == ["id"]
        assert target.stat().st_mode == target.parent.stat().st_mode


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        *[("params", text, "should be an object, and is") for text in ("[]", "null", "3")],
        *[(name, None, "cannot be read: No such file") for name in ("status", "params", "results")],
        *[
            ("results", text, "is not whole JSON")
            for text in ("", '{"a": 1', "[" * 100_000, "1" * 5000, "\xff")
        ],
        ("status", '{"status": "complete"}', "lacks started, finished, seconds"),
        ("status", json.dumps({**STATUS, "seconds": None}), "lacks seconds"),
        ("status", json.dumps({**STATUS, "status": "nearly"}), "lacks the status"),
    ],
)
def test_a_damaged_record_is_none_and_that_is_told(tmp_path, caplog, name, content, complaint):
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
        files.write_json(tmp_path / "status.json", {"status": status})
        assert records.load(tmp_path) is None
    assert caplog.messages == []


def _full(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_where_no_record_can_be_kept(tmp_path, monkeypatch):
    target = tmp_path / "demo" / "id"
    monkeypatch.setattr(Path, "mkdir", _full)
    why = "no record can be kept in .*demo: No space left on device; make room there"
    with pytest.raises(RecordError, match=why):
        records.check(target)
    monkeypatch.undo()
    for place in (target, records.failed(target), target.parent):
        shutil.rmtree(target.parent, ignore_errors=True)
        place.parent.mkdir(exist_ok=True)
        place.write_text("mine")
        with pytest.raises(RecordError, match="no record can be kept in"):
            records.check(target)
        assert place.read_text() == "mine"
        place.unlink()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_folder_that_could_not_be_written_is_gone(tmp_path, error):
    def write_half():
        with records.written(tmp_path / "id", replace=True) as partial:
            (partial / "half").touch()
            raise error

    with pytest.raises(RecordError if isinstance(error, OSError) else KeyboardInterrupt):
        write_half()
    assert os.listdir(tmp_path) == []


def test_a_record_that_cannot_be_put_in_its_place(tmp_path, monkeypatch):
    with (
        pytest.raises(RecordError, match="cannot be put in its place: No space"),
        records.written(tmp_path / "id", replace=True),
    ):
        monkeypatch.setattr(Path, "rename", _full)
    assert os.listdir(tmp_path) == []


def test_json_is_written_complete_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    files.write_json(path, {"a": 1})
    monkeypatch.setattr(Path, "replace", _full)
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"b": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["results.json"]


def test_make_clean_removes_what_a_killed_run_left_and_nothing_that_a_living_one_writes(tmp_path):
    shutil.copy(paths.ROOT / "Makefile", tmp_path)
    target = tmp_path / "papermill_runs" / "00_x" / "ab12"
    with records.hidden(target) as mine:
        killed = subprocess.Popen(["true"])
        killed.wait()
        left = Path(str(mine.parent).replace(str(os.getpid()), str(killed.pid)))
        (left / "record").mkdir(parents=True)
        records.failed(target).mkdir()
        subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True)
        assert list(target.parent.iterdir()) == [mine.parent]
