"""Runs of notebooks: ask a question, keep the answer.

    answer = runs.run("00_first_watermark", {"sigma": 0.1})
    answer.results, answer.dir

==============  ==========================================================================
``ask``         one run: from its record, or by running the notebook
``notebook``    a notebook file as a question: cells, parameters, id
``parameters``  what the cell tagged ``parameters`` declares, checked
``identity``    the versions of code, model and texts that are part of the id
``kernel``      the process that executes the cells
``folder``      the record that a run leaves: its files, and when and with what it ran
``presets``     YAML files of parameter values
``published``   the paper's own numbers, to draw beside them
==============  ==========================================================================
"""

from gaussmark_lib.record import headline, record, save_figure, save_table
from gaussmark_lib.runs.ask import RunFailedError, reference, run
from gaussmark_lib.runs.folder import Run
from gaussmark_lib.runs.published import comparable, published

__all__ = [
    "Run",
    "RunFailedError",
    "comparable",
    "headline",
    "published",
    "record",
    "reference",
    "run",
    "save_figure",
    "save_table",
]
