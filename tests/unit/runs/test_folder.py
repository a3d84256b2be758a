"""The folder of a run: complete or hidden, and its numbers as a reader wants them."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gaussmark_lib import files
from gaussmark_lib.errors import GaussMarkError
from gaussmark_lib.workbench.runs import folder as records

STATUS = {"status": "complete", "finished": "2026-01-01T00:00:01+00:00", "seconds": 1.0}


def _complete(folder: Path, who: str) -> Path:
    for name, content in {"status": STATUS, "params": {"who": who}, "results": {}}.items():
        files.write_json(folder / f"{name}.json", content)
    return folder


def _run(**results) -> records.Run:
    return records.Run(Path("somewhere"), "id", {}, results, {})


def test_numbers_for_a_reader():
    estimate = {"level": 0.05, "value": 0.93751, "low": 0.69771, "high": 1.0, "n": 16}
    run = _run(headline=estimate, n=12345, by={"α": 0.5}, power=estimate, claims=[{}], checks=[{}])
    power = "0.9375 (0.6977 to 1), level = 0.05, n = 16"
    assert run.numbers == {"n": "12,345", "by · α": "0.5", "power": power}


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({}, "90%"),
        ({"high": 1.1}, "0.90"),
        ({"unit": "nats"}, "0.90 nats"),
        ({"value": 0.9123}, "0.91"),  # no number of 40
        ({"value": 98 / 1920, "low": 0.04, "high": 0.06, "n": 1920}, "5.1%"),
    ],
)
def test_a_share_is_given_in_percent_and_a_ratio_is_not(changed, shown):
    share = {"value": 0.9, "low": 0.8, "high": 1.0, "n": 40, "unit": "", "sentence": "detected"}
    line = _run(headline=share | changed).headline
    assert (line.name, line.value) == ("detected", shown)
    assert _run().headline is None


def test_a_record_is_replaced_only_if_it_is_to_be(tmp_path):
    target = tmp_path / "demo" / "id"
    for who, replace in (("first", False), ("second", False), ("third", True)):
        kept = "third" if replace else "first"
        with records.hidden(target) as partial:
            records.place(_complete(partial, who), target, replace=replace)
            assert [path.name[0] for path in target.parent.iterdir() if path != target] == ["."]
        assert records.load(target).params == {"who": kept}
        assert os.listdir(target.parent) == ["id"]
        assert target.stat().st_mode == target.parent.stat().st_mode


@pytest.mark.parametrize(
    ("name", "content"),
    [("status", None), ("params", "3"), ("results", "[" * 100_000), ("results", "\xff")],
)
def test_a_damaged_record_is_none_and_that_is_told(tmp_path, caplog, name, content):
    folder = _complete(tmp_path, "me")
    assert records.load(folder)
    assert not caplog.records
    file = folder / f"{name}.json"
    file.unlink() if content is None else file.write_bytes(content.encode("latin-1"))
    assert records.load(folder) is None
    [line] = caplog.messages
    assert line.startswith(f"the record {folder} is damaged, and counts as none")


def test_what_never_was_a_record_is_none_in_silence(tmp_path, caplog):
    assert records.load(tmp_path / "none") is None
    (tmp_path / "empty" / "figures").mkdir(parents=True)
    assert records.load(tmp_path / "empty") is None
    status = _complete(tmp_path, "me") / "status.json"
    files.write_json(status, STATUS | {"status": "failed"})
    assert records.load(tmp_path) is None
    assert caplog.messages == []


def test_a_table_that_cannot_be_read(tmp_path):
    run = records.load(_complete(tmp_path, "me"))
    (tmp_path / "half.parquet").write_bytes(b"PAR1 and no more")
    for name in ("half", "none"):
        with pytest.raises(GaussMarkError, match=f"has no table '{name}'.*remove the folder"):
            run.table(name)


def _full(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_record_that_cannot_be_put_in_its_place(tmp_path, monkeypatch):
    def place():
        with records.hidden(tmp_path / "id") as partial:
            monkeypatch.setattr(Path, "rename", _full)
            records.place(partial, tmp_path / "id", replace=True)

    with pytest.raises(GaussMarkError, match=r"no record can be kept in .*: No space"):
        place()
    assert os.listdir(tmp_path) == []


def test_make_clean_removes_what_a_killed_run_left_and_nothing_that_a_living_one_writes(tmp_path):
    shutil.copy(files.ROOT / "Makefile", tmp_path)
    target = tmp_path / "papermill_runs" / "00_x" / "ab12"
    with records.hidden(target) as mine:
        killed = subprocess.Popen(["true"])
        killed.wait()
        left = Path(str(mine.parent).replace(str(os.getpid()), str(killed.pid)))
        (left / "record").mkdir(parents=True)
        records.failed(target).mkdir()
        (target.parent / ".notes.old-2020").touch()
        command = ["make", "clean", "PYTHON="]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        kept = {path.name for path in target.parent.iterdir()}
        assert kept == {mine.parent.name, ".notes.old-2020"}
