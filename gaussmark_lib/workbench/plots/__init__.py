"""What all figures are made of; each function takes tables and a caption, and returns a figure.

=================  ================================================================================
``style``          colours, line styles, captions, and the axes that several figures share
``intervals``      estimates as points with error bars or as lines with bands, from a table
                   or from ``stats.Estimate``
``panels``         most figures: a table's estimates as lines or points, in panels
``show``           text that a notebook shows to people
=================  ================================================================================

Nothing here computes a result, and nothing needs a model. A figure that only one notebook draws is
a function of that notebook's experiment.
"""
