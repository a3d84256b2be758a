"""The same examples from hypothesis every time."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1]))  # tiny_models

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("repeatable")
