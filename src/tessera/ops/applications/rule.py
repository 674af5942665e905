"""The types of rules of applications: the value that a rule sees, and the application that it gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tessera.dtypes import DType, fp32
from tessera.lazy.structures.structure import Shape


class AbstractValue(Protocol):
    """What a rule sees of a value: shape and dtype."""

    @property
    def shape(self) -> Shape:
        """The extents."""

    @property
    def dtype(self) -> DType:
        """The element type."""


@dataclass(frozen=True)
class WantedOperand:
    """An operand that is wanted. `below` asks for whole numbers from 0 up to, and without, this one."""

    shape: Shape
    dtype: DType
    below: int | None = None


@dataclass(frozen=True)
class Application:
    """Operands and attributes that an operator takes; attributes left out have their defaults."""

    operands: tuple[WantedOperand, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


Rule: TypeAlias = Callable[[random.Random, AbstractValue], "Application | None"]
"""(source of chance, a value that exists) -> an application, mostly to that value first; None where there is none."""


def like(value: AbstractValue) -> WantedOperand:
    """An operand of a value's shape and dtype, which that value itself is."""
    return WantedOperand(value.shape, value.dtype)


def floating(dtype: DType) -> DType:
    """The dtype itself if it is a floating-point one, else fp32."""
    return dtype if dtype.kind == "float" else fp32
