"""All schemes by name: ``schemes.named(wm, key, ["GaussMark", "KGW-2"])``. A scheme is one file in
this folder and its test.

==================  ==========================================================================
``gaussmark``       noise on one weight: the vanilla scheme, and the rank-reduced one
``kgw`` (core)      green lists (Kirchenbauer et al., arXiv:2301.10226): KGW-1, KGW-2
``synthid``         tournament sampling (Dathathri et al., Nature 634, 2024)
``gumbel``          Gumbel-max sampling (Aaronson 2022)
``token_keys``      fresh noise for each token (paper, Algs. 3 and 4)
``cache``           no scheme: the texts that schemes wrote, kept on disk
==================  ==========================================================================
"""

from gaussmark_lib.kgw import KGW
from gaussmark_lib.scheme import COLUMNS, Scheme, named, register
from gaussmark_lib.schemes.gaussmark import GaussMark
from gaussmark_lib.schemes.gumbel import GumbelMax
from gaussmark_lib.schemes.synthid import SynthID
from gaussmark_lib.schemes.token_keys import TokenKeys

__all__ = [
    "COLUMNS",
    "KGW",
    "GaussMark",
    "GumbelMax",
    "Scheme",
    "SynthID",
    "TokenKeys",
    "named",
    "register",
]
