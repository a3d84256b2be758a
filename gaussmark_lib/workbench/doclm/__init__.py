"""How the embedded model is made: ``train`` (recipe, optimiser and training loop), ``card`` (the
model card).
"""
