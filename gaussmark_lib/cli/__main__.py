"""``python -m gaussmark_lib.cli`` is the command ``gaussmark``."""

import sys

from gaussmark_lib.cli import main

sys.exit(main())
