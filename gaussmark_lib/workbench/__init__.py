"""What runs, records, draws and tells.

===========  =======================================================================================
``runs``     a notebook with parameters, run once, and its record
``sweeps``   many runs: a grid of parameters, or the tour of all notebooks
``record``   what a notebook records: numbers, tables, figures
``begin``    the set-up of a notebook in one call
``pairs``    pairs of a fresh prompt and a fresh key: drawn, written, scored
``claims``   findings and checks, and the table at a notebook's end
``answers``  what the larger runs found, next to the reader's own
``plots``    styles, panels and intervals of all figures
``rewrite``  edits that need a model: resampled spans, translation there and back
``verdict``  what a p-value means for a text, in words
``words``    numbers in words
``cli``      the command ``gaussmark``
===========  =======================================================================================

The workbench imports the library below it, and none of the experiments. A new module needs a line
above and a place in the contract of the workbench in ``pyproject.toml``. ``answers``, ``plots``,
``record``, ``runs``, ``sweeps`` and ``cli`` compute no result, so they are not part of a run's id
(``runs.notebook.OUTSIDE``).
"""
