"""Many texts and one key: the joint law of their statistics, known without the key, and what
follows from it.

GaussMark's guarantee is over the draw of the key. A provider draws one key and tests every text
with it. Let z = ξ/σ ~ N(0, I) and u_i = G_i/‖G_i‖, so that ψ_i = ⟨z, u_i⟩. For texts fixed before
the key is looked at,

    (ψ_1, …, ψ_n) ~ N(0, K),   K_ij = ⟨u_i, u_j⟩

==============  ==================================================================================
``directions``  the u_i as they are kept, and their inner products
``law``         what K gives: innovations, the chance of any false alarm in a batch
``memory``      what is kept of a stream
``state``       the memory as a file
``stream``      a stream of texts under one key
``public``      the rule by which untrusted users are answered, and its state
==============  ==================================================================================

A new test of many texts is a file here that takes ``directions`` and the law, not texts.
"""

from gaussmark_lib.beyond.joint.law import family
from gaussmark_lib.beyond.joint.public import Public
from gaussmark_lib.beyond.joint.state import State
from gaussmark_lib.beyond.joint.stream import sequence

__all__ = ["Public", "State", "family", "sequence"]
