"""What the watermark costs: base against watermarked model, over the same items (paper, section on
model quality and its appendix).

=================  =============================================================================
``tasks``          three tasks made from held-out text, as definitions for lm-evaluation-harness
``harness``        the harness itself on a model in memory, and the score of each item
``benchmarks``     ten benchmarks from local files, scored with the harness's prompts but without it
``reading``        log p of thousands of texts in few forward passes
``text_measures``  generated texts without the key: a trained classifier, repetition, length
``judge``          which of two texts is better? Asked in both orders; two judges that need no
                   network, and any OpenAI-compatible endpoint
``compare``        all of these as changes from the base model, with intervals, a negative and a
                   positive control; McNemar's exact test and its power
=================  =============================================================================

A new measure is a file here that gives one number per item, and a line in notebook 05's experiment.
"""
