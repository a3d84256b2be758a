"""All schemes by name: ``schemes.named(wm, key, ["GaussMark", "KGW-2"])``.

A scheme is one file in this folder, its import below, and its test. A scheme of ten lines, which
may also stand outside the library, is in CONTRIBUTING.md.

==================  ==========================================================================
``gaussmark``       the paper's schemes: vanilla, rank-reduced, and with token-level keys
``kgw`` (core)      green lists (Kirchenbauer et al., arXiv:2301.10226): KGW-1, KGW-2
``synthid``         tournament sampling (Dathathri et al., Nature 634, 2024)
``gumbel``          Gumbel-max sampling (Aaronson 2022)
``biases``          Gaussian noise on the output biases (Christ et al. 2024)
==================  ==========================================================================
"""

# This import is first, because schemes are listed in the order of their registration.
from gaussmark_lib.kgw import KGW
from gaussmark_lib.scheme import COLUMNS, Scheme, SimpleScheme, named, register

# isort: split
from gaussmark_lib.beyond.schemes.biases import OutputBiases
from gaussmark_lib.beyond.schemes.gaussmark import GaussMark, TokenKeys
from gaussmark_lib.beyond.schemes.gumbel import GumbelMax
from gaussmark_lib.beyond.schemes.synthid import SynthID

__all__ = [
    "COLUMNS",
    "KGW",
    "GaussMark",
    "GumbelMax",
    "OutputBiases",
    "Scheme",
    "SimpleScheme",
    "SynthID",
    "TokenKeys",
    "named",
    "register",
]
