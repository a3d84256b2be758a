"""``make gpu-report`` on a small model of the same kind: each part measures something, and a part
that fails says so and ends nothing.
"""

import json

import pytest

from gaussmark_experiments import gpu_report

SMALL = ["--layers=2", "--width=64", "--weight=model.layers.1.mlp.up_proj.weight"]
SMALL += ["--dtype=float32", "--device=cpu", "--tokens=24", "--prompt=8"]
SMALL += ["--texts=4", "--repeats=1", "--keys=4"]

pytestmark = pytest.mark.slow


def test_every_part_measures(tmp_path, capsys):
    assert gpu_report.main([*SMALL, "--out", str(tmp_path / "new" / "report")]) == 0
    found = json.loads((tmp_path / "new" / "report.json").read_text())
    values = {row["what"]: row["value"] for row in found["rows"]}
    assert len(values) == 8
    assert min(values.values()) > 0
    assert capsys.readouterr().out == (tmp_path / "new" / "report.txt").read_text()
    assert "nan" not in json.dumps(found["rows"]).lower()


def test_a_part_that_fails_is_named(monkeypatch, capsys):
    def full(*_, **__):
        raise RuntimeError("out of memory\nand a page of details")

    monkeypatch.setattr(gpu_report.score, "score", full)
    gpu_report.main(SMALL)
    lines = capsys.readouterr().out.splitlines()
    assert "detection: not measured: out of memory" in lines
    assert sum("not measured" in line for line in lines) == 4
    assert any(line.startswith("generation time") for line in lines)
