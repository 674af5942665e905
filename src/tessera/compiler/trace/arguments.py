"""Arguments of a call as nodes, or as what is no operand, and the key that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from tessera.compiler.trace.parameters import Fixed, fixed
from tessera.compiler.trace.traces import Key
from tessera.dtypes import DType, fp32, fp64, int64
from tessera.errors import ArgumentError
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.leaves.leaf import Placeholder, result_structure, scalar_leaf
from tessera.lazy.node import Node, leaf_node
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure, contiguous_strides

_TORCH_TENSOR: Final = torch.Tensor


def parts_of(arguments: Sequence[Any]) -> list[Node | Fixed]:
    """The arguments as nodes, or as what is no operand. Integers are int64, other numbers fp64 beside tensors of fp64,
    else fp32.
    """
    parts: list[Node | Fixed | None] = []
    number = fp32
    for argument in arguments:
        kind = type(argument)
        if kind is float or kind is int or (isinstance(argument, int | float) and kind is not bool):
            parts.append(None)
            continue
        part = None if kind is _TORCH_TENSOR else fixed(argument)
        if part is None:
            part = as_node(argument)
            if part.dtype is fp64:
                number = fp64
        parts.append(part)
    return [
        _number(argument, number) if part is None else part for argument, part in zip(arguments, parts, strict=True)
    ]


def _number(value: float, dtype: DType) -> Node:
    leaf = scalar_leaf(value, int64 if isinstance(value, int) else dtype)
    return Node((leaf.structure, (leaf,)))


def key_of(parts: Sequence[Node | Fixed]) -> Key:
    """What decides which trace serves a call."""
    return tuple([_future_leaf(part) if isinstance(part, Node) else part for part in parts])


def _future_leaf(node: Node) -> Structure:
    """The structure of the leaf that a node is, or will be once it is evaluated."""
    structure = node.structure
    return result_structure(structure.shape, structure.dtype, structure.device or CPU) if node.is_pending else structure


def described(call: Sequence[Any], dtype: DType, device: str) -> list[Any]:
    """The arguments of a call that is only described: where a shape stands, a contiguous tensor of that shape.

    Raises ArgumentError (E_ARGUMENT) for what is no sequence of arguments.
    """
    if not isinstance(call, list | tuple) or (call and all(type(argument) is int for argument in call)):
        raise ArgumentError(
            f"{call!r} is no call: a call is a list of arguments, in which tuples of extents stand for tensors",
            hints=["for a kernel of one operand: [[(8, 64)], [(16, 64)]]"],
        )
    return [_stood_in(argument, dtype, device) for argument in call]


def _stood_in(argument: Any, dtype: DType, device: str) -> Any:
    if not isinstance(argument, tuple):
        return argument
    if not all(type(extent) is int and extent >= 0 for extent in argument):
        raise ArgumentError(f"{argument!r} is no shape", hints=["a shape is a tuple of extents: (8, 64)"])
    shape = tuple(argument)
    return leaf_node(Placeholder(interning.buffer(shape, contiguous_strides(shape), dtype, device)))
