"""Cells × prompts in one batch, for the notebooks that share random numbers between schemes."""

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
    seeds = [seed] * len(cells) if isinstance(seed, int) else list(seed)
    texts: list = [None] * len(cells)
    for one in set(seeds):  # the cells of a seed are one batch
        places = [i for i, other in enumerate(seeds) if other == one]
        flat = generate.sample(
            model,
            list(prompts) * len(places),
            n_tokens,
            seed=one,
            rows=[*range(len(prompts))] * len(places),
            marks=[cells[i] for i in places for _ in prompts],
            top_p=top_p,
            temperature=temperature,
            until_end=until_end,
            batch_size=batch_size,
        )
        for i, start in zip(places, range(0, len(flat), len(prompts)), strict=True):
            texts[i] = flat[start : start + len(prompts)]
    return texts
