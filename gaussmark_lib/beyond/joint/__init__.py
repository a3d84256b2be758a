"""Many texts and one key: the joint law of their statistics, and its consequences.

GaussMark's guarantee is over the draw of the key, but a provider draws one key and tests every text
with it. Let z = ξ/σ ~ N(0, I) and u_i = G_i/‖G_i‖, so that ψ_i = ⟨z, u_i⟩. For texts that do not
depend on the key,

    (ψ_1, …, ψ_n) ~ N(0, K),   K_ij = ⟨u_i, u_j⟩

K can be computed without the key.

==============  ==================================================================================
``directions``  the stored u_i, and their inner products
``law``         consequences of K: innovations, the probability of any false alarm in a batch
``bets``        evidence of a whole stream that may be looked at any time
``memory``      what is stored of a stream
``state``       the memory as a file
``stream``      a stream of texts under one key
``public``      the rule that answers untrusted users, and its state
==============  ==================================================================================

To add a test of many texts, add a file here that takes ``directions`` and the law, not texts.
"""

from gaussmark_lib.beyond.joint.law import family
from gaussmark_lib.beyond.joint.public import Public
from gaussmark_lib.beyond.joint.state import State
from gaussmark_lib.beyond.joint.stream import sequence

__all__ = ["Public", "State", "family", "sequence"]
