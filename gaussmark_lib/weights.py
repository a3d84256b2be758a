"""The weight matrices of a model that can carry a watermark: those of linear layers, and those of
single experts of a mixture.

Every architecture stores a linear layer's matrix W so that y = W·x, with W of shape (d_out, d_in),
except GPT-2's ``Conv1D``, which stores Wᵀ. :func:`linear` hides the difference: noise and gradients
are (d_out, d_in) everywhere in this library.

A mixture of experts stores the matrices of all its experts as one parameter, as
``….experts.down_proj`` of shape (experts, d_out, d_in); ``….experts.down_proj[2]`` names expert
2's. Experts are computed together, where no hook sees one of them. So :class:`Expert` computes the
named one once more, from ordinary layers, and adds to what all experts give

    w ⊙ (f(h) − f₀(h)),      w = Σ_k [the position's k-th expert is this one]·(its k-th routing
    weight)

f being the expert with the hooks on its layers, and f₀ without them. Where the hooks change no
value this is 0, and its derivative is the whole derivative with respect to the layers' outputs;
where they change one, the model's output is that of an expert so changed.
"""

import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from gaussmark_lib import checks, tokens
from gaussmark_lib.errors import InvalidModelError, UnknownWeightError

_NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_OF_EXPERTS = (
    "has_gate",
    "has_bias",
    "is_transposed",
    "has_post_expert_norm",
    "_apply_gate",
)  # what transformers says of experts that it computes
Hook = Callable[[nn.Module, tuple, Tensor], Tensor | None]  # as torch's forward hooks


@dataclass(frozen=True)
class Linear:
    """One linear layer's matrix. ``stored`` may be transposed; ``oriented`` turns (d_out, d_in)
    into its layout and back.

    ``block`` is the module that the layer is a part of: an attention, an MLP, an expert, or the
    model itself.
    """

    name: str
    module: nn.Module
    stored: nn.Parameter
    transposed: bool
    block: nn.Module

    def part(self, whole: Tensor) -> Tensor:
        """This matrix in a tensor like ``stored``, such as its gradient: all of it."""
        return whole

    @property
    def parameter(self) -> Tensor:
        """θ in the layout that it is stored in; shares memory with the model."""
        return self.part(self.stored)

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.parameter.shape
        return (columns, rows) if self.transposed else (rows, columns)

    @property
    def place(self) -> "Linear":
        """A layer of the model whose output the watermark moves at each position where it can move
        any.
        """
        return self

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


@dataclass(frozen=True)
class Slice(Linear):
    """One expert's matrix, in a parameter of all experts. ``module`` and ``block`` are the
    :class:`Expert`'s own, which no model has.
    """

    experts: nn.Module = field(kw_only=True)
    number: int = field(kw_only=True)

    def part(self, whole: Tensor) -> Tensor:
        return whole[self.number]

    @property
    def place(self) -> Linear:
        """The experts: those that are seen need not be this one."""
        return Linear(self.name, self.experts, self.stored, self.transposed, self.experts)

    def replaced(self, matrix: Tensor) -> dict[str, Tensor]:
        whole = self.stored.detach()
        return {
            self.name.partition("[")[0]: torch.cat(
                [whole[: self.number], matrix[None], whole[self.number + 1 :]]
            )
        }

    @contextmanager
    def holding(self, matrix: Tensor) -> Iterator[None]:
        """As of a layer; the numbers are written into the parameter, and θ's own bits again after
        it.
        """
        theta = self.part(self.stored.data).clone()
        try:
            self.part(self.stored.data).copy_(matrix)
            yield
        finally:
            self.part(self.stored.data).copy_(theta)

    @contextmanager
    def hooked(self, hook: Hook, of_block: Hook | None = None) -> Iterator[None]:
        """As of a layer, while the expert is computed beside the others; hooks see 0 at positions
        that are not routed to it.
        """
        with super().hooked(hook, of_block), self.experts.register_forward_hook(self._beside):
            yield

    def _beside(self, _: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        if len(inputs) != 3:
            raise InvalidModelError(
                f"{self.name}: expected experts that are shown states, indices and weights, got"
                f" {len(inputs)} inputs"
            )
        h, chosen, weights = inputs
        here = chosen == self.number
        w = weights.detach().masked_fill(~here, 0).sum(-1, keepdim=True)
        h = h.detach().masked_fill(
            ~here.any(-1, keepdim=True), 0
        )  # elsewhere the expert could overflow
        with torch.no_grad():
            unhooked = self.block.forward(h, w, hooked=False)
        return output + (self.block(h, w) - unhooked).to(output.dtype)


class _Layer(nn.Module):
    """A linear layer with one expert's part of a parameter, which is looked up at each call."""

    def __init__(self, experts: nn.Module, name: str, number: int):
        super().__init__()
        self.experts, self.parameter, self.number = experts, name, number

    def forward(self, x: Tensor) -> Tensor:
        weight = getattr(self.experts, self.parameter)[self.number]
        bias = (
            getattr(self.experts, f"{self.parameter}_bias")[self.number]
            if self.experts.has_bias
            else None
        )
        return nn.functional.linear(x, weight.T if self.experts.is_transposed else weight, bias)


class Expert(nn.Module):
    """One expert of a mixture as two linear layers: w ⊙ down(gate(up(h))) at every position."""

    def __init__(self, experts: nn.Module, number: int):
        super().__init__()
        self.up = _Layer(experts, "gate_up_proj" if experts.has_gate else "up_proj", number)
        self.down = _Layer(experts, "down_proj", number)
        self.gate = experts._apply_gate if experts.has_gate else experts.act_fn

    def forward(
        self, h: Float[Tensor, "n hidden"], w: Float[Tensor, "n 1"], hooked: bool = True
    ) -> Float[Tensor, "n hidden"]:
        up, down = (self.up, self.down) if hooked else (self.up.forward, self.down.forward)
        return down(self.gate(up(h))) * w


def watermarkable(model: PreTrainedModel) -> list[str]:
    """Full names of the linear layers' matrices that can carry a watermark, not shared with another
    layer.

    The experts of a mixture are not listed, since they can be thousands. One of them carries a
    watermark by its number in the parameter of all: ``"model.layers.1.mlp.experts.down_proj[2]"``.
    """
    return list(_linears(model))


def _linears(model: PreTrainedModel) -> dict[str, nn.Module]:
    tokens.check_model(model)
    uses = _uses(model)
    return {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module.weight.ndim == 2
        and min(module.weight.shape) > 1
        and uses[id(module.weight)] == 1
    }


def _uses(model: PreTrainedModel) -> Counter:
    return Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))


def linear(model: PreTrainedModel, weight: str) -> Linear:
    """The layer that owns a weight, or the expert, by the weight's full name
    (:func:`watermarkable`).

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
    parameters, stack = (
        dict(model.named_parameters(remove_duplicate=False)),
        weight.partition("[")[0],
    )
    near = ", ".join(
        difflib.get_close_matches(weight, list(linears), n=3, cutoff=0.4)
    ) or ", ".join(list(linears)[:3])
    if weight not in parameters and (stack not in parameters or parameters[stack].ndim != 3):
        raise UnknownWeightError(
            f"no weight {weight!r} in this model; the nearest names are: {near}."
            f" models.watermarkable(model) lists all {len(linears)}"
        )
    if not (reason := _why_none(model, stack, parameters[stack])):
        return _slice(model, weight, parameters[stack])
    shape = tuple(parameters[stack].shape)
    raise UnknownWeightError(
        f"{stack} of shape {shape} cannot carry the watermark: expected a linear layer's own"
        f" matrix, but {reason}. Try: {near}"
    )


def _why_none(model: PreTrainedModel, name: str, parameter: nn.Parameter) -> str | None:
    """Why no slice of a parameter can carry a watermark; None if one can."""
    owner, _, kind = name.rpartition(".")
    experts = model.get_submodule(owner)
    if parameter.ndim != 3:
        shared = (
            "it is shared with another layer, a single row, or not the matrix of a linear layer"
        )
        return shared if parameter.ndim == 2 else "it is not 2-D"
    known = all(hasattr(experts, name) for name in _OF_EXPERTS) and (
        experts.has_gate or hasattr(experts, "act_fn")
    )
    if not known or kind not in ("gate_up_proj" if experts.has_gate else "up_proj", "down_proj"):
        return (
            "it is not 2-D, nor of experts that are computed in a known way"
            f" ({type(experts).__name__})"
        )
    if experts.has_post_expert_norm or getattr(experts, "_is_expert_parallel", False):
        return (
            "its experts end in a norm of their own"
            if experts.has_post_expert_norm
            else "its experts lie on several devices"
        )
    if (
        parameter.dtype not in _NUMBERS
        or min(parameter.shape[1:]) < 2
        or _uses(model)[id(parameter)] != 1
    ):
        return (
            "its experts' matrices are shared with another layer, single rows, or quantized"
            f" ({parameter.dtype})"
        )
    return None


def _slice(model: PreTrainedModel, weight: str, stored: nn.Parameter) -> Slice:
    stack, _, number = weight.partition("[")
    numbers = [f"{i}]" for i in range(len(stored))]
    if number not in numbers:
        there = f"{stack}[0] to {stack}[{len(stored) - 1}]"
        raise UnknownWeightError(
            f"{stack} has the matrices of {len(stored)} experts: name one expert's slice, {there},"
            f" got {checks.shown(weight)}"
        )
    experts, number = model.get_submodule(stack.rpartition(".")[0]), numbers.index(number)
    expert = Expert(experts, number)
    module = expert.down if stack.endswith(".down_proj") else expert.up
    return Slice(
        weight, module, stored, experts.is_transposed, expert, experts=experts, number=number
    )
