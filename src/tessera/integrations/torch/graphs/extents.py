"""The numbers behind symbolic sizes: of the example that a graph was traced with, and of a call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

Size: TypeAlias = "int | torch.SymInt"


class UnknownSize(Exception):  # noqa: N818 - what is missing, not what went wrong
    """A size that depends on values which nobody knows yet."""


def example(size: Size) -> int:
    """The size in the example. Raises UnknownSize where it depends on values."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    if hint is None:
        raise UnknownSize(f"the size {size} depends on values")
    return int(hint)


class _Numbers(PythonReferenceAnalysis):
    """Sizes computed as Python computes them, where torch's own analysis makes expressions of numbers."""

    @staticmethod
    def trunc_to_int(x: float, dtype: torch.dtype) -> int:
        return math.trunc(x)

    @staticmethod
    def int_truediv(a: int, b: int) -> float:
        return a / b


class Extents:
    """The sizes of one call, as its inputs say them."""

    def __init__(self, known: Mapping[Any, int] | None = None) -> None:
        """`known`: sizes by their expressions."""
        self._numbers: dict[Any, int] = dict(known or {})

    def bind(self, meta: object, value: object) -> None:
        """Learns from one input: what the graph says of it, and what it is."""
        if isinstance(meta, torch.Tensor) and isinstance(value, torch.Tensor):
            for size, extent in zip(meta.shape, value.shape, strict=True):
                self._learn(size, extent)
        elif isinstance(value, int):
            self._learn(meta, value)

    def _learn(self, size: object, extent: int) -> None:
        if isinstance(size, torch.SymInt):
            self._numbers[size.node.expr] = extent

    def of(self, size: Size) -> int:
        """The size in this call. Raises UnknownSize where no input tells it."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        known = self._numbers.get(expression)
        if known is None:
            try:
                known = sympy_interp(_Numbers, self._numbers, expression)
            except KeyError:  # of a symbol that no input has by itself
                value = expression.xreplace(self._numbers)
                if not value.is_Integer:
                    raise UnknownSize(f"no input of the partition tells the size {size}") from None
                known = int(value)
            self._numbers[expression] = known
        return known
