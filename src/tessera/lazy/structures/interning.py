"""The table of structures: one object for the same algebra over leaves of the same shapes, strides and dtypes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

from tessera.dtypes import DType, wrapped
from tessera.errors import DeviceError
from tessera.lazy.devices import CPU, how_to_join, mesh_device
from tessera.lazy.layouts import Layout
from tessera.lazy.structures.structure import Attributes, OperatorRecord, Position, Shape, Structure, contiguous_strides
from tessera.lazy.symbols.integers import symbolic_in
from tessera.system import forks

PENDING_LIMIT: Final = 10_000
"""The largest number of operators in a pending graph; an operand of a larger one is evaluated first."""

TABLE_LIMIT: Final = 1 << 16
"""Structures that the table holds before it forgets those without a plan."""


table: dict[Any, Structure] = {}
"""The interned structures. Look a key up in it where a call would cost too much; all else goes through `intern`."""

_lock = forks.lock()
_serials = itertools.count(1)


def intern(
    operator: OperatorRecord, attributes: Attributes, operands: tuple[Structure, ...], positions: tuple[Position, ...]
) -> Structure:
    """The structure of an operator over operands; the first operand's position is 0.

    It is found in the table under `(operator, attributes, first operand, further operand, its position, ...)`.

    Runs the operator's shape rule when the structure is new, and raises what it raises. Raises DeviceError (E_DEVICE)
    for operands on different devices, and `PendingLimitReached`
    when more than PENDING_LIMIT operators would be pending.
    """
    key: list[Any] = [operator, attributes, *operands[:1]]
    for operand, position in zip(operands[1:], positions[1:], strict=True):
        key += (operand, position)
    return _intern(tuple(key), operator, attributes, operands, positions)


def _intern(
    key: Any,
    operator: OperatorRecord,
    attributes: Attributes,
    operands: tuple[Structure, ...],
    positions: tuple[Position, ...],
) -> Structure:
    known = table.get(key)
    if known is not None:
        return known
    other = operator.replaced(attributes, operands, positions)
    if other is not None:
        return _remember(key, other)
    resolved, shape, dtype = operator.resolve(attributes, operands)
    if resolved != operands:
        # The same algebra with its casts written out is the same structure.
        written_out = intern(operator, attributes, resolved, positions)
        return written_out if _follows_default(operands, resolved) else _remember(key, written_out)
    device = _common_device(operator, operands)
    if device is not None:
        device = operator.device_of(attributes, device)
    structure = Structure("node", shape, dtype, device=device, leaf_count=_leaf_count(operands, positions))
    structure.operator = operator
    structure.attributes = attributes
    structure.operands = operands
    structure.positions = positions
    _measure(structure)
    if structure.size > PENDING_LIMIT:
        raise PendingLimitReached
    return _remember(key, structure)


def _follows_default(operands: tuple[Structure, ...], resolved: tuple[Structure, ...]) -> bool:
    """Whether implied casts make floats of operands of which none is one: torch's default dtype, which may change, has
    decided which.
    """
    whole = ("bool", "int")
    return all(x.dtype.kind in whole for x in operands) and any(x.dtype.kind not in whole for x in resolved)


class PendingLimitReached(Exception):  # noqa: N818  (a signal between two functions, never seen by users)
    """A node would have more than PENDING_LIMIT operators below it."""


def _common_device(operator: OperatorRecord, operands: tuple[Structure, ...]) -> str | None:
    """The device of all operands that have one. Raises DeviceError where they have several."""
    found = dict.fromkeys([operand.device for operand in operands if operand.device is not None])
    if len(found) > 1:
        raise DeviceError(
            f"{operator.name}: operands on {' and '.join(found)}",
            hints=[how_to_join(found)],
        )
    return next(iter(found), None)


def buffer(shape: Shape, strides: Shape, dtype: DType, device: str = CPU, frozen: bool = False) -> Structure:
    """The structure of a buffer; strides are in elements, `device` is a name as `lazy.devices` has it, and `frozen`
    says that its contents stay.
    """
    canonical = tuple([0 if extent == 1 else stride for extent, stride in zip(shape, strides, strict=True)])
    key = ("buffer", shape, canonical, dtype, device, frozen)
    known = table.get(key)
    if known is not None:
        return known
    made = Structure("buffer", shape, dtype, strides=canonical, device=device, frozen=frozen, leaf_count=1)
    return _remember(key, made)


def sharded(shape: Shape, dtype: DType, layout: Layout) -> Structure:
    """The structure of a buffer that is shared out over a mesh; each shard is contiguous."""
    key = ("sharded", shape, dtype, layout)
    known = table.get(key)
    if known is not None:
        return known
    strides, device = contiguous_strides(shape), mesh_device(layout.mesh)
    made = Structure("buffer", shape, dtype, strides=strides, device=device, layout=layout, leaf_count=1)
    return _remember(key, made)


def scalar(dtype: DType) -> Structure:
    """The structure of a scalar argument: a Python number, known when the expression is evaluated."""
    key = ("scalar", dtype)
    known = table.get(key)
    return known or _remember(key, Structure("scalar", (), dtype, leaf_count=1))


def constant(value: bool | int | float, dtype: DType) -> Structure:
    """The structure of a literal, part of the algebra. The value takes the dtype's Python type; integers wrap."""
    if dtype.kind == "int":
        value = wrapped(int(value), dtype)
    else:
        value = float(value) if dtype.kind == "float" else bool(value)
    # By its text, since 0.0 and -0.0 are equal, and a NaN is not equal to itself.
    key = ("constant", repr(value), dtype)
    known = table.get(key)
    return known or _remember(key, Structure("constant", (), dtype, value=value))


def bundle(roots: tuple[Structure, ...], positions: tuple[Position, ...]) -> Structure:
    """The structure of several roots that are evaluated together; its shape and dtype are the first root's, its device
    that of all roots that have one.
    """
    key = ("tuple", roots, positions)
    known = table.get(key)
    if known is not None:
        return known
    device = next((root.device for root in roots if root.device is not None), None)
    leaf_count = _leaf_count(roots, positions)
    structure = Structure("tuple", roots[0].shape, roots[0].dtype, device=device, leaf_count=leaf_count)
    structure.operands = roots
    structure.positions = positions
    structure.size = sum(root.size for root in roots)
    return _remember(key, structure)


def _leaf_count(operands: tuple[Structure, ...], positions: tuple[Position, ...]) -> int:
    last = 0
    for operand, position in zip(operands, positions, strict=True):
        span = position if isinstance(position, tuple) else (position + operand.leaf_count - 1,)
        last = max(last, *span)
    return last + 1 if any(operand.leaf_count for operand in operands) else 0


def _measure(structure: Structure) -> None:
    """Sets `size` and what it takes to know it cheaply.

    Operands that share nodes make the sum of their sizes too large, up to doubling it with every operator. Where all
    operators below see the same leaves in the same order, each structure occurs once, so there are no more of them than
    were made between the oldest one below and now. Only where both bounds pass the limit is the graph counted.
    """
    pairs = {pair for pair in zip(structure.operands, structure.positions, strict=True) if pair[0].size}
    structure.serial = next(_serials)
    aligned = all(position == 0 and operand.oldest for operand, position in pairs)
    structure.oldest = min((operand.oldest for operand, _ in pairs), default=structure.serial) if aligned else 0
    size = 1 + sum(operand.size for operand, _ in pairs)
    if aligned:
        size = min(size, structure.serial - structure.oldest + 1)
    if size > PENDING_LIMIT and len(pairs) > 1:
        size = sum(1 for node in structure.post_order() if node.structure.operator is not None)
    structure.size = size


def _remember(key: Any, structure: Structure) -> Structure:
    if len(table) >= TABLE_LIMIT:
        forget_structures()
    return table.setdefault(key, structure)


def forget_structures(keep_plans: bool = True) -> None:
    """Empties the table, but for structures with a plan and what lies below them.

    A forgotten structure that is still in use goes on working; the same algebra made anew is a new object, which is
    planned again. Where plans hold more than half of the table's limit, they are forgotten too.
    """
    with _lock:
        entries = list(table.items())
        kept = _below([s for _, s in entries if s.plan is not None]) if keep_plans else set()
        if len(kept) > TABLE_LIMIT // 2:
            kept = set()
        # Numbers are few, and other modules hold on to them.
        numbers = [(key, structure) for key, structure in entries if structure.kind in ("scalar", "constant")]
        # A look-up meanwhile misses, which costs a new structure and is right all the same.
        table.clear()
        table.update(numbers)
        table.update((key, structure) for key, structure in entries if structure in kept)
    for react in _on_forgetting:
        react()


def forget_symbolic(known: int) -> None:
    """Takes the structures of symbolic sizes (`lazy/symbols`) out of the table that came after it held `known`."""
    found: set[Structure] = set()
    for key, structure in list(table.items())[known:]:  # operands come before what is made of them
        if any(operand in found for operand in structure.operands) or any(
            symbolic_in((structure.shape, structure.strides, structure.attributes))
        ):
            found.add(structure)
            table.pop(key, None)


_on_forgetting: list[Callable[[], object]] = []


def on_forgetting(react: Callable[[], object]) -> None:
    """Has `react` called whenever structures were forgotten: by modules that hold on to structures of their own."""
    _on_forgetting.append(react)


def _below(roots: list[Structure]) -> set[Structure]:
    reached = set(roots)
    stack = roots
    while stack:
        for operand in stack.pop().operands:
            if operand not in reached:
                reached.add(operand)
                stack.append(operand)
    return reached


def interned_count() -> int:
    """How many structures the table holds."""
    return len(table)
