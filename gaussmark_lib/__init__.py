"""GaussMark, a workbench. The map, in the order of reading; nothing is imported here, so that
``import gaussmark_lib`` costs nothing.

The scheme, flat:

====================  ==============================================================================
``errors``            what the library refuses, by name
``checks``            the refusals that many functions share
``paths`` ``files``   where the repository's folders are; files that somebody names
``words``             numbers in words
``weights``           the matrices that can carry a watermark: linear layers'
``models``            language models: on what terms they are loaded, and in what they compute
``tokens``            prompts and responses as checked, padded token ids
``texts`` ``docs``    where prompts and human texts come from; the embedded corpus
``normal`` ``keys``   128 secret bits → the same normal numbers on every machine; key files
``binding``           what a key was made for: hashes of the noise and of every weight
``watermark``         which weight, which σ, which directions are left out
``perturb``           ξ of a key, and the model at θ + ξ (Alg. 1)
``rank_reduce``       noise and gradient without a weight's top singular directions
``generate``          sampling; ``generate_many``: many watermarks in one batch
``likelihood``        log p of each token, cross-entropy, entropy
``gradients``         G = ∇_θ log p_θ(y | x) of many texts at once
``score``             ψ = ⟨ξ, G⟩ / (σ‖G‖) and its p-value (Alg. 2)
``evidence``          ψ as a sum over tokens
``joint``             many texts and one key: their joint law, streams, batches
``tracing``           whose text: users of a codebook, several texts of one author, the marked span
``divergence``        the price of a watermark: KL(p_{θ+ξ} ‖ p_θ)
``corrupt``           what happens to a text on its way, by name
``scheme`` ``kgw``    what every watermark can do, and the registry; the baseline KGW
``stats``             estimates with intervals, levels, power
====================  ==============================================================================

The rooms around it, which import the core and are imported by none of it: ``rewrite``
(translation there and back), ``schemes`` (all watermarks by name), ``token_level`` (Algs. 3 and 4),
``experiments`` and ``plots`` (a file per notebook, with its name), ``quality``, ``runs`` (one
notebook run and its record), ``sweeps`` (many runs: grids, the tour), ``doclm`` (the
embedded model), ``toys`` (the theory in closed form), ``widgets``, and ``cli`` (the command
``gaussmark``), which imports all of them when they are needed.
"""
