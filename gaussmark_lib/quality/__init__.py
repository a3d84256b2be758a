"""What the watermark costs: base against watermarked model, over the same items (paper, section on
model quality and its appendix).

=================  =============================================================
``tasks``          three tasks made from held-out text, as definitions for lm-evaluation-harness
``harness``        the harness itself on a model in memory, and the score of each item
``accuracy``       two models on the same items: McNemar's exact test, its interval and its power
``two_sample``     can generated texts be told apart without the key? MMD, and a trained classifier
``diversity``      distinct n-grams, repetition, length at the end of a text
``win_rate``       a judge asked in both orders, after AlpacaEval
``judge``          any OpenAI-compatible endpoint as that judge
``offline_judge``  likelihood under an n-gram model of human text: a judge that needs no network
``verdict``        what a comparison may say, in a sentence
``compare``        all measurements as one table: a row per metric and model, with a verdict
=================  =============================================================
"""
