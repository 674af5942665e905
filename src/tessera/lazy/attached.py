"""Evaluation of what torch's graphs have part in: the integration with torch installs the function that does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor

from tessera.dtypes import SUPPORTED, dtype_of
from tessera.errors import GradDetachedError
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.leaf import Attached, Leaf
from tessera.lazy.node import Node
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import contiguous_strides

Evaluator: TypeAlias = Callable[[Sequence[Node]], None]


def refuse(nodes: Sequence[Node]) -> None:
    """The evaluator before there is an integration with torch: raises GradDetachedError (E_GRAD_DETACHED)."""
    raise detached()


_evaluator: Evaluator = refuse


def set_evaluator(evaluator: Evaluator) -> None:
    """Installs the function that evaluates nodes over attached leaves, and stores each result with `Node.store`."""
    global _evaluator  # noqa: PLW0603 - the process has one
    _evaluator = evaluator


def evaluate(nodes: Sequence[Node]) -> None:
    """Evaluates nodes over attached leaves, as part of torch's graph."""
    _evaluator(nodes)


def is_attached(node: Node) -> bool:
    """Whether torch's graph has part in a node."""
    return any([type(leaf) is Attached for leaf in node.leaves])  # noqa: C419 - on the path of evaluation


def attached(tensor: torch.Tensor) -> Leaf | None:
    """The leaf of a tensor that torch follows; None for one that it does not, or whose extents are not known."""
    followed = tensor.requires_grad and torch.is_grad_enabled()
    fake = isinstance(tensor, FakeTensor)
    if not followed and not fake and not is_functorch_wrapped_tensor(tensor):
        return None
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, FakeTensor) or tensor.layout != torch.strided:
        return None
    dtype = dtype_of(tensor.dtype)
    if tensor.device.type != CPU or dtype not in SUPPORTED or any(not isinstance(each, int) for each in tensor.shape):
        return None
    shape = tuple(tensor.shape)
    # How it lies is looked up when it is read: here all layouts are one.
    return Attached(interning.buffer(shape, contiguous_strides(shape), dtype), tensor)


def detached() -> GradDetachedError:
    """The error where a tensor that torch follows is read in a way that torch cannot follow."""
    return GradDetachedError(
        "a tensor that requires grad is read where torch cannot follow: by a stream, as a constant, or for out=",
        hints=["pass tensor.detach()", "or work under torch.no_grad()"],
    )
