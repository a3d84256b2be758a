"""A grid: the values of a notebook's parameters to try, and the runs that they span.

    sigma: [0.02, 0.05, 0.1]       a list has the values to try: 3 × 2 = 6 runs
    seed: [0, 1]                   the last name changes fastest
    n_texts: 16                    one value, the same in every run
    weights: [[a, b], [c]]         two values of a parameter that is itself a list

Other combinations are listed under ``runs``. Each of these is combined with all other values of the
grid:

    runs:
      - {sigma: 0.02, n_tokens: 400}
      - {sigma: 0.2, n_tokens: 50}

``presets.read(name, "grid")`` reads a grid from a file. The whole grid is checked before the first
run: a misspelt name could waste a night.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

from gaussmark_lib.errors import ParameterError, shown
from gaussmark_lib.workbench.runs.notebook import Notebook

RUNS = "runs"  # no name of a parameter: no parameter can be a list of mappings
MOST = 10_000  # runs: more would take minutes to check, and days to run


def runs(
    notebook: Notebook, grid: Mapping[str, Any], params: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return all runs of a grid in their order, with a checked value for every parameter.

    Args:
        grid: name → values to try, or one value; ``runs`` → list of combinations.
        params: values for the whole sweep; values of the grid have precedence.

    Raises:
        ParameterError: if the grid is not valid; it lists all problems.
    """
    n = math.prod(max(1, len(values)) for values in grid.values() if isinstance(values, list))
    if n > MOST:
        raise ParameterError(
            f"{notebook.name} cannot be swept over this grid: expected at most {MOST:,} runs, got"
            f" {n:,}; sweep it in parts"
        )
    problems = [] if grid else ["it is empty; write `name: [value, value]` lines"]
    listed = _listed(grid.get(RUNS, [{}]), problems)
    tried = {name: _values(notebook, name, grid[name], problems) for name in grid if name != RUNS}
    crossed = {name: values for name, values in tried.items() if values}
    twice = [name for name in crossed if any(name in run for run in listed)]
    problems += [f"{name}: given in a run and outside the runs; give it once" for name in twice]
    rows = []
    for run in listed:
        for values in itertools.product(*crossed.values()):
            rows.append(run | dict(zip(crossed, values, strict=True)))
    checked = []
    for row in rows:
        try:
            checked.append(notebook.check({**(params or {}), **row}))
        except ParameterError as error:
            _, *lines = str(error).splitlines()  # the first line names the notebook
            problems += [line.strip() for line in lines]
    if problems:
        first = f"{notebook.name} cannot be swept over this grid:"
        raise ParameterError("\n  ".join([first, *dict.fromkeys(problems)]))
    return checked


def varying(runs: list[dict[str, Any]]) -> list[str]:
    """Return the parameters that differ between runs, in the notebook's order."""
    return [name for name in runs[0] if any(run[name] != runs[0][name] for run in runs)]


def _listed(given: Any, problems: list[str]) -> list[dict[str, Any]]:
    """The listed combinations."""
    is_list = isinstance(given, list) and len(given) > 0
    if is_list and all(isinstance(run, dict) for run in given):
        return given
    problems.append(
        f"{RUNS}: expected a list of runs like `- {{sigma: 0.1, seed: 0}}`, got {shown(given)}"
    )
    return [{}]


def _values(notebook: Notebook, name: str, given: Any, problems: list[str]) -> list[Any]:
    """The values of a name to try. A list is always a list of values, even if the parameter itself
    is a list.
    """
    if not isinstance(given, list):
        return [given]
    parameter = notebook.parameters.get(name)
    if not given:
        problems.append(f"{name}: no value to try; give at least one, or leave the name out")
    elif parameter and parameter.fits(given) and not all(map(parameter.fits, given)):
        problems.append(
            f"{name}: expected a list of values, each {parameter.allowed}, got one value; write"
            f" [{shown(given)}]"
        )
        return []
    return given
