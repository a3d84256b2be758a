"""Panels of widgets over tested functions; nothing here computes."""

from gaussmark_lib.widgets.panel import Panel

__all__ = ["Panel"]
