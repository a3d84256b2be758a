"""Run notebooks: ask a question, keep the answer.

    answer = runs.run("00_first_watermark", {"sigma": 0.1})
    answer.results, answer.dir

The record of an answer is ``papermill_runs/<notebook>/<id>``. If the same question is asked again,
the record answers it. If two processes ask the same question, both run it, and the first record is
kept.

==============  ==========================================================================
``notebook``    a notebook file as a question: cells and parameters, and their id, which also covers
                the code and the files that the answer depends on
``parameters``  what the cell tagged ``parameters`` declares, checked
``presets``     YAML files of parameter values, and the paper's own numbers
``kernel``      the process that executes the cells
``forks``       such processes as forks of a process that has already imported torch
``death``       why that process died, in words
``folder``      the run itself, and the record that it leaves
==============  ==========================================================================

A new preset is a YAML file in ``papermill_runs/presets``; nothing here knows a notebook by name.
"""

from gaussmark_lib.workbench.runs.folder import Run, RunFailedError, reference, references, run
from gaussmark_lib.workbench.runs.presets import comparable, rivals

__all__ = ["Run", "RunFailedError", "comparable", "reference", "references", "rivals", "run"]
