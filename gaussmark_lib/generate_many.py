"""Cells × prompts in one batch, for the notebooks that share random numbers between schemes."""

from itertools import islice

import numpy as np

from gaussmark_lib import generate

Cell = generate.Mark


def sample(
    model,
    prompts,
    cells,
    n_tokens,
    *,
    seed=0,
    top_p=1.0,
    temperature=1.0,
    until_end=False,
    batch_size=128,
):
    """For each cell its responses, one per prompt, with the random numbers of ``generate.sample``
    for its seed.
    """
    prompts = generate.checked(model, prompts, n_tokens, top_p, temperature, batch_size)
    seeds = [seed] * len(cells) if isinstance(seed, int) else list(seed)
    uniforms = np.concatenate([generate.uniform(s, len(prompts), n_tokens) for s in seeds])
    marks = [cell for cell in cells for _ in prompts]
    around, at_most = generate._marked(model, marks, len(marks))
    texts = generate.continued(
        model,
        prompts * len(cells),
        uniforms,
        top_p,
        temperature,
        min(batch_size, at_most),
        around=around,
    )
    flat = iter(generate.cut(model, texts) if until_end else texts)
    return [list(islice(flat, len(prompts))) for _ in cells]
