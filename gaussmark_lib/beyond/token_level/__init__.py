"""Token-level keys (paper, Algs. 3 and 4): fresh noise for each token.

===================  ==============================================================
``keys``             the key of each position; writing with these keys; Γ_k of each token
``gradients``        the gradient of one token's log-probability
``divergence``       the price of token-level keys, in nats
``quantiles``        the test of Algorithm 4, its exact level and the proved bounds
===================  ==============================================================

The scheme ``schemes.TokenKeys`` combines these files. A new test of the Γ_k belongs in
``quantiles``.
"""
