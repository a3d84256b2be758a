"""The weights are out: what people do to them, and whose they are.

==============  ==========================================================================
``provenance``  a checkpoint tested from its weights: does it carry this key's noise?
``suspects``    one matrix of a checkpoint, read from whatever file it is in
``requantised`` a GGUF file in another quantisation
``served``      a marked GGUF file served by llama.cpp in many ways, and its answers tested
``attacks``     rounding, pruning, merging, fine-tuning, and attackers who know the scheme
==============  ==========================================================================

A new attack is a function of ``attacks`` from weights to weights; notebook 14 measures it.
"""
