"""Names of an earlier version: see ``keys``."""

from gaussmark_lib.keys import SPAN, standard_normal

__all__ = ["SPAN", "standard_normal"]
