"""What the watermark costs: base against watermarked model, over the same items (paper, section on
model quality and its appendix).

==============  ================================================================================
``tasks``       three tasks made from held-out text, as definitions for lm-evaluation-harness
``harness``     the harness itself on a model in memory, and the score of each item
``accuracy``    two models on the same items: McNemar's exact test and its power
``compare``     the tasks under several models as one table, with a verdict per row
``two_sample``  can generated texts be told apart without the key? A trained classifier
``diversity``   distinct n-grams, repetition, length at the end of a text
``win_rate``    a judge asked in both orders, after AlpacaEval; and a judge that needs no network
``judge``       any OpenAI-compatible endpoint as that judge
==============  ================================================================================
"""
