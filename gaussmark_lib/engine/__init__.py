"""What makes the flat core fast, small in memory and safe; nothing of the scheme is here.

================ ===================================================================================
``stream``       128 bits → the same normal numbers on every machine, compiled
``philox``       the same stream on a GPU
``key_files``    keys on disk: sealed, for their owner only
``checkpoints``  a model's files before they are loaded; the model hub; a model's digest
``gguf_files``   GGUF files before they are loaded, and single matrices of them
``gguf_writing`` a copy of a GGUF file with some tensors replaced, streamed
``llama_cpp``    llama.cpp's own server, which does not know about watermarks
``packages``     models and texts that come as Python packages
``human_texts``  human texts, document by document; which are reserved for the pilot
``arithmetic``   dtypes, evaluation mode, what rounding takes
``decoding``     a cache with reserved memory; transformers' own ``generate``
``corpus``       prose of the installed packages
``text_files``   files of texts: .csv, .json, .jsonl, .txt, …
``typography``   characters that software puts in place of a model's characters
``terms``        a gradient by its terms
``hooks``        linear layers; gradients that begin at one; a noise for each row of a batch
``blocks``       padded batches; noises and gradients in bounded memory
``registry``     functions by name, such as schemes and corruptions
================ ===================================================================================

A module here imports only ``errors``, ``files``, ``tokens`` and other modules here, and nothing
else of the library. A new module needs a line above and a test against the slow obvious way.
"""
