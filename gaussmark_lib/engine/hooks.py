"""What is done to a layer while a model computes, by hooks: its inputs are kept and the graph
begins at its output, or each row of a batch gets a noise of its own. A layer is anything with a
``name`` and a ``module``.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib.errors import DegenerateScoreError, InvalidModelError

RowNoise = Sequence[tuple[float, Tensor]]  # (σ, z) of each marked layer


@contextmanager
def row_noise(
    model: PreTrainedModel, layers: Sequence, rows: Sequence[RowNoise | None]
) -> Iterator[None]:
    """Inside the ``with``, row i of a batch is computed by its own p_{θ+ξ}, y = θ·x + σ(z·x), or by
    p_θ.
    """
    positions = 0

    def observe(_, inputs, output):
        nonlocal positions
        positions = output.shape[1]

    def add(i: int, name: str, _, inputs, output):
        x = by_text(inputs[0], (len(rows), positions), name)
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


class Call(NamedTuple):
    """One use of a layer in a forward pass: its place in the list, its input and its output, where
    the graph begins.
    """

    layer: int
    a: Float[Tensor, "texts n d_in"]
    y: Float[Tensor, "texts n d_out"]


@contextmanager
def traced(model: PreTrainedModel, layers: Sequence) -> Iterator[list[Call]]:
    """Inside the ``with``, each use of these layers in a forward pass is kept, in its order, and
    the graph begins at their outputs: nothing below is differentiated. DegenerateScoreError where
    one of them is not used.
    """
    calls: list[Call] = []
    shape: tuple[int, int] = 0, 0  # (texts, positions)

    def observe(_, inputs, output):
        nonlocal shape
        shape = output.shape[:2]

    def keep(number: int, _, inputs, output):
        a, y = (by_text(x, shape, layers[number].name) for x in (inputs[0].detach(), output))
        if not y.requires_grad:
            y = y.detach().requires_grad_()
        calls.append(Call(number, a, y))
        return y.view(output.shape).clone()  # which the model may write to, as Falcon does

    with ExitStack() as hooks:
        hooks.enter_context(model.get_input_embeddings().register_forward_hook(observe))
        for number, layer in enumerate(layers):
            hooks.enter_context(layer.module.register_forward_hook(partial(keep, number)))
        yield calls
    used = {call.layer for call in calls}
    if unused := [layer.name for number, layer in enumerate(layers) if number not in used]:
        expected = f"expected texts that depend on {unused[0]}, which was not used"
        raise DegenerateScoreError(f"{expected}; choose another weight, and no compiled model")


def by_text(x: Tensor, shape: tuple[int, int], name: str) -> Float[Tensor, "texts n d"]:
    """A layer's input or output by texts; a mixture of experts shows some layers all positions of
    all texts in one row. ``shape``: (texts, positions) of the forward pass.
    """
    if x.ndim == 2 and len(x) == math.prod(shape):
        return x.unflatten(0, shape)
    if x.ndim != 3 or len(x) != shape[0] or x.shape[1] > shape[1]:
        raise InvalidModelError(
            f"expected {name} to be applied to {shape[0]} texts × {shape[1]} positions, got a shape"
            f" {tuple(x.shape)}; choose another weight"
        )
    return x
