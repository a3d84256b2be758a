"""Names of an earlier version: see ``doclm.corpus``."""

from gaussmark_lib.doclm.corpus import (
    HELDOUT_SHARE,
    PACKAGES,
    VERSION,
    files_of,
    fingerprint,
    load,
    split_of,
    versions,
)

__all__ = [
    "HELDOUT_SHARE",
    "PACKAGES",
    "VERSION",
    "files_of",
    "fingerprint",
    "load",
    "split_of",
    "versions",
]
