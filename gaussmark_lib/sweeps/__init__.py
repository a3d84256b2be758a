"""Many runs: a notebook over a grid of parameters (a sweep) or all notebooks (the tour), on many
processes or machines.

==============  ====================================================================
``over_grid``   one sweep: what has no record is run, and one table of all runs is written
``tour``        all numbered notebooks with their defaults, and one page about them
``grid``        the grid: the values to try, and the runs that they span
``jobs``        runs side by side, and how each of them ended
``places``      where they run: this machine, a Dask scheduler, a batch queue
``tables``      the tables of a sweep, made of its records alone
``page``        the tour's page; ``findings``: a record's findings, in words
==============  ====================================================================
"""

from gaussmark_lib.sweeps.over_grid import Failure, Sweep, sweep

__all__ = ["Failure", "Sweep", "sweep"]
