"""Copies that a stream makes: between arrays of the CPU, and between the CPU and devices."""

from __future__ import annotations

import ctypes
import time
import warnings
from typing import Any, Final, Literal, TypeAlias

import numpy
import torch

from tessera.dtypes import DType
from tessera.errors import ArgumentError, DeviceError, DTypeError, ShapeMismatchError, user_location
from tessera.lazy import issuing
from tessera.lazy.devices import is_cpu_memory
from tessera.lazy.evaluation import refuse_mutated
from tessera.lazy.leaves import sources
from tessera.lazy.leaves.export import memory_of
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.leaves.views import is_contiguous
from tessera.lazy.leaves.writes import Watch
from tessera.lazy.node import Node
from tessera.ops.outputs import note_written, refuse_repeated, writable_leaf
from tessera.profiling.recording import instrumentation
from tessera.runtime.streams.operations import Operation, may_share
from tessera.runtime.streams.stream import StreamCore, core_of, tracker

Array: TypeAlias = torch.Tensor | numpy.ndarray[Any, Any]
Direction: TypeAlias = Literal["h2h", "h2d", "d2h", "d2d"]

NO_DEVICE: Final = "this machine has no CUDA device to pin memory for"
BOTH_ON_CPU: Final = "both sides lie in CPU memory, where pinning changes nothing"
BOTH_ON_DEVICE: Final = "both sides lie in device memory"


class PageableMemoryWarning(UserWarning):
    """A copy between the CPU and a device of memory that is not pinned: it goes through a bounce buffer, and may hold
    the program up.
    """


class Copy:
    """A copy on its way. `pinned` says whether the CPU's side is page-locked; None where that cannot be said, and then
    `capability["pinned"]` says why.
    """

    __slots__ = ("_operation", "capability", "direction", "nbytes", "pinned")

    def __init__(self, operation: Operation, direction: Direction, nbytes: int, pinned: bool | None, why: str) -> None:
        self._operation = operation
        self.direction = direction
        self.nbytes = nbytes
        self.pinned = pinned
        self.capability: dict[str, str] = {} if pinned is not None else {"pinned": why}

    def wait(self) -> None:
        """Blocks until the copy is made. Raises what it failed with."""
        self._operation.result()

    def query(self) -> bool:
        """Whether the copy is made. Never blocks."""
        done = self._operation.poll()
        if done:
            tracker.awaited(self._operation)
        return done

    def __repr__(self) -> str:
        state = "made" if self._operation.poll() else "on its way"
        return f"<copy {self.direction} of {self.nbytes} bytes, pinned: {self.pinned}, {state}>"


def copy_async(dst: object, src: object, stream: object) -> Copy:
    """Enqueues a copy; see `tessera.memcpy.async_`."""
    core = core_of(stream)
    target = _target(dst)
    source = _source(src, stream)
    _check(target, source)
    _check_device(core, target, source)
    direction: Direction = _DIRECTIONS[is_cpu_memory(source.device), is_cpu_memory(target.device)]
    pinned, why = _pinned(direction, target if direction == "d2h" else source)
    place = user_location()
    if pinned is False:
        _warn_pageable(place)
    copying = _HostCopy(target, source) if direction == "h2h" else _DeviceCopy(target, source)
    operation = core.enqueue("memcpy", copying, reads=[source], writes=[target], place=place)
    note_written(target)
    return Copy(operation, direction, copying.nbytes, pinned, why)


_DIRECTIONS: Final[dict[tuple[bool, bool], Direction]] = {
    (True, True): "h2h",
    (True, False): "h2d",
    (False, True): "d2h",
    (False, False): "d2d",
}


def pinned_tensor(shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
    """Uninitialized CPU memory, page-locked where there is a CUDA device."""
    return torch.empty(shape, dtype=dtype.torch, pin_memory=torch.cuda.is_available(), device="cpu")


def _target(dst: object) -> Leaf:
    if isinstance(dst, Node):
        raise ArgumentError(
            "memcpy to a Tessera tensor, which is immutable",
            hints=["dst= is a torch tensor or a numpy array; op.tensor(dst) reads it without a copy"],
        )
    return writable_leaf(dst, "dst=")


def _source(src: object, stream: object) -> Leaf:
    """What is copied; an expression is computed first, by the same stream."""
    if isinstance(src, Node):
        issuing.issue(src, stream)
        leaf = src.leaves[0]
        refuse_mutated((leaf,))
        if leaf.structure.kind != "buffer":
            raise ArgumentError("memcpy from a number", hints=["op.tensor([number]) has memory"])
        return leaf
    if isinstance(src, torch.Tensor):
        return sources.from_torch(src)
    if isinstance(src, numpy.ndarray):
        return sources.from_numpy(src)
    raise ArgumentError(
        f"src= of type {type(src).__name__}", hints=["src= is a torch tensor, a numpy array or a Tessera tensor"]
    )


def _check(target: Leaf, source: Leaf) -> None:
    if target.shape != source.shape:
        raise ShapeMismatchError(f"memcpy of shape {source.shape} to memory of shape {target.shape}")
    if target.dtype is not source.dtype:
        raise DTypeError(
            f"memcpy of {source.dtype} to memory of {target.dtype}", hints=["a copy converts nothing: op.cast does"]
        )
    refuse_repeated(target, "dst=")
    if may_share(target, source):
        raise ArgumentError("memcpy: dst= and src= share memory", hints=["copy through other memory"])


def _check_device(core: StreamCore, target: Leaf, source: Leaf) -> None:
    devices = {leaf.device for leaf in (target, source) if not is_cpu_memory(leaf.device)}
    if core.device in devices or (not devices and is_cpu_memory(core.device)):
        return
    raise DeviceError(
        f"memcpy from {source.device} to {target.device} on stream {core.name!r} of {core.device}",
        hints=[f"stream.create(device={next(iter(devices), 'cpu')!r}) makes a stream that can"],
    )


def _pinned(direction: Direction, on_cpu: Leaf) -> tuple[bool | None, str]:
    """Whether the CPU's side of a copy is page-locked, or None and why there is no answer."""
    if not torch.cuda.is_available():
        return None, NO_DEVICE
    if direction in ("h2h", "d2d"):
        return None, BOTH_ON_CPU if direction == "h2h" else BOTH_ON_DEVICE
    return memory_of(on_cpu).is_pinned(), ""


_warned: set[str | None] = set()


def _warn_pageable(place: str | None) -> None:
    if place in _warned:
        return
    _warned.add(place)
    at = f" at {place}" if place else ""
    warnings.warn(
        f"memcpy{at}: the CPU's side is pageable; tessera.memcpy.pin(tensor) gives a page-locked copy",
        PageableMemoryWarning,
        stacklevel=4,
    )


class _HostCopy:
    """A copy in CPU memory, made by the one thread that calls it, without the GIL."""

    def __init__(self, target: Leaf, source: Leaf) -> None:
        self._target, self._source = target, source
        self._watch = Watch((source,))
        self.nbytes = _nbytes(target)

    def __call__(self) -> None:
        start_ns = time.monotonic_ns()
        target, source = self._target, self._source
        if is_contiguous(target.shape, target.strides) and is_contiguous(source.shape, source.strides):
            ctypes.memmove(target.address, source.address, self.nbytes)
        else:
            numpy.copyto(_raw(target), _raw(source))
        instrumentation.copied(self.nbytes, "h2h", start_ns)
        self._watch.refuse_mutated()


class _DeviceCopy:
    """A copy from or to a device, enqueued on torch's current stream there."""

    def __init__(self, target: Leaf, source: Leaf) -> None:
        self._target, self._source = target, source
        self.nbytes = _nbytes(target)

    def __call__(self) -> None:
        memory_of(self._target).copy_(memory_of(self._source), non_blocking=True)


def _nbytes(leaf: Leaf) -> int:
    count = leaf.dtype.itemsize
    for extent in leaf.shape:
        count *= extent
    return count


_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _raw(leaf: Leaf) -> numpy.ndarray[Any, Any]:
    """A leaf's elements as integers of their size, since numpy does not know all dtypes."""
    return memory_of(leaf).view(_INTEGERS[leaf.dtype.itemsize]).numpy()
