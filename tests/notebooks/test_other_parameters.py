"""Each notebook runs with parameters other than its defaults: its claims are not tuned to one seed,
and nothing in it is hard-wired.

The defaults are run once by nbval; sizes are small here, so that both together take minutes.
"""

import shutil
from operator import attrgetter
from pathlib import Path

import nbformat
import pytest
import tracked

from gaussmark_lib import texts
from gaussmark_lib.workbench import runs
from gaussmark_lib.workbench.runs import kernel
from gaussmark_lib.workbench.runs import notebook as notebooks
from gaussmark_lib.workbench.runs.kernel import SKIP_TAG

EXERCISE = "exercise"  # the tag of one that is executed here
QUICK = ("01", "03", "07", "09", "11", "16", "20")  # at most twenty core-seconds each
UNSOLVED = ("not yet", "Not yet", "there is nothing to choose from")

OTHER = {
    "00_first_watermark": {
        "seed": 1,
        "sigma": 0.14,
        "n_prompts": 6,
        "n_keys": 40,
        "n_tokens": 40,
        "text": "licences",
        "until_end": True,
    },
    "01_motivation": {
        "seed": 1,
        "psi": 2.0,
        "strengths": [1.0],
        "n_prompts": 6,
        "n_fresh": 60,
        "n_tokens": 32,
    },
    "02_level_check": {
        "seed": 1,
        "n_texts": 10,
        "keys_per_text": 8,
        "n_trap": 8,
        "n_tokens": 40,
    },
    "03_detectability": {
        "seed": 1,
        "weight": "model.layers.5.mlp.down_proj.weight",
        "sigma": 0.1,
        "n_tokens": [20, 60],
        "n_prompts": 6,
        "n_spread": 5,
        "temperatures": [0.6, 1.1],
        "top_p": 0.95,
    },
    "04_layer_sigma_sweep": {
        "seed": 1,
        "n_weights": 2,
        "psis": [3],
        "far_psis": [50],
        "n_prompts": 4,
        "n_tokens": 40,
        "n_passage": 40,
        "n_check": 4,
    },
    "05_quality": {
        "seed": 1,
        "psi": 2.5,
        "n_passages": 18,
        "n_tokens": 12,
        "n_items": 27,
        "n_base": 2,
        "n_keys": 9,
        "n_texts": 90,
        "n_judged": 8,
        "exchange_weights": ["model.layers.4.mlp.down_proj.weight"],
        "n_exchange": 9,
        "rank_dropped": 0,
    },
    "06_robustness": {
        "seed": 1,
        "psi": 3.0,
        "n_prompts": 8,
        "n_tokens": 32,
        "fractions": [0.0, 0.4],
        "strength": 0.4,
        "others": [],
        "null_schemes": ["rank-reduced", "KGW-2 z-test", "token keys"],
        "n_null": 2,
        "keys_per_text": 4,
    },
    "07_low_rank": {
        "seed": 1,
        "weight": "model.layers.2.mlp.up_proj.weight",
        "psi": 3.0,
        "n_prompts": 5,
        "n_tokens": 24,
        "dropped": [0.6],
        "side_share": 0.3,
        "changes": ["delete at random"],
        "fraction": 0.2,
        "n_null": 40,
    },
    "08_kgw_baseline": {
        "seed": 1,
        "sigma": 0.2,
        "n_prompts": 4,
        "n_tokens": 24,
        "lengths": [12],
        "more_schemes": ["gaussmark_lib.beyond.schemes:output biases"],
        "gumbel_context": 2,
        "synthid_depth": 2,
        "n_base": 3,
        "n_pilot": 2,
        "batch_size": 7,
        "n_few": 2,
        "n_corrected": 4,
        "n_correction": 2,
        "beams": 3,
        "n_edited": 3,
        "temperatures": [0.7, 0.0],
        "n_requests": 4,
        "n_answer": 12,
        "edits": ["no prompt", "resample spans"],
        "fractions": [0.4],
        "n_null": 2,
        "n_null_tokens": 24,
        "keys_per_text": 3,
        "kinds": ["licences"],
        "n_fixed_keys": 5,
        "n_fixed_texts": 4,
    },
    "09_token_level_keys": {
        "seed": 1,
        "text": "licences",
        "n_prompts": 5,
        "n_tokens": 24,
        "lengths": [12],
        "alphas": [0.1, 0.5],
        "changes": ["substitute at random"],
        "fractions": [0.4],
    },
    "10_speed": {
        "seed": 1,
        "model_dtype": "bfloat16",
        "weight": "model.layers.0.self_attn.q_proj.weight",
        "n_texts": 2,
        "n_tokens": 20,
        "lengths": [10],
        "batch_size": 2,
        "repeats": 2,
        "n_keys": 4,
        "n_generated": 8,
    },
    "11_playground": {"seed": 1, "key_seed": 5, "psi": 5.0, "n_tokens": 40, "n_samples": 1},
    "12_one_key_in_production": {
        "seed": 1,
        "weight": "model.layers.4.self_attn.o_proj.weight",
        "n_texts": 8,
        "n_keys": 60,
        "n_marked": 8,
        "n_tokens": 30,
    },
    "13_whose_text": {
        "seed": 1,
        "psi": 5.0,
        "n_users": 5000,
        "n_base": 16,
        "n_writers": 2,
        "n_prompts": 2,
        "n_tokens": 80,
        "lengths": [40],
        "n_human": 5,
        "n_books": 50,
        "n_short": 20,
        "n_scan": 4,
        "scan_strength": 1.0,
        "n_null": 3,
    },
    "14_after_release": {
        "seed": 1,
        "weight": "model.layers.3.mlp.up_proj.weight",
        "psi": 3.0,
        "n_releases": 2,
        "n_texts": 3,
        "n_tokens": 20,
        "edited": 0.2,
        "left_out": ["8 bits", "NF4", "Wanda, 50%", "pruned, 20%"],
        "n_training": 16,
        "steps": [1, 3],
        "lr": 1e-4,
        "batch_size": 2,
        "n_served": 5,
        "beams": 3,
        "n_keys": 60,
    },
    "15_against_the_key": {
        "seed": 1,
        "weight": "model.layers.3.self_attn.o_proj.weight",
        "others": ["model.layers.5.mlp.gate_proj.weight"],
        "psi": 3.0,
        "n_taught": [8, 16],
        "n_prompts": 9,
        "n_tokens": 24,
        "n_long": 40,
        "copies": [1, 2],
        "n_steps": 3,
        "n_held": [2, 4],
        "n_framed": 1,
        "n_copies": 4,
        "n_keys": 60,
        "kinds": ["licences", "docs"],
        "n_texts": 8,
    },
    "16_theory_in_full": {"seed": 1, "level": 0.1, "n_texts": 200, "n_keys": 2048},
    "17_sharper_test": {
        "seed": 1,
        "n_prompts": 9,
        "n_tokens": 40,
        "edits": ["substitute at random", "delete at random"],
        "fractions": [0.2, 0.4],
        "edited": 0.2,
        "n_matrices": 2,
        "n_ratios": 2,
        "n_fresh": 10,
        "n_leaked": 4,
        "tilt": 0.0,
    },
    "18_streams": {
        "seed": 1,
        "n_texts": 10,
        "n_keys": 60,
        "n_streams": 2,
        "every": [5, 3],
        "n_tokens": 40,
        "n_long": 18,
        "n_attacks": 2,
        "n_steps": 3,
        "n_asked": 30,
    },
    "20_train_doclm": {
        "seed": 1,
        "steps": 8,
        "context": 128,
        "short_context": 64,
        "vocab": 512,
        "blocks": 2,
        "hidden": 64,
        "eval_pages": 4,
    },
}


def _own_text(folder: Path) -> Path:
    """A folder of text that is not the documentation corpus."""
    folder.mkdir()
    (folder / "licences.txt").write_text("\n\n".join(texts.load("licences", n=60)["text"]))
    return folder


def test_every_notebook_has_a_second_set_of_parameters():
    assert set(OTHER) == {path.stem for path in tracked.NOTEBOOKS}


def _with_exercises(path: Path, folder: Path) -> Path:
    """A copy of the notebook whose exercises are executed as they stand; a run leaves them out."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if SKIP_TAG in cell.metadata.get("tags", []):
            cell.metadata.tags = [EXERCISE]
    nbformat.write(notebook, folder / path.name)
    return folder / path.name


def _said(cell: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


@pytest.mark.spread
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.stem[:2] in QUICK else pytest.mark.slow, id=path.stem)
        for path in tracked.NOTEBOOKS
    ],
)
def test_it_runs_with_other_parameters(path, tmp_path):
    """To its record; and no exercise that nobody has solved is right, or stops what stands below
    it.
    """
    params = OTHER.get(path.stem, {})
    if path.stem == "20_train_doclm":
        params = params | {"folder": str(_own_text(tmp_path / "own"))}
    run = runs.run(_with_exercises(path, tmp_path), params, progress=False, root=tmp_path / "runs")
    assert run.params.items() >= OTHER[path.stem].items()
    assert run.results, "it records its numbers"
    assert [*run.dir.glob("figures/*.png")], "and its figures"
    exercises = [
        cell
        for cell in nbformat.read(run.dir / "notebook.ipynb", as_version=4).cells
        if EXERCISE in cell.metadata.get("tags", [])
    ]
    assert exercises
    assert [said for said in map(_said, exercises) if not said.startswith(UNSOLVED)] == []


@pytest.mark.slow
@pytest.mark.spread
@pytest.mark.parametrize(
    "path", tracked.files("notebooks/solutions/*.ipynb"), ids=attrgetter("stem")
)
def test_a_solution_is_right(path, tmp_path):
    """Every cell of it, each with its assertions."""
    copy = Path(shutil.copy(path, tmp_path))
    where = {"folder": path.parent, "env": {}, "progress": False, "wanted": lambda: True}
    kernel.execute(copy, {}, **where)
    cells = [cell for cell in nbformat.read(copy, as_version=4).cells if cell.cell_type == "code"]
    assert sum("assert" in cell.source for cell in cells) > 0
    assert all(cell.execution_count for cell in cells)


@pytest.mark.parametrize("stem", OTHER)
def test_the_other_parameters_differ_from_the_defaults(stem):
    declared = notebooks.load(stem).parameters
    assert all(declared[name].default != value for name, value in OTHER[stem].items())
