"""The playground of notebook 11: a panel of widgets over tested functions.

==============  =====================================================================
``playground``  write, test and edit, without widgets: the only file that computes
``panel``       the panel, which joins the others
``form``        what a user enters
``area``        buttons, progress, and the thread that works
``render``      results as HTML, and the lines of Python behind them
==============  =====================================================================

A new result is a function of ``playground`` with a test, and a part of a page in ``render``.
"""

from gaussmark_lib.workbench.widgets.panel import Panel

__all__ = ["Panel"]
