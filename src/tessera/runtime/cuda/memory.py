"""torch's side of a CUDA device: its caching allocator and its streams, so that plans and torch share both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tessera.errors import MemoryLimitError
from tessera.lazy.leaves.export import counting_writes
from tessera.runtime.cuda.results import FAULTS, failure


@dataclass(frozen=True)
class DeviceBytes:
    """Memory of a device: see `runtime.device.DeviceMemory`."""

    address: int
    nbytes: int
    owner: Any


class DeviceAllocator(Protocol):
    """Memory and streams of one device."""

    def allocate(self, nbytes: int, stream: int | None = None) -> DeviceBytes:
        """Memory for work on `stream` (None: the current one). Once freed it is given out again in the order of that
        stream, so that work that is already enqueued there may still use it. Raises MemoryLimitError.
        """

    def keep_for(self, memory: DeviceBytes, stream: int) -> None:
        """Has freed memory wait until what `stream` holds now is done."""

    def stream(self) -> int:
        """The handle of the current stream."""

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured."""

    def create_stream(self) -> Any:
        """A stream of the device that runs beside all others: a `torch.cuda.Stream`."""


class TorchAllocator:
    """What torch gives of CUDA device number `index`. Raises what torch raises where there is no such device."""

    def __init__(self, index: int) -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._index = index
        self._device = torch.device("cuda", index)
        # As torch's own compiler does: `torch.cuda.current_stream` makes an object, for ten times the time.
        self._raw_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream

    def allocate(self, nbytes: int, stream: int | None = None) -> DeviceBytes:
        """See `DeviceAllocator`."""
        try:
            # Tensors of inference have no version, by which writes of those who get the results are seen.
            with self._streaming(stream), counting_writes():
                owner = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self._device)
            raise out_of_memory(nbytes, free, total, f"cuda:{self._index}") from error
        except RuntimeError as error:
            code = getattr(error, "error_code", None)  # of torch.AcceleratorError: the CUDA result
            if code not in FAULTS:
                raise
            raise failure(code, f"allocating {nbytes:,} bytes") from error
        return DeviceBytes(owner.data_ptr(), nbytes, owner)

    def keep_for(self, memory: DeviceBytes, stream: int) -> None:
        """See `DeviceAllocator`."""
        memory.owner.record_stream(self._external(stream))

    def stream(self) -> int:
        """See `DeviceAllocator`."""
        return self._raw_stream(self._index)

    def is_capturing(self) -> bool:
        """See `DeviceAllocator`."""
        return bool(torch.cuda.is_current_stream_capturing())

    def create_stream(self) -> torch.cuda.Stream:
        """See `DeviceAllocator`."""
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @contextmanager
    def _streaming(self, stream: int | None) -> Iterator[None]:
        if stream is None or stream == self.stream():
            yield
            return
        with torch.cuda.stream(self._external(stream)):
            yield

    def _external(self, stream: int) -> torch.cuda.Stream:
        if not stream:  # of 0 an ExternalStream would be another stream of torch's pool
            return torch.cuda.default_stream(self._device)
        return torch.cuda.ExternalStream(stream, self._device)  # type: ignore[no-untyped-call]


def out_of_memory(nbytes: int, free: int, total: int, device: str) -> MemoryLimitError:
    """The error for memory that a device does not have."""
    return MemoryLimitError(
        f"{nbytes:,} bytes requested on {device}, {free:,} of its {total:,} bytes are free",
        hints=["free tensors, or empty torch's cache: torch.cuda.empty_cache()", "use smaller batches"],
    )
