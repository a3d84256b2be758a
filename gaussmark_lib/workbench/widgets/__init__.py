"""Panels of widgets over tested functions; nothing here computes."""

from gaussmark_lib.workbench.widgets.panel import Panel

__all__ = ["Panel"]
