"""``python -m gaussmark_lib.workbench.cli`` is the command ``gaussmark``."""

import sys

from gaussmark_lib.workbench.cli import main

sys.exit(main())
