"""A user's program, as type checkers see it: `make check` checks it with mypy --strict, `test_types.py` with pyright.

What is wrong is ignored line by line, with the error that it has to be: an ignored line without an error is one, too.
"""

from __future__ import annotations

from typing import assert_type

import numpy
import torch

import tessera
from tessera import Tensor, op
from tessera.typing import ArrayLike, DTypeLike, Operand


@op.kernel
def layer(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """One unit, whose parameters and result are those of the function."""
    y = op.gelu(x @ w)
    return y if bias is None else y + bias


@op.autotune(max_trials=2)
def gated(x: Tensor, gate: Operand = None) -> Tensor:
    """A kernel that is tuned before its first call, and takes all that is array-like for a gate."""
    return x * op.sigmoid(gate)


def normalized(x: ArrayLike, dtype: DTypeLike = "fp32") -> Tensor:
    """What operators take, a program's own functions take, too."""
    return op.layer_norm(op.cast(x, dtype))


def right() -> Tensor:
    """Uses that are checked, and run."""
    x = op.tensor(torch.randn(4, 8))
    w = op.constant(numpy.ones((8, 3), numpy.float32))
    y = assert_type(layer(x, w), Tensor)
    shares = assert_type(op.softmax(y, dim=-1), Tensor)
    values, places = op.topk(shares, 2)
    assert_type(values.sum(dim=1, keepdim=True), Tensor)
    assert_type(x * 2.0 + y[0, 0], Tensor)
    for compilation in layer.compilations():
        assert_type(compilation.reason, str)
    tessera.eval(values, places)
    return normalized(values.torch(), torch.float64)


def tuned(x: Tensor) -> Tensor:
    """A use that is checked alone: tuning takes seconds."""
    return assert_type(gated(x, torch.ones(8)), Tensor)


def wrong(x: Tensor, w: Tensor) -> None:
    """Uses that checkers refuse."""
    layer(x)  # type: ignore[call-arg]
    layer(x, "text")  # type: ignore[arg-type]
    layer(x, w, scale=2.0)  # type: ignore[call-arg]
    gated("text")  # type: ignore[arg-type]
    gated(x, w, w)  # type: ignore[call-arg]
    op.exp("text")  # type: ignore[arg-type]
    op.matmul(x, [[1.0]])  # type: ignore[arg-type]
    op.sum(x, axis="rows")  # type: ignore[arg-type]
    op.cast(x, 16)  # type: ignore[arg-type]
    x.add("text")  # type: ignore[arg-type]


if __name__ == "__main__":
    print(right())
