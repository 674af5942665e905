"""Collectives of torch.distributed's default group, one after the other in the order of the program.

Every rank has to issue the same collectives in the same order. A rank's streams run beside each other, so a collective
comes after the one before it, whatever streams they are on.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Final

import torch
import torch.distributed as dist

from tessera import forks
from tessera.errors import LibraryError
from tessera.lazy.devices import is_cpu_memory
from tessera.lazy.export import memory_of
from tessera.lazy.leaf import Leaf
from tessera.lazy.promise import KEPT, Promise
from tessera.lazy.sources import from_torch
from tessera.lazy.transfer import on_device
from tessera.lazy.writes import Watch
from tessera.profiling.recording import clock_sync, instrumentation
from tessera.runtime.operations import Operation
from tessera.runtime.streams import core_of

REDUCTIONS: Final = ("sum", "avg", "min", "max", "product")

_CLOCKS_EVERY: Final = 8
"""Clocks are compared at the collectives whose number is a power of this."""

_lock = forks.lock()
_last: Operation | None = None
_group: weakref.ref[dist.ProcessGroup] | None = None
_issued = 0


def all_reduce(source: Leaf, reduction: str) -> Leaf:
    """The reduction over all ranks of a leaf whose value is there; the leaf itself where there is no group.

    Raises LibraryError (E_LIBRARY) for what the group's backend refuses, and where another rank is gone.
    """
    with _lock:
        if _last is not None:
            _last.wait()
        if not _has_group():
            _identity(source)
            return source
        result = _new_like(source)
        memory = memory_of(result)
        memory.copy_(memory_of(source))
        _reducer(memory, reduction, _numbered())()
        return result


def all_reduce_on(source: Leaf, reduction: str, stream: object) -> Leaf:
    """As `all_reduce`, enqueued on a stream: gives a leaf whose value is on its way. What fails is raised where the
    value is read.
    """
    global _last  # noqa: PLW0603 - the program has one order
    core = core_of(stream)
    with _lock:
        after = [] if _last is None else [_last]
        if not _has_group():
            _last = core.enqueue("all_reduce", lambda: _identity(source), reads=[source], after=after)
            return source
        with core.queue.entered():
            result = _new_like(source)
        memory = memory_of(result)
        reduce = _reducer(memory, reduction, _numbered())
        watch = Watch((source,) if is_cpu_memory(source.device) else ())

        def run() -> None:
            memory.copy_(memory_of(source))
            watch.refuse_mutated()
            reduce()

        def promised(operation: Operation) -> list[Leaf]:
            promise = Promise(result.owner, operation)
            result.owner, result.version = promise, KEPT
            operation.promises = [promise]
            return [result]

        _last = core.enqueue("all_reduce", run, reads=[source], results=promised, after=after)
        return result


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _numbered() -> int:
    """The number of a collective in its group, from 1 on: the same on every rank."""
    global _group, _issued  # noqa: PLW0603 - the process has one default group
    group = dist.group.WORLD
    assert group is not None
    if _group is None or _group() is not group:
        _group, _issued = weakref.ref(group), 0
        clock_sync.forget()
    _issued += 1
    return _issued


def _new_like(source: Leaf) -> Leaf:
    """A contiguous leaf over new memory, on the device of another."""
    memory = torch.empty(source.shape, dtype=source.dtype.torch, device=memory_of(source).device)
    return on_device(from_torch(memory), source.device)


def _reducer(memory: torch.Tensor, reduction: str, number: int) -> Callable[[], None]:
    """What reduces `memory` in place."""

    def run() -> None:
        size = dist.get_world_size()
        try:
            if size > 1 and _compares_clocks(number):
                clock_sync.exchange(dist.get_rank(), size)
            start_ns = time.monotonic_ns()
            work = dist.all_reduce(memory, _operation(reduction), async_op=True)
            work.wait()
        except (RuntimeError, ValueError) as error:
            text = str(error).strip().partition("\n")[0]
            shape = tuple(memory.shape)
            raise LibraryError(
                f"all_reduce of {shape} {memory.dtype} by {dist.get_backend()}: {text}",
                hints=["every rank calls the same collectives, in the same order, with the same shape and dtype"],
            ) from error
        if memory.is_cpu:
            _note(memory.nbytes, start_ns, number, None)
        else:
            instrumentation.note_unmeasured(str(memory.device), 1)
        if reduction == "avg":
            memory.div_(size)

    return run


def _compares_clocks(number: int) -> bool:
    while number % _CLOCKS_EVERY == 0:
        number //= _CLOCKS_EVERY
    config = str(dist.get_backend_config())
    return number == 1 and ("cpu:gloo" in config or "cpu:mpi" in config)


def _operation(reduction: str) -> dist.ReduceOp.RedOpType:
    """torch's name. Averages are sums until they are divided, which not all backends do themselves."""
    return {
        "sum": dist.ReduceOp.SUM,
        "avg": dist.ReduceOp.SUM,
        "min": dist.ReduceOp.MIN,
        "max": dist.ReduceOp.MAX,
        "product": dist.ReduceOp.PRODUCT,
    }[reduction]


def _identity(source: Leaf) -> None:
    """Notes the collective of a process that is alone, which sends nothing."""
    count = source.dtype.itemsize
    for extent in source.shape:
        count *= extent
    _note(count, time.monotonic_ns(), None, "identity")


def _note(nbytes: int, start_ns: int, number: int | None, algorithm: str | None) -> None:
    instrumentation.note(
        "collective",
        "all_reduce",
        start_ns,
        operator="all_reduce",
        bytes=float(nbytes),
        correlation=number,
        collective_type="all_reduce",
        collective_bytes=float(nbytes),
        collective_algorithm=algorithm,
    )
