"""What a notebook would do, before anything starts: texts, tokens, floating-point operations,
memory, downloads, seconds, and whether it fits.

    notebook = runs.notebook.load("03")
    print(plan.of(notebook, {"model": "meta-llama/Llama-3.1-8B", "n_prompts": 1000}))

Nothing is loaded or downloaded: a model's shape follows from its config.json, those of the presets'
models are in data/configs.

=============  ==========================================================================================================
``shapes``     a model's matrices and parameters, from its config.json
``steps``      so many texts treated in one way; ``cost``: operations and bytes of those that are written, read or scored
``work``       what all notebooks' countings share; ``early`` and ``late``: theirs
``device``     the memory there is, and how fast the device is
``estimate``   all of it together, and what to change where it does not fit; ``words``: the same to read
=============  ==========================================================================================================
"""

from gaussmark_lib.plan.estimate import Plan, of, refusal

__all__ = ["Plan", "of", "refusal"]
