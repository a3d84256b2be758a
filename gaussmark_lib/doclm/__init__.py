"""How the embedded model is made: ``train`` (recipe and training loop), ``muon`` (its optimiser),
``card`` (the model card), ``own_text`` (a corpus of the reader's own folder).
"""
