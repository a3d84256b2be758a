"""GaussMark, a workbench. The map, in the order of reading; nothing is imported here, so that
``import gaussmark_lib`` costs nothing.

The scheme, flat, to be read in an evening:

======================  ============================================================================
``models``              language models with their tokenizers; which weight to mark by default
``tokens`` ``texts``    prompts and responses as checked, padded ids; where texts come from
``weights``             the matrices that can carry a watermark; what a watermark is but for its key
``keys``                128 secret bits → normal numbers; key files
``perturb``             ξ of a key, and the model at θ + ξ (Alg. 1)
``rank_reduce``         noise and gradient without a weight's top singular directions
``generate``            sampling, with a mark of its own for each row
``likelihood``          log p of each token, cross-entropy, entropy
``gradients``           G = ∇_θ log p_θ(y | x) of many texts at once
``score``               ψ = ⟨ξ, G⟩ / (σ‖G‖) and its p-value (Alg. 2)
``evidence``            ψ as a sum over tokens
``promise``             the mean of ψ that a marked text like a given one has, at any temperature
``divergence``          the price of a watermark: KL(p_{θ+ξ} ‖ p_θ)
``corrupt``             what happens to a text on its way, by name
``scheme`` ``kgw``      what every watermark can do, and the registry; the baseline KGW
``stats``               estimates with intervals, levels, power
``errors``              what the library refuses, by name
======================  ============================================================================

Behind it ``engine``: what makes the core fast, small in memory and safe, and nothing of the scheme.
Beside it, for every room: ``record`` (what a notebook records), ``verdict`` (what a p-value means),
``words`` (numbers in words), ``files`` (where things lie).

The rooms around it, which import the core and are imported by none of it: ``rewrite`` (translation
there and back), ``schemes`` (all watermarks by name), ``token_level`` (Algs. 3 and 4), ``joint``
(many texts and one key: their joint law, streams, what strangers are answered), ``attacks`` (who
knows all but ξ), ``release`` (what happens to weights that are out, and whose they are),
``tracing`` (whose text), ``quality``, ``toys`` (the theory in closed form), ``doclm`` (the embedded
model), ``experiments`` (a file per notebook, with its name) and ``plots``, ``runs`` (one notebook
run and its record), ``sweeps`` (many runs: grids, the tour), ``widgets``, and ``cli`` (the command
``gaussmark``), which imports all of them when they are needed.
"""
