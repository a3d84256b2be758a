"""Whose text: which of many users, whether several texts have one author, and which span of a long
text is marked.

All three are readings of one law: with z = ξ/σ ~ N(0, I), inner products of z with gradients that
do not depend on the key are jointly Gaussian, with a covariance that needs no key.

===============  ============================================================
``codebook``     a key a user, all from one master key: codes over a few base noises
``attribution``  the user whose key a text leans to, with an exact p-value over all users
``authors``      several texts as one: the test of their summed gradient
``versions``     one text in several versions: exact for the largest ψ of them
``spans``        the span of a long text that leans most to a key, exact over all spans
===============  ============================================================

A new reading is a file here that is exact over the draw of the keys, and exported below.
"""

from gaussmark_lib.beyond.tracing.attribution import attribute, capacity, family_p, share_right
from gaussmark_lib.beyond.tracing.authors import author, summed
from gaussmark_lib.beyond.tracing.codebook import Codebook, UserKey
from gaussmark_lib.beyond.tracing.spans import scan
from gaussmark_lib.beyond.tracing.versions import any_version

__all__ = [
    "Codebook",
    "UserKey",
    "any_version",
    "attribute",
    "author",
    "capacity",
    "family_p",
    "scan",
    "share_right",
    "summed",
]
