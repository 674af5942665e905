"""What users hand to operators, as nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from tessera.dtypes import bool_, scalar_dtype
from tessera.errors import ArgumentError, TesseraError
from tessera.lazy.attached import attached
from tessera.lazy.leaves import sources
from tessera.lazy.leaves.scalars import scalar_node
from tessera.lazy.node import Node, leaf_node
from tessera.lazy.structures.promotion import common_dtype
from tessera.lazy.symbols.integers import is_symbolic, plain


class NotATensorError(ArgumentError):
    """An operand that no tensor can be made of: `value`."""

    value: object = None


_NUMBERS = frozenset((bool, int, float))


def as_node(value: object) -> Any:
    """The node of a tensor: a node as it is; torch tensors, arrays and DLPack producers borrowed; numbers and lists
    copied.

    A number becomes a tensor without dimensions. Raises what `sources.from_data` raises.
    """
    if isinstance(value, Node):
        return value
    if type(value) is torch.Tensor or isinstance(value, torch.Tensor):
        return _of_torch(value)
    if type(value) in _NUMBERS:
        return leaf_node(sources.from_data(value, scalar_dtype(value)))  # type: ignore[arg-type]
    if is_symbolic(value):
        return as_node(plain(value))
    if isinstance(value, (numpy.ndarray, numpy.generic)) or hasattr(value, "__dlpack__"):
        return leaf_node(sources.from_data(value))
    error = NotATensorError(
        f"a {type(value).__name__} is no tensor", hints=["op.tensor(data) makes one of nested lists"]
    )
    error.value = value
    raise error


def _of_torch(tensor: torch.Tensor) -> Any:
    try:
        return leaf_node(sources.from_torch(tensor))
    except (RuntimeError, TesseraError):  # of what requires grad, of transforms' tensors, and of fake ones
        leaf = attached(tensor)
        if leaf is None:
            raise
        return leaf_node(leaf)


def beside(value: object, node: Node) -> Any:
    """The node of an operator's other operand: as `as_node`, but a Python number adapts to `node`'s dtype."""
    kind = type(value)
    if kind in _NUMBERS:
        return scalar_node(value, node.state[0].dtype)  # type: ignore[arg-type]
    if _is_number(value):
        return beside(_python_number(value), node)
    return as_node(value)


def _is_number(value: object) -> bool:
    """Whether a value is a symbolic size, or one of numpy's that a Python number is made of: no text, no date."""
    return is_symbolic(value) or (isinstance(value, numpy.generic) and type(value.item()) in _NUMBERS)


def _python_number(value: Any) -> Any:
    """The Python number that it is; a symbolic size has to be this one."""
    return value.item() if isinstance(value, numpy.generic) else plain(value)


def as_pair(first: object, second: object) -> tuple[Any, Any]:
    """The nodes of two operands, as `as_operands` makes them."""
    if isinstance(first, Node):
        return first, second if isinstance(second, Node) else beside(second, first)
    if isinstance(second, Node):
        return beside(first, second), second
    if type(first) is torch.Tensor is type(second):
        node = _of_torch(first)
        return node, node if first is second else _of_torch(second)
    a, b = as_operands((first, second))
    return a, b


def as_operands(values: Sequence[object]) -> list[Any]:
    """The nodes of an operator's operands. The same object given twice is one operand; numbers adapt to the tensors'
    dtype.
    """
    made: dict[int, Any] = {}
    numbers = [_is_number(value) or type(value) in _NUMBERS for value in values]
    if all(numbers):
        return [as_node(value) for value in values]
    for value, is_number in zip(values, numbers, strict=True):
        if not is_number and id(value) not in made:
            made[id(value)] = as_node(value)
    if not any(numbers):
        return [made[id(value)] for value in values]
    # A bool, such as the condition of `where`, decides nothing beside tensors of other dtypes.
    structures = [node.structure for node in made.values()]
    dtype = common_dtype([s for s in structures if s.dtype is not bool_] or structures)
    return [
        scalar_node(_python_number(value), dtype) if is_number else made[id(value)]
        for value, is_number in zip(values, numbers, strict=True)
    ]
