"""Names of an earlier version: see ``generate.sample(marks=)``."""

from gaussmark_lib import generate

Cell = generate.Mark


def sample(model, prompts, cells, n_tokens, *, seed=0, batch_size=128, **settings):
    prompts = list(prompts)
    marks = [cell for cell in cells for _ in prompts]
    flat = generate.sample(
        model,
        prompts * len(cells),
        n_tokens,
        marks=marks,
        seed=seed if isinstance(seed, int) else seed[0],
        batch_size=batch_size,
        **settings,
    )
    n = len(prompts)
    return [flat[i * n : (i + 1) * n] for i in range(len(cells))]
