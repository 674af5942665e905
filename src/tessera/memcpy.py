"""Copies that a stream makes, while the program goes on.

>>> from tessera import memcpy, op, stream
>>> copying, computing = stream.create(name="h2d"), stream.create(name="compute")
>>> memcpy.async_(dst=buffer, src=batch, stream=copying)
>>> y = op.matmul(buffer, weights, stream=computing)    # waits for the copy, the program does not

`async` is a keyword of Python; `getattr(memcpy, "async")` is the same function.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tessera.dtypes import dtype_of
from tessera.errors import ArgumentError
from tessera.runtime.streams.copies import Array, Copy, Direction, PageableMemoryWarning, copy_async, pinned_tensor
from tessera.runtime.streams.stream import Stream

__all__ = ["Copy", "Direction", "PageableMemoryWarning", "async_", "pin", "pinned"]


def async_(*, dst: Array, src: object, stream: Stream) -> Copy:
    """Copies the elements of `src` to `dst`, of the same shape and dtype, in the order of `stream`; returns at once.

    `dst` is a torch tensor or numpy array; `src` may be a Tessera tensor, too, which is computed first. Both may be
    views. torch counts the write from the call on: expressions that took `dst` before are E_INPUT_MUTATED, those that
    take it after wait for the copy. Memory of the CPU that is not page-locked is reported by the result's `pinned`, and
    by a PageableMemoryWarning once per place.

    Raises ShapeMismatchError, DTypeError, ArgumentError (E_ARGUMENT) where the two overlap, DeviceError (E_DEVICE) for
    a stream of another device, and StreamRaceError (E_STREAM_RACE).
    """
    return copy_async(dst, src, stream)


def pinned(shape: Sequence[int], dtype: object) -> torch.Tensor:
    """A new torch tensor in CPU memory, not initialized, page-locked for fast copies to a device.

    Where there is no CUDA device nothing can be page-locked, and the memory is ordinary; `Copy.pinned` is None there.
    """
    extents = tuple(shape)
    if any(extent < 0 for extent in extents):
        raise ArgumentError(f"a shape of negative extents: {extents}")
    return pinned_tensor(extents, dtype_of(dtype))


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A page-locked copy of a torch tensor, or the tensor itself where it is one already or there is no CUDA device."""
    return tensor.pin_memory() if torch.cuda.is_available() and tensor.device.type == "cpu" else tensor


def __getattr__(name: str) -> object:
    if name == "async":
        return async_
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
