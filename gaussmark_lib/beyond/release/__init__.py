"""The weights are out: what people do to them, and whose they are.

==============  ==========================================================================
``provenance``  a checkpoint tested from its weights: does it carry this key's noise?
``suspects``    one matrix of a checkpoint, read from whatever file it is in
``requantised`` a GGUF file in another quantisation
``attacks``     rounding, pruning, merging, fine-tuning, and attackers who know the scheme
==============  ==========================================================================

A new attack is a function of ``attacks`` from weights to weights; notebook 14 measures it.
"""
