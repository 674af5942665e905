"""NumPy's functions on tensors: operators where there is one for the arguments, else NumPy's own results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

from tessera import op
from tessera.handle import Tensor

X = numpy.arange(12, dtype=numpy.float32).reshape(3, 4) - 5.5
WHOLE = numpy.arange(-3, 3, dtype=numpy.int32).reshape(2, 3)

CALLS: dict[str, tuple[numpy.ndarray[Any, Any], Callable[[Any], Any]]] = {
    "a triangle of a row": (X[0], numpy.tril),
    "several shifts of all elements": (X, lambda x: numpy.roll(x, (1, 2))),
    "column by column": (X, lambda x: numpy.ravel(x, "F")),
    "several new dimensions": (X, lambda x: numpy.expand_dims(x, (0, 1))),
    "a number of repetitions each": (X, lambda x: numpy.repeat(x, [1, 2, 0], axis=0)),
    "the mean of integers": (WHOLE, lambda x: numpy.mean(x, axis=1)),
    "the deviation of integers": (WHOLE, lambda x: numpy.std(x, ddof=1)),
    "the reciprocal of integers": (WHOLE + 10, numpy.reciprocal),
}
"""What only NumPy has."""

LAZY: dict[str, Callable[[Any], Any]] = {
    "clip": lambda x: numpy.clip(x, None, None),
    "mean": lambda x: numpy.mean(x, axis=0, keepdims=True),
    "var": lambda x: numpy.var(x, 1, ddof=1),
    "squeeze": lambda x: numpy.squeeze(x[None], 0),
    "roll": lambda x: numpy.roll(x, (1, -2), axis=(0, 1)),
    "repeat": lambda x: numpy.repeat(x, 2, axis=1),
    "ravel": numpy.ravel,
    "reciprocal": numpy.reciprocal,
    "triu": lambda x: numpy.triu(x, 1),
}
"""What stays an expression."""


@pytest.mark.parametrize("name", sorted(CALLS))
def test_arguments_without_an_operator_give_numpys_result(name: str) -> None:
    values, function = CALLS[name]
    found = function(op.tensor(values))
    assert isinstance(found, numpy.ndarray | numpy.generic)
    numpy.testing.assert_array_equal(found, function(values))


@pytest.mark.parametrize("name", sorted(LAZY))
def test_operators_stay_lazy(name: str) -> None:
    found = LAZY[name](op.tensor(X))
    assert isinstance(found, Tensor)
    numpy.testing.assert_allclose(found.numpy(), LAZY[name](X), rtol=1e-6)


def test_what_numpy_refuses_is_refused() -> None:
    with pytest.raises(ValueError, match="size not equal to one"):
        numpy.squeeze(op.tensor(X), 0)
