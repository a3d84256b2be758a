"""GaussMark, a workbench. The map, in reading order; ``import gaussmark_lib`` imports no module.

======================  ============================================================================
``models``              language models with their tokenizers; which weight to mark by default
``texts`` ``tokens``    where texts come from; prompts and responses as checked ids
``weights``             the matrices that can carry a watermark; a watermark without its key
``keys``                128 secret bits → normal numbers; key files
``perturb``             ξ of a key, and the model at θ + ξ (Alg. 1)
``rank_reduce``         noise and gradient without a weight's top singular directions
``generate``            sampling, with a different mark for each row if wanted
``likelihood``          log p of each token, cross-entropy, entropy
``gradients``           G = ∇_θ log p_θ(y | x) of many texts at once
``score`` ``evidence``  ψ = ⟨ξ, G⟩ / (σ‖G‖) and its p-value (Alg. 2); ψ as a sum over tokens
``divergence``          the price of a watermark: KL(p_{θ+ξ} ‖ p_θ)
``corrupt``             what happens to a text on its way, by name
``scheme`` ``kgw``      what every watermark can do, and the registry; the baseline KGW
``stats``               estimates with intervals, levels, power
``errors`` ``files``    what the library refuses to do, by name; where files lie
======================  ============================================================================

These files are the scheme. ``engine`` makes them fast, small in memory and safe. ``beyond`` is more
than the paper's method. ``workbench`` runs notebooks, records, draws and explains. A layer imports
only earlier layers: ``errors``/``files``/``tokens``, ``engine``, scheme, ``beyond``, ``workbench``.
"""

import os
from importlib import import_module
from typing import Any

# Waiting threads spin. Next to a busy process, work takes ten times as long if they spin for long.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

HOMES = {"load": "models", "Watermark": "weights", "Key": "keys"}  # name → its module
HOMES |= {"watermarked": "perturb", "sample": "generate"}


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(import_module(f"gaussmark_lib.{HOMES[name]}"), name)
    raise AttributeError(f"module 'gaussmark_lib' has no attribute {name!r}")
