"""A grid: which values of a notebook's parameters to try, and the runs that they span.

    sigma: [0.02, 0.05, 0.1]       a list is a list of values to try: 3 × 2 = 6 runs
    seed: [0, 1]                   the last name changes fastest
    n_texts: 16                    one value, the same in every run
    weights: [[a, b], [c]]         two values of a parameter that is itself a list

Other combinations are written out under ``runs``; each of them is crossed with all values beside
it:

    runs:
      - {sigma: 0.02, n_tokens: 400}
      - {sigma: 0.2, n_tokens: 50}

In a file, it is read by ``presets.read(name, "grid")``. All of it is checked before the first run:
a misspelt name could waste a night.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

from gaussmark_lib.errors import ParameterError, shown
from gaussmark_lib.workbench.runs.notebook import Notebook

RUNS = "runs"  # not a parameter's name: no parameter can be a list of mappings
MOST = 10_000  # runs: more take minutes to check, and days to run


def runs(
    notebook: Notebook, grid: Mapping[str, Any], params: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """All runs of a grid in their order, each with a checked value for every parameter of the
    notebook. ParameterError lists everything in the grid that cannot be used.

    Args:
        grid: name → values to try, or one value; ``runs`` → list of runs that are written out.
        params: values for the whole sweep, where the grid gives none.
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
    problems += [f"{name}: given both in a run and beside the runs; say it once" for name in twice]
    rows = [
        run | dict(zip(crossed, values, strict=True))
        for run in listed
        for values in itertools.product(*crossed.values())
    ]
    checked = []
    for row in rows:
        try:
            checked.append(notebook.check({**(params or {}), **row}))
        except ParameterError as error:
            problems += [line.strip() for line in str(error).splitlines()[1:]]
    if problems:
        first = f"{notebook.name} cannot be swept over this grid:"
        raise ParameterError("\n  ".join([first, *dict.fromkeys(problems)]))
    return checked


def varying(runs: list[dict[str, Any]]) -> list[str]:
    """The parameters that differ between runs, in the notebook's order."""
    return [name for name in runs[0] if any(run[name] != runs[0][name] for run in runs)]


def _listed(given: Any, problems: list[str]) -> list[dict[str, Any]]:
    if isinstance(given, list) and given and all(isinstance(run, dict) for run in given):
        return given
    problems.append(
        f"{RUNS}: expected a list of runs like `- {{sigma: 0.1, seed: 0}}`, got {shown(given)}"
    )
    return [{}]


def _values(notebook: Notebook, name: str, given: Any, problems: list[str]) -> list[Any]:
    """The values to try of one name. A list is always a list of them, also where the parameter is a
    list itself.
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
