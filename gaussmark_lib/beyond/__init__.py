"""More than the paper's method: what grew around the core.

===============  ===================================================================================
``channel``      the weights of a text's tokens, where some may have been exchanged
``largest``      several directions of a text, tested as one by the largest ψ
``promise``      the mean of ψ that a marked text like a given one has, at any temperature
``joint``        many texts and one key: their joint law, streams of texts, public answers
``tracing``      which user wrote a text, whether texts have one author, which span is marked
``token_level``  a fresh key for each token (Algs. 3 and 4)
``schemes``      all watermarks by name, for comparison
``release``      weights that were published: what is done to them, and whose they are
``attacks``      attackers who know everything but ξ
``toys``         the paper's theory in closed form
===============  ===================================================================================

A module here imports the core and the engine, and the core imports none of it. A new method is a
file or a folder here with a line above, a place in the contract "Beyond the paper" of
``pyproject.toml``, and its tests in ``tests/unit``.
"""
