"""The name that ``files`` had for folders, until its last users have changed."""

import sys

from gaussmark_lib import files

sys.modules[__name__] = files
