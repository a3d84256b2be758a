"""Published weights: what is done to them, and whose weights they are.

===============  ==================================================================================
``provenance``   a test of a checkpoint's weights: do they carry this key's noise?
``suspects``     one matrix of a checkpoint, read from any kind of file
``requantised``  a GGUF file in another quantisation
``served``       watermarked GGUF files served by llama.cpp in many ways; tests of their answers
``attacks``      rounding, pruning, merging, fine-tuning, and attackers who know the scheme
===============  ==================================================================================

To add an attack, add a function from a model to a model to ``attacks``; notebook 14 measures it.
"""
