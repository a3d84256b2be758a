"""Another noise for each row of a batch: y = θ·x + σ(z·x), by a hook on each marked layer."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import tokens


class RowNoise(NamedTuple):
    """Of one row: its marked layers' names and modules, and σ and ξ/σ for each of them."""

    layers: tuple[tuple[str, torch.nn.Module], ...]
    sigmas: tuple[float, ...]
    z: list[Tensor]


@contextmanager
def row_noise(model: PreTrainedModel, rows: Sequence[RowNoise | None]) -> Iterator[None]:
    """Inside the ``with``, row i of a batch is computed by its own p_{θ+ξ}, or by p_θ."""
    positions = [0]

    def observe(_, inputs, output):
        positions[0] = output.shape[1]

    def add(i: int, name: str, _, inputs, output):
        x = tokens.by_text(inputs[0], (len(rows), positions[0]), name)
        moved = output.view(*x.shape[:-1], -1).clone()  # (rows, n, d_out)
        start = 0
        for _, group in groupby(rows, key=lambda row: row and (row.sigmas, id(row.z))):
            same = list(group)
            part = slice(start, start := start + len(same))
            if row := same[0]:
                moved[part] += row.sigmas[i] * (x[part] @ row.z[i].to(x).T)
        return moved.view(output.shape)

    layers = next((row.layers for row in rows if row), ())
    with ExitStack() as hooks:
        hooks.enter_context(model.get_input_embeddings().register_forward_hook(observe))
        for i, (name, module) in enumerate(layers):
            hooks.enter_context(module.register_forward_hook(partial(add, i, name)))
        yield
