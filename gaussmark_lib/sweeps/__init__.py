"""Many runs: a notebook over a grid of parameters (a sweep) or all notebooks (the tour), on many
processes or machines.

==============  ====================================================================
``over_grid``   one sweep: what has no record is run, and one table of all runs is written
``grid``        the grid: the values to try, and the runs that they span
``places``      where the runs run: this machine, a Dask scheduler, a batch queue
``submit``      hands the runs to workers and collects how each of them ended
``worker``      what a worker does
``tables``      the tables of a sweep, made of its records alone
``tour``        all numbered notebooks, and one page about them
==============  ====================================================================
"""

from gaussmark_lib.sweeps.over_grid import Failure, Sweep, sweep

__all__ = ["Failure", "Sweep", "sweep"]
