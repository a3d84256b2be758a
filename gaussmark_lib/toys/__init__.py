"""Models small enough to be known exactly: where the paper's motivation and its power theory can be
checked by summation (16_theory_in_full).

Everything here is float64 NumPy. The paper's symbols → our names: ξ → ``noise`` (one row a key),
ξ/σ → ``unit_noise``, y → an outcome (one column each), ∇ log p_θ(y) → ``gradients``, α → ``level``,
τ_α → ``threshold(level)``, β → a miss probability, 1 − β → ``power``.
"""
