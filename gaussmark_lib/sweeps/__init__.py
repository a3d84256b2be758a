"""Sweeps: a notebook over a grid of parameters, on as many processes or machines as there are.

==============  ====================================================================
``over_grid``   one sweep: what is missing is run, and one table written over all
``grid``        the grid: which values to try, and the cells that they span
``places``      where the runs run: this machine, a Dask scheduler, a batch queue
``submit``      hands the cells to workers and collects how each of them ended
``worker``      what a worker does
``tables``      the tables of a sweep, made of its records alone
==============  ====================================================================
"""

from gaussmark_lib.sweeps.over_grid import Failure, Sweep, sweep

__all__ = ["Failure", "Sweep", "sweep"]
