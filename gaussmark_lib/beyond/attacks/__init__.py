"""What somebody does who knows the scheme, σ, the weight and θ, and not ξ.

``learning``: what outputs and answers say of ξ, and text written with it: forged in somebody's
name, scrubbed, or by several marked copies together; ``askers``: whoever may question a detector,
and what one key does to texts of a kind.
"""
