"""Distributed tensors, as far as one device goes: a tensor of a shape, which no mesh shares out.

A = dist.tensor((B, D), dtype="fp8_e4m3")
C = op.matmul(A, dist.tensor((D, H), dtype="bf16"), accum_dtype="fp32")
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

from tessera import op
from tessera.errors import ArgumentError
from tessera.handle import Tensor

__all__ = ["tensor"]


def tensor(shape: Iterable[int], dtype: object = "fp32") -> Tensor:
    """A tensor of `shape`, filled with reproducible standard-normal values as `op.tensor` fills it, in `dtype`.

    It lies on this device as a whole, as everything does without a mesh. Raises ArgumentError (E_ARGUMENT) for what is
    no row of extents, DTypeError (E_DTYPE) for a dtype that tensors do not have.
    """
    try:
        extents = tuple(operator.index(extent) for extent in shape)
    except TypeError as error:
        hints = ["a shape is a tuple of ints", "op.tensor(data) takes data"]
        raise ArgumentError(f"{shape!r} is no shape", hints=hints) from error
    return op.tensor(extents, dtype=dtype)
