"""The playground of notebook 11: a panel of widgets over tested functions.

==============  ============================================================================
``playground``  writing, testing and editing, without widgets: the only file that computes
``panel``       the panel: inputs, and what its buttons do
``action``      a button with Stop, progress and result, and the thread that works
``render``      results as HTML, by macros in ``templates``
==============  ============================================================================

To add a result, add a function with a test to ``playground``, and its HTML to
``templates/results.html.j2``.
"""

from gaussmark_experiments.widgets.panel import Panel

__all__ = ["Panel"]
