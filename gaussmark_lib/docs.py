"""Names of an earlier version: see ``engine.corpus``."""

from gaussmark_lib.engine.corpus import (
    HELDOUT_SHARE,
    PACKAGES,
    VERSION,
    files_of,
    fingerprint,
    load,
    source_files,
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
    "source_files",
    "split_of",
    "versions",
]
