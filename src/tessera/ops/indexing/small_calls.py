"""Which calls that read or write at places of an axis are so small that routines of Tessera's own make them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tessera.ops.native_calls import MOST_BYTES, NativeCall, TensorInMemory, are_contiguous
from tessera.ops.record import Named, elements


def _size_of_parts(x: TensorInMemory, axis: int) -> int:
    """Bytes of a contiguous tensor from one place of an axis to the next."""
    return math.prod(x.shape[axis + 1 :]) * x.dtype.itemsize


def checked(
    inputs: Sequence[TensorInMemory], outputs: Sequence[TensorInMemory], attributes: Named
) -> NativeCall | None:
    """The rule of `checked_index`."""
    (index,), extent, ignored = inputs, attributes["extent"], attributes["ignored"]
    count = elements(index.shape)
    if not are_contiguous((*inputs, *outputs)) or count * 8 > MOST_BYTES:
        return None
    ignoring = (0, 0) if ignored is None else (1, ignored)
    return NativeCall("checked", (count, extent, int(attributes["from_end"]), *ignoring))


def taken(inputs: Sequence[TensorInMemory], outputs: Sequence[TensorInMemory], attributes: Named) -> NativeCall | None:
    """The rule of `take`."""
    (x, index), (result,), axis = inputs, outputs, attributes["axis"]
    nbytes, moved = _size_of_parts(x, axis), elements(result.shape) * x.dtype.itemsize
    if not moved or not are_contiguous((*inputs, *outputs)) or moved > MOST_BYTES:
        return None
    routine = f"taken_{nbytes}" if nbytes in (1, 2, 4, 8) else "taken"
    return NativeCall(routine, (math.prod(x.shape[:axis]), x.shape[axis], nbytes, elements(index.shape)))


def replaced(
    inputs: Sequence[TensorInMemory], outputs: Sequence[TensorInMemory], attributes: Named
) -> NativeCall | None:
    """The rule of `put`, whose operand may be one element repeated. Whether it is copied is known where it runs."""
    (x, index, source), axis = inputs, attributes["axis"]
    moved, whole = (elements(operand.shape) * x.dtype.itemsize for operand in (source, x))
    if not moved or not are_contiguous((index, source, *outputs)) or moved > MOST_BYTES:
        return None
    size = x.dtype.itemsize
    repeated = not any(x.strides) and size in (1, 2, 4, 8) and whole <= MOST_BYTES
    if not repeated and not are_contiguous((x,)):
        return None
    words = (math.prod(x.shape[:axis]), x.shape[axis], _size_of_parts(x, axis), elements(index.shape), size, MOST_BYTES)
    return NativeCall(f"replaced_{size}" if repeated else "replaced", words)
