"""Do the tests notice a fault? Real faults are put into a copy of the library, one at a time, and
the tests named beside each fault must fail. ``mutants.toml`` is the table of faults.

    make mutants                          all faults, two at a time
    python tests/mutants.py kgw rank      faults of files whose name contains one of these words

pytest does not collect this script. A fault counts as caught if a test is reported as FAILED. A
fault that only breaks an import or runs out of time is counted apart, because it says little about
the tests. The exit status is 1 if fewer than 95% are caught, or if a test fails without any fault.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ["gaussmark_lib", "notebooks", "tests", "pyproject.toml"]
LINKED = ["data", "papermill_runs", "Makefile"]
PYTEST = ["-m", "pytest", "-x", "-q", "-rf", "--tb=no", "-p", "no:cacheprovider"]
CAUGHT_SHARE = 0.95
AT_ONCE = 2
TIMEOUT = 240  # seconds for the tests of one fault


class Mutant(NamedTuple):
    """A fault of the table: ``new`` takes the place of ``old`` in ``file``.

    Attributes:
        file: its place in a checkout.
        tests: names of files in ``tests``.
        why: what the fault is.
        gone: why the fault no longer has a place in the library; empty for a fault that runs.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str = ""
    gone: str = ""

    def applied(self, source: str) -> str:
        """Return the source with the fault. LookupError if it does not contain ``old`` exactly
        once, SyntaxError if the result is not Python.
        """
        n = source.count(self.old)
        if n != 1:
            raise LookupError(
                f"{self.file}, {self.why}: expected exactly one {self.old!r}, found {n}; adapt"
                " tests/mutants.toml"
            )
        changed = source.replace(self.old, self.new)
        ast.parse(changed)
        return changed


def read() -> list[Mutant]:
    """Read the faults of the table, in order."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return [Mutant(**fault | {"tests": tuple(fault["tests"])}) for fault in table["fault"]]


def chosen(mutants: Sequence[Mutant], words: Sequence[str]) -> list[Mutant]:
    """Return the faults that run, of files whose name contains any of the words; all faults if
    there are no words. A name begins inside ``gaussmark_lib`` or ``notebooks``.
    """
    running = [mutant for mutant in mutants if not mutant.gone]
    names = [mutant.file.partition("/")[2] for mutant in running]
    wanted = [not words or any(word in name for word in words) for name in names]
    return [mutant for mutant, is_wanted in zip(running, wanted, strict=True) if is_wanted]


def main(words: Sequence[str]) -> int:
    mutants = chosen(read(), words)
    # before any test runs, so that a fault that no longer applies is known at once
    for mutant in mutants:
        mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
    folder = tempfile.TemporaryDirectory(prefix="mutants-")
    with folder as place, ThreadPoolExecutor(AT_ONCE) as pool:
        in_copy = partial(outcome, folder=Path(place))
        suites = [*dict.fromkeys(mutant.tests for mutant in mutants)]
        unchanged = pool.map(in_copy, [Mutant("", "", "", tests) for tests in suites])
        suite_outcomes = zip(suites, unchanged, strict=True)
        # a suite that fails without a fault says nothing about faults
        unsound = [" ".join(tests) for tests, came in suite_outcomes if came != "survived"]
        if unsound:
            print(f"without any mutant, the tests should pass: {'; '.join(unsound)}")
            return 1
        missed = []
        for mutant, came in zip(mutants, pool.map(in_copy, mutants), strict=True):
            print(f"{came:9}  {mutant.file:50}  {mutant.why}", flush=True)
            if came != "caught":
                missed.append(f"{mutant.file}, {mutant.why} ({came})")
    n_caught = len(mutants) - len(missed)
    print(f"{n_caught} of {len(mutants)} caught; survivors: {'; '.join(missed) or 'none'}")
    return int(n_caught < CAUGHT_SHARE * len(mutants))


def outcome(mutant: Mutant, folder: Path) -> str:
    """``caught`` by a failing test, ``survived``, ``broke`` (an error before any test) or ``timed
    out``. A mutant without ``file`` changes nothing.
    """
    place = Path(tempfile.mkdtemp(dir=folder))
    for name in COPIED:
        original = ROOT / name
        if original.is_dir():
            shutil.copytree(original, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(original, place / name)
    for name in LINKED:
        (place / name).symlink_to(ROOT / name)
    if mutant.file:
        file = place / mutant.file
        file.write_text(mutant.applied(file.read_text(encoding="utf-8")), encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(place), str(place / "notebooks")]),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, *PYTEST, *(f"tests/{name}" for name in mutant.tests)]
    try:
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return "timed out"
    finally:
        shutil.rmtree(place)
    if done.returncode == 0:
        return "survived"
    has_failure = any(line.startswith("FAILED ") for line in done.stdout.splitlines())
    return "caught" if done.returncode == 1 and has_failure else "broke"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
