"""The weight matrices of a model that can carry a watermark: those of linear layers.

Every architecture stores a linear layer's matrix W so that y = W·x, with W of shape (d_out, d_in),
except GPT-2's ``Conv1D``, which stores Wᵀ. :func:`linear` hides the difference: noise and gradients
are (d_out, d_in) everywhere in this library.
"""

import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gaussmark_lib import checks, tokens
from gaussmark_lib.errors import UnknownWeightError

Hook = Callable[[nn.Module, tuple, Tensor], Tensor | None]  # as torch's forward hooks


@dataclass(frozen=True)
class Linear:
    """One linear layer's matrix. ``stored`` may be transposed; ``oriented`` turns (d_out, d_in)
    into its layout and back.

    ``block`` is the module that the layer is a part of: an attention, an MLP, or the model itself.
    """

    name: str
    module: nn.Module
    stored: nn.Parameter
    transposed: bool
    block: nn.Module

    @property
    def parameter(self) -> Tensor:
        """θ in the layout that it is stored in; shares memory with the model."""
        return self.stored

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.parameter.shape
        return (columns, rows) if self.transposed else (rows, columns)

    def oriented(self, matrix: Tensor) -> Tensor:
        return matrix.T if self.transposed else matrix

    def value(self) -> Float[Tensor, "d_out d_in"]:
        """θ itself, detached; shares memory with the model."""
        return self.oriented(self.parameter.detach())

    def sha256(self) -> str:
        """Of the values rounded to bfloat16, so that a model is the same base in bfloat16, float32
        and float64. float16 rounds in another way.
        """
        rounded = self.value().to(torch.bfloat16).cpu().contiguous()
        return hashlib.sha256(rounded.view(torch.uint8).numpy()).hexdigest()

    def replaced(self, matrix: Tensor) -> dict[str, Tensor]:
        """For ``torch.func.functional_call``: the model with this matrix, given as it is stored, in
        place of θ.
        """
        return {self.name: matrix}

    @contextmanager
    def holding(self, matrix: Tensor) -> Iterator[None]:
        """Inside the ``with``, the model has this matrix, given as it is stored; after it, the very
        tensor that it had.
        """
        theta = self.stored.data
        try:
            self.stored.data = matrix
            yield
        finally:
            self.stored.data = theta

    @contextmanager
    def hooked(self, hook: Hook, of_block: Hook | None = None) -> Iterator[None]:
        """Inside the ``with``, each call of the layer ends in this hook, and each call of its block
        in the other one.
        """
        with (
            self.module.register_forward_hook(hook),
            self.block.register_forward_hook(of_block) if of_block else nullcontext(),
        ):
            yield


def watermarkable(model: PreTrainedModel) -> list[str]:
    """Full names of the linear layers' matrices that can carry a watermark, not shared with another
    layer. The stacked experts of a mixture cannot.
    """
    return list(_linears(model))


def _linears(model: PreTrainedModel) -> dict[str, nn.Module]:
    tokens.check_model(model)
    uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    return {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module.weight.ndim == 2
        and min(module.weight.shape) > 1
        and uses[id(module.weight)] == 1
    }


def linear(model: PreTrainedModel, weight: str) -> Linear:
    """The layer that owns a weight, by the weight's full name (:func:`watermarkable`).

    Raises:
        UnknownWeightError: none does, or the weight cannot carry a watermark.
    """
    linears = _linears(model)
    if not isinstance(weight, str):
        raise UnknownWeightError(
            f"weight: expected the name of a weight, such as {next(iter(linears), None)!r}, got"
            f" {checks.shown(weight)}"
        )
    if weight in linears:
        module = linears[weight]
        block = model.get_submodule(weight.removesuffix(".weight").rpartition(".")[0])
        return Linear(weight, module, module.weight, isinstance(module, Conv1D), block)
    near = ", ".join(
        difflib.get_close_matches(weight, list(linears), n=3, cutoff=0.4)
    ) or ", ".join(list(linears)[:3])
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if weight not in parameters:
        raise UnknownWeightError(
            f"no weight {weight!r} in this model; the nearest names are: {near}."
            f" models.watermarkable(model) lists all {len(linears)}"
        )
    shape, shared = tuple(parameters[weight].shape), "shared with another layer, or a single row"
    raise UnknownWeightError(
        f"{weight} of shape {shape} cannot carry the watermark: expected a linear layer's own"
        f" matrix, but it is {shared if len(shape) == 2 else 'not 2-D'}. Try: {near}"
    )
