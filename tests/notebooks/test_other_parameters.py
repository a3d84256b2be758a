"""Each notebook runs with parameters other than its defaults: its claims are not tuned to one seed, and nothing in it is hard-wired.

The defaults are run once by nbval; sizes are small here, so that both together take minutes.
"""

import pytest

from gaussmark_lib import runs
from gaussmark_lib.runs import folder
from gaussmark_lib.runs import notebook as notebooks

OTHER = {
    "00_first_watermark": {"seed": 1, "sigma": 0.14, "n_prompts": 8, "n_tokens": 100},
    "01_motivation": {"seed": 1, "n_texts": 300, "n_keys": 2048, "n_prompts": 8, "n_lm_keys": 2, "n_tokens": 32},
    "02_level_check": {"seed": 1, "n_texts": 16, "keys_per_text": 12, "n_fixed_keys": 60, "n_fixed_texts": 30, "n_trap": 8, "n_tokens": 60},
    "03_detectability": {
        "seed": 1,
        "weight": "model.layers.5.mlp.down_proj.weight",
        "lengths": [30, 120, 240],
        "n_prompts": 12,
        "n_spread": 8,
    },
    "04_layer_sigma_sweep": {
        "seed": 1,
        "weights": ["model.layers.0.mlp.up_proj.weight", "model.layers.4.mlp.down_proj.weight"],
        "sigmas": [0.08, 0.16, 0.32],
        "n_prompts": 6,
        "n_tokens": 60,
        "n_passages": 8,
        "n_passage": 60,
        "n_items": 20,
        "n_check": 10,
        "search_steps": 3,
    },
    "05_quality": {
        "seed": 1,
        "n_passages": 12,
        "n_items": 20,
        "n_texts": 24,
        "n_text_tokens": 24,
        "n_judged": 12,
        "exchange_weights": ["model.layers.4.mlp.down_proj.weight", "model.layers.5.mlp.up_proj.weight"],
        "exchange_psi": [2.0],
        "n_exchange": 8,
        "n_exchange_tokens": 40,
        "rank_dropped": 0,
    },
    "06_robustness": {
        "seed": 1,
        "n_prompts": 6,
        "n_tokens": 48,
        "n_keys": 2,
        "n_corrupted": 4,
        "fractions": [0.0, 0.4],
        "strength": 0.4,
        "null_schemes": ["GaussMark", "rank-reduced", "KGW-2", "KGW-2 z-test", "SynthID", "token keys"],
        "token_weight": "model.layers.5.self_attn.o_proj.weight",
        "n_null": 3,
        "keys_per_text": 4,
    },
    "07_low_rank": {
        "seed": 1,
        "weight": "model.layers.2.mlp.up_proj.weight",
        "n_prompts": 8,
        "n_tokens": 64,
        "ranks": [0, 240],
        "lengths": [16],
        "n_map": 4,
        "contestants": [128],
        "n_changed": 4,
        "changes": ["delete at random"],
        "n_items": 20,
        "n_null": 4,
    },
    "08_kgw_baseline": {
        "seed": 1,
        "n_prompts": 12,
        "n_tokens": 48,
        "lengths": [24],
        "edits": ["no prompt", "resample spans"],
        "n_corrupted": 3,
        "synthid_depth": 3,
        "n_null": 3,
        "keys_per_text": 12,
        "n_timed": 1,
        "n_timed_tokens": 8,
        "repeats": 1,
        "n_resamples": 100,
    },
    "09_token_level_keys": {
        "seed": 1,
        "n_prompts": 6,
        "n_tokens": 48,
        "n_keys": 2,
        "lengths": [16, 48],
        "alphas": [0.1, 0.35, 0.5],
        "n_null_keys": 3,
        "n_changed": 4,
        "changes": ["substitute at random"],
        "fractions": [0.4],
    },
    "10_speed": {
        "seed": 1,
        "n_texts": 4,
        "n_tokens": 40,
        "lengths": [20],
        "batches": [1, 3],
        "repeats": 2,
        "n_rows": 4,
        "n_keys": 16,
        "n_generated": 6,
        "column_sigmas": [0.05, 0.1],
    },
    "11_playground": {"seed": 1, "n_tokens": 40, "n_samples": 1},
    "12_one_key_in_production": {
        "seed": 1,
        "weight": "model.layers.4.self_attn.o_proj.weight",
        "n_texts": 12,
        "n_keys": 100,
        "n_tokens": 40,
        "n_streams": 3,
        "every": 5,
        "n_attacks": 2,
        "n_steps": 3,
    },
    "13_whose_text": {
        "seed": 1,
        "psi": 5.0,
        "n_users": 5000,
        "n_base": 16,
        "n_writers": 2,
        "n_prompts": 4,
        "n_tokens": 80,
        "lengths": [40],
        "n_human": 5,
        "small_base": 4,
        "books_per_text": 4,
        "n_fresh": 3,
        "n_short": 20,
        "n_scan": 4,
        "scan_tokens": 120,
        "scan_strength": 1.0,
        "keys_per_text": 3,
    },
    "20_train_doclm": {"seed": 1, "steps": 20, "vocab": 512, "blocks": 2, "hidden": 128, "eval_pages": 12},
}


def test_every_notebook_has_a_second_set_of_parameters():
    assert set(OTHER) == {path.stem for path in notebooks.numbered()}


@pytest.mark.spread
def test_it_runs_with_other_parameters(numbered, tmp_path):
    run = runs.run(numbered, OTHER.get(numbered.stem, {}), progress=False, root=tmp_path)
    assert run.params.items() >= OTHER[numbered.stem].items()
    assert run.results, "it records its numbers"
    assert folder.figures(run.dir), "and its figures"


@pytest.mark.parametrize("stem", OTHER)
def test_the_other_parameters_differ_from_the_defaults(stem):
    declared = notebooks.load(stem).parameters
    assert all(declared[name].default != value for name, value in OTHER[stem].items())
