"""What a node of an FX graph says of itself: its results, its place in the user's code, what it does to memory."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from tessera.integrations.torch.graphs.extents import Size, example
from tessera.integrations.torch.mapping import Wanted

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')

aten = torch.ops.aten

VIEWS = frozenset(
    (
        aten.alias.default,
        aten.detach.default,
        aten.diagonal.default,
        aten.expand.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unfold.default,
        aten.unsqueeze.default,
        aten.view.default,
        aten._unsafe_view.default,
    )
)
"""Targets whose result is their first operand's memory."""


def values_of(node: fx.Node) -> tuple[Any, ...]:
    """What the graph says of each result: fake tensors, symbolic numbers."""
    found = node.meta.get("val")
    return tuple(found) if isinstance(found, list | tuple) else (found,)


def tensors_of(node: fx.Node) -> tuple[torch.Tensor, ...]:
    """The fake tensors among the results."""
    return tuple(value for value in values_of(node) if isinstance(value, torch.Tensor))


def line_of(node: fx.Node) -> str | None:
    """ "file:line" of the user's code that the node comes from, None where torch has not kept it."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else None


def described(node: fx.Node) -> str:
    """The call in words: "aten.sort.default of int64[64, 4]"."""
    operands = [
        f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
        for operand in node.all_input_nodes
        for value in tensors_of(operand)
    ]
    return f"{node.target}{' of ' if operands else ''}{', '.join(operands)}"


def is_view(node: fx.Node) -> bool:
    """Whether the result is the first operand's memory."""
    return node.target in VIEWS


def is_random(node: fx.Node) -> bool:
    """Whether the node draws from torch's generator."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def is_writing(node: fx.Node) -> bool:
    """Whether the node changes memory, or does what else must not change its place among the others."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return isinstance(node.target, torch._ops.HigherOrderOperator)
    return bool(schema.is_mutable)


def used_results(node: fx.Node) -> frozenset[int]:
    """Which of several results are tensors that anybody takes."""
    values = values_of(node)
    taken: list[Any] = [user.args[1] for user in node.users if user.target is operator.getitem]
    return frozenset(place for place in taken if values[place] is not None)


def wanted_of(
    node: fx.Node, size: Callable[[Size], int] = example, in_place: bool = False, strides: bool = True
) -> Wanted:
    """What a row may know of the results, the `strides` of the first operand only where it asks: for each node, on the
    path of binding. Raises UnknownSize.
    """
    shapes, dtypes = [], []
    for value in values_of(node):
        if isinstance(value, torch.Tensor):
            shapes.append(tuple(size(extent) for extent in value.shape))
            dtypes.append(value.dtype)
        else:
            shapes.append(())
            dtypes.append(torch.int64)
    lies = _strides(node, size) if strides else None
    return Wanted(tuple(shapes), tuple(dtypes), used_results(node), in_place, lies)


def _strides(node: fx.Node, size: Callable[[Size], int]) -> tuple[int, ...] | None:
    first = node.args[0] if node.args else None
    value = first.meta.get("val") if isinstance(first, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.storage_offset() != 0:
        return None
    return tuple(size(stride) for stride in value.stride())
