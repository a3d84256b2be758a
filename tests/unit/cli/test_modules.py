"""``gaussmark run`` asks one question, and few modules hand it on; ``gaussmark detect`` reaches the
score through few functions.
"""

import inspect
import sys
from pathlib import Path

from small_notebooks import code, parameters, write

from gaussmark_lib import files
from gaussmark_lib.workbench import cli

LIBRARY = files.ROOT / "gaussmark_lib"
MOST_MODULES = 8  # of the library, from the command line to what starts the kernel
MOST_FUNCTIONS = 12  # of the command line, before the score


def functions_of(*words: str) -> list[tuple[str, str]]:
    """The file and the name of each function of the library that a command calls, in order."""
    called = []

    def note(frame, event, _):
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        name = frame.f_code.co_qualname
        is_named = not name.rsplit(".", 1)[-1].startswith("<")  # a comprehension, a lambda
        file = frame.f_code.co_filename
        is_ours = event == "call" and is_function and is_named and file.startswith(str(LIBRARY))
        if is_ours and not is_import(frame):
            called.append((str(Path(file).relative_to(LIBRARY)), name))

    sys.setprofile(note)
    try:
        code_of_exit = cli.main(words)
    finally:
        sys.setprofile(None)
    assert code_of_exit == 0
    return list(dict.fromkeys(called))


def is_import(frame) -> bool:
    while frame and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame is not None and frame.f_globals["__name__"].startswith("gaussmark_lib")


def test_a_run_passes_few_modules(tmp_path):
    notebook = write(tmp_path / "demo.ipynb", parameters(), code("x"))
    called = functions_of("run", str(notebook), "-p", "x", "2", "--records", str(tmp_path))
    modules = {file for file, _ in called}
    folder, kernel, forks = (f"workbench/runs/{name}.py" for name in ("folder", "kernel", "forks"))
    assert {folder, kernel} <= modules
    assert len(modules - {kernel, forks}) <= MOST_MODULES, modules


def test_few_functions_run_before_the_score(keys, tmp_path):
    (tmp_path / "text.txt").write_text("Returns the mean of the values.")
    called = functions_of("detect", "--key", keys[0], str(tmp_path / "text.txt"))
    before = called[: called.index(("score.py", "score"))]
    of_command_line = [name for file, name in before if file.startswith("workbench/cli/")]
    assert of_command_line[0] == "main"
    assert of_command_line[-1] == "alone"
    assert len(of_command_line) <= MOST_FUNCTIONS, of_command_line
