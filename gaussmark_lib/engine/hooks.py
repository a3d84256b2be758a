"""What hooks do to a layer while a model computes: they keep its inputs and make the graph begin at
its output, or they add a different noise to each row of a batch. A layer is anything with a
``name`` and a ``module``.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gaussmark_lib.errors import DegenerateScoreError, InvalidModelError

RowNoise = Mapping[str, tuple[float, Tensor]]  # (σ, z) by the name of the marked layer
PRODUCT_PER_NOISE = ("cpu",)  # devices on which a product takes longer than its launch


class _Product(NamedTuple):
    """One matrix product for the noises of some rows of a batch; each z belongs to equally many."""

    rows: Tensor  # their numbers: those of the first noise, then those of the second, …
    sigmas: Float[Tensor, "rows 1 1"]
    z: Float[Tensor, "noises d_out d_in"]


@contextmanager
def row_noise(
    model: PreTrainedModel, layers: Sequence, rows: Sequence[RowNoise | None]
) -> Iterator[None]:
    """Compute row i of a batch by p_{θ+ξ} of that row's noise inside the ``with``.

    A row's noise is added as y = θ·x + σ(z·x). A row without a noise is computed by p_θ. Rows may
    have noise in different layers.
    """
    positions = 0

    def observe(_, inputs, output):
        nonlocal positions
        positions = output.shape[1]

    def add(name: str, products: list[_Product], _, inputs, output):
        x = by_text(inputs[0], (len(rows), positions), name)
        moved = output.view(*x.shape[:-1], -1).clone()  # (rows, n, d_out)
        for product in products:
            # (noises, rows of a noise × n, d_in)
            of_noise = x[product.rows].view(len(product.z), -1, x.shape[-1])
            zx = of_noise @ product.z.to(x).mT
            moved[product.rows] += product.sigmas * zx.view(len(product.rows), x.shape[1], -1)
        return moved.view(output.shape)

    with ExitStack() as hooks:
        hooks.enter_context(model.get_input_embeddings().register_forward_hook(observe))
        for layer in layers:
            noises = [row.get(layer.name) if row else None for row in rows]
            products = _products(noises, layer.module.weight.device)
            call = partial(add, layer.name, products)
            hooks.enter_context(layer.module.register_forward_hook(call))
        yield


def _products(
    noises: Sequence[tuple[float, Tensor] | None], device: torch.device
) -> list[_Product]:
    """Return the products for the (σ, z) of each row in one layer; None for a row without noise.

    On a processor, each z has its product. On a GPU, starting a product takes longer than computing
    it: all z with equally many rows have one product, and are moved there once.
    """
    rows_of_z: dict[int, list[int]] = defaultdict(list)
    for row, noise in enumerate(noises):
        if noise:
            rows_of_z[id(noise[1])].append(row)
    if device.type in PRODUCT_PER_NOISE:
        together = [[rows] for rows in rows_of_z.values()]
    else:
        by_size = defaultdict(list)
        for rows in rows_of_z.values():
            by_size[len(rows)].append(rows)
        together = list(by_size.values())
    products = []
    for groups in together:
        z = [noises[rows[0]][1].to(device) for rows in groups]
        rows = [row for group in groups for row in group]
        sigmas = torch.tensor([noises[row][0] for row in rows], dtype=torch.float64)
        product = _Product(
            torch.tensor(rows).to(device),
            sigmas[:, None, None].to(device),
            z[0][None] if len(z) == 1 else torch.stack(z),
        )
        products.append(product)
    return products


def own_linears(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the layers whose matrix can carry a watermark, by the matrix's full name."""
    uses = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
    )
    return {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module.weight.ndim == 2
        and min(module.weight.shape) > 1
        and uses[id(module.weight)] == 1  # no other layer shares it
    }


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
