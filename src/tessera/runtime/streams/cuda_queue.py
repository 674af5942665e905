"""The queue of a stream of a CUDA device: a `torch.cuda.Stream`, and an event behind each operation.

Operations are launched at the call, in the order of the program, and waits are the device's: nothing holds the program
up but an operation of the CPU that a launch has to come after. Memory is torch's; every tensor that an operation
touches is recorded on the stream, so that torch's allocator does not give it to others too early.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from tessera.lazy.promise import Promise
from tessera.runtime.streams.operations import Failure, Operation, StreamState


class CudaRuntime(Protocol):
    """What a queue needs of `torch.cuda`, which is one; a test's fake is another."""

    def Stream(self, device: Any) -> Any: ...  # noqa: N802 - torch's names
    def Event(self) -> Any: ...  # noqa: N802
    def current_stream(self, device: Any) -> Any: ...
    def stream(self, stream: Any) -> AbstractContextManager[Any]: ...


class CudaOperation(Operation):
    """An operation that was launched; its event tells that it is done."""

    __slots__ = ("_finishing", "event", "queue")

    def __init__(
        self,
        stream: StreamState,
        name: str,
        place: str | None,
        run: Callable[[], None] | None,
        queue: CudaQueue,
    ) -> None:
        super().__init__(stream, name, place, run)
        self.queue = queue
        self.event: Any = None
        self._finishing = threading.Lock()

    def poll(self) -> bool:
        """Whether it is done; asks the device."""
        if not self.done and self.event is not None and self.event.query():
            self._finish_once(None)
        return self.done

    def wait(self) -> None:
        """Blocks this thread until the device has done it."""
        if not self.done and self.event is not None:
            self.event.synchronize()
            self._finish_once(None)

    def precede_program(self) -> None:
        """Puts what torch's current stream is given from now on behind it. The program itself goes on: it sees the
        device's memory through that stream.
        """
        if not self.poll():
            self.queue.runtime.current_stream(self.queue.device).wait_event(self.event)

    def launch(self) -> None:
        """Enqueues it on the device, behind what it comes after. A failure is kept for those who ask; an interrupt is
        the program's own, on whose thread this runs.
        """
        queue = self.queue
        for earlier in self.after:
            if isinstance(earlier, CudaOperation) and earlier.event is not None:
                queue.stream.wait_event(earlier.event)
            else:
                earlier.wait()
        failure = self.inherited_failure()
        if failure is None and self.run is not None:
            try:
                with queue.entered():
                    self.run()
            except Exception as error:  # noqa: BLE001 - whatever failed belongs to those who read the value
                failure = Failure.of(error, self)
        if failure is not None:
            self._finish_once(failure)
            return
        self.event = queue.runtime.Event()
        self.event.record(queue.stream)
        # Tensors of the device are recorded on the stream: nobody else has to keep them. The CPU's side of a copy is
        # ours to keep until it is made: torch's cache of pinned memory knows only copies of its own tensors.
        self.run, self.touches = None, [owner for owner in self.touches if _on_device(owner) is None]

    def _finish_once(self, failure: Failure | None) -> None:
        with self._finishing:
            if not self.done:
                self.finish(failure)


def _on_device(owner: Any) -> torch.Tensor | None:
    """What owns memory, or is promised there, where that is a tensor of a device."""
    tensor = owner.memory if isinstance(owner, Promise) else owner
    return tensor if isinstance(tensor, torch.Tensor) and tensor.is_cuda else None


class CudaQueue:
    """The queue of one stream of the device `device` ("cuda:0")."""

    def __init__(self, device: str, runtime: CudaRuntime | None = None) -> None:
        self.device = torch.device(device)
        self.runtime: Any = torch.cuda if runtime is None else runtime
        self.stream = self.runtime.Stream(device=self.device)

    def operation(
        self, stream: StreamState, name: str, place: str | None, run: Callable[[], None] | None
    ) -> CudaOperation:
        """A new operation."""
        return CudaOperation(stream, name, place, run, self)

    def submit(self, operation: Operation) -> None:
        """Launches an operation. One of an ordinary stream comes after what torch's current stream holds by then."""
        assert isinstance(operation, CudaOperation)
        current = self.runtime.current_stream(self.device)
        if not operation.stream.is_manual and current != self.stream:
            self.stream.wait_stream(current)
        owners = operation.touches
        operation.launch()
        for owner in owners:
            tensor = _on_device(owner)
            if tensor is not None:
                # torch's allocator gives the memory to nobody before both streams have done what they hold by then:
                # this one, and the program's, which reads results.
                tensor.record_stream(self.stream)
                tensor.record_stream(current)

    def entered(self) -> AbstractContextManager[Any]:
        """Makes this torch's current stream."""
        entered: AbstractContextManager[Any] = self.runtime.stream(self.stream)
        return entered

    def close(self) -> None:
        """Nothing is to be done: torch keeps its streams in a pool."""
