"""``gaussmark run`` asks one question, and few modules hand it on."""

import os
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
    environment = os.environ | {"PYTHONPATH": str(files.ROOT)}
    command = [sys.executable, "-c", SCRIPT, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    code_of_exit, *passed = done.stdout.splitlines()[-1].split()
    assert code_of_exit == "0"
    folder, kernel = (f"gaussmark_lib.workbench.runs.{name}" for name in ("folder", "kernel"))
    assert {folder, kernel} <= set(passed)
    assert len(set(passed) - {kernel}) <= MOST, passed
