"""Plans of runs: every preset has one, what does not fit comes with what would, and ``run`` refuses
it.
"""

import json
import subprocess
import sys
from functools import cache

import pytest
from small_notebooks import parameters, write

from gaussmark_lib import cli, paths, plan, runs
from gaussmark_lib.errors import InvalidModelError, ParameterError
from gaussmark_lib.plan import device, work
from gaussmark_lib.plan.device import Device
from gaussmark_lib.runs import notebook, presets

GPU = Device("a GPU", 80 * 2**30, 80 * 2**30, True, host=128 * 2**30)
LAPTOP = Device("CPU", 16 * 2**30, 12 * 2**30, False)
NUMBERED = [path.stem for path in notebook.numbered()]
load = cache(notebook.load)


def _pairs() -> list[tuple[str, str]]:
    """Every preset with every notebook that it is for: all of them if it is shared, else the one
    whose name it begins with.
    """
    found = []
    for path in sorted(paths.PRESETS.glob("*.yaml")):
        if path.stem.endswith("_grid") or path.stem == "slurm":
            continue
        shared = presets.read(path).get("shared", False)
        found += [
            (path.stem, name) for name in NUMBERED if shared or path.stem.startswith(name[3:])
        ]
    return found


def values_of(preset: str, name: str) -> dict:
    return presets.taken(presets.read(preset), name[:2], load(name).parameters)[0]


@pytest.mark.parametrize(("preset", "name"), _pairs())
def test_every_preset_has_a_plan(preset, name):
    found = plan.of(
        load(name), values_of(preset, name), on=LAPTOP if preset.startswith("mistral-7b") else GPU
    )
    assert str(found).startswith(name)
    written = json.loads(json.dumps(found.as_json()))
    assert written["fits"] or written["changes"]
    assert all(row["flops"] >= 0 and min(row["bytes"].values()) >= 0 for row in written["steps"])


def test_every_preset_is_for_a_notebook_and_every_notebook_is_known():
    assert {preset for preset, _ in _pairs()} == {
        p.stem for p in paths.PRESETS.glob("*.yaml") if not p.stem.endswith("_grid")
    } - {"slurm"}
    assert sorted(work.NOTEBOOKS) == [name[:2] for name in NUMBERED]


@pytest.mark.parametrize("name", NUMBERED)
def test_a_notebook_with_its_defaults_fits_a_laptop(name):
    found = plan.of(load(name), {}, on=LAPTOP)
    assert found.fits
    assert found.peak < 3 * 2**30


@pytest.mark.parametrize(
    ("preset", "name"), [pair for pair in _pairs() if presets.read(pair[0]).get("shared", False)]
)
def test_every_shared_preset_fits_a_large_gpu(preset, name):
    assert plan.of(load(name), values_of(preset, name), on=GPU).fits


TOO_MUCH = {
    "06": {"n_prompts": 1000},
    "09": {"n_prompts": 1000},
    "12": {"n_texts": 150, "n_tokens": 200},
}


@pytest.mark.parametrize("name", [name for name in NUMBERED if name[:2] in TOO_MUCH])
@pytest.mark.parametrize("preset", ["llama-3.1-8b", "phi-3.5-mini-lowrank"])
def test_what_would_help_helps(preset, name):
    values = values_of(preset, name) | TOO_MUCH[name[:2]]
    found = plan.of(load(name), values, on=GPU)
    assert not found.fits
    typed = [tuple(change.removeprefix("-p ").split(" ", 1)) for change in found.changes]
    changed = {key: load(name).parameters[key].parse(value) for key, value in typed}
    assert plan.of(load(name), values | changed, on=GPU).fits


def test_more_work_costs_more():
    plans = [plan.of(load("03"), {"n_prompts": n}, on=LAPTOP) for n in (100, 200)]
    flops = [
        sum(row.flops for row in one.rows if row.step.what.startswith("every key")) for one in plans
    ]
    assert flops[1] == pytest.approx(2 * flops[0])
    assert plans[0].peak <= plans[1].peak


def test_scoring_without_bfloat16_arithmetic_holds_a_second_copy():
    values = {"model": "mistralai/Mistral-7B-v0.1", "model_dtype": "bfloat16", "dtype": "bfloat16"}
    here, there = (plan.of(load("03"), values, on=where) for where in (LAPTOP, GPU))
    assert here.worst.bytes.copies == 2 * here.weights
    assert there.worst.bytes.copies == 0


def test_a_notebook_that_the_plan_does_not_know(tmp_path):
    content = json.loads((paths.NOTEBOOKS / "03_detectability.ipynb").read_text())
    (tmp_path / "mine.ipynb").write_text(json.dumps(content))
    found = plan.of(notebook.load(tmp_path / "mine.ipynb"), {}, on=LAPTOP)
    assert "not known" in str(found)
    assert found.peak > found.weights > 0


def test_wrong_parameters_and_models_are_errors():
    with pytest.raises(ParameterError, match="no such parameter"):
        plan.of(load("03"), {"sgima": 1}, on=LAPTOP)
    with pytest.raises(InvalidModelError, match="no config"):
        plan.of(load("03"), {"model": "nobody/nothing-at-all"}, on=LAPTOP)
    assert plan.refusal(load("03"), {"model": "nobody/nothing-at-all"}) is None, "the run says it"


def test_run_refuses_what_cannot_fit_and_only_that(monkeypatch, capsys):
    monkeypatch.setattr(device, "of", lambda name: LAPTOP)
    assert plan.refusal(load("12"), {}) is None
    assert plan.refusal(load("16"), {}) is None
    why = plan.refusal(load("12"), {"n_texts": 2000, "weight": "model.layers.4.mlp.up_proj.weight"})
    assert "would need about" in why
    assert "-p n_texts" in why
    assert cli.main(["run", "12", "-p", "n_texts", "2000"]) == cli.REFUSED
    assert "--anyway" in capsys.readouterr().err


def test_an_answer_on_record_needs_no_memory(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(plan, "refusal", lambda *_: "too large")
    assert cli.main(["run", "12"]) == cli.REFUSED
    monkeypatch.setattr(runs, "find", lambda *_, **__: "a record")
    answered = runs.Run(tmp_path, "id", {}, {}, {"finished": "then"}, cached=True)
    monkeypatch.setattr(runs, "run", lambda *_, **__: answered)
    assert cli.main(["run", "12"]) == 0
    assert "answered from its record" in capsys.readouterr().out
    assert cli.main(["run", "12", "--force"]) == cli.REFUSED


def test_somebody_s_own_notebook_of_a_known_number_has_a_plan(tmp_path):
    own = notebook.load(write(tmp_path / "03_mine.ipynb", parameters("model: str = 'doclm'")))
    assert plan.refusal(own, {}) is None
    assert "not known to the plan" in str(plan.of(own, {}, on=LAPTOP))


@pytest.mark.parametrize(
    ("stat", "free"), [("anon 5\ninactive_file 0\n", 0.5), (f"inactive_file {2**30}\n", 1.5)]
)
def test_memory_that_the_group_uses_already_is_not_free(monkeypatch, tmp_path, stat, free):
    for name, content in (
        ("memory.max", f"{2 * 2**30}\n"),
        ("memory.current", f"{1.5 * 2**30:.0f}\n"),
        ("memory.stat", stat),
    ):
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(device, "CGROUP", tmp_path / "memory.max")
    assert [size / 2**30 for size in device._host()] == [2.0, free]


def test_on_the_command_line(capsys, monkeypatch):
    """The one test that measures the device."""
    monkeypatch.setattr(device, "PATIENCE", 0.02)
    assert cli.main(["run", "03", "--plan"]) == 0
    assert "It fits" in capsys.readouterr().out
    assert cli.main(["run", "03", "-p", "n_prompts", "5000", "--plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] > 0


def test_neither_help_nor_a_refusal_waits_for_torch():
    program = (
        "import sys; from gaussmark_lib import cli, plan; from gaussmark_lib.runs import notebook\n"
        "assert plan.refusal(notebook.load('03'), {'device': 'cpu'}) is None\n"
        "try: cli.main(['run', '--help'])\n"
        "except SystemExit: assert 'torch' not in sys.modules\n"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, timeout=60, check=False
        ).returncode
        == 0
    )
