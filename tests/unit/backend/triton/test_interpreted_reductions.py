"""Triton's interpreter combines blocks by halves: in the order of the elements, along any axis, also of one element."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from tessera.backend.interpreter.interpreted import interpreter

pytest.importorskip("triton", reason="the extra `triton` is not installed")


def as_tensor(values: numpy.ndarray[Any, Any]) -> Any:
    found = interpreter()
    element = found.tl.int64
    return found.tl.tensor(found.TensorHandle(values, element), found.tl.block_type(element, list(values.shape)))


def reduced(values: numpy.ndarray[Any, Any], axis: int | None, keep: bool) -> Any:
    """The block reduced by 3 a + b mod 1009 over strings of digits: associative, and not commutative."""
    found = interpreter()

    def compose(a_factor: Any, a_term: Any, b_factor: Any, b_term: Any) -> tuple[Any, Any]:
        factor = numpy.asarray(a_factor.handle.data * b_factor.handle.data % 1009)
        term = numpy.asarray((a_term.handle.data * b_factor.handle.data + b_term.handle.data) % 1009)
        return SimpleNamespace(handle=SimpleNamespace(data=factor)), SimpleNamespace(handle=SimpleNamespace(data=term))

    operands = (as_tensor(numpy.full_like(values, 3)), as_tensor(values))
    results = found.ReduceOps(axis, SimpleNamespace(fn=compose), keep).apply(operands)
    return results[1].handle.data


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (4, 16), (2, 2)])
def test_neighbours_are_combined_in_their_order(shape: tuple[int, int], axis: int | None, keep: bool) -> None:
    values = numpy.random.default_rng(0).integers(0, 1009, shape)

    def composed(row: Any) -> int:
        total = 0
        for value in row:
            total = (total * 3 + int(value)) % 1009
        return total

    if axis is None:
        expected = numpy.array(composed(values.reshape(-1))).reshape((1, 1) if keep else ())
    else:
        expected = numpy.apply_along_axis(composed, axis, values)
        expected = numpy.expand_dims(expected, axis) if keep else expected
    found = reduced(values, axis, keep)
    assert found.reshape(-1).tolist() == expected.reshape(-1).tolist()
    assert found.shape == (expected.shape or (1,))
