"""``gaussmark run`` asks one question, and few modules hand it on; ``gaussmark detect`` reaches the
score through few functions.
"""

import subprocess
import sys

from small_notebooks import code, parameters, write

from gaussmark_lib import files

MOST = 8  # of the library, from the command line to what starts the kernel
SCRIPT = """
import inspect, sys
passed = set()

def note(frame, event, argument):
    name = frame.f_globals.get("__name__", "")
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if event == "call" and is_function and name.startswith("gaussmark_lib.") and not imports(frame):
        passed.add(name)

def imports(frame):
    while frame:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
            return True
        frame = frame.f_back
    return False

from gaussmark_lib.workbench import cli
sys.setprofile(note)
done = cli.main(sys.argv[1:])
sys.setprofile(None)
print(done, *sorted(passed))
"""


def test_a_run_passes_few_modules(tmp_path):
    notebook = write(tmp_path / "demo.ipynb", parameters(), code("x"))
    words = ["run", str(notebook), "-p", "x", "2", "--records", str(tmp_path)]
    command = [sys.executable, "-c", SCRIPT, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code_of_exit, *passed = done.stdout.splitlines()[-1].split()
    assert code_of_exit == "0"
    names = ("folder", "kernel", "forks")
    folder, kernel, forks = (f"gaussmark_lib.workbench.runs.{name}" for name in names)
    assert {folder, kernel} <= set(passed)
    assert len(set(passed) - {kernel, forks}) <= MOST, passed


MOST_FUNCTIONS = 12  # of the command line, before the score
BEFORE_THE_SCORE = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import tiny_lm
from gaussmark_lib import models, score
from gaussmark_lib.workbench import cli

lm = tiny_lm.build()
models.load = lambda name: lm
passed = []
FOLDER = Path(cli.__file__).parent

def note(frame, event, argument):
    path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
    if event != "call":
        return
    if frame.f_code is score.score.__code__:
        passed.append("score")
        sys.setprofile(None)
    is_named = not name.rsplit(".", 1)[-1].startswith("<")  # a comprehension, a module
    is_class = not frame.f_code.co_flags & 1  # CO_OPTIMIZED: a function
    if path.parent == FOLDER and is_named and not is_class:
        passed.append(f"{{path.stem}}.{{name}}")

sys.setprofile(note)
code = cli.main(sys.argv[1:])
sys.setprofile(None)
print(code, *dict.fromkeys(passed))
"""


def test_few_functions_run_before_the_score(lm, keys, tmp_path):
    (tmp_path / "text.txt").write_text("Returns the mean of the values.")
    words = ["detect", "--key", keys[0], str(tmp_path / "text.txt")]
    script = BEFORE_THE_SCORE.format(tests=str(files.ROOT / "tests"))
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "p = " in done.stdout
    code_of_exit, *passed = done.stdout.splitlines()[-1].split()
    assert (code_of_exit, passed[0], passed[-1]) == ("0", "__init__.main", "score")
    assert "measure.alone" in passed
    assert len(passed) - 1 <= MOST_FUNCTIONS, passed
