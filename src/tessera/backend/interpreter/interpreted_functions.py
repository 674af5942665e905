"""What Triton's interpreter lacks or gets wrong (Triton 3.6): functions of libdevice, products of bf16, clocks.

Each function takes Triton's interpreter module, which is imported once and late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import numpy
from numpy.typing import NDArray

from tessera.backend.triton.printing import tile_clock

Values: TypeAlias = NDArray[Any]


def _round(values: Values) -> Values:
    """To the nearest integer, halves away from zero, as C's `round`."""
    rounded: Values = numpy.copysign(numpy.floor(numpy.abs(values) + 0.5), values)
    return rounded


_FUNCTIONS: Final[Mapping[str, Callable[..., Values]]] = {
    "tanh": numpy.tanh,
    "pow": numpy.power,
    "expm1": numpy.expm1,
    "log10": numpy.log10,
    "log1p": numpy.log1p,
    "tan": numpy.tan,
    "trunc": numpy.trunc,
    "round": _round,
    "nearbyint": numpy.rint,
    "copysign": numpy.copysign,
}
"""The functions of libdevice that printed kernels call."""


def library(found: Any) -> SimpleNamespace:
    """What stands for `libdevice` in a kernel that is interpreted."""
    return SimpleNamespace(**{name: _elementwise(found, function) for name, function in _FUNCTIONS.items()})


def _elementwise(found: Any, function: Callable[..., Values]) -> Callable[..., Any]:
    tl = found.tl

    def apply(*operands: Any) -> Any:
        tensors = [found.interpreter_semantic.to_tensor(operand) for operand in operands]
        element = next((t for t in tensors if t.type.is_block()), tensors[0]).type.scalar
        dtype = found._get_np_dtype(element)
        values = function(*[tensor.handle.data.astype(dtype) for tensor in tensors])
        kind = tl.block_type(element, list(values.shape)) if any(t.type.is_block() for t in tensors) else element
        return tl.tensor(found.TensorHandle(values, element), kind)

    return apply


def clock_functions(found: Any) -> dict[str, Callable[[], Any]]:
    """What stands for the functions of `tile_clock.py`: the CPU's clock, and the one worker that runs all programs."""
    return {
        tile_clock.CLOCK: lambda: _integer(found, time.perf_counter_ns()),
        tile_clock.PLACE: lambda: _integer(found, 0),
    }


def _integer(found: Any, value: int) -> Any:
    element = found.tl.int64
    return found.tl.tensor(found.TensorHandle(numpy.array([value], dtype=numpy.int64), element), element)


def widen_products(found: Any) -> None:
    """Makes `tl.dot` of bf16 right: the interpreter holds bf16 as the integers of its bits, and multiplies those."""
    multiply = found.interpreter_builder.create_dot

    def widened(a: Any, b: Any, *rest: Any) -> Any:
        return multiply(_widened(found, a), _widened(found, b), *rest)

    found.interpreter_builder.create_dot = widened


def _widened(found: Any, handle: Any) -> Any:
    if not handle.dtype.is_bf16():
        return handle
    bits = handle.data.astype(numpy.uint32) << 16
    return found.TensorHandle(bits.view(numpy.float32), found.tl.float32)
