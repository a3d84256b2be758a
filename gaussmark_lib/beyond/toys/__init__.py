"""Models small enough to be known exactly: where the paper's motivation and its power theory can be
checked by summation (16_theory_in_full).

================ =================================================================================
``softmax``      a linear softmax model with few outcomes; its exact power
``closed_forms`` the Gaussian example; the least price of a detection
``chain``        from the likelihood ratio to ψ, one approximation at a time
``bounds``       the paper's two bounds on the miss rate, and statements that are printed
                 otherwise than their proofs give them
================ =================================================================================

Everything here is float64 NumPy, and imports only ``stats``. A new model is a file with exact sums
to compare a simulation with. The paper's symbols → our names: ξ → ``noise`` (one row per key),
ξ/σ → ``unit_noise``, y → an outcome (one column each), ∇ log p_θ(y) → ``gradients``, α → ``level``,
τ_α → ``threshold(level)``, β → a miss probability, 1 − β → ``power``.
"""
