"""See ``runs.ask``."""

from gaussmark_lib.runs.ask import stoppable as stoppable
