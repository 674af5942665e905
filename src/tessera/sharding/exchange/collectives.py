"""Collectives of all ranks of the job, one after the other in the order of the program (`order.py`).

CPU memory goes through the job's communicator; memory of other devices through torch.distributed's default group.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from tessera.errors import LibraryError
from tessera.lazy.devices import is_cpu_memory
from tessera.lazy.leaves.export import memory_of
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.leaves.transfer import on_device
from tessera.lazy.leaves.writes import Watch
from tessera.lazy.promise import KEPT, Promise
from tessera.profiling.recording import clock_sync, instrumentation
from tessera.runtime.streams.operations import Operation
from tessera.runtime.streams.stream import core_of
from tessera.sharding.exchange.communicator import REDUCTIONS, Reduction
from tessera.sharding.exchange.order import collective_order
from tessera.sharding.job.joining import is_rank, join

__all__ = ["REDUCTIONS", "all_reduce", "all_reduce_on"]

_CLOCKS_EVERY: Final = 8
"""Clocks are compared at the collectives whose number is a power of this."""

_group: weakref.ref[dist.ProcessGroup] | None = None
_issued = 0


def all_reduce(source: Leaf, reduction: Reduction) -> Leaf:
    """The reduction over all ranks of a leaf whose value is there; the leaf itself where there is no group.

    Raises LibraryError (E_LIBRARY) for what a backend refuses, and the errors of jobs (E_RANK_LOST and its like).
    """
    with collective_order.now():
        if not is_rank():
            _identity(source)
            return source
        reduce = _reducer(source, reduction)
        return on_device(from_torch(reduce(memory_of(source))), source.device)


def all_reduce_on(source: Leaf, reduction: Reduction, stream: object) -> Leaf:
    """As `all_reduce`, enqueued on a stream: gives a leaf whose value is on its way. What fails is raised where the
    value is read.
    """
    core = core_of(stream)
    if not is_rank():
        collective_order.enqueue(
            lambda after: core.enqueue("all_reduce", lambda: _identity(source), reads=[source], after=after)
        )
        return source
    with core.queue.entered():
        result = _new_like(source)

    def enqueued(after: Sequence[Operation]) -> Operation:
        memory = memory_of(result)
        reduce = _reducer(source, reduction)
        watch = Watch((source,) if is_cpu_memory(source.device) else ())

        def run() -> None:
            operand = memory_of(source).clone()
            watch.refuse_mutated()
            memory.copy_(reduce(operand))

        def promised(operation: Operation) -> list[Leaf]:
            promise = Promise(result.owner, operation)
            result.owner, result.version, result.origin = promise, KEPT, 0
            operation.promises = [promise]
            return [result]

        return core.enqueue("all_reduce", run, reads=[source], results=promised, after=after)

    collective_order.enqueue(enqueued)
    return result


def _numbered() -> int:
    """The number of a collective in the job, from 1 on: the same on every rank."""
    global _group, _issued  # noqa: PLW0603 - the process has one default group
    group = dist.group.WORLD
    if _issued and group is not None and (_group is None or _group() is not group):
        _issued = 0
        clock_sync.forget()
    _group = None if group is None else weakref.ref(group)
    _issued += 1
    return _issued


def _new_like(source: Leaf) -> Leaf:
    """A contiguous leaf over new memory, on the device of another."""
    memory = torch.empty(source.shape, dtype=source.dtype.torch, device=memory_of(source).device)
    return on_device(from_torch(memory), source.device)


def _reducer(source: Leaf, reduction: Reduction) -> Callable[[torch.Tensor], torch.Tensor]:
    """What reduces such memory as a leaf's is. Issued now, in the order of the program; it gives fresh memory."""
    job = join()
    number = _numbered()
    if not is_cpu_memory(source.device):
        return lambda memory: _by_torch(memory, reduction, number)
    everyone = job.communicator(tuple(range(job.size)))

    def run(memory: torch.Tensor) -> torch.Tensor:
        if job.size > 1 and _compares_clocks(number):
            _compare_clocks(is_one_host=len(job.local) == job.size)
        handle = everyone.start_all_reduce(memory.contiguous(), reduction)
        result = handle.wait()
        if handle.facts is not None:
            facts = handle.facts
            _note(result.nbytes, facts.start_ns, number, end_ns=facts.end_ns, **facts.columns(result.nbytes))
        return result

    return run


def _by_torch(memory: torch.Tensor, reduction: Reduction, number: int) -> torch.Tensor:
    """Reduces memory of a device by torch.distributed's default group."""
    result = memory.clone(memory_format=torch.contiguous_format)
    try:
        if dist.get_world_size() > 1 and _compares_clocks(number):
            _compare_clocks(is_one_host=False)
        dist.all_reduce(result, _operation(reduction), async_op=True).wait()
    except (RuntimeError, ValueError) as error:
        text = str(error).strip().partition("\n")[0]
        raise LibraryError(
            f"all_reduce of {tuple(memory.shape)} {memory.dtype} by {dist.get_backend()}: {text}",
            hints=["every rank calls the same collectives, in the same order, with the same shape and dtype"],
        ) from error
    instrumentation.note_unmeasured(str(memory.device), 1)
    return result.div_(dist.get_world_size()) if reduction == "avg" else result


def _compares_clocks(number: int) -> bool:
    while number % _CLOCKS_EVERY == 0:
        number //= _CLOCKS_EVERY
    return number == 1


def _compare_clocks(*, is_one_host: bool) -> None:
    """Ranks of one host have one clock; others send each other the time, where their backend sends CPU memory."""
    config = str(dist.get_backend_config())
    if is_one_host:
        clock_sync.same()
    elif "cpu:gloo" in config or "cpu:mpi" in config:
        clock_sync.exchange(dist.get_rank(), dist.get_world_size())


def _operation(reduction: Reduction) -> dist.ReduceOp.RedOpType:
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
    _note(count, time.monotonic_ns(), None, collective_algorithm="identity", collective_group_size=1)


def _note(nbytes: int, start_ns: int, number: int | None, end_ns: int | None = None, **columns: Any) -> None:
    instrumentation.note(
        "collective",
        "all_reduce",
        start_ns,
        end_ns,
        operator="all_reduce",
        bytes=float(nbytes),
        correlation=number,
        collective_type="all_reduce",
        collective_bytes=float(nbytes),
        **columns,
    )
