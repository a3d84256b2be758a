"""Token-level keys (paper, Algs. 3 and 4): fresh noise for each token.

===================  ==============================================================
``keys``             the key of each position; writing with them; Γ_k of each token
``gradients``        the gradient of one token's log-probability
``divergence``       what token-level keys cost, in nats
``quantiles``        the test of Algorithm 4, its exact level and its proved bounds
===================  ==============================================================

The scheme ``schemes.TokenKeys`` is made of these; a new test of the Γ_k belongs in ``quantiles``.
"""
