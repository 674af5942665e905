"""What an operator's tile body does, found by running it against an emitter that counts: floating-point operations of
a call, over the points of its anchor, and vector instructions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from tessera.dtypes import DType, bool_, fp32, int64
from tessera.ir.anchors.anchor import Anchor
from tessera.ops.record import OPERATORS, Named, Operator, Typed, elements

_FUNCTIONS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "div": 10, "sqrt": 12, "rsqrt": 20, "exp": 36, "exp2": 14, "expm1": 38, "log": 40, "log1p": 45, "sin": 36,
        "cos": 40, "tanh": 55, "erf": 42, "pow": 120,
    }
)  # fmt: skip
_APPROXIMATE: Final[Mapping[str, int]] = MappingProxyType({"exp": 15, "tanh": 28, "erf": 18})

_COMPUTE_NOTHING: Final = frozenset({"constant", "cast", "select", "position", "extent"})
"""Operations that choose, number or convert."""
_MULTIPLY_AND_ADD: Final = frozenset({"contract", "convolve"})

LITERAL, LEFT, POINT = range(3)
"""Over what a value varies: nothing, the axes that its operator leaves, or those that it reduces as well."""


def operation_count(name: str, approximate: bool = False) -> int:
    """Vector instructions of an operation per vector of fp32, functions as `backend/llvm/vecmath` expands them."""
    known = _APPROXIMATE.get(name) if approximate else None
    return _FUNCTIONS.get(name, 1) if known is None else known


DEAR: Final = 10
"""Vector instructions from which computing a value again takes longer than storing it and loading it from L1 or L2:
those of a division, the cheapest function.
"""


@dataclass(frozen=True)
class _Counted:
    """A value of which only the dtype is known, and over what it varies."""

    dtype: DType
    over: int = POINT


class _Counter:
    """The emitter: instructions, as many as each function takes, and operations by what they are computed over."""

    def __init__(self) -> None:
        self.instructions = 0
        self.operations = [0, 0, 0]

    def __getattr__(self, name: str) -> Callable[..., _Counted]:
        def emit(*operands: Any, approximate: bool = False) -> _Counted:
            self.instructions += 0 if name == "constant" else operation_count(name, approximate)
            over = max((operand.over for operand in operands if isinstance(operand, _Counted)), default=LITERAL)
            if name not in _COMPUTE_NOTHING:
                self.operations[over] += 2 if name in _MULTIPLY_AND_ADD else 1
            return _Counted(_dtype_of(name, operands), _varies_over(name, over))

        return emit


def _dtype_of(name: str, operands: Sequence[Any]) -> DType:
    if name in ("compare", "logical_and", "logical_or", "logical_not"):
        return bool_
    if name == "position":
        return int64
    found = next((operand for operand in operands[::-1] if isinstance(operand, DType | _Counted)), fp32)
    return found if isinstance(found, DType) else found.dtype


def _varies_over(name: str, over: int) -> int:
    if name == "position":
        return POINT
    if name in ("constant", "extent"):
        return LITERAL
    return LEFT if name == "reduce" or name in _MULTIPLY_AND_ADD else over


@cache
def vector_instructions(name: str, operands: int, attributes: tuple[tuple[str, object], ...] = ()) -> int:
    """Vector instructions per vector of fp32 that an operator of so many operands takes, roughly.

    `attributes` are those of its record that differ from their defaults. At least 1.
    """
    operator = OPERATORS[name]
    counter = _Counter()
    given = {**operator.attributes, **dict(attributes)}
    operator.body(counter, *[_Counted(fp32)] * operands, **given)
    return max(counter.instructions, 1)


_Kinds: TypeAlias = tuple[tuple[DType, int], ...]
"""The dtype of each operand, and over what it varies."""


def flops_of(
    operator: Operator, operands: Sequence[Typed], result: Typed, attributes: Named, anchor: Anchor | None = None
) -> int:
    """The operations of a call: additions, multiplications, comparisons and every function of tile bodies count as one
    each; choosing and converting count as none.

    They are those of the tile body, each as often as there are points of the axes that it is computed over; `anchor`
    says how operands lie where that is not as the record says. An operator of whose operations no map tells, or which
    are counted otherwise by custom, has a rule; what moves data has none.
    """
    if operator.flops is not None:
        return operator.flops(operands, result, attributes)
    if operator.kind.has_run_time_geometry:
        return 0
    shapes = [operand.shape for operand in operands]
    anchor = anchor or operator.anchored(tuple(map(len, shapes)), attributes)
    assert anchor is not None, f"{operator.name} has neither an anchor nor a rule that counts"
    given = tuple([attributes.get(name, default) for name, default in operator.attributes.items()])
    kinds = tuple([(each.dtype, _walks(anchor, place)) for place, each in enumerate(operands)])
    for_each_left, for_each_point = _operations(operator, given, kinds)
    extents = anchor.extents(shapes)
    left, reduced = (
        math.prod([extent or 0 for axis, extent in extents.items() if (axis in anchor.reduced) is within])
        for within in (False, True)
    )
    return left * (for_each_left + reduced * for_each_point)


def _walks(anchor: Anchor, operand: int) -> int:
    axes = {axis for index in anchor.operands[operand] for axis in index.axes}
    return LEFT if axes.isdisjoint(anchor.reduced) else POINT


@lru_cache(maxsize=1 << 10)
def _operations(operator: Operator, attributes: tuple[Any, ...], kinds: _Kinds) -> tuple[int, int]:
    """The operations of a body for each point of the axes that are left, and for each of all of them."""
    counter = _Counter()
    named = dict(zip(operator.attributes, attributes, strict=True))
    operator.body(counter, *[_Counted(dtype, over) for dtype, over in kinds], **named)
    return counter.operations[LEFT], counter.operations[POINT]


def bytes_of(operator: Operator, operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    """Bytes of memory traffic when each operand is read once and the result is written once. What reads elements that
    its indices decide has a rule.
    """
    if operator.bytes_moved is not None:
        return operator.bytes_moved(operands, result, attributes)
    return sum(elements(value.shape) * value.dtype.itemsize for value in (*operands, result) if not value.weak)
