"""Attackers who know the scheme, σ, the weight and θ, but not ξ.

============  =====================================================================================
``learning``  how much outputs and answers reveal of ξ; text that is forged or scrubbed with an
              estimate of ξ, or written by several watermarked copies together
``askers``    users who query a detector, and false alarms of one key on texts of one kind
============  =====================================================================================

A new attack on a key is a function in this folder with a test against its law; notebook 15 measures
it. Attacks on weights are in ``release.attacks``.
"""
