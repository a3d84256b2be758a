"""What makes the flat core fast, small in memory and safe; nothing of the scheme is here.

===============  ===================================================================================
``stream``       128 bits → the same normal numbers on every machine, compiled
``key_files``    keys on disk: sealed, for their owner only
``checkpoints``  a model's files before they are loaded; the model hub
``arithmetic``   dtypes, evaluation mode
``decoding``     a cache with reserved memory; transformers' own ``generate``
``corpus``       prose of the installed packages
``terms``        a gradient by its terms
``row_noise``    another noise for each row of a batch
``blocks``       noises and gradients within a bounded memory
===============  ===================================================================================
"""
