"""A simulated second device: its tensors compute on the processor, and refuse to be combined with
tensors of the processor.

A tensor on this device is a wrapper around an ordinary tensor. Its device is ``SECOND``, so that
code treats it like a tensor on a GPU. An operation on wrappers is done on the wrapped tensors, so
every number is real. As on a GPU, an operation on tensors of both devices is an error, except for
numbers (0-dimensional tensors of the processor), indices and copies; and ``numpy()`` is an error.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

# a device type that torch has in every build, and that no code has a reason to treat differently
SECOND = torch.device("meta")
aten = torch.ops.aten
_MOVES = (aten._to_copy.default, aten.copy_.default)
_INDEX = (aten.index.Tensor, aten.index_put.default)
_INDEX += (aten.index_put_.default, aten._index_put_impl_.default)


class Elsewhere(Tensor):
    """A tensor on the second device; ``here`` is what it holds."""

    @staticmethod
    def __new__(cls, here: Tensor):
        layout = {"strides": here.stride(), "storage_offset": here.storage_offset()}
        return Tensor._make_wrapper_subclass(
            cls, here.shape, dtype=here.dtype, device=SECOND, **layout
        )

    def __init__(self, here: Tensor):
        self.here = here

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        assert isinstance(other, Elsewhere), (
            f"the data of a tensor on the second device, and other data on {other.device}"
        )
        self.here = other.here

    def data_ptr(self) -> int:
        return self.here.data_ptr()

    def tolist(self) -> list:
        return self.here.tolist()

    def __repr__(self, **_) -> str:
        return f"Elsewhere({self.here!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _computed(func, args, kwargs or {})


class _Factories(TorchDispatchMode):
    """Operations without such a tensor among their arguments, which may make one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _computed(func, args, kwargs or {})


class _FromPython(TorchFunctionMode):
    """``torch.tensor(list, device=…)`` and ``tensor[list]``: torch does not fill tensors of this
    device type from lists.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        makes_tensor = func in (torch.tensor, torch.as_tensor, torch.asarray)
        if makes_tensor and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func is Tensor.new_tensor and isinstance(args[0], Elsewhere):
            return torch.tensor(args[1], **{"dtype": args[0].dtype} | kwargs).to(args[0].device)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            args = (args[0], _with_tensors(args[1]), *args[2:])
        return func(*args, **kwargs)


def _with_tensors(index):
    if isinstance(index, list):
        return torch.tensor(index)
    return tuple(map(_with_tensors, index)) if isinstance(index, tuple) else index


def _computed(func, args, kwargs):
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = any(isinstance(tensor, Elsewhere) for tensor in tensors)
    if there and func not in _MOVES:
        # the second argument of an index operation is the index, which may be on the processor
        checked_args = args[:1] + args[2:] if func in _INDEX else args
        _refuse_mixed(func, checked_args, kwargs)
    device = kwargs.get("device")
    if device is not None and torch.device(device).type in (SECOND.type, "cpu"):
        there = torch.device(device).type == SECOND.type
        kwargs = kwargs | {"device": torch.device("cpu")}
    if func is aten.copy_.default:
        there = isinstance(args[0], Elsewhere)
    here_args, here_kwargs = tree_map_only(Elsewhere, lambda tensor: tensor.here, (args, kwargs))
    result = func(*here_args, **here_kwargs)
    if func._schema.is_mutable:
        # the result is the tensor that was written, not a new wrapper around it
        written = kwargs["out"] if "out" in kwargs else args[0]
        return written if len(func._schema.returns) == 1 else result
    return tree_map_only(Tensor, Elsewhere, result) if there else result


def _refuse_mixed(func, args, kwargs) -> None:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if any(tensor.ndim and not isinstance(tensor, Elsewhere) for tensor in tensors):
        raise RuntimeError(
            f"expected all tensors to be on the same device, but {func} met one on the second"
            " device and one on the processor"
        )


@contextmanager
def second_device() -> Iterator[None]:
    """Inside the ``with``, tensors can be made on ``SECOND`` and moved to it and back."""
    generator = torch.Generator
    with pytest.MonkeyPatch.context() as patch, _FromPython(), _Factories():
        patch.setattr(torch, "Generator", lambda device="cpu": generator())
        yield


def moved(model: nn.Module) -> nn.Module:
    """The model with all its parameters and buffers on the second device."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(
                    Elsewhere(parameter.detach()), requires_grad=parameter.requires_grad
                )
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Elsewhere(buffer)
    return model
