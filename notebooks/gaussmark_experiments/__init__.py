"""The experiments behind the notebooks: one file per notebook, with the notebook's name, and what
several of them share.

=========================  =========================================================================
``first_watermark``        00: a blind game, and one picture that carries three notebooks
``motivation``             01: the likelihood ratio, ψ under fresh keys, strength and price
``level_check``            02: p-values of texts without a watermark; the θ + ξ trap
``detectability``          03: detection against the number of tokens
``layer_sigma_sweep``      04: the map over weight × σ, predicted and measured
``quality``                05: every measure of what the watermark costs (its judges, tasks
                           and tests are the room ``quality``), and what a unit of ψ costs
``robustness``             06: what edits take, signal and norm apart; one key; the level
``low_rank``               07: noise off the weight's top directions, at one σ and at an equal ψ
``kgw_baseline``           08: five schemes on the same pairs: tokens, cost, one key, no sampler
``token_level_keys``       09: token-level keys beside one key
``speed``                  10: fair timings, and the peak memory of a call
``playground``             11: write, test and edit without widgets; the panel's figure
``one_key_in_production``  12: one key over many texts
``whose_text``             13: users, authors, and the marked span of a longer text
``after_release``          14: what attacks on weights leave, foretold, and its price; serving
``against_the_key``        15: what an attacker learns, forges, scrubs, asks and averages
``theory_in_full``         16: simulation beside the exact value, in the models of ``toys``
``streams``                18: texts that keep coming, and what an asker gains
``train_doclm``            20: how good a trained model is (its training: the room ``doclm``)
``begin``                  every notebook's set-up in one call
``pairs``                  n pairs of a fresh prompt and a fresh key: drawn, written, scored
``claims``                 findings and checks, and the table at a notebook's end
=========================  =========================================================================
"""
