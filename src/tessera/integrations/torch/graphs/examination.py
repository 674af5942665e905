"""Whether a node can be Tessera's, found out by trying: its row is applied to placeholders of what the graph says."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tessera import dtypes
from tessera.dtypes import dtype_of
from tessera.errors import DTypeError, TesseraError
from tessera.integrations.torch.graphs.extents import UnknownSize, example
from tessera.integrations.torch.graphs.nodes import is_view, tensors_of, values_of, wanted_of
from tessera.integrations.torch.mapping import Unsupported, row_of
from tessera.lazy.leaves.leaf import Placeholder
from tessera.lazy.node import Node, leaf_node
from tessera.lazy.structures import interning
from tessera.lazy.structures import structure as structures

_STORED = frozenset((dtypes.uint8, dtypes.int16))
"""What partitions read and cast: with bytes and 16-bit integers themselves torch computes."""

_REAL = dtypes.SUPPORTED - dtypes.COMPLEX - dtypes.FLOAT8 - _STORED
"""What partitions compute with: of complex numbers and 8-bit floats torch has the operators."""

_CASTS = frozenset((torch.ops.aten._to_copy.default, torch.ops.prims.convert_element_type.default))


class BrokenRow(Exception):  # noqa: N818 - told as a warning or as an error of Tessera's, by who catches it
    """A row of the mapping that gives something else than torch says, or an error where it should say what is
    unsupported.
    """


def why_not(node: fx.Node) -> str | None:
    """Why torch has to compute a node, None where Tessera can. Raises BrokenRow."""
    if node.op != "call_function":
        return f"a node of kind {node.op}"
    row = row_of(node.target)
    if row is None:
        return "no counterpart"
    refused = _unreadable(node)
    if refused is not None or node.target is operator.getitem:
        return refused
    try:
        wanted = wanted_of(node)
        arguments = fx.map_arg(node.args, _stand_in)
        options = fx.map_arg(node.kwargs, _stand_in)
        results = row(wanted, arguments, options)
    except (Unsupported, UnknownSize) as reason:
        return str(reason)
    except DTypeError as error:  # the typed refusal of an element type
        return error.message
    except TesseraError as error:
        raise BrokenRow(f"{type(error).__name__}: {error.message}") from error
    _compare(node, results, wanted.shapes, wanted.dtypes, wanted.used)
    return None


def _unreadable(node: fx.Node) -> str | None:
    results = tensors_of(node)
    found = [*results, *(value for operand in node.all_input_nodes for value in tensors_of(operand))]
    for place, value in enumerate(found):
        if value.device.type != "cpu":
            return f"a tensor on {value.device}"
        if value.layout != torch.strided:
            return f"a tensor of layout {value.layout}"
        stored = is_view(node) or (node.target in _CASTS and place >= len(results))
        if not any(value.dtype == dtype.torch for dtype in (_REAL | _STORED if stored else _REAL)):
            return f"elements of {value.dtype}"
    for operand in node.all_input_nodes:
        if any(isinstance(value, torch.SymFloat | torch.SymBool) for value in values_of(operand)):
            return "a number that is known when the graph runs"
    return None


def stand_in(value: object, sizes: Any = example) -> Any:
    """A lazy tensor for a fake one, contiguous; other values as they are."""
    if isinstance(value, torch.Tensor):
        shape = tuple(sizes(extent) for extent in value.shape)
        buffer = interning.buffer(shape, structures.contiguous_strides(shape), dtype_of(value.dtype))
        return leaf_node(Placeholder(buffer))
    return sizes(value) if isinstance(value, torch.SymInt) else value


def _stand_in(node: fx.Node) -> Any:
    found = node.meta.get("val")
    return tuple(stand_in(each) for each in found) if isinstance(found, list | tuple) else stand_in(found)


def _compare(
    node: fx.Node,
    results: Any,
    shapes: Sequence[tuple[int, ...]],
    element_types: Sequence[torch.dtype],
    used: frozenset[int],
) -> None:
    several = isinstance(results, list | tuple)
    found = results if several else (results,)
    for place, (result, shape, dtype) in enumerate(zip(found, shapes, element_types, strict=False)):
        if several and place not in used:
            continue
        if not isinstance(result, Node):
            raise BrokenRow(f"no result {place} ({node.format_node()})")
        if (result.shape, result.dtype.torch) != (shape, dtype):
            given = f"{result.dtype.torch} {result.shape}"
            raise BrokenRow(f"a result of {given} where torch has {dtype} {shape} ({node.format_node()})")
