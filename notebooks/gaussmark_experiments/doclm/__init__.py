"""How the embedded model is made: ``train`` (recipe, optimiser and training loop), ``card`` (the
model card, from ``model_card.md``). Notebook 20 runs both; the model itself lies in ``data/doclm``.
"""
