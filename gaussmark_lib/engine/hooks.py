"""What hooks do to a layer while a model computes: they keep its inputs and make the graph begin at
its output, or they add a different noise to each row of a batch. A layer is anything with a
``name`` and a ``module``.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
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
    """Compute row i of a batch by p_{θ+ξ} of that row's noise inside the ``with``.

    A row's noise is added as y = θ·x + σ(z·x). A row without a noise is computed by p_θ.
    """
    positions = 0
    groups = _neighbours(rows)

    def observe(_, inputs, output):
        nonlocal positions
        positions = output.shape[1]

    def add(i: int, name: str, _, inputs, output):
        x = by_text(inputs[0], (len(rows), positions), name)  # (rows, n, d_in)
        moved = output.view(*x.shape[:-1], -1).clone()  # (rows, n, d_out)
        for part in groups:
            noise = rows[part.start]
            if noise:
                sigma, z = noise[i]
                moved[part] += sigma * (x[part] @ z.to(x).T)
        return moved.view(output.shape)

    with ExitStack() as hooks:
        hooks.enter_context(model.get_input_embeddings().register_forward_hook(observe))
        for i, layer in enumerate(layers):
            hooks.enter_context(layer.module.register_forward_hook(partial(add, i, layer.name)))
        yield


def _neighbours(rows: Sequence[RowNoise | None]) -> list[slice]:
    """Return the slices of neighbouring rows with the same noise, which share a product."""
    starts = [i for i, noise in enumerate(rows) if i == 0 or noise is not rows[i - 1]]
    ends = [*starts[1:], len(rows)]
    return [slice(start, end) for start, end in zip(starts, ends, strict=True)]


class Call(NamedTuple):
    """A use of a layer in a forward pass: the layer's number, its input and its output.

    The graph begins at the output.
    """

    layer: int
    a: Float[Tensor, "texts n d_in"]
    y: Float[Tensor, "texts n d_out"]


@contextmanager
def traced(model: PreTrainedModel, layers: Sequence) -> Iterator[list[Call]]:
    """Keep each use of these layers in a forward pass inside the ``with``, in order.

    The graph begins at their outputs: nothing below is differentiated. Raise DegenerateScoreError
    if one of the layers is not used.
    """
    calls: list[Call] = []
    shape: tuple[int, int] = (0, 0)  # (texts, positions)

    def observe(_, inputs, output):
        nonlocal shape
        shape = output.shape[:2]

    def keep(number: int, _, inputs, output):
        name = layers[number].name
        a = by_text(inputs[0].detach(), shape, name)
        y = by_text(output, shape, name)
        if not y.requires_grad:  # no marked layer lies below
            y = y.detach().requires_grad_()
        calls.append(Call(number, a, y))
        return y.view(output.shape).clone()  # the model may write to it, as Falcon does

    with ExitStack() as hooks:
        hooks.enter_context(model.get_input_embeddings().register_forward_hook(observe))
        for number, layer in enumerate(layers):
            hooks.enter_context(layer.module.register_forward_hook(partial(keep, number)))
        yield calls
    used = {call.layer for call in calls}
    unused = [layer.name for number, layer in enumerate(layers) if number not in used]
    if unused:
        expected = f"expected texts that depend on {unused[0]}, which was not used"
        raise DegenerateScoreError(f"{expected}; choose another weight, and no compiled model")


def by_text(x: Tensor, shape: tuple[int, int], name: str) -> Float[Tensor, "texts n d"]:
    """Return a layer's input or output by texts.

    ``shape`` is (texts, positions) of the forward pass. Some layers of a mixture of experts get all
    positions of all texts in a single row.
    """
    n_texts, n_positions = shape
    if x.ndim == 2 and len(x) == math.prod(shape):
        return x.unflatten(0, shape)
    if x.ndim != 3 or len(x) != n_texts or x.shape[1] > n_positions:
        raise InvalidModelError(
            f"expected {name} to be applied to {n_texts} texts × {n_positions} positions, got a"
            f" shape {tuple(x.shape)}; choose another weight"
        )
    return x
