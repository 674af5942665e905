"""CUPTI's activity records through `cupti-python`: when kernels and copies ran on NVIDIA GPUs.

Source: CUPTI documentation, "CUPTI Activity API"; cupti-python 13.0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from tessera.errors import LibraryError
from tessera.profiling.counters import gpus
from tessera.profiling.counters.gpu_sensors import LibraryRefusal, load
from tessera.profiling.recording.device_kernels import SourceReport, TimedCopy, TimedKernel
from tessera.system.distribution import installing

_BUFFER_BYTES: Final = 8 * 2**20
_FORCED: Final = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
_LAUNCHES: Final = ("cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch")
_DIRECTIONS: Final = {"HTOD": "h2d", "DTOH": "d2h", "DTOD": "d2d", "PTOP": "d2d"}


class CuptiActivity:
    """Kernels, copies, and which run launched them. Buffers are read as CUPTI completes them, on its own thread."""

    def __init__(self, module: str = "cupti.cupti") -> None:
        """Raises LibraryError where cupti-python is not there or does not load."""
        try:
            self._cupti = load(module, installing("nvidia"))
        except LibraryRefusal as refusal:
            if not gpus.present("NVIDIA"):
                raise LibraryError("no NVIDIA GPU is here", hints=["none needed for kernels on CPUs"]) from refusal
            reason, remedy = refusal.capability
            raise LibraryError(reason, hints=[remedy]) from refusal
        self._lock = threading.Lock()
        self._kernels: list[TimedKernel] = []
        self._copies: list[TimedCopy] = []
        self._runs: dict[int, int] = {}
        self._offset_ns = 0
        self._registered = False
        self._enabled: list[Any] = []
        self._enabled_calls: list[Any] = []

    def begin(self) -> None:
        """Starts recording kernels, copies and launches. Raises LibraryError, as where another profiler holds CUPTI."""
        cupti = self._cupti
        try:
            if not self._registered:
                cupti.activity_register_callbacks(self._give_buffer, self._read)
                self._registered = True
            for kind in self._kinds():
                cupti.activity_enable(kind)
                self._enabled.append(kind)
            for call in self._launch_calls():
                cupti.activity_enable_driver_api(call, 1)
                self._enabled_calls.append(call)
            self._offset_ns = self._clock_offset()
        except cupti.cuptiError as error:
            self.end()
            hints = ["end other profilers (torch.profiler, Nsight), which hold CUPTI"]
            raise LibraryError(f"CUPTI does not record: {error}", hints=hints) from error
        except RuntimeError as error:  # the binding's own, before it has called CUPTI
            raise LibraryError(f"CUPTI does not start: {error}", hints=["install the NVIDIA driver"]) from error

    def end(self) -> None:
        """Ends recording."""
        while self._enabled_calls:
            self._cupti.activity_enable_driver_api(self._enabled_calls.pop(), 0)
        while self._enabled:
            self._cupti.activity_disable(self._enabled.pop())

    def push(self, number: int) -> None:
        """What the calling thread launches from now on belongs to run `number`."""
        self._cupti.activity_push_external_correlation_id(self._cupti.ExternalCorrelationKind.CUSTOM0, number)

    def pop(self) -> None:
        """What it launches from now on belongs to none."""
        self._cupti.activity_pop_external_correlation_id(self._cupti.ExternalCorrelationKind.CUSTOM0)

    def told(self) -> SourceReport:
        """What has run since the last call. Waits for the devices, then for CUPTI."""
        import torch

        if torch.cuda.is_available():
            for device in range(torch.cuda.device_count()):
                torch.cuda.synchronize(device)
        self._cupti.activity_flush_all(_FORCED)
        with self._lock:
            told = SourceReport(self._kernels, self._copies, self._runs)
            self._kernels, self._copies, self._runs = [], [], {}
        return told

    def _kinds(self) -> Sequence[Any]:
        kinds = self._cupti.ActivityKind
        return kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.EXTERNAL_CORRELATION

    def _launch_calls(self) -> Sequence[Any]:
        """Correlation records come with records of calls: of those that launch, no others."""
        calls = self._cupti.driver_api_trace_cbid
        spelled = (name + suffix for name in _LAUNCHES for suffix in ("", "_ptsz"))
        return [getattr(calls, name) for name in spelled if hasattr(calls, name)]

    def _clock_offset(self) -> int:
        """What to add to CUPTI's instants for those of `time.monotonic_ns`: of five tries the one that took least."""
        tries = []
        for _ in range(5):
            before = time.monotonic_ns()
            told = int(self._cupti.get_timestamp())
            after = time.monotonic_ns()
            tries.append((after - before, (before + after) // 2 - told))
        return min(tries)[1]

    @staticmethod
    def _give_buffer() -> tuple[int, int]:
        return _BUFFER_BYTES, 0

    def _read(self, activities: Sequence[Any]) -> None:
        """Takes what a buffer holds, which is gone after the call."""
        kinds, shift = self._cupti.ActivityKind, self._offset_ns
        with self._lock:
            for each in activities:
                if each.kind == kinds.CONCURRENT_KERNEL:
                    times = each.start + shift, each.end + shift
                    self._kernels.append(TimedKernel(each.correlation_id, *times, each.device_id, each.name))
                elif each.kind == kinds.EXTERNAL_CORRELATION:
                    self._runs[each.correlation_id] = each.external_id
                elif each.kind == kinds.MEMCPY:
                    direction = _DIRECTIONS.get(self._cupti.ActivityMemcpyKind(each.copy_kind).name)
                    if direction is not None:
                        times = each.start + shift, each.end + shift
                        self._copies.append(TimedCopy(*times, each.device_id, direction, each.bytes))
