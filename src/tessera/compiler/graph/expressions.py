"""Expressions: structures as plain JSON values, and back. By them a trace says what its kernels computed, so that
another process can pose the same problems, and tune them.

An expression is data: names of operators, shapes, strides, dtypes and numbers. Reading one runs nothing and takes no
memory for tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from tessera.dtypes import DType, dtype_of
from tessera.errors import ProfileError, TesseraError
from tessera.lazy.policy import Policy
from tessera.lazy.structures import interning
from tessera.lazy.structures.interning import PendingLimitReached
from tessera.lazy.structures.structure import Position, Structure
from tessera.ops import OPERATORS

Expression: TypeAlias = dict[str, Any]


def expression_of(structure: Structure, policy: Policy) -> Expression:
    """What `structure_of` makes the structure of again; `policy` is the one it was planned under.

    Raises ProfileError for attributes that have no plain form, as operators of users may have.
    """
    rows: dict[Structure, int] = {}
    written: list[list[Any]] = []
    for node in _distinct(structure):
        rows[node] = len(written)
        written.append(_row(node, rows))
    return {"policy": asdict(policy), "nodes": written}


def structure_of(expression: object) -> tuple[Structure, Policy]:
    """The structure of an expression and the policy that it was planned under.

    Raises ProfileError for what is no expression, or names an operator that this process does not know.
    """
    try:
        if not isinstance(expression, Mapping):
            raise TypeError("an expression is an object")
        policy = Policy(**expression["policy"])
        made: list[Structure] = []
        for kind, *fields in expression["nodes"]:
            made.append(_READERS[kind](made, *fields))
        return made[-1], policy
    except (KeyError, IndexError, TypeError, ValueError, TesseraError, PendingLimitReached) as error:
        why = error.message if isinstance(error, TesseraError) else f"{type(error).__name__} {error}"
        raise ProfileError(f"a plan of the trace cannot be read: {why}") from error


def _distinct(root: Structure) -> list[Structure]:
    """All structures below one, each once, operands before uses."""
    order: dict[Structure, None] = {}
    stack = [(root, False)]
    while stack:
        node, entered = stack.pop()
        if entered:
            order[node] = None
        elif node not in order:
            stack.append((node, True))
            stack += [(operand, False) for operand in node.operands]
    return list(order)


def _row(node: Structure, rows: Mapping[Structure, int]) -> list[Any]:
    if node.kind == "buffer":
        return ["buffer", node.dtype.name, list(node.shape), list(node.strides), node.device, node.frozen]
    if node.kind == "scalar":
        return ["scalar", node.dtype.name]
    if node.kind == "constant":
        return ["constant", node.dtype.name, _plain(node.value)]
    operands = [rows[operand] for operand in node.operands]
    positions = [list(position) if isinstance(position, tuple) else position for position in node.positions]
    if node.operator is None:
        return ["tuple", operands, positions]
    return ["node", node.operator.name, [_plain(value) for value in node.attributes], operands, positions]


def _plain(value: Any) -> Any:
    """An attribute as JSON: tuples are lists; dtypes and what JSON has no number for are objects."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ProfileError(f"an attribute {value!r} has no plain form")


def _attribute(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_attribute(each) for each in value)
    if isinstance(value, dict):
        return dtype_of(value["dtype"]) if "dtype" in value else float(value["float"])
    return value


def _extents(values: Sequence[Any]) -> tuple[int, ...]:
    if not all(type(value) is int for value in values):
        raise ValueError(f"{values!r} are no extents")
    return tuple(values)


def _buffer(
    made: Sequence[Structure], dtype: str, shape: Sequence[int], strides: Sequence[int], device: str, frozen: bool
) -> Structure:
    extents = _extents(shape)
    if min(extents, default=0) < 0:
        raise ValueError(f"a buffer of {extents}")
    return interning.buffer(extents, _extents(strides), dtype_of(dtype), str(device), bool(frozen))


def _scalar(made: Sequence[Structure], dtype: str) -> Structure:
    return interning.scalar(dtype_of(dtype))


def _constant(made: Sequence[Structure], dtype: str, value: Any) -> Structure:
    return interning.constant(_attribute(value), dtype_of(dtype))


def _node(
    made: Sequence[Structure], operator: str, attributes: Sequence[Any], operands: Sequence[int], positions: Any
) -> Structure:
    if operator not in OPERATORS:
        raise ValueError(f"operator {operator!r} is not known here; the module that registers it must be imported")
    found = _operands(made, operands)
    values = tuple(_attribute(value) for value in attributes)
    return interning.intern(OPERATORS[operator], values, found, _positions(found, positions))


def _tuple(made: Sequence[Structure], operands: Sequence[int], positions: Any) -> Structure:
    found = _operands(made, operands)
    return interning.bundle(found, _positions(found, positions))


def _operands(made: Sequence[Structure], rows: Sequence[int]) -> tuple[Structure, ...]:
    if any(row < 0 for row in rows):
        raise ValueError("an operand stands nowhere")
    return tuple(made[row] for row in rows)


def _positions(operands: Sequence[Structure], positions: Sequence[Any]) -> tuple[Position, ...]:
    """The numbers of the operands' leaves; ValueError where some leaf has none."""
    if len(operands) != len(positions):
        raise ValueError("an operand without a position")
    found: list[Position] = []
    for operand, position in zip(operands, positions, strict=True):
        numbers = _extents(position if isinstance(position, list) else [position])
        if min(numbers, default=0) < 0 or (isinstance(position, list) and len(numbers) != operand.leaf_count):
            raise ValueError(f"position {position} of an operand over {operand.leaf_count} leaves")
        found.append(numbers if isinstance(position, list) else numbers[0])
    return tuple(found)


_READERS: Mapping[Any, Callable[..., Structure]] = {
    "buffer": _buffer,
    "scalar": _scalar,
    "constant": _constant,
    "node": _node,
    "tuple": _tuple,
}
