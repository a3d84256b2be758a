"""Whose text is it? Which of many users wrote a text, whether several texts have the same author,
and which span of a long text is watermarked.

All answers follow from the same law: with z = ξ/σ ~ N(0, I), inner products of z with gradients
that do not depend on the key are jointly Gaussian, and their covariance can be computed without the
key.

===============  =================================================================================
``codebook``     a key for each user, all from one master key: codes over a few base noises
``attribution``  the user with the largest ψ, with an exact p-value over all users
``authors``      one test of several texts, by their summed gradient
``versions``     one test of several versions of a text, by the largest ψ
``spans``        the span of a long text with the largest ψ, with an exact p-value over all spans
===============  =================================================================================

A new test is a file here that is exact over the draw of the keys, and is exported below.
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
