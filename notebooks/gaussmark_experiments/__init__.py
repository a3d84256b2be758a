"""The experiments behind the notebooks: one file per notebook, with the notebook's name. The file
of notebook 11 is ``gaussmark_lib.workbench.widgets.playground``. ``bench`` has no notebook.

=========================  =========================================================================
``first_watermark``        00: a blind game, and the picture that three notebooks build on
``motivation``             01: the likelihood ratio, ψ under fresh keys, strength and price
``level_check``            02: p-values of texts without a watermark; the θ + ξ trap
``detectability``          03: detection against the number of tokens
``layer_sigma_sweep``      04: the map over weight × σ, predicted and measured
``quality``                05: every measure of what the watermark costs (its judges, tasks
                           and tests are ``workbench.quality``), and what a unit of ψ costs
``robustness``             06: what edits remove, signal and norm apart; one key; the level
``low_rank``               07: noise without the weight's top directions, at one σ and equal ψ
``kgw_baseline``           08: five schemes on the same pairs: tokens, cost, one key, no sampling
``token_level_keys``       09: token-level keys compared with one key
``speed``                  10: fair timings, and the peak memory of a call
``one_key_in_production``  12: one key over many texts
``whose_text``             13: users, authors, and the marked span of a longer text
``after_release``          14: what attacks on weights leave, predicted, and its price; serving
``against_the_key``        15: what an attacker learns, forges, scrubs, queries and averages
``theory_in_full``         16: simulated and exact values, in the models of ``beyond.toys``
``sharper_test``           17: which direction detects most, without edits and after edits
``streams``                18: a stream of texts, and what an attacker gains by queries
``taken_apart``            19: ψ and the likelihood ratio, with exact and empirical thresholds
``train_doclm``            20: how good a trained model is (its training: ``workbench.doclm``)
``bench``                  ``gaussmark bench``: one table of watermarks for a model
``pooled``                 no notebook: one record of the parts of a notebook's record
``likeness``               no notebook: how much a model is like doclm, for a page of the site
``first_glance``           the README's picture, of a record of 00
=========================  =========================================================================

An experiment imports the library, and other experiments if it repeats a part of them. The library
imports no experiment. A new experiment is a file here with a line above, its notebook, its
solution, its test in ``tests/unit/experiments``, and small parameters in ``tests/notebooks``.
"""
