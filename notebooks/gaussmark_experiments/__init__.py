"""The experiments behind the notebooks: one file per notebook, with the notebook's name. The file
of notebook 11 is ``widgets.playground``. Programs without a notebook and folders come last.

=========================  =========================================================================
``first_watermark``        00: a blind game, and the picture that three notebooks build on
``motivation``             01: the likelihood ratio, ψ under fresh keys, strength and price
``level_check``            02: p-values of texts without a watermark; the θ + ξ trap
``detectability``          03: detection against the number of tokens
``layer_sigma_sweep``      04: the map over weight × σ, predicted and measured
``quality``                05: what the watermark costs by each of ``measures``; what a unit
                           of ψ costs
``robustness``             06: what edits remove, signal and norm apart; one key; the level
``low_rank``               07: noise without the weight's top directions, at one σ and equal ψ
``kgw_baseline``           08: five schemes on the same pairs: tokens, cost, one key, no sampling
``token_level_keys``       09: token-level keys compared with one key
``speed``                  10: fair timings, and the peak memory of a call
``one_key_in_production``  12: one key over many texts
``whose_text``             13: users, authors, and the marked span of a longer text
``after_release``          14: what attacks on weights leave, predicted, and its price; serving
``against_the_key``        15: what an attacker learns, forges, scrubs, queries and averages
``theory_in_full``         16: simulated and exact values, in the models of ``toys``
``sharper_test``           17: which direction detects most, without edits and after edits
``streams``                18: a stream of texts, and what an attacker gains by queries
``several_users``          18: a stream of answers by several users, with a key each
``taken_apart``            19: ψ and the likelihood ratio, with exact and empirical thresholds
``learned_mark``           19: what training the marked matrix gains over plain noise
``train_doclm``            20: how good a trained model is (its training: ``doclm``)
``bench``                  ``gaussmark bench``: one table of watermarks for a model
``bench_words``            its headings, and what a reader must know
``rewriting``              texts in other words, by translators and models; what stays of a text
``intervals``              which intervals are too wide to be shown
``sections``               the findings of a notebook's further records
``pooled``                 one record of the parts of a notebook's record
``likeness``               how much a model is like doclm, for a page of the site
``first_glance``           the README's picture, of a record of 00
``references``             the records in git: which are of older code; stamped, pooled
``outcomes``               every outcome that a record ever had, from the history of this repository
``promised_power``         does the power that ``detect`` promises come true, over fresh keys?
``gpu_report``             ``make gpu-report``: time and memory of a large model on a GPU
``paper_scale``            time and memory of scoring on the widths of a large model, as JSON
``foreign``                every notebook on three small models of other architectures
``measures``               what a watermark costs: judges, tasks, measures of texts
``toys``                   models in which the paper's theory has a closed form
``doclm``                  how the embedded model is trained
``widgets``                11: the playground
=========================  =========================================================================

An experiment imports the library, and other experiments if it repeats a part of them. The folders
import no experiment, and neither does the library. A new experiment is a file here with a line
above, its notebook, its solution, its test in ``tests/unit/experiments``, and small parameters in
``tests/notebooks``.
"""
