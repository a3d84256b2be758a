"""Models that are small enough for exact sums, to check the paper's motivation and its power theory
(16_theory_in_full).

================ =================================================================================
``softmax``      a linear softmax model with few outcomes; its exact power
``closed_forms`` the Gaussian example; the smallest price of a detection
``chain``        from the likelihood ratio to ψ, one approximation at a time
``bounds``       the paper's two bounds on the miss rate, and printed statements that differ from
                 what their proofs show
================ =================================================================================

Everything here is float64 NumPy, and imports only ``stats``. To add a model, add a file with exact
sums, and compare them with a simulation. The paper's symbols and our names: ξ is ``noise`` (one row
per key), ξ/σ is ``unit_noise``, y is an outcome (one column each), ∇ log p_θ(y) is ``gradients``, α
is ``level``, τ_α is ``threshold(level)``, β is a miss probability, and 1 − β is ``power``.
"""
