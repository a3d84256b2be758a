"""What goes beyond the paper's method.

===============  ===================================================================================
``channel``      token weights for a text in which some tokens may have been replaced
``largest``      one test of several directions of a text, by the largest ψ
``promise``      the mean ψ that a watermarked text like a given text has, at any temperature
``joint``        many texts and one key: their joint law, streams of texts, public answers
``tracing``      who wrote a text, whether texts share an author, which span is watermarked
``token_level``  a fresh key for each token (Algs. 3 and 4)
``schemes``      all watermarks by name, for comparison
``release``      published weights: what is done to them, and whose weights they are
``attacks``      attackers who know everything but ξ
===============  ===================================================================================

A module here imports the core and the engine; the core imports nothing from here. To add a method,
add a file or a folder here, its line above, its place in the contract "Beyond the paper" of
``pyproject.toml``, and its tests in ``tests/unit``.
"""
