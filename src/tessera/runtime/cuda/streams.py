"""Streams, events and copies of a CUDA device, by handles."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

from tessera.errors import TesseraError
from tessera.runtime.cuda import structures as cuda
from tessera.runtime.cuda.context import Context
from tessera.runtime.cuda.memory import DeviceAllocator
from tessera.runtime.cuda.results import NOT_READY, SUCCESS


class CudaEvent:
    """A point in a stream. `handle` is the `CUevent`, which lives as long as the object; `timing` says whether the
    time at which it passes is kept.
    """

    def __init__(self, context: Context, timing: bool) -> None:
        self.timing = timing
        with context.entered():
            flags = cuda.EVENT_DEFAULT if timing else cuda.EVENT_DISABLE_TIMING
            self.handle = context.library.handle("cuEventCreate", flags)
        weakref.finalize(self, _destroy, context, self.handle).atexit = False


def _destroy(context: Context, handle: int) -> None:
    with suppress(TesseraError), context.entered():
        context.library.call("cuEventDestroy_v2", handle)


class Streams:
    """Streams, events and copies of one device. Streams are torch's, so that its allocator knows them; `stream`
    arguments are handles (`torch.cuda.Stream.cuda_stream`), 0 the device's default stream.
    """

    def __init__(self, context: Context, allocator: DeviceAllocator) -> None:
        self._context = context
        self._library = context.library
        self._allocator = allocator

    def create_stream(self) -> Any:
        """A `torch.cuda.Stream` that runs beside all others."""
        return self._allocator.create_stream()

    def create_event(self, timing: bool = False) -> CudaEvent:
        """An event that was never recorded: waiting for it takes no time."""
        return CudaEvent(self._context, timing)

    def record_event(self, event: CudaEvent, stream: int) -> None:
        """Puts the event behind all work that the stream holds now."""
        self._call("cuEventRecord", event.handle, stream)

    def wait_event(self, event: CudaEvent, stream: int) -> None:
        """Has later work of the stream wait for the event as it was last recorded."""
        self._call("cuStreamWaitEvent", stream, event.handle, 0)

    def synchronize_event(self, event: CudaEvent) -> None:
        """Waits until the event has passed. Raises what the device reports of the work before it."""
        self._call("cuEventSynchronize", event.handle)

    def has_passed(self, event: CudaEvent) -> bool:
        """Whether all work before the event is done. Raises what the device reports of it."""
        code = self._context.run(self._library.function("cuEventQuery"), event.handle)
        if code not in (SUCCESS, NOT_READY):
            self._library.fail(code, "cuEventQuery")
        return code == SUCCESS

    def elapsed_s(self, start: CudaEvent, end: CudaEvent) -> float:
        """Seconds from one event with timing to another, both passed."""
        with self._context.entered():
            return self._library.elapsed_s(start.handle, end.handle)

    def memcpy_async(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueues a copy between addresses of any memory that CUDA knows: devices', and pinned memory of the host.

        Of pageable memory of the host the call returns only when it was read or written.
        """
        if nbytes:
            self._call("cuMemcpyAsync", target, source, nbytes, stream)

    def memset_async(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """Enqueues filling memory with one byte's value."""
        if nbytes:
            self._call("cuMemsetD8Async", target, value, nbytes, stream)

    def is_pinned(self, address: int) -> bool:
        """Whether an address lies in host memory that CUDA has pinned, which alone is copied asynchronously."""
        # CUDA refuses addresses that it does not know, pageable memory, as invalid values.
        with self._context.entered():
            return self._library.memory_type(address) == cuda.MEMORY_HOST

    def _call(self, symbol: str, *arguments: Any) -> None:
        code = self._context.run(self._library.function(symbol), *arguments)
        if code != SUCCESS:
            self._library.fail(code, symbol)
