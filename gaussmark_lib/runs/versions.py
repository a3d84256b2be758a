"""See ``runs.folder``."""

import platform as platform

from gaussmark_lib.runs.folder import PACKAGES as PACKAGES
from gaussmark_lib.runs.folder import version as of  # noqa: F401
