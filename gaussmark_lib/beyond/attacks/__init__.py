"""What an attacker does who knows the scheme, σ, the weight and θ, but not ξ.

============  =====================================================================================
``learning``  what outputs and answers say about ξ, and text written with it: forged in somebody's
              name, scrubbed, or by several marked copies together
``askers``    users who query a detector, and what one key does to texts of a kind
============  =====================================================================================

A new attack on a key is a function here with a test against its law; notebook 15 measures it.
Attacks on weights are in ``release.attacks``.
"""
