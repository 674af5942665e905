"""Vector instructions of an operator: its tile body, run against an emitter that counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from tessera.dtypes import DType, bool_, fp32, int64
from tessera.ops.record import OPERATORS

_FUNCTIONS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "div": 10, "sqrt": 12, "rsqrt": 20, "exp": 36, "exp2": 14, "expm1": 38, "log": 40, "log1p": 45, "sin": 36,
        "cos": 40, "tanh": 55, "erf": 42, "pow": 120,
    }
)  # fmt: skip
_APPROXIMATE: Final[Mapping[str, int]] = MappingProxyType({"exp": 15, "tanh": 28, "erf": 18})


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
    """A value of which only the dtype is known."""

    dtype: DType


class _Counter:
    """The emitter: every operation of a body is one instruction, or as many as its function takes."""

    def __init__(self) -> None:
        self.instructions = 0

    def __getattr__(self, name: str) -> Callable[..., _Counted]:
        def emit(*operands: Any, approximate: bool = False) -> _Counted:
            self.instructions += 0 if name == "constant" else operation_count(name, approximate)
            if name in ("compare", "logical_and", "logical_or", "logical_not"):
                return _Counted(bool_)
            if name == "position":
                return _Counted(int64)
            found = next((operand for operand in operands[::-1] if isinstance(operand, DType | _Counted)), fp32)
            return _Counted(found) if isinstance(found, DType) else found

        return emit


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
