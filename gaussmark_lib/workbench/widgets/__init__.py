"""The playground of notebook 11: a panel of widgets over tested functions.

==============  =====================================================================
``playground``  write, test and edit, without widgets: the only file that computes
``panel``       the panel: inputs, and what its buttons do
``action``      a button with Stop, progress and result, and the thread that works
``render``      results as HTML
==============  =====================================================================

A new result is a function of ``playground`` with a test, and a part of a page in ``render``.
"""

from gaussmark_lib.workbench.widgets.panel import Panel

__all__ = ["Panel"]
