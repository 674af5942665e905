"""Random choices that can be made again: functions of a seed and of an element's number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tessera import dtypes
from tessera.doors.calls.nodes import Number, call, node, on
from tessera.doors.tensors.creation import extents_of
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor
from tessera.lazy.leaves.leaf import scalar_leaf
from tessera.lazy.node import leaf_node
from tessera.ops.layout.views import flag, integer
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike, DTypeLike

LARGEST_SEED = (1 << 63) - 1


def dropout(x: ArrayLike, p: Number, seed: ArrayLike, training: bool = True, *, stream: Stream | None = None) -> Tensor:
    """x with elements set to 0, each with probability p, and the others divided by 1 - p; x itself unless `training`.

    Which ones depends on the seed (0 to 2**63 - 1, a number or a tensor of one) and on an element's row-major number in
    x alone: neither on strides, schedules and threads, nor on what is computed in the same kernel. The choice is made
    where it is needed, in the gradient again, and stored nowhere. Bits are those of Philox-4x32-10 (Salmon et al.,
    "Parallel random numbers: as easy as 1, 2, 3", 2011): the first word of counter (number, 0) under the seed as key;
    an element is kept where it is at least p * 2**32.

    Raises ArgumentError (E_ARGUMENT) for p outside of [0, 1] and for seeds out of range, DTypeError (E_DTYPE) for
    elements that are no floats.

    Shapes: x of any shape; the result has it. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE).

    >>> op.dropout(op.ones(4), 0.5, seed=0).tolist()
    [0.0, 2.0, 0.0, 2.0]
    """
    value = node(x)
    if type(p) not in (int, float) or not 0 <= p <= 1:
        raise ArgumentError(f"dropout: p={p!r}", hints=["a probability, from 0 to 1"])
    if value.dtype.kind != "float":
        raise DTypeError(f"dropout of {value.dtype}: defined on floating-point elements only", hints=["cast to fp32"])
    key = _seed(seed, "dropout")
    if not flag(training, "training") or p == 0:
        return on(value, stream)
    bits = call("philox", call("iota", shape=value.shape), key)
    kept = bits >= _scalar(round(p * 2**32))
    return on(call("where", kept, value * (1 / (1 - p) if p < 1 else 0.0), 0.0), stream)


def rand(
    shape: int | Sequence[int], seed: ArrayLike, dtype: DTypeLike | None = None, *, stream: Stream | None = None
) -> Tensor:
    """Random numbers from 0 on and below 1, fp32 by default: functions of the seed (0 to 2**63 - 1, a number or a
    tensor of one) and of an element's row-major number, as in `dropout`; the same on all devices. Kernels that use them
    make them.

    fp64 has 53 random bits, of two counters; other dtypes 24, and are rounded toward 0 where they hold fewer. Raises
    ArgumentError (E_ARGUMENT) for seeds out of range, DTypeError (E_DTYPE) for dtypes that are no floats.

    Shapes: `shape`, an integer or several.

    >>> op.rand(2, seed=0).shape
    (2,)
    """
    wanted = _floats("rand", dtype)
    number, key = call("iota", shape=extents_of(shape)), _seed(seed, "rand")
    if wanted is dtypes.fp64:
        high = call("philox", number * 2, key) >> 5
        low = call("philox", number * 2 + 1, key) >> 6
        return on((high * (1 << 26) + low).to(wanted) * 2.0**-53, stream)
    digits = min(24, 1 - round(math.log2(torch.finfo(wanted.torch).eps)))
    bits = call("philox", number, key) >> (32 - digits)
    return on((bits.to(dtypes.fp32) * 2.0**-digits).to(wanted), stream)


def randn(
    shape: int | Sequence[int], seed: ArrayLike, dtype: DTypeLike | None = None, *, stream: Stream | None = None
) -> Tensor:
    """Random numbers of the standard normal distribution, fp32 by default; seeds and errors are those of `rand`.

    Box and Muller, "A note on the generation of random normal deviates" (1958), of two counters for each element, in
    fp64; the largest are 6.7 away from 0.

    Shapes: `shape`, an integer or several.

    >>> op.randn((2, 3), seed=0).shape
    (2, 3)
    """
    wanted = _floats("randn", dtype)
    number, key = call("iota", shape=extents_of(shape)), _seed(seed, "randn")
    radius, turn = ((call("philox", number * 2 + which, key).to(dtypes.fp64) + 0.5) * 2.0**-32 for which in (0, 1))
    made: Tensor = call("sqrt", call("log", radius) * -2.0) * call("cos", turn * (2 * math.pi))
    return on(made.to(wanted), stream)


def randint(
    low: int,
    high: int,
    shape: int | Sequence[int],
    seed: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """Random integers from `low` on and below `high`, which is at most 2**31 more, int64 by default; seeds are those of
    `rand`. Raises ArgumentError (E_ARGUMENT) for no integers, and for more.

    Shapes: `shape`, an integer or several.

    >>> op.randint(0, 10, (3,), seed=0).shape
    (3,)
    """
    first, count = integer(low, "low"), integer(high, "high") - integer(low, "low")
    if not 1 <= count <= 1 << 31:
        raise ArgumentError(f"randint from {low} to {high}", hints=["at least one integer, at most 2**31"])
    bits = call("philox", call("iota", shape=extents_of(shape)), _seed(seed, "randint"))
    made = ((bits * count) >> 32) + first
    return on(made.to(dtypes.int64 if dtype is None else dtypes.dtype_of(dtype)), stream)


def _floats(name: str, dtype: object) -> dtypes.DType:
    wanted = dtypes.fp32 if dtype is None else dtypes.dtype_of(dtype)
    if wanted.kind != "float" or wanted.itemsize == 1:
        raise DTypeError(f"{name} of {wanted}: fp16, bf16, fp32 and fp64 are drawn", hints=["cast what is drawn"])
    return wanted


def _seed(seed: object, name: str) -> Tensor:
    if isinstance(seed, int) and not isinstance(seed, bool):
        if not 0 <= seed <= LARGEST_SEED:
            raise ArgumentError(f"{name}: seed={seed}", hints=[f"0 to {LARGEST_SEED}"])
        return _scalar(seed)
    key = node(seed)
    if key.shape or key.dtype.kind != "int":
        raise ArgumentError(f"{name}: a seed of shape {key.shape} and {key.dtype}", hints=["one integer"])
    return key


def _scalar(number: int) -> Tensor:
    """A number that kernels are given, so that none has code of its own."""
    return node(leaf_node(scalar_leaf(number, dtypes.int64)))
