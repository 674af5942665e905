"""Operations: the pieces of work that a stream holds, what they touch, and what became of them."""

from __future__ import annotations

import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy
import torch

from tessera.errors import StreamError, TesseraError
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.promise import Promise
from tessera.lazy.structures.structure import Structure
from tessera.profiling.recording import instrumentation
from tessera.profiling.recording.attribution import Moment

Clock: TypeAlias = dict[int, int]
"""A vector clock: by stream number, the last operation of that stream that certainly came before."""


class Failure(NamedTuple):
    """Why an operation has no result: its own error, or that of the operation it depends on."""

    cause: BaseException
    name: str
    place: str | None

    @classmethod
    def of(cls, cause: BaseException, operation: Operation) -> Failure:
        """The failure of an operation by an exception that was just caught."""
        # The lines stay for those who look; the variables would keep the operands alive as long as the failure is.
        traceback.clear_frames(cause.__traceback__)
        return cls(cause, operation.name, operation.place)

    def error(self) -> TesseraError:
        """A new error to raise, at the place of the call that enqueued the work."""
        if isinstance(self.cause, TesseraError):
            error = type(self.cause)(self.cause.message, hints=self.cause.hints, where=self.place)
        else:
            error = StreamError(f"{self.name}: {type(self.cause).__name__}: {self.cause}", where=self.place)
        error.__cause__ = self.cause
        return error


class StreamState(Protocol):
    """What an operation and the tracker of hazards know of a stream."""

    number: int
    name: str
    clock: Clock
    is_manual: bool
    failures: list[Operation]


class Observer(Protocol):
    """Who keeps account of operations."""

    def finished(self, operation: Operation) -> None:
        """The operation is done; called once, on whatever thread learns of it."""

    def awaited(self, operation: Operation) -> None:
        """The program has waited for the operation, which is done."""


class Extent:
    """The bytes of a leaf: runs of `run` bytes, one every `pitch`, from `low` to `high`.

    The runs may hold bytes that are no elements; they hold all that are.
    """

    __slots__ = ("high", "low", "pitch", "run")

    def __init__(self, leaf: Leaf) -> None:
        span, self.run, self.pitch = _pattern(leaf.structure)
        self.low = leaf.address
        self.high = leaf.address + span

    @property
    def is_dense(self) -> bool:
        """Whether it is its whole span."""
        return self.run == self.high - self.low

    def covers(self, other: Extent) -> bool:
        """Whether it certainly has every byte of another one that lies in its span, or is its like."""
        return self.is_dense or (self.low, self.high, self.run, self.pitch) == (
            other.low,
            other.high,
            other.run,
            other.pitch,
        )

    def meets(self, other: Extent) -> bool:
        """Whether both may have one byte in common. Exact for blocks of columns of one matrix, else a safe guess."""
        if self.low >= other.high or other.low >= self.high:
            return False
        if self.is_dense and other.is_dense:
            return True
        sparse, second = (other, self) if self.is_dense else (self, other)
        if not second.is_dense and second.pitch != sparse.pitch:
            return True
        offset = (second.low - sparse.low) % sparse.pitch
        return offset < sparse.run or offset + second.run > sparse.pitch


class Access(Extent):
    """The bytes of one leaf that an operation touches. `root` tells when the memory is gone: a weak reference to what
    owns it, None where that cannot be known.
    """

    __slots__ = ("operation", "root", "what")

    def __init__(self, operation: Operation, leaf: Leaf, *, with_root: bool = True) -> None:
        super().__init__(leaf)
        self.operation = operation
        self.root = _root_of(leaf.owner) if with_root else None
        self.what = leaf.structure

    @property
    def memory_is_gone(self) -> bool:
        """Whether the memory may have been given up, and belong to something else now."""
        return self.root is None or self.root() is None


def may_share(first: Leaf, second: Leaf) -> bool:
    """Whether two leaves may have a byte in common; see `Extent.meets`."""
    return Extent(first).meets(Extent(second))


@lru_cache(maxsize=4096)
def _pattern(structure: Structure) -> tuple[int, int, int]:
    """(span, run, pitch) of a buffer's bytes, as `Extent` has them; run and pitch are the span where the elements have
    no such pattern.
    """
    if structure.kind == "scalar" or 0 in structure.shape or structure.layout is not None:
        return 0, 0, 0  # shards, which a tensor of a mesh has, are leaves of their own
    itemsize = structure.dtype.itemsize
    steps = [(stride * itemsize, extent) for extent, stride in zip(structure.shape, structure.strides, strict=True)]
    span = itemsize + sum([step * (extent - 1) for step, extent in steps])
    run, pitch = itemsize, 0
    for step, extent in sorted([each for each in steps if each[1] > 1 and each[0]]):
        if pitch:
            if step % pitch:
                return span, span, span
        elif step <= run:
            run += step * (extent - 1)
        else:
            pitch = step
    return (span, run, pitch) if pitch else (span, span, span)


def _root_of(owner: Any) -> weakref.ref[Any] | None:
    if isinstance(owner, torch.Tensor):
        return weakref.ref(owner if owner._base is None else owner._base)
    if isinstance(owner, numpy.ndarray):
        while isinstance(owner.base, numpy.ndarray):
            owner = owner.base
        return weakref.ref(owner)
    return weakref.ref(owner) if isinstance(owner, Promise) else None


class Operation:
    """One piece of work of a stream. `run` does it; `after` must be done before, and of these the `needs` with success.

    `index` counts the stream's operations from 1; `clock` is what came before it in other streams. Subclasses know how
    their device tells that the work is done.
    """

    __slots__ = (
        "__weakref__",
        "after",
        "clock",
        "done",
        "failure",
        "index",
        "issued",
        "name",
        "needs",
        "observer",
        "place",
        "promises",
        "run",
        "stream",
        "touches",
    )

    def __init__(self, stream: StreamState, name: str, place: str | None, run: Callable[[], None] | None) -> None:
        self.stream, self.name, self.place, self.run = stream, name, place, run
        self.index = 0
        self.issued: Moment | None = None
        """When it was enqueued, where a profile is on."""
        self.clock: Clock = {}
        self.after: list[Operation] = []
        self.needs: list[Operation] = []
        self.promises: Sequence[Promise] = ()
        self.touches: Sequence[Any] = ()
        """The owners of all memory that it reads or writes, until it is done."""
        self.failure: Failure | None = None
        self.observer: Observer | None = None
        self.done = False

    def poll(self) -> bool:
        """Whether it is done, successful or not."""
        return self.done

    def wait(self) -> None:
        """Blocks this thread until it is done."""
        raise NotImplementedError

    def precede_program(self) -> None:
        """Puts what the program does from now on with the memory of the operation's device behind it."""
        self.wait()

    def result(self) -> None:
        """As `precede_program`; raises what it failed with."""
        self.precede_program()
        if self.observer is not None:
            self.observer.awaited(self)
        if self.failure is not None:
            raise self.failure.error()

    def inherited_failure(self) -> Failure | None:
        """The failure of something that it needs, which is done."""
        return next((each.failure for each in self.needs if each.failure is not None), None)

    def finish(self, failure: Failure | None) -> None:
        """Notes that it is done, and lets go of what it held."""
        self.failure = failure
        if failure is None:
            for promise in self.promises:
                promise.keep()
        else:
            self.stream.failures.append(self)
        # First of all: memory that is let go may be the program's next tensor before the next line is reached, and
        # whoever touches that must not find this operation at work there.
        self.done = True
        self.run = None
        self.after, self.needs, self.promises, self.touches = [], [], (), ()
        if self.observer is not None:
            self.observer.finished(self)

    def __repr__(self) -> str:
        state = "failed" if self.failure else "done" if self.done else "queued"
        return f"<{self.name} number {self.index} of stream {self.stream.name!r}, {state}>"


class HostOperation(Operation):
    """An operation that a worker thread of this process runs."""

    __slots__ = ("_running",)

    def __init__(self, stream: StreamState, name: str, place: str | None, run: Callable[[], None] | None) -> None:
        super().__init__(stream, name, place, run)
        self._running = Lock()
        self._running.acquire()

    def wait(self) -> None:
        """Blocks this thread until it is done."""
        with self._running:  # to the end of `finish`: what it held is let go by then
            pass

    def execute(self) -> None:
        """Runs it on this thread, after what it waits for. Never raises: a failure is kept for those who ask."""
        for earlier in self.after:
            earlier.wait()
        failure = self.inherited_failure()
        if failure is None and self.run is not None:
            start_ns = time.monotonic_ns()
            try:
                self.run()
                if self.issued is not None:
                    instrumentation.worked(start_ns, self.issued)
            except BaseException as error:  # noqa: BLE001 - whatever it is belongs to those who read the value
                failure = Failure.of(error, self)
        self.finish(failure)

    def finish(self, failure: Failure | None) -> None:
        """Notes that it is done, and wakes those who wait."""
        super().finish(failure)
        self._running.release()
