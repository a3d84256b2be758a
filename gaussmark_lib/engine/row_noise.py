"""Another noise for each row of a batch: y = θ·x + σ(z·x), by a hook on each marked layer."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby

from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import tokens

RowNoise = Sequence[tuple[float, Tensor]]  # (σ, z) of each marked layer


@contextmanager
def row_noise(
    model: PreTrainedModel, layers: Sequence, rows: Sequence[RowNoise | None]
) -> Iterator[None]:
    """Inside the ``with``, row i of a batch is computed by its own p_{θ+ξ}, or by p_θ. A layer has
    a ``name`` and a ``module``.
    """
    positions = 0

    def observe(_, inputs, output):
        nonlocal positions
        positions = output.shape[1]

    def add(i: int, name: str, _, inputs, output):
        x = tokens.by_text(inputs[0], (len(rows), positions), name)
        moved = output.view(*x.shape[:-1], -1).clone()  # (rows, n, d_out)
        start = 0
        for _, group in groupby(rows, key=id):
            same = list(group)
            part = slice(start, start := start + len(same))
            if same[0]:
                sigma, z = same[0][i]
                moved[part] += sigma * (x[part] @ z.to(x).T)
        return moved.view(output.shape)

    with ExitStack() as hooks:
        hooks.enter_context(model.get_input_embeddings().register_forward_hook(observe))
        for i, layer in enumerate(layers):
            hooks.enter_context(layer.module.register_forward_hook(partial(add, i, layer.name)))
        yield
