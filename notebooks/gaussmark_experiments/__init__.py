"""The experiments behind the notebooks: one file per notebook, with the notebook's name. Notebook
11's is ``gaussmark_lib.workbench.widgets.playground``.

=========================  =========================================================================
``first_watermark``        00: a blind game, and one picture that carries three notebooks
``motivation``             01: the likelihood ratio, ψ under fresh keys, strength and price
``level_check``            02: p-values of texts without a watermark; the θ + ξ trap
``detectability``          03: detection against the number of tokens
``layer_sigma_sweep``      04: the map over weight × σ, predicted and measured
``quality``                05: every measure of what the watermark costs (its judges, tasks
                           and tests are ``workbench.quality``), and what a unit of ψ costs
``robustness``             06: what edits take, signal and norm apart; one key; the level
``low_rank``               07: noise off the weight's top directions, at one σ and at an equal ψ
``kgw_baseline``           08: five schemes on the same pairs: tokens, cost, one key, no sampler
``token_level_keys``       09: token-level keys beside one key
``speed``                  10: fair timings, and the peak memory of a call
``one_key_in_production``  12: one key over many texts
``whose_text``             13: users, authors, and the marked span of a longer text
``after_release``          14: what attacks on weights leave, foretold, and its price; serving
``against_the_key``        15: what an attacker learns, forges, scrubs, asks and averages
``theory_in_full``         16: simulation beside the exact value, in the models of ``beyond.toys``
``sharper_test``           17: which direction detects most, as written and after edits
``streams``                18: texts that keep coming, and what an asker gains
``train_doclm``            20: how good a trained model is (its training: ``workbench.doclm``)
=========================  =========================================================================

An experiment imports the library, and other experiments where it repeats part of them; the library
imports no experiment. A new one is a file here with a line above, its notebook, its solution, its
test in ``tests/unit/experiments``, and small parameters in ``tests/notebooks``.
"""
