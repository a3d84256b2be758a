"""The parts of all figures. Functions draw tables, and return a figure or draw on given axes.

=================  ================================================================================
``style``          colours, line styles, captions, and the axes that several figures share
``intervals``      estimates as points with error bars or as lines with bands, from a table
                   or from ``stats.Estimate``
``panels``         most figures: a table's estimates as lines or points, in panels
``diagrams``       where the noise is, and who holds what: pictures without data
``show``           text in the output of a notebook
=================  ================================================================================

Nothing here computes a result or needs a model. A figure of a single notebook is a function of that
notebook's experiment.
"""
