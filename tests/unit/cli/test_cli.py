"""The command line, as a user meets it: exit codes, sentences, and real signals to a process of its
own.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_lines import answer, rows
from small_notebooks import code, parameters, write

from gaussmark_lib import cli, files, generate, models, perturb, score
from gaussmark_lib.runs import notebook as notebooks

COMMAND = [sys.executable, "-m", "gaussmark_lib.cli"]
SLOW = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
with open({path!r}, "w") as file:
    print(os.getpid(), child.pid, file=file)
time.sleep(600)
"""


def _gone(pid: int, seconds: float = 10) -> bool:
    for _ in range(int(seconds / 0.1)):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return True  # dead, and waiting for whoever adopted it
        time.sleep(0.1)
    return False


def test_run_answers_and_prints_where(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(notebooks.Notebook, "code", "tested")
    monkeypatch.chdir(tmp_path)
    cell = code("from gaussmark_lib import runs; runs.record({'twice': 2 * x})")
    notebook = write(
        tmp_path / "demo.ipynb", parameters("x: float = 1.0  # [-5, 5] a number"), cell
    )
    (tmp_path / "preset.yaml").write_text("x: 4")
    words = ["run", str(notebook), "-f", "preset.yaml", "-p", "x", "-1e-1", "--records", "records"]
    assert answer(capsys, *words, "--check")[1].split() == [
        "demo",
        "can",
        "run",
        "with",
        "x",
        "-0.1",
    ]
    assert not (tmp_path / "records").exists()
    _, out, err = answer(capsys, *words)
    assert "cell" in err, "a progress bar"
    assert out.splitlines()[1].split() == ["twice", "-0.2"]
    folder = Path(out.splitlines()[-1])
    assert json.loads((folder / "params.json").read_text()) == {"x": -0.1}
    exit_code, again, err = answer(capsys, *words)
    assert (exit_code, again.splitlines()[-1], err) == (0, str(folder), "")
    assert "answered from its record" in again
    listed = answer(capsys, "run", str(notebook), "--parameters")[1]
    assert listed == "x: float in [-5, 5] = 1.0  # a number\n"


def test_a_failing_cell_exits_with_1(tmp_path, capsys):
    notebook = write(tmp_path / "demo.ipynb", parameters(), code("1 / 0"))
    words = ["run", str(notebook), "--records", str(tmp_path / "records")]
    exit_code, out, err = answer(capsys, *words)
    assert (exit_code, out, "Traceback" in err) == (cli.FAILED, "", False)
    assert "demo failed: in cell `1 / 0`: ZeroDivisionError" in err


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_kernel_and_nothing_that_looks_complete(tmp_path, number):
    pids = tmp_path / "pids"
    notebook = write(tmp_path / "demo.ipynb", parameters(), code(SLOW.format(path=str(pids))))
    process = subprocess.Popen(
        [*COMMAND, "run", str(notebook), "--records", str(tmp_path / "records")],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(files.ROOT)},
    )
    while not (pids.exists() and pids.read_text().endswith("\n")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    kernel, child = map(int, pids.read_text().split())
    process.send_signal(number)
    process.send_signal(number)  # impatience must not cut the tidying up short
    if number == signal.SIGKILL:
        os.kill(child, number)
    _, errors = process.communicate(timeout=60)
    assert _gone(kernel), "it watches its parent"
    records = list((tmp_path / "records" / "demo").iterdir())
    if number == signal.SIGKILL:
        assert all(path.name.startswith(".") for path in records)
        return
    assert _gone(child)
    assert process.returncode == cli.INTERRUPTED
    assert "demo interrupted: in cell" in errors
    assert "Traceback" not in errors
    [record] = records
    status = json.loads((record / "status.json").read_text())
    assert (record.suffix, status["status"]) == (".failed", "interrupted")
    assert (status["error"], status["cell"]) == ("KeyboardInterrupt", "import os, subprocess, time")


@pytest.mark.parametrize(
    "source",
    [
        "import gaussmark_lib",
        "import gaussmark_lib.runs",
        "import gaussmark_lib.sweeps",
        *[
            f"from gaussmark_lib import cli; cli.main({words!r})"
            for words in (
                ["--help"],
                ["--version"],
                ["list"],
                ["generate", "--help"],
                ["tour", "--help"],
                ["run", "no_such_notebook"],
                ["run", "03", "-f", "llama-3.1-8b", "--check"],
            )
        ],
    ],
)
def test_help_and_refusals_do_not_wait_for_heavy_packages(source):
    script = f"""
import sys
try:
    {source}
except SystemExit:
    pass
heavy = {{"torch", "transformers", "papermill", "distributed", "nbformat"}}
print(*heavy & set(sys.modules), file=sys.stderr)
"""
    environment = os.environ | {"PYTHONPATH": str(files.ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "", done.stderr


WEIGHT = "model.layers.4.mlp.down_proj.weight"


def test_a_key_is_made_for_one_weight_and_shown_without_its_secret(tmp_path, capsys):
    path = tmp_path / "key.json"
    words = ["key", "new", str(path), "--weight", WEIGHT, "--sigma", "0.1", "--rank-dropped", "2"]
    code, out, _ = answer(capsys, *words)
    content = json.loads(path.read_text())
    assert (code, path.stat().st_mode & 0o777, content["key_id"] in out) == (0, 0o600, True)
    shown = answer(capsys, "key", "show", str(path))[1]
    assert content["secret"] not in shown
    facts = json.loads(shown)
    assert (facts["weight"], facts["sigma"], facts["rank_dropped"]) == (WEIGHT, 0.1, 2)
    assert answer(capsys, *words)[0] == cli.REFUSED
    assert json.loads(path.read_text()) == content, "it is never overwritten"


def test_detect_tells_the_key_from_another(tmp_path, capsys, monkeypatch, typed):
    lm, prompt = models.load(), "Return the"
    watermark = perturb.Watermark(WEIGHT, sigma=0.2)
    keys = [perturb.bind(lm.model, watermark, perturb.Key.from_seed(seed)) for seed in (1, 2)]
    files = [str(key.save(tmp_path / f"{key.key_id}.json")) for key in keys]
    with perturb.watermarked(lm.model, watermark, keys[0]):
        (response,) = generate.sample(lm.model, [lm.prompt(prompt)], n_tokens=200, seed=0)
    text = lm.decode(response)
    expected = score.score(lm.model, [lm.prompt(prompt)], [lm.encode(text)], watermark, keys)
    assert expected.p_value[0] < 0.01 < expected.p_value[1], "the example should be a clear one"
    monkeypatch.setattr(models, "load", lambda name: lm)
    words = ["detect", "--prompt", prompt, "--text", text, "--key"]
    for file, row in zip(files, expected.itertuples(), strict=True):
        _, [found], _ = rows(capsys, *words, file)
        facts = found["key_id"], found["n_tokens"], found["p_given"]
        assert facts == (row.key_id, row.n_tokens, None)
        for name in ("psi", "p_value", "log10_p"):
            assert found[name] == pytest.approx(getattr(row, name), rel=1e-3)
        shift = keys[0].binding.sigma_carried * row.grad_norm
        assert found["e_value"] == pytest.approx(math.exp(shift * row.psi - shift**2 / 2), rel=1e-2)
    sentence = answer(capsys, *words, files[0])[1]
    assert f"p = {expected.p_value[0]:.3g}" in sentence
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "prompt.txt").write_text(f"{prompt}\n")
    words = ["detect", "--key", files[0], "--prompt-file", str(tmp_path / "prompt.txt")]
    assert answer(capsys, *words, str(tmp_path / "text.txt"))[1] == sentence
    typed(text.encode())
    _, [alone], _ = rows(capsys, "detect", "--key", files[0], "-")
    assert alone["n_tokens"] == expected.n_tokens[0]
    assert alone["psi"] != expected.psi[0], "the prompt is part of what is scored"
